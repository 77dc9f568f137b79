"""Catalog queries of the snapshots, on a connection of their own.

The rule: the stream never waits for these queries. To read the size of a table, or the columns that a publication
publishes, PostgreSQL locks the table, and an ALTER TABLE or VACUUM FULL may hold that lock for hours. So nothing else
uses this connection, and a query waits for a lock for a short time only. Then it raises `TableBusyError`: ask again
later. Each start of the daemon lists the published tables; that query locks no table.

The connection is opened at the first query, and again after it was lost. One query runs at a time.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq

from cdcd.adapters.postgres import catalog, following, tables
from cdcd.adapters.postgres.answers import answer_of, translated
from cdcd.adapters.postgres.chunk_queries import untrusted
from cdcd.adapters.postgres.connection import Connection, Dsn, connect
from cdcd.adapters.postgres.quoting import literal
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.snapshot_queries import SETTINGS, untrusted_owners, unwritable
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.retry import Backoff
from cdcd.core.snapshot.reading import SourceTable, Visibility
from cdcd.core.snapshot.signals import WATERMARK

ALL_TABLES: Final = TableSelection()

LOCK_TIMEOUT_S: Final = 5.0
"""Seconds that a query waits for one lock."""

STATEMENT_TIMEOUT_S: Final = 60.0
"""Seconds that one query may take. 10,000 tables take less. A query that takes longer is repeated."""

EXAMINE_TIMEOUT_S: Final = 5.0
"""Seconds that PostgreSQL may spend on planning a query with the condition of a request, which may call
any function."""

_VANISHED_TRIES: Final = 10
"""Number of attempts of a query if tables are dropped while it runs."""

_LOCKED_TRIES: Final = 3
"""Number of attempts of the query of all tables if a table gets locked while it runs."""

_LOCK_NOT_AVAILABLE: Final = "55P03"
_LOOK: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# A table that was never analyzed has reltuples -1 (0 before PostgreSQL 14). Then the estimate is 100 rows a page.
# Reading the size of a table that another session has locked would wait for the lock, so its estimate is the row
# count of the cumulative statistics, which lags the commits by about a second.
_ESTIMATES: Final = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS wanted(oid)
     UNION ALL
    SELECT tree.root, i.inhrelid
      FROM tree JOIN pg_class c ON c.oid = tree.oid AND c.relkind = 'p' JOIN pg_inherits i ON i.inhparent = c.oid
), locked(oid) AS MATERIALIZED (
    SELECT relation FROM pg_locks WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
)
SELECT tree.root::int8, sum(CASE WHEN c.reltuples > 0 THEN c.reltuples
       WHEN c.oid IN (SELECT oid FROM locked) THEN pg_stat_get_live_tuples(c.oid)
       ELSE 100 * (coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8) END)::int8
  FROM tree JOIN pg_class c ON c.oid = tree.oid
 WHERE c.relkind = 'r'
 GROUP BY tree.root
"""

_INSERT_POSITION: Final = (
    b"SELECT pg_current_wal_insert_lsn()::text, current_setting('wal_block_size')::int8, "
    b"pg_size_bytes(current_setting('wal_segment_size'))"
)

_PAGE_HEADER: Final = 24
_SEGMENT_HEADER: Final = 40
"""Bytes of the header of a WAL page, and of a segment's first page (xlog_internal.h)."""

