"""The stage for attacks by the owner of a published table: roles, a secret, and code that takes it if it runs.

`ops` reads for cdcd and may read `vault.secret`; `mallory` owns the schemas `own` and `mal`, and may not.
The function `mal.evil` runs with the rights of whoever calls it: it reads the secret and writes it into the name of a
replication slot, which a READ ONLY transaction permits and a ROLLBACK does not undo. So the loot stays whatever
becomes of the transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.snapshot_catalog import SnapshotCatalog
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.adapters.postgres.table_chunks import ChangedTableError, TableChunks
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.errors import SourceError
from cdcd.core.snapshot.reading import Answer, Changed, KeyQuery, PageQuery, Refused, Rows, SourceTable
from tests.integration.conftest import Database

SECRET: Final = "sesame42"
PLENTY: Final = 1 << 30

_EVIL: Final = """
CREATE FUNCTION mal.steal() RETURNS void LANGUAGE plpgsql AS $$
DECLARE found text := 'ran';
BEGIN
    BEGIN
        SELECT 'got_' || word INTO found FROM vault.secret;
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
    BEGIN
        PERFORM pg_create_physical_replication_slot('{prefix}_' || found);
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
END $$;
CREATE FUNCTION mal.evil(anyelement) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_user = '{ops}' THEN PERFORM mal.steal(); END IF;
    RETURN $1;
END $$;
CREATE FUNCTION mal.evil_check(anyelement) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_user = '{ops}' THEN PERFORM mal.steal(); END IF;
    RETURN true;
END $$;
"""


@dataclass
class Stage:
    """A database in which `mallory` has the schema `own`, and the roles that act on it."""

    database: Database
    ops: str
    mallory: str
    prefix: str

    def owner(self, *statements: str) -> None:
        """Run statements as the owner, each in its own transaction."""
        with psycopg.connect(self.database.dsn(user=self.mallory), autocommit=True) as sql:
            for statement in statements:
                sql.execute(statement)

    def publish(self, *tables: str) -> None:
        """Publish tables, which `ops` may read."""
        for table in tables or ("own.t",):
            self.database.execute(f"GRANT SELECT ON {table} TO {self.ops}")
        self.database.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(tables or ('own.t',))}")

    def loot(self) -> list[str]:
        """What the owner's code took: `ran` if it ran without the secret, `got_…` with it."""
        rows = self.database.execute(
            "SELECT slot_name FROM pg_replication_slots "
            f"WHERE slot_type = 'physical' AND starts_with(slot_name, '{self.prefix}_')"
        )
        return sorted(name.removeprefix(f"{self.prefix}_") for (name,) in rows)

    async def table(self, name: str = "own.t") -> SourceTable:
        """The published table as the daemon looks it up."""
        catalog = SnapshotCatalog(parse_dsn(self.dsn), "p", application_name="attacked")
        try:
            look = await catalog.look(list(await catalog.published()))
        finally:
            await catalog.close()
        return {table.name: table for table in look.tables}[name]

    @property
    def dsn(self) -> str:
        return self.database.dsn(user=self.ops)

    async def reader(self, **options: Any) -> SnapshotReader:
        """A reader of the role that reads for cdcd."""
        return await SnapshotReader.open(parse_dsn(self.dsn), application_name="attacked", **options)


@contextmanager
def staged(database: Database, unique: str) -> Iterator[Stage]:
    """Set the stage; afterwards remove the roles and the slots that the attack left."""
    ops, mallory, prefix = f"o_{unique[-12:]}", f"m_{unique[-12:]}", f"l_{unique[-12:]}"
    stage = Stage(database, ops, mallory, prefix)
    database.execute(f"CREATE ROLE {ops} LOGIN REPLICATION")
    database.execute(f"CREATE ROLE {mallory} LOGIN")
    try:
        database.execute(f"CREATE SCHEMA own AUTHORIZATION {mallory}")
        database.execute(f"CREATE SCHEMA mal AUTHORIZATION {mallory}")
        database.execute(f"GRANT USAGE ON SCHEMA own, mal TO {ops}")
        database.execute("CREATE SCHEMA vault")
        database.execute(f"CREATE TABLE vault.secret AS SELECT '{SECRET}' AS word")
        database.execute(f"GRANT USAGE ON SCHEMA vault TO {ops}")
        database.execute(f"GRANT SELECT ON vault.secret TO {ops}")
        stage.owner(_EVIL.format(prefix=prefix, ops=ops))
        yield stage
    finally:
        for name in stage.loot():
            database.execute(f"SELECT pg_drop_replication_slot('{prefix}_{name}')")
        for role in (ops, mallory):
            database.execute(f"DROP OWNED BY {role} CASCADE")
            database.execute(f"DROP ROLE {role}")


