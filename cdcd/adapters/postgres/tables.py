"""Published tables for a snapshot, as pgoutput would describe them, and the pages of their rows.

All data is read by catalog queries, so on a connection with an imported snapshot it is as of that snapshot. Two
things are current instead: the contents of the publication (`pg_get_publication_tables` has no older ones), and
sizes, which may only have grown.

A thread with its own connection reads the locks.

A session that waits for the lock of a table, such as a Spark task's, gets no answer until it has the lock.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from sys import intern
from types import TracebackType
from typing import Any, Final, Self

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection, Dsn, connect
from cdcd.adapters.postgres.quoting import TABLE_TEXT
from cdcd.adapters.postgres.snapshot_queries import COLUMNS
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.messages import COLUMN_IS_KEY, Column, Relation
from cdcd.core.snapshot.reading import SourcePart, SourceTable
from cdcd.core.snapshot.table_task import Part
from cdcd.core.table_names import table_text

GENERATED_SINCE: Final = 180000
"""First server version that can publish generated columns."""


_PUBLISHED_OF: Final = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relreplident::text,
       to_jsonb(t) -> 'attnames', coalesce(to_jsonb(t) ->> 'rowfilter', ''),
       format('%%I.%%I', n.nspname, c.relname), c.relkind = 'p'
  FROM pg_publication_tables t
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %s {only}
 ORDER BY c.oid
"""

_PUBLISHED: Final = _PUBLISHED_OF.format(only="")

_PUBLISHED_ONLY: Final = _PUBLISHED_OF.format(only="AND c.oid = ANY(%s::oid[])")
"""Query for some of many tables: the column lists of 2,000 tables take PostgreSQL 50 ms, the list of one table 2 ms."""

LOCKS_SINCE: Final = 160000
"""First server version in which pg_publication_tables locks all published tables without a column list."""

# The tables that pg_get_publication_tables (pg_publication.c) lists, without its locks: since PostgreSQL 16 it opens
# every table without a column list, and so waits for any ALTER TABLE on them.
# FOR ALL TABLES EXCEPT of PostgreSQL 19 lists the tables that it leaves out as entries with prexcept; their partitions
# are left out too (by its documentation, not tested on a server).
_LISTED: Final = """
WITH RECURSIVE published AS (
    SELECT oid, puballtables, pubviaroot FROM pg_publication WHERE pubname = %s
), named AS (
    SELECT r.prrelid AS oid FROM pg_publication_rel r JOIN published p ON p.oid = r.prpubid
     WHERE to_jsonb(r) ->> 'prexcept' IS DISTINCT FROM 'true'{schemas}
), excepted AS (
    SELECT r.prrelid AS oid FROM pg_publication_rel r JOIN published p ON p.oid = r.prpubid
     WHERE to_jsonb(r) ->> 'prexcept' = 'true'
     UNION
    SELECT i.inhrelid FROM excepted JOIN pg_inherits i ON i.inhparent = excepted.oid
), tree AS (
    SELECT oid FROM named
     UNION
    SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
)
SELECT c.oid::int8, n.nspname::text, c.relname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN published
 WHERE (NOT puballtables OR c.oid NOT IN (SELECT oid FROM excepted)) AND CASE
       WHEN puballtables AND pubviaroot
       THEN c.relkind IN ('r', 'p') AND NOT c.relispartition AND pg_relation_is_publishable(c.oid)
       WHEN puballtables THEN c.relkind = 'r' AND pg_relation_is_publishable(c.oid)
       WHEN pubviaroot
       THEN c.oid IN (SELECT oid FROM named) AND NOT EXISTS (
           SELECT FROM pg_partition_ancestors(c.oid) a JOIN named ON named.oid = a.relid WHERE a.relid <> c.oid)
       ELSE c.relkind <> 'p' AND c.oid IN (SELECT oid FROM tree) END
 ORDER BY c.oid
"""

_MEMBERS: Final = b"""
SELECT r.prrelid::int8, r.oid::int8
  FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
 WHERE p.pubname = %s AND to_jsonb(r) ->> 'prexcept' IS DISTINCT FROM 'true'
"""

_SCHEMAS: Final = """
     UNION
    SELECT c.oid
      FROM pg_publication_namespace s JOIN published p ON p.oid = s.pnpubid
      JOIN pg_class c ON c.relnamespace = s.pnnspid
     WHERE c.relkind IN ('r', 'p') AND pg_relation_is_publishable(c.oid)"""

