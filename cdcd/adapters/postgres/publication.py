"""The publication, which decides which tables and operations PostgreSQL sends; it is created if it is missing, and
`following.py` alters it.

A publication must exist before the slot is created: pgoutput reads the publication as of each change's position in
the WAL, so with an older slot, the first change fails (13 to 17), or changes are left out with a WARNING (18).

A table that is created later is published automatically only by FOR ALL TABLES and FOR TABLES IN SCHEMA. A list of
tables needs ALTER PUBLICATION ... ADD TABLE, by the operator or by `postgres.publication_changes`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from cdcd.adapters.postgres.answers import answer_of, translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.quoting import identifier, table_name
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.tables import (
    LOCKS_SINCE,
    UNLOCKED_COLUMNS,
    UNLOCKED_TABLES,
    locked_tables,
    published_tables,
)
from cdcd.core.catalog.patterns import TablePattern, parse_pattern
from cdcd.core.errors import SourceError
from cdcd.core.table_names import table_text

OTHERS_MAX: Final = 5
"""Patterns that an error names at most."""

SCHEMA_SINCE: Final = 150000
"""First server version with FOR TABLES IN SCHEMA."""

LOCK_TIMEOUT_S: Final = 5
"""Seconds that the creation of a publication waits for the lock of a table."""

OPERATIONS: Final = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table, and how its replica identity and keys identify its rows."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    """pg_class.relreplident: d default, f full, i index, n nothing."""
    has_identity: bool
    """False: former rows cannot be identified, so PostgreSQL refuses published UPDATEs and DELETEs (55000)."""
    has_primary_key: bool
    has_key: bool = True
    """True if the table's records have a key (`relations.key_columns`), which reading the table beside the stream
    needs."""
    root: str = ""
    """Partitioned table that this partition belongs to, as `schema.table`; "" if the table is not a partition."""
    columns: tuple[str, ...] | None = None
    """Column list of the publication (15 and up); None: all columns."""
    row_filter: str | None = None

    @property
    def qualified(self) -> str:
        return table_text(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Publication:
    """Contents of a publication now."""

    name: str
    all_tables: bool
    schemas: tuple[str, ...]
    operations: tuple[str, ...]
    via_root: bool
    """True if changes of partitions are sent as changes of their partitioned table."""
    tables: tuple[PublishedTable, ...]

    @property
    def without_identity(self) -> tuple[PublishedTable, ...]:
        """Return the tables in which the publication makes UPDATE or DELETE fail."""
        if not {"update", "delete"} & set(self.operations):
            return ()
        return tuple(table for table in self.tables if not table.has_identity)


_PUBLICATION: Final = "SELECT to_jsonb(p) FROM pg_publication p WHERE pubname = %s"

_SCHEMAS: Final = """
SELECT n.nspname FROM pg_publication_namespace m JOIN pg_namespace n ON n.oid = m.pnnspid
  JOIN pg_publication p ON p.oid = m.pnpubid WHERE p.pubname = %s ORDER BY 1
"""

_TABLE: Final = f"""
SELECT c.oid, n.nspname, c.relname, c.relreplident::text,
       CASE c.relreplident WHEN 'f' THEN true WHEN 'n' THEN false
            WHEN 'd' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
            ELSE EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident) END,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indpred IS NULL
                  AND i.indexprs IS NULL AND i.indimmediate
                  AND (i.indisprimary OR (i.indisvalid
                       AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
                                         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
                                        WHERE k.place <= i.indnkeyatts AND NOT a.attnotnull)))),
       coalesce((SELECT {table_name("rn.nspname", "rc.relname")}
                   FROM pg_class rc JOIN pg_namespace rn ON rn.oid = rc.relnamespace
                  WHERE c.relispartition AND rc.oid = pg_partition_root(c.oid)), ''),
"""

_TABLE_COLUMNS: Final = 8

# The view has attnames and rowfilter since 15; attnames is never null there, so a list of all columns
# counts as no list.
_TABLES: Final = (
    _TABLE
    + """
       to_jsonb(t) -> 'attnames', to_jsonb(t) ->> 'rowfilter',
       (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND a.attgenerated = '')
  FROM pg_publication_tables t
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %s
 ORDER BY n.nspname, c.relname
