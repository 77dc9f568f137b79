"""PostgreSQL as a snapshot sees it: which tables there are to read, who writes to them, and readers for their pages."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack

from cdcd.config.loading import Config
from cdcd.postgres import tables
from cdcd.postgres.connection import Connection, Dsn, connect
from cdcd.postgres.refusals import translated
from cdcd.postgres.replication import literal
from cdcd.postgres.snapshot_reader import SnapshotReader
from cdcd.postgres.tables import SourceTable
from cdcd.protocol.messages import Relation
from cdcd.records.formats.snapshot_rows import SnapshotEncoder
from cdcd.snapshots.beginning import wanted

Describe = Callable[[Relation], Awaitable[None]]


class SnapshotSource:
    """What a life's snapshots ask of PostgreSQL. Connections that it opens are closed with `stack`.

    Args:
        sql: an idle connection for the catalog, which others use too.
        describe: makes `encoder` know a relation (catalog, topic).
    """

    def __init__(
        self,
        config: Config,
        *,
        dsn: Dsn,
        sql: Connection,
        encoder: SnapshotEncoder,
        describe: Describe,
        stack: AsyncExitStack,
    ) -> None:
        self.encoder = encoder
        self.describe = describe
        self._config = config
        self._dsn = dsn
        self._sql = sql
        self._stack = stack
        self._looking = asyncio.Lock()

    async def published(self) -> dict[int, str]:
        """The published tables, by oid, as `schema.table`."""
        async with self._looking:
            return await tables.published_tables(self._sql, self._config.postgres.publication)

    def is_excluded(self, table: str) -> bool:
        """Whether `schema.table` is read on demand only."""
        return not wanted({0: table}, self._config.snapshot.exclude or ())

    async def look(self, only: Collection[int]) -> list[SourceTable]:
        """What there is to read of the tables with these oids, as of now."""
        async with self._looking:
            return await tables.source_tables(self._sql, self._config.postgres.publication, only)

    async def look_at(self, snapshot: str) -> list[SourceTable]:
        """What there is to read of all published tables at an exported snapshot."""
        sql = await connect(
            self._dsn,
            application_name=f"{self._config.name} snapshot",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )
        try:
            with translated("importing the slot's snapshot", {}):
                await sql.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await sql.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}".encode())
            return await tables.source_tables(sql, self._config.postgres.publication)
        finally:
            await sql.close()

    async def examine(self, table: SourceTable, where: str) -> str:
        """Why this is no condition on the table's rows; empty when it is one."""
        async with self._looking:
            return await tables.examine_condition(self._sql, table, where)

    async def writers(self, oids: Collection[int]) -> frozenset[str]:
        """Who writes to any of these tables now."""
        async with self._looking:
            return await tables.writers(self._sql, oids)

    async def open_reader(self) -> SnapshotReader:
        """A connection that reads chunks; it is closed with the life, if not before."""
        reader = await SnapshotReader.open(
            self._dsn,
            application_name=f"{self._config.name} snapshot",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )
        self._stack.callback(reader.close)
        return reader