_SCHEMAS_SINCE: Final = 150000
"""First server version that can publish all tables of a schema."""

# The result of `_PUBLISHED_ONLY` for PostgreSQL 16 and up, where the view waits for locks on published tables. Column
# lists and row filters count in publications that name their tables (pg_publication.c, pg_get_publication_tables).
# Without a list, stored generated columns are published if the publication says so (18). Only pg_get_expr locks: the
# table whose filter it prints.
UNLOCKED_COLUMNS: Final = """
       CASE WHEN r.prattrs IS NOT NULL OR to_jsonb(p) ->> 'pubgencols' = 's' THEN (
           SELECT jsonb_agg(a.attname) FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND CASE WHEN r.prattrs IS NULL THEN a.attgenerated IN ('', 's')
                       ELSE a.attnum = ANY(r.prattrs::int2[]) END) END"""
"""Published columns of the table `c`, over `UNLOCKED_TABLES`; NULL: all columns."""

UNLOCKED_TABLES: Final = f"""
  FROM ({_LISTED.format(schemas=_SCHEMAS)}) AS listed(oid, schema, name)
  JOIN pg_publication p ON p.pubname = %s
  JOIN pg_class c ON c.oid = listed.oid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid AND NOT p.puballtables
       AND NOT EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
"""
"""The published tables, with their entries in the publication. Both parameters are the publication's name."""

_PUBLISHED_UNLOCKED: Final = f"""
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relreplident::text, {UNLOCKED_COLUMNS},
       coalesce(pg_get_expr(r.prqual, r.prrelid), ''), format('%%I.%%I', n.nspname, c.relname), c.relkind = 'p'
  {UNLOCKED_TABLES}
 WHERE c.oid = ANY(%s::oid[])
 ORDER BY c.oid
"""

# Relations that an unpublished name may stand for: a partitioned table with its leaves, a partition with its parents.
_RELATIVES: Final = f"""
SELECT c.relkind::text,
       ARRAY(SELECT t.relid::oid::int8 FROM pg_partition_tree(c.oid) t WHERE t.isleaf ORDER BY t.relid::oid),
       ARRAY(SELECT a.relid::oid::int8 FROM pg_partition_ancestors(c.oid) a)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {TABLE_TEXT} = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

_HOLDERS: Final = """
SELECT DISTINCT l.pid, a.usename::text, a.application_name
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = ANY(%s::oid[]) AND l.granted AND l.mode = 'AccessExclusiveLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY l.pid
"""

# A lock request that waits also blocks readers of the table, as a granted lock does.
_LOCKED: Final = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS wanted(oid)
     UNION ALL
    SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
)
SELECT DISTINCT tree.root::int8, l.pid, a.usename::text, a.application_name
  FROM tree JOIN pg_locks l ON l.locktype = 'relation' AND l.relation = tree.oid AND l.mode = 'AccessExclusiveLock'
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY 1, 2
"""

# The columns that are flagged as key: logicalrep_write_attrs (proto.c), RelationGetIdentityKeyBitmap (relcache.c).
_COLUMNS: Final = """
SELECT a.attrelid::int8, a.attnum::int, a.attname::text, a.atttypid::int8, a.atttypmod, a.attgenerated::text,
       c.relreplident = 'f' OR EXISTS (
           SELECT FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
            WHERE i.indrelid = c.oid AND k.attnum = a.attnum AND k.place <= i.indnkeyatts
              AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                                      WHEN 'i' THEN i.indisreplident ELSE false END)
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""

_FINGERPRINTS: Final = f"""
SELECT attrelid::int8, {COLUMNS}
  FROM pg_attribute WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped
 GROUP BY attrelid
"""

# Foreign partitions hold no rows of this server, and send no changes.
_PARTS: Final = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS wanted(oid)
     UNION ALL
    SELECT tree.root, i.inhrelid
      FROM tree JOIN pg_class c ON c.oid = tree.oid AND c.relkind = 'p' JOIN pg_inherits i ON i.inhparent = c.oid
)
SELECT tree.root::int8, c.oid::int8, c.relfilenode::int8,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8, coalesce(pg_table_size(c.oid), 0),
       format('%%I.%%I', n.nspname, c.relname)
  FROM tree JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r'
 ORDER BY tree.root, c.oid
"""