# A watermark need not wait for standbys.
_MARK: Final = (
    f"SET synchronous_commit = local; SELECT pg_logical_emit_message(true, {literal(WATERMARK)}, '')"
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Published tables, and the visibility of a snapshot from before the tables were read.

    Attributes:
        locked: tables that were not read because another session has locked them: by oid, with a description of
            this session.
        left_out: oids of published tables whose present names the pipeline leaves out.
    """

    tables: list[SourceTable]
    seen: Visibility
    locked: dict[int, str] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class OpenWriters:
    """The open transactions that write to tables, as `<virtual transaction> <pid or prepared>`.

    `seen` is the visibility of a snapshot that was taken afterwards. It sees every transaction that had written to
    the tables by then, except those in `names`.
    """

    names: frozenset[str]
    seen: Visibility
    people: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatalogTimeouts:
    """Seconds after which the catalog gives up.

    Attributes:
        connect_s: to connect.
        lock_s: for one lock that a query needs.
        statement_s: for one query.
        examine_s: for the examination of a condition.
    """

    connect_s: float = 10.0
    lock_s: float = LOCK_TIMEOUT_S
    statement_s: float = STATEMENT_TIMEOUT_S
    examine_s: float = EXAMINE_TIMEOUT_S


ORDINARY_TIMEOUTS: Final = CatalogTimeouts()


class SnapshotCatalog:
    """Queries of the catalog. Each method raises TableBusyError, TransientError or SourceError, and can be repeated.

    Args:
        publication: the publication whose tables are read.
        selection: the tables of the publication that belong to the pipeline. This catalog treats other tables as
            not published.
        protects: True if rules protect columns, which need `TableDescription.kin`.
    """

    def __init__(
        self,
        dsn: Dsn,
        publication: str,
        *,
        application_name: str,
        timeouts: CatalogTimeouts = ORDINARY_TIMEOUTS,
        selection: TableSelection = ALL_TABLES,
        protects: bool = False,
    ) -> None:
        self._dsn = dsn
        self.publication = publication
        self._has = selection.test()
        self._application_name = application_name
        self._timeouts = timeouts
        self._connection: Connection | None = None
        self._protects = protects
        self._turn = asyncio.Lock()

    async def published(self) -> dict[int, str]:
        """Return the pipeline's published tables as `schema.table`, by oid. The query waits for no lock on a table."""
        return {oid: name for oid, name in (await self.sent()).items() if self._has(name)}

    async def sent(self) -> dict[int, str]:
        """Return all published tables, including those that the pipeline leaves out but PostgreSQL sends."""
        return await self._ask(lambda sql: tables.published_tables(sql, self.publication))

    async def members(self) -> dict[int, int]:
        """Return the entry of the publication that names each table, as `tables.members` does."""
        return await self._ask(lambda sql: tables.members(sql, self.publication))

    async def publication_digest(self) -> tuple[str, ...]:
        """A value that changes whenever tables or the publication's list change."""
        return await self._ask(lambda sql: following.digest(sql, self.publication))

    async def publication_differences(
        self, desired: following.Desired
    ) -> tuple[following.Listed, following.PublicationDifferences] | None:
        """How the publication differs from what is desired, as `following.read_differences` gives it."""
        return await self._ask(lambda sql: following.read_differences(sql, self.publication, desired))

    async def leaves(self, table: str) -> list[int]:
        """Return the oids of the partitions that hold the rows of `schema.table`; [] for a table without partitions."""
        found = await self._ask(lambda sql: tables.relatives(sql, table))
        return [] if found is None or found.kind != "p" else found.leaves

    async def position(self) -> int:
        """Return an LSN after the commit of every transaction that earlier queries could see.

        Queries may see a commit that is not written yet (synchronous_commit = off). So the LSN is the insert
        position of the WAL, not its write position.
        """

        async def ask(sql: Connection) -> int:
            with translated("asking for the WAL's end", {}):
                row: Any = await (await sql.execute(_INSERT_POSITION)).fetchone()
            return end_of_records(Lsn.parse(row[0]), row[1], row[2])

        return await self._ask(ask)

    async def lock_holders(self, oids: Collection[int]) -> list[str]:
        """Return who prevents reading the tables with these oids, as `tables.lock_holders` does."""
        return await self._ask(lambda sql: tables.lock_holders(sql, oids))

    async def labels(self) -> int:
        """Return the checksum of the labels of all enums, as `catalog.labels` does."""
        return await self._ask(catalog.labels)

    async def dropped(self, oids: Collection[int]) -> tuple[int, ...]:
        """Find the oids of tables that PostgreSQL no longer has, as `catalog.dropped` does."""
        return await self._ask(lambda sql: catalog.dropped(sql, oids))

    async def tables_with_enums(self, oids: Collection[int]) -> tuple[int, ...]:
        """Find the relations that have columns of enums, as `catalog.tables_with_enums` does."""
        return await self._ask(lambda sql: catalog.tables_with_enums(sql, oids))

    async def estimates(self, tables: Mapping[int, str]) -> dict[int, int]:
        """Return estimated row counts of these tables (names by oid), without waiting for the lock of a table."""

        async def ask(sql: Connection) -> dict[int, int]:
            with translated("asking how many rows tables have", {}):
                cursor = await sql.execute(_ESTIMATES.encode(), (list(tables),))
                rows: Any = await cursor.fetchall()
            return {oid: int(count) for oid, count in rows}

        return await self._ask(ask)

    async def look(self, oids: Collection[int]) -> LookedUp:
        """Read the current definitions of the tables with these oids. Tables that are not published are left out."""

        async def look(sql: Connection) -> LookedUp:
            seen = await catalog.visibility(sql)
            found = await tables.source_tables(sql, self.publication, oids)
            left_out = frozenset([table.oid for table in found if not self._has(table.name)])
            return LookedUp([table for table in found if table.oid not in left_out], seen, left_out=left_out)

        return await self._ask(look, _LOOK)

    async def look_at(self, snapshot: str) -> LookedUp:
        """Read the definitions of all published tables at an exported snapshot, without tables that are locked.

        TransientError: the snapshot has ended.
        """

        async def look(sql: Connection) -> LookedUp:
            with translated("importing the slot's snapshot", {}):
                await sql.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}".encode())
            seen = await catalog.visibility(sql)
            sent = await tables.published_tables(sql, self.publication)
            listed = [oid for oid, name in sent.items() if self._has(name)]
            locked = await tables.locked_tables(sql, listed)
            free = [oid for oid in listed if oid not in locked]
            only = free if len(free) < len(sent) else None
            return LookedUp(await tables.source_tables(sql, self.publication, only), seen, locked)

        for _ in range(_LOCKED_TRIES):
            try:
                return await self._ask(look, _LOOK)
            except TableBusyError:
                # The table was locked after the locks had been read. The next attempt leaves it out.
                pass
        return await self._ask(look, _LOOK)

    async def describe(self, oids: Collection[int]) -> dict[int, TableDescription]:
        """Return the keys and columns of each relation, one entry for each requested oid."""
        return await self._ask(lambda sql: catalog.describe(sql, oids, with_kin=self._protects), _LOOK)

    async def types(self, oids: Collection[int]) -> dict[int, TypeDescription]:
        """Describe these types, and the types that they consist of. Dropped types are left out."""
        return await self._ask(lambda sql: catalog.types(sql, oids))

    async def writers(self, oids: Collection[int]) -> OpenWriters:
        """Find the open transactions that write to any of the tables."""
        return (await self.writers_of([oids]))[0]

    async def writers_of(self, groups: Sequence[Collection[int]]) -> list[OpenWriters]:
        """Find the open transactions that write to any table of a group, for each group."""

        async def look(sql: Connection) -> list[OpenWriters]:
            found = await tables.writers(sql, {oid for oids in groups for oid in oids})
            # A separate statement, after the locks were read, sees the transactions that released a lock before.
            seen = await catalog.visibility(sql)
            people = [
                {name: who for oid in oids for name, who in found.get(oid, {}).items()} for oids in groups
            ]
            return [OpenWriters(frozenset(each), seen, each) for each in people]

        return await self._ask(look)

    async def mark(self) -> None:
        """Write the watermark after rows that a reader has read, because the reader's role may lack this right.

        Raises:
            TransientError, SourceError.
        """

        async def emit(sql: Connection) -> None:
            with translated("writing a watermark", {}):
                await sql.execute(_MARK.encode())

        await self._ask(emit)

    async def examine(self, table: SourceTable, where: str, trusted: Sequence[str] | None = None) -> str:
        """Return the reason why the condition of a request cannot be used on the rows of the table; empty if it can.

        PostgreSQL only plans the query. It does so in a READ ONLY transaction with a timeout, because planning
        calls IMMUTABLE functions. The condition stands in two kinds of brackets: text that closes one kind, opens
        it again, and so continues as another part of the query, is a syntax error in the other kind. The query is
        sent by the extended protocol without parameters, so it is one command, and has no placeholders.
        Planning also runs code of the table's owner, so the owner must be `trusted` (as in `readers.Access`).
        """
        if problem := unwritable(where):
            return problem
        what = f"examining a condition on {table.name}"
        query = f"EXPLAIN SELECT FROM ONLY {table.sql_name} WHERE (ARRAY[{where}\n])[1] AND ({where}\n)"
        async with self._turn:
            for _ in range(2):
                connection = await self._open()
                try:
                    with translated(what, {}):
                        await connection.execute(b"BEGIN READ ONLY")
                        await _set_timeout(connection, "LOCAL statement_timeout", self._timeouts.examine_s)
                    try:
                        # The table is locked by a separate command, so that a lock timeout here never comes from the
                        # condition. Parsing a query locks its table, and LOCK TABLE would need SELECT on all of its
                        # columns.
                        await connection.execute(b"DEALLOCATE ALL")
                        await connection.execute(
                            f"PREPARE cdcd_lock AS SELECT FROM ONLY {table.sql_name}".encode()
                        )
                    except psycopg.errors.LockNotAvailable as error:
                        raise TableBusyError(f"{what}: {error}") from error
                    if trusted is not None and (owners := await _untrusted(connection, table, trusted)):
                        return untrusted(owners)
                    await connection.execute(query.encode(), binary=True)
                    return ""
                except psycopg.Error as error:
                    if not connection.broken:
                        return answer_of(error).text_of_rows
                finally:
                    await self._settle(connection)
        return "PostgreSQL ends the session when it plans a query with this condition"

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _ask(self, question: Callable[[Connection], Awaitable[T]], begin: str = "") -> T:
        """Run a query, in a transaction if `begin` starts one. Run it again if a table is dropped meanwhile."""
        backoff = Backoff(0.01, 1.0)
        async with self._turn:
            for left in reversed(range(_VANISHED_TRIES)):
                connection = await self._open()
                try:
                    with translated("looking at the catalog", {}):
                        if begin:
                            await connection.execute(begin.encode())
                    return await question(connection)
                except CdcdError as error:
                    cause = error.__cause__
                    sqlstate = cause.sqlstate if isinstance(cause, psycopg.Error) else ""
                    if sqlstate == _LOCK_NOT_AVAILABLE:
                        raise TableBusyError(error.message) from error
                    if not left or sqlstate != "XX000" or "could not open relation" not in str(cause):
                        raise
                finally:
                    await self._settle(connection)
                await asyncio.sleep(backoff.next(random.random()))  # noqa: S311  no secret depends on it
        raise AssertionError("the last try returns or raises")

    async def _open(self) -> Connection:
        if self._connection is None:
            connection = await connect(
                self._dsn,
                application_name=self._application_name,
                connect_timeout_s=self._timeouts.connect_s,
            )
            try:
                with translated("preparing to look at the catalog", {}):
                    await connection.execute(SETTINGS.encode())
                    await _set_timeout(connection, "lock_timeout", self._timeouts.lock_s)
                    await _set_timeout(connection, "statement_timeout", self._timeouts.statement_s)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _settle(self, connection: Connection) -> None:
        """End the transaction, if there is one. Close the connection if it is lost, or if a command is
        still running.
        """
        status = connection.pgconn.transaction_status
        try:
            if status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
                await connection.execute(b"ROLLBACK")
            elif status != pq.TransactionStatus.IDLE:
                await self.close()
        except BaseException:
            await self.close()
            raise


def end_of_records(insert: int, block: int, segment: int) -> int:
    """Return the end of the last WAL record if the next record is inserted at `insert`.

    At the beginning of a page the two LSNs differ by the page's header. The stream of an idle server ends where the
    last record ends, so it would never reach an LSN after the header.

    Args:
        block, segment: the sizes of a page and of a segment in bytes.
    """
    header = _SEGMENT_HEADER if insert % segment < block else _PAGE_HEADER
    return insert - header if insert % block == header else insert


async def _untrusted(connection: Connection, table: SourceTable, trusted: Sequence[str]) -> str:
    """Return the owners of the table and its parts that are not trusted, as text; "": all are."""
    oids = ", ".join(map(str, [table.oid, *[each.part.oid for each in table.parts]]))
    cursor = await connection.execute(f"SELECT {untrusted_owners(oids, trusted)}".encode())
    row: Any = await cursor.fetchone()
    return row[0] or ""


async def _set_timeout(connection: Connection, name: str, seconds: float) -> None:
    await connection.execute(f"SET {name} = {round(seconds * 1000)}".encode())