def pages(table: SourceTable, part: int = 0, begin: int = 0) -> PageQuery:
    """The pages of a part of the table from `begin` on."""
    each = table.parts[part]
    return PageQuery(
        each.sql_name,
        each.part.oid,
        each.part.filenode,
        begin,
        each.part.pages,
        table,
        (table.row_filter,),
    )


def keys(table: SourceTable, *rows: tuple[str, ...], columns: tuple[str, ...] = ("id",)) -> KeyQuery:
    """Rows by their keys, as text."""
    return KeyQuery(table, columns, tuple(tuple((False, value.encode()) for value in row) for row in rows))


Read = Callable[[Stage, SourceTable, Awaitable[None] | None], Awaitable[Answer]]
"""Reads a table on one of the ways on which cdcd reads tables. The awaitable is the attack, once the read waits."""


async def _beside(read: Awaitable[Answer], attack: Awaitable[None] | None) -> Answer:
    task = asyncio.ensure_future(read)
    if attack is not None:
        await attack
    return await task


async def by_pages(stage: Stage, table: SourceTable, attack: Awaitable[None] | None = None) -> Answer:
    """As an incremental snapshot reads a table: each query at a snapshot of its own."""
    reader = await stage.reader()
    try:
        return await _beside(reader.read(pages(table), PLENTY), attack)
    finally:
        reader.close()


async def by_export(stage: Stage, table: SourceTable, attack: Awaitable[None] | None = None) -> Answer:
    """As the first snapshot reads a table: at a snapshot that was exported before."""
    with psycopg.connect(stage.database.dsn()) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (name,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        reader = await stage.reader()
        try:
            await reader.import_snapshot(name)
            return await _beside(reader.read(pages(table), PLENTY), attack)
        finally:
            reader.close()


async def by_chunks(stage: Stage, table: SourceTable, attack: Awaitable[None] | None = None) -> Answer:
    """As `cdcd verify` and Spark's tasks read a table: chunk by chunk, at a snapshot that is shared."""
    with psycopg.connect(stage.database.dsn()) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (name,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        reader = await stage.reader()
        try:
            await reader.import_snapshot(name)
            (each,) = table.parts
            chunks = TableChunks(reader, table, each.sql_name, each.part, 1 << 20)

            async def all_of_them() -> Answer:
                found: list[bytes] = []
                try:
                    while (lines := await chunks.next()) is not None:
                        found += lines
                except ChangedTableError as error:
                    return Changed(error.message)
                except SourceError as error:
                    return Refused(error.message)
                return Rows(found, sum(map(len, found)))

            return await _beside(all_of_them(), attack)
        finally:
            reader.close()


READS: Final[dict[str, Read]] = {
    "beside the stream": by_pages,
    "first snapshot": by_export,
    "verify and Spark": by_chunks,
}


async def types_of(stage: Stage, table: SourceTable) -> dict[int, TypeDescription]:
    """The types of the table's columns, as the daemon knows them."""
    catalog = SnapshotCatalog(parse_dsn(stage.dsn), "p", application_name="attacked")
    try:
        return await catalog.types({column.type_oid for column in table.relation.columns})
    finally:
        await catalog.close()


def lines_of(answer: Answer) -> list[bytes]:
    """The lines of the rows, sorted."""
    assert isinstance(answer, Rows), answer
    return sorted(line.rstrip(b"\n") for line in answer.lines)