_WRITERS: Final = """
SELECT DISTINCT l.relation::int8, l.virtualtransaction || ' ' || coalesce(l.pid::text, 'prepared'),
       a.usename::text, a.application_name
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = ANY(%s::oid[]) AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""


def listed(server_version: int) -> str:
    """Return a query for oid, schema and name of a publication's tables; its parameter is the publication's name.

    The query locks no table.
    """
    return _LISTED.format(schemas=_SCHEMAS if server_version >= _SCHEMAS_SINCE else "")


async def published_tables(connection: Connection, publication: str) -> dict[int, str]:
    """Return the tables that the publication publishes as `schema.table`, by oid. The query locks no table.

    Raises:
        TransientError, SourceError.
    """
    query = listed(connection.info.server_version)
    with translated("listing what is published", {"publication": publication}):
        rows: Any = await (await connection.execute(query.encode(), (publication,))).fetchall()
    return {row[0]: table_text(row[1], row[2]) for row in rows}


async def members(connection: Connection, publication: str) -> dict[int, int]:
    """Return the publication's entries (pg_publication_rel) for tables that it names, by the oid of the table.

    A table that was removed and added again has another entry.

    Raises:
        TransientError, SourceError.
    """
    with translated("listing what is published", {"publication": publication}):
        rows: Any = await (await connection.execute(_MEMBERS, (publication,))).fetchall()
    return dict(rows)


@dataclass(frozen=True, slots=True)
class Relatives:
    """Kind of a relation, with its partitions and parents.

    Attributes:
        kind: as in pg_class: r, p (partitioned), v, m or f.
        leaves: oids of the partitions that hold the rows of a partitioned table.
        ancestors: oids of the partitioned tables above the relation, and its own oid.
    """

    kind: str
    leaves: list[int]
    ancestors: list[int]


async def relatives(connection: Connection, table: str) -> Relatives | None:
    """Return the kind, partitions and parents of `schema.table`; None if it does not exist.

    Raises TransientError and SourceError.
    """
    with translated("looking for a table", {}):
        rows: Any = await (await connection.execute(_RELATIVES, (table,))).fetchall()
    return Relatives(*rows[0]) if rows else None


async def source_tables(
    connection: Connection, publication: str, only: Collection[int] | None = None
) -> list[SourceTable]:
    """Return what a snapshot needs to read the published tables, or those with the oids in `only`.

    Raises TransientError and SourceError.
    """
    with translated("looking at the tables to be read", {"publication": publication}):
        if only is None:
            asked = await connection.execute(_PUBLISHED.encode(), (publication,))
        elif connection.info.server_version >= LOCKS_SINCE:
            asked = await connection.execute(
                _PUBLISHED_UNLOCKED.encode(), (publication, publication, list(only))
            )
        else:
            asked = await connection.execute(_PUBLISHED_ONLY.encode(), (publication, list(only)))
        tables: Any = await asked.fetchall()
        oids = [row[0] for row in tables]
        columns: Any = await (await connection.execute(_COLUMNS, (oids,))).fetchall()
        fingerprints: Any = await (await connection.execute(_FINGERPRINTS.encode(), (oids,))).fetchall()
        parts: Any = await (await connection.execute(_PARTS.encode(), (oids,))).fetchall()
    version = connection.info.server_version
    by_owner: dict[int, list[Any]] = {oid: [] for oid in oids}
    for row in columns:
        by_owner[row[0]].append(row)
    by_root: dict[int, list[SourcePart]] = {oid: [] for oid in oids}
    for root, part, filenode, pages, size, sql_name in parts:
        by_root[root].append(SourcePart(Part(part, filenode, pages, size), sql_name))
    columns_of = dict(fingerprints)
    published = {row[0]: _published(row, by_owner[row[0]], version) for row in tables}
    return [
        SourceTable(
            _relation(row, published[row[0]]),
            numbers=tuple([column[1] for column in published[row[0]]]),
            row_filter=row[5],
            parts=tuple(by_root[row[0]]),
            sql_name=row[6],
            partitioned=row[7],
            columns=columns_of.get(row[0], "[]"),
        )
        for row in tables
    ]


def _published(table: Any, columns: list[Any], version: int) -> list[Any]:
    """Return the columns that pgoutput sends: no generated columns, except those that a publication of 18 or later
    lists.
    """
    listed = table[4]
    return [
        column
        for column in columns
        if (listed is None or column[2] in listed)
        and (not column[5] or (version >= GENERATED_SINCE and listed is not None))
    ]


def _relation(table: Any, columns: list[Any]) -> Relation:
    """Return the relation as pgoutput describes it."""
    oid, schema, name, identity, *_ = table
    published = tuple(
        Column(COLUMN_IS_KEY if is_key else 0, intern(column), type_oid, modifier)
        for _, _, column, type_oid, modifier, _, is_key in columns
    )
    return Relation(
        xid=None, oid=oid, namespace=schema, name=name, replica_identity=identity, columns=published
    )


async def lock_holders(connection: Connection, oids: Collection[int]) -> list[str]:
    """Return the server processes or prepared transactions that prevent reading the tables with these oids."""
    with translated("looking who has locked a table", {}):
        rows: Any = await (await connection.execute(_HOLDERS, (list(oids),))).fetchall()
    return [holder(*row) for row in rows]


def holder(pid: int | None, role: str | None, application_name: str | None) -> str:
    """Return a description of a lock's holder. `pid` is None for a prepared transaction."""
    if pid is None:
        return "a prepared transaction"
    return f"server process {pid}{_known(role, application_name)}"


