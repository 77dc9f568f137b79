"""PostgreSQL as a snapshot sees it: which tables there are to read, who writes to them, and readers for their pages."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from typing import Final, TypeVar

from cdcd.config.loading import Config
from cdcd.postgres.connection import Dsn
from cdcd.postgres.refusals import TableBusyError
from cdcd.postgres.snapshot_catalog import SnapshotCatalog
from cdcd.postgres.snapshot_reader import SnapshotReader
from cdcd.protocol.messages import Relation
from cdcd.records.formats.snapshot_rows import SnapshotEncoder
from cdcd.snapshots.beginning import wanted
from cdcd.snapshots.reading import SourceTable

Describe = Callable[[Relation], Awaitable[None]]
T = TypeVar("T")

BUSY_S: Final = 1.0
"""A table that somebody has locked is tried again after so long."""


class SnapshotSource:
    """What a life's snapshots ask of PostgreSQL. Connections that it opens are closed with `stack`.

    Args:
        describe: makes `encoder` know a relation (catalog, topic).
    """

    def __init__(
        self,
        config: Config,
        *,
        dsn: Dsn,
        encoder: SnapshotEncoder,
        describe: Describe,
        stack: AsyncExitStack,
    ) -> None:
        self.encoder = encoder
        self.describe = describe
        self._config = config
        self._dsn = dsn
        self._stack = stack
        self._catalog = SnapshotCatalog(
            dsn,
            config.postgres.publication,
            application_name=f"{config.name} snapshot",
            connect_timeout_s=config.postgres.connect_timeout_s,
        )
        stack.push_async_callback(self._catalog.close)

    async def published(self) -> dict[int, str]:
        """The published tables, by oid, as `schema.table`."""
        return await _patiently(self._catalog.published)

    def is_excluded(self, table: str) -> bool:
        """Whether `schema.table` is read on demand only."""
        return not wanted({0: table}, self._config.snapshot.exclude or ())

    async def look(self, only: Collection[int]) -> list[SourceTable]:
        """What there is to read of the tables with these oids, as of now."""
        return (await _patiently(lambda: self._catalog.look(only))).tables

    async def look_at(self, snapshot: str) -> list[SourceTable]:
        """What there is to read of all published tables at an exported snapshot."""
        return (await _patiently(lambda: self._catalog.look_at(snapshot))).tables

    async def examine(self, table: SourceTable, where: str) -> str:
        """Why this is no condition on the table's rows; empty when it is one."""
        return await _patiently(lambda: self._catalog.examine(table, where))

    async def writers(self, oids: Collection[int]) -> frozenset[str]:
        """Who writes to any of these tables now."""
        return (await _patiently(lambda: self._catalog.writers(oids))).names

    async def open_reader(self) -> SnapshotReader:
        """A connection that reads chunks; it is closed with the life, if not before."""
        reader = await SnapshotReader.open(
            self._dsn,
            application_name=f"{self._config.name} snapshot",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )
        self._stack.callback(reader.close)
        return reader


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, asked for until no table is locked."""
    while True:
        try:
            return await ask()
        except TableBusyError:
            await asyncio.sleep(BUSY_S)