"""
)

# The same query for PostgreSQL 16 and up, where the view waits for locks on published tables. Printing a
# row filter locks its table too, so the filter of a table that is locked now is not printed.
_TABLES_UNLOCKED: Final = (
    _TABLE
    + f"""
       {UNLOCKED_COLUMNS},
       CASE WHEN c.oid IN (SELECT relation FROM pg_locks WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock')
            THEN '...' ELSE pg_get_expr(r.prqual, r.prrelid) END,
       (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND a.attgenerated = '')
  {UNLOCKED_TABLES}
 ORDER BY n.nspname, c.relname
"""
)

_CANDIDATES: Final = (
    _TABLE
    + """
       ARRAY(SELECT relid::oid::bigint FROM pg_partition_ancestors(c.oid))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND pg_relation_is_publishable(c.oid)
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
 ORDER BY n.nspname, c.relname
"""
)


_WHOLE_SCHEMAS: Final = """
SELECT nspname FROM pg_namespace
 WHERE nspname <> 'information_schema' AND nspname !~ '^pg_'
   AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
"""


async def read_publication(connection: Connection, name: str) -> Publication | None:
    """Return the publication with its contents, or None if it does not exist. Raises TransientError and SourceError."""
    with translated(f"reading publication {name}", {"publication": name}):
        row: Any = await (await connection.execute(_PUBLICATION, (name,))).fetchone()
        if row is None:
            return None
        fields = row[0]
        schemas: Any = ()
        if connection.info.server_version >= SCHEMA_SINCE:
            schemas = await (await connection.execute(_SCHEMAS, (name,))).fetchall()
        if connection.info.server_version >= LOCKS_SINCE:
            asked = await connection.execute(_TABLES_UNLOCKED.encode(), (name, name))
        else:
            asked = await connection.execute(_TABLES.encode(), (name,))
        tables: Any = await asked.fetchall()
    return Publication(
        name=name,
        all_tables=fields["puballtables"],
        schemas=tuple(schema for (schema,) in schemas),
        operations=tuple(operation for operation in OPERATIONS if fields[f"pub{operation}"]),
        via_root=fields["pubviaroot"],
        tables=tuple(_table(row) for row in tables),
    )


def _table(row: Any) -> PublishedTable:
    attnames, row_filter, column_count = row[_TABLE_COLUMNS:]
    columns = tuple(attnames) if attnames is not None and len(attnames) < column_count else None
    return replace(_read_table(row), columns=columns, row_filter=row_filter)


def _read_table(row: Any) -> PublishedTable:
    """Return the table from the columns of `_TABLE`."""
    oid, schema, name, replica_identity, has_identity, has_primary_key, has_unique, root = row[
        :_TABLE_COLUMNS
    ]
    # As in `relations.key_columns`: FULL and NOTHING flag no columns, so any key of the table counts.
    has_key = has_identity if replica_identity in ("d", "i") else has_unique
    return PublishedTable(oid, schema, name, replica_identity, has_identity, has_primary_key, has_key, root)


async def has_publication(connection: Connection, name: str) -> bool:
    """Return True if the publication exists.

    The publication's contents are not read, because reading could meet a table that is being dropped.
    """
    with translated(f"looking for publication {name}", {"publication": name}):
        row: Any = await (await connection.execute(_PUBLICATION, (name,))).fetchone()
    return row is not None


MADE_BY: Final = "made by cdcd"
"""Comment on a publication that cdcd created. `cdcd drop` removes only publications with this comment."""


async def who_holds_up(connection: Connection, patterns: Sequence[str] | None) -> dict[str, str]:
    """Return the tables for these patterns that are locked, each with a description of the lock's holder."""
    found = await find_tables(connection, [parse_pattern(pattern) for pattern in patterns or ("*.*",)])
    locked = await locked_tables(connection, [table.oid for table in found])
    return {table.qualified: locked[table.oid] for table in found if table.oid in locked}


async def ensure_publication(
    connection: Connection, name: str, patterns: Sequence[str] | None, *, via_root: bool | None = None
) -> bool:
    """Create the publication if it is missing, for all tables or those that match `patterns`; return True if created.

    A publication that cdcd creates here gets the comment `MADE_BY`. PostgreSQL locks the tables briefly.

    Args:
        via_root: how the pipeline has delivered partitioned tables so far, which does not change. True: as a whole;
            False: by partition. None: the pipeline has delivered no partitioned table, and each partition gets its
            own topic.

    Raises TableBusyError if another session keeps a table locked for longer than `LOCK_TIMEOUT_S`. Raises
    ConfigError for a malformed pattern, and SourceError for a missing privilege or a pattern that matches nothing.
    """
    wanted = None if patterns is None else [parse_pattern(pattern) for pattern in patterns]
    if await has_publication(connection, name):
        return False
    return await _create(connection, name, wanted, via_root=via_root)


async def rehearse_publication(
    connection: Connection, name: str, patterns: Sequence[str] | None
) -> dict[int, str]:
    """Return the tables that the publication has, or would have, as `schema.table` by oid.

    A missing publication is created and rolled back, so PostgreSQL itself says whether the role may create it, and no
    other session ever sees it.

    Raises as `ensure_publication`.
    """
    if not await has_publication(connection, name):
        wanted = None if patterns is None else [parse_pattern(pattern) for pattern in patterns]
        async with connection.transaction(force_rollback=True):
            await _create(connection, name, wanted, via_root=None)
            return await published_tables(connection, name)
    return await published_tables(connection, name)


async def _create(
    connection: Connection, name: str, wanted: Sequence[TablePattern] | None, *, via_root: bool | None
) -> bool:
    """Create the publication and its comment. False: another session has created it meanwhile."""
    target = "ALL TABLES" if wanted is None else await find_target(connection, wanted)
    what = f"creating publication {name}"
    with translated(what, {"publication": name}):
        try:
            async with connection.transaction():
                await connection.execute(
                    f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'; {creation(name, target, via_root=bool(via_root))}; "
                    f"COMMENT ON PUBLICATION {identifier(name)} IS '{MADE_BY}'".encode()
                )
        except psycopg.errors.DuplicateObject:
            return False
        except psycopg.errors.LockNotAvailable as error:
            raise TableBusyError(f"{what}: {answer_of(error).message}") from error
        except psycopg.errors.InsufficientPrivilege as error:
            whole = await _has_roots(connection, wanted) if via_root is None else via_root
            raise SourceError(
                f"{what}: {answer_of(error).message} [SQLSTATE {error.sqlstate}]",
                hint=creation_hint(name, target, via_root=whole),
            ) from error
    return True


PARTITION_ROOT: Final = "publish_via_partition_root = true"


def creation(name: str, target: str, *, via_root: bool, operations: Collection[str] | None = None) -> str:
    """Return the command that creates the publication.

     cdcd builds all such commands here, for running and for printing.

    Args:
        target: text after FOR.
        via_root: True if changes of partitions are sent as changes of their partitioned table. Without this option
            each partition has its own topic, and the partitioned table's topic receives nothing more.
        operations: published operations; None: all, which is PostgreSQL's default.
    """
    options = [] if operations is None else [f"publish = '{', '.join(operations)}'"]
    options += [PARTITION_ROOT] if via_root else []
    command = f"CREATE PUBLICATION {identifier(name)} FOR {target}"
    return f"{command} WITH ({', '.join(options)})" if options else command


def creation_hint(name: str, target: str, *, via_root: bool) -> str:
    """Return the hint for a role that may not create the publication.

    Args:
        via_root: as in `creation`. True if a partitioned table is published, unless the pipeline has delivered such
            tables by partition.
    """
    command = creation(name, target, via_root=via_root)
    if target == "ALL TABLES":
        return f"Run as a superuser: {command}; or name the tables in postgres.tables."
    return f"Run as a superuser, or as the owner of these tables with CREATE on the database: {command};"


async def _has_roots(connection: Connection, patterns: Sequence[TablePattern] | None) -> bool:
    """Return True if a publication for `patterns` would contain a partitioned table.

    None: the publication is for all tables.
    """
    chosen = patterns or [parse_pattern("*.*")]
    return any(
        each.table.oid in each.ancestors
        for each in await read_candidates(connection)
        if any(pattern.matches(each.table.schema, each.table.name) for pattern in chosen)
    )


async def is_ours(connection: Connection, name: str) -> bool:
    """Return True if the publication's comment says that cdcd created it."""
    query = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s"
    with translated(f"reading the comment on publication {name}", {"publication": name}):
        row: Any = await (await connection.execute(query, (name,))).fetchone()
    return row is not None and row[0] == MADE_BY


async def make_publication(connection: Connection, name: str, statement: str) -> None:
    """Run the command of `creation` without the comment `MADE_BY`, which the caller must set by `mark_ours` before the
    publication is used.

    Raises TransientError and SourceError.
    """
    with translated(f"creating publication {name}", {"publication": name}):
        await connection.execute(statement.encode())


async def mark_ours(connection: Connection, name: str) -> None:
    """Set the comment `MADE_BY` on the publication. Raises TransientError and SourceError."""
    with translated(f"commenting on publication {name}", {"publication": name}):
        await connection.execute(f"COMMENT ON PUBLICATION {identifier(name)} IS '{MADE_BY}'".encode())


async def drop_publication(connection: Connection, name: str) -> None:
    """Drop the publication if it exists. Raises TransientError and SourceError."""
    with translated(f"dropping publication {name}", {"publication": name}):
        await connection.execute(f"DROP PUBLICATION IF EXISTS {identifier(name)}".encode())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table that could be published; `ancestors` has the oids of the partitioned tables above it, and its own oid."""

    table: PublishedTable
    ancestors: tuple[int, ...]


def choose_tables(patterns: Sequence[TablePattern], candidates: Sequence[Candidate]) -> list[PublishedTable]:
    """Return the tables that match a pattern, without partitions whose partitioned table matches too.

    Raises SourceError if a pattern without wildcards matches nothing.
    """
    chosen: dict[int, Candidate] = {}
    for pattern in patterns:
        matched = [each for each in candidates if pattern.matches(each.table.schema, each.table.name)]
        if not matched and pattern.is_literal:
            raise SourceError(
                f"postgres.tables: there is no table {pattern.text} that can be published.",
                hint="Check schema, name and case; views, foreign, unlogged and temporary tables send no changes.",
            )
        chosen |= {each.table.oid: each for each in matched}
    return [
        each.table
        for each in chosen.values()
        if not any(above in chosen for above in each.ancestors if above != each.table.oid)
    ]


def choose_target(
    patterns: Sequence[TablePattern], candidates: Sequence[Candidate], schemas: Collection[str]
) -> str:
    """Return the text after FOR in CREATE PUBLICATION. `schemas`: names of the schemas that may be published whole.

    Raises SourceError if nothing matches, or if a pattern without wildcards matches nothing.
    """
    whole = {pattern.whole_schema for pattern in patterns if pattern.whole_schema} & set(schemas)
    single = [pattern for pattern in patterns if pattern.whole_schema not in whole]
    tables = [
        f"{identifier(table.schema)}.{identifier(table.name)}" for table in choose_tables(single, candidates)
    ]
    parts = [f"TABLES IN SCHEMA {', '.join(map(identifier, sorted(whole)))}"] if whole else []
    parts += [f"TABLE {', '.join(tables)}"] if tables else []
    if not parts:
        raise _nothing_matches(patterns, candidates)
    return ", ".join(parts)


def _nothing_matches(patterns: Sequence[TablePattern], candidates: Sequence[Candidate]) -> SourceError:
    others = sorted({f"{identifier(each.table.schema)}.*" for each in candidates})
    more = f" and {len(others) - OTHERS_MAX} more" if len(others) > OTHERS_MAX else ""
    found = f" Patterns that match tables: {', '.join(others[:OTHERS_MAX])}{more}." if others else ""
    return SourceError(
        f"postgres.tables: no table matches {', '.join(pattern.text for pattern in patterns)}.",
        hint=f"Create the tables first, correct the patterns, or create the publication yourself.{found}",
    )


async def find_tables(connection: Connection, patterns: Sequence[TablePattern]) -> tuple[PublishedTable, ...]:
    """Return the tables that a publication for `patterns` would cover now. Raises SourceError if no table matches."""
    candidates = await read_candidates(connection)
    tables = choose_tables(patterns, candidates)
    if not tables:
        raise _nothing_matches(patterns, candidates)
    return tuple(tables)


async def read_candidates(connection: Connection) -> list[Candidate]:
    """Return every table that could be published. Raises TransientError and SourceError."""
    with translated("listing tables", {}):
        rows: Any = await (await connection.execute(_CANDIDATES.encode())).fetchall()
    return [Candidate(_read_table(row), tuple(row[_TABLE_COLUMNS])) for row in rows]


async def find_target(connection: Connection, patterns: Sequence[TablePattern]) -> str:
    """Return the text after FOR in CREATE PUBLICATION on this server. Raises as `choose_target`."""
    candidates = await read_candidates(connection)
    schemas: Any = []
    if connection.info.server_version >= SCHEMA_SINCE:
        with translated("listing schemas", {}):
            schemas = await (await connection.execute(_WHOLE_SCHEMAS)).fetchall()
    return choose_target(patterns, candidates, [schema for (schema,) in schemas])