def _known(role: str | None, application_name: str | None) -> str:
    """Return role and application_name of a session in brackets; empty if both are unknown."""
    known = [f"role {role}"] if role else []
    known += [f"application_name {application_name!r}"] if application_name else []
    return f" ({', '.join(known)})" if known else ""


def locked_by(holders: Iterable[str]) -> str:
    """Return the holders of a table's locks as part of a sentence."""
    return f"locked by {' and '.join(holders)}"


async def locked_tables(connection: Connection, oids: Collection[int]) -> dict[int, str]:
    """Return the locked tables with these oids, each with a description of who holds or awaits the lock.

    A partitioned table is locked if one of its partitions is.
    """
    with translated("looking which tables are locked", {}):
        rows: Any = await (await connection.execute(_LOCKED, (list(oids),))).fetchall()
    holders: dict[int, list[str]] = {}
    for oid, *who in rows:
        holders.setdefault(oid, []).append(holder(*who))
    return {oid: locked_by(names) for oid, names in holders.items()}


async def writers(connection: Connection, oids: Collection[int]) -> dict[int, dict[str, str]]:
    """Return the open transactions that write to each of the tables. Tables without writers are left out.

    Returns:
        By table and `<virtual transaction> <pid or prepared>`: the same text with role and application_name, for
        messages.
    """
    with translated("looking who writes to a table", {}):
        rows: Any = await (await connection.execute(_WRITERS, (list(oids),))).fetchall()
    found: dict[int, dict[str, str]] = {}
    for table, name, role, application_name in rows:
        found.setdefault(table, {})[name] = name + _known(role, application_name)
    return found


LOOK_S: Final = 4.0
"""Seconds between two checks. A lock is reported at its second sighting, so that short locks are not reported."""

APPLICATION: Final = "cdcd lock watch"

Tell = Callable[[str, str, float], None]
"""Callback with the table, a description of the lock's holder, and the seconds since the lock was seen first."""


class LockWatch:
    """Checks the locks while the `with` block runs. The thread calls `tell` again at each check.

    Args:
        publication: name of the publication of the tables.
        tables: names as `schema.table`.
    """

    def __init__(
        self,
        dsn: Dsn,
        publication: str,
        tables: Collection[str],
        tell: Tell,
        *,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self._dsn = dsn
        self._publication = publication
        self._tables = frozenset(tables)
        self._tell = tell
        self._connect_timeout_s = connect_timeout_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lock watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except (CdcdError, OSError):
            # The reader of the tables meets the same failure and reports it.
            return

    async def _watch(self) -> None:
        connection = await connect(
            self._dsn, application_name=APPLICATION, connect_timeout_s=self._connect_timeout_s
        )
        try:
            published = await published_tables(connection, self._publication)
            names = {oid: name for oid, name in published.items() if name in self._tables}
            since: dict[int, float] = {}
            while not self._stop.is_set():
                locked, now = await locked_tables(connection, names), time.monotonic()
                for oid, who in locked.items():
                    if oid in since:
                        self._tell(names[oid], who, now - since[oid])
                since = {oid: since.get(oid, now) for oid in locked}
                await asyncio.to_thread(self._stop.wait, LOOK_S)
        finally:
            await connection.close()
