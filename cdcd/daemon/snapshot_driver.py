"""Answers the engine's questions about tables: the one place where the daemon reads tables.

Nothing here decides: a question becomes a query, and PostgreSQL's result becomes an answer. The connections are not
those of the stream, so that the stream never waits for a lock that a look-up or a reader waits for.
"""

from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Final

from cdcd.config.loading import Config
from cdcd.engine.actions import (
    Answer,
    Busy,
    Enums,
    FindEnums,
    FindWriters,
    ListPublished,
    Look,
    Looked,
    Lost,
    Published,
    Question,
    Read,
    Writers,
)
from cdcd.engine.exported import ExportedTables
from cdcd.errors import TransientError
from cdcd.postgres.connection import Dsn
from cdcd.postgres.refusals import TableBusyError
from cdcd.postgres.snapshot_catalog import SnapshotCatalog
from cdcd.postgres.snapshot_reader import SnapshotReader
from cdcd.postgres.tables import locked_by
from cdcd.rows.logical import is_lasting
from cdcd.rows.relations import TableDescription, TypeDescription
from cdcd.rows.types import BUILTIN_TYPES
from cdcd.snapshots.reading import PageQuery

LEFT_OUT: Final = "tables.include or tables.exclude leaves the table out"


class SnapshotDriver:
    """The readers and the look-ups of a session. `stack` closes the connections."""

    def __init__(self, config: Config, dsn: Dsn, stack: AsyncExitStack) -> None:
        self._config = config
        self._dsn = dsn
        self._stack = stack
        self._catalog = SnapshotCatalog(
            dsn,
            config.postgres.publication,
            application_name=f"{config.name} snapshot catalog",
            connect_timeout_s=config.postgres.connect_timeout_s,
            selection=config.tables.selection,
        )
        stack.push_async_callback(self._catalog.close)
        self._types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)
        self._at_the_slot: list[SnapshotReader] = []
        self._idle: list[SnapshotReader] = []

    async def published(self) -> dict[int, str]:
        """The published tables, by oid, as `schema.table`."""
        return await self._catalog.published()

    async def left_out(self, published: Collection[int]) -> list[str]:
        """The tables whose changes PostgreSQL sends, but for those that are published to the pipeline."""
        if self._config.tables.selection.is_all:
            return []
        return sorted(name for oid, name in (await self._catalog.sent()).items() if oid not in published)

    async def import_snapshot(self, name: str) -> ExportedTables:
        """Open the readers at the slot's snapshot, and look up the tables.

        The walsender that exported the snapshot must do nothing else before this returns. From then on the snapshot
        lives as long as the readers.

        Raises:
            TransientError, SourceError: PostgreSQL refuses the readers' connections or their import of the snapshot.
        """
        for _ in range(self._config.snapshot.parallelism):
            reader = await self._open_reader()
            await reader.import_snapshot(name)
            self._at_the_slot.append(reader)
        look = await self._catalog.look_at(name)
        tables = {table.oid: table for table in look.tables}
        columns = {column.type_oid for table in tables.values() for column in table.relation.columns}
        await self._know_types(columns)
        descriptions = await self._catalog.describe([*tables, *look.locked])
        return ExportedTables(tables, descriptions, self._types, look.locked)

    def close_export(self) -> None:
        """The initial snapshot is read: close its readers, so that the server may vacuum again."""
        while self._at_the_slot:
            self._at_the_slot.pop().close()

    async def answer(self, question: Question) -> Answer:
        """Ask PostgreSQL.

        Raises:
            FatalError: PostgreSQL refuses the connection or the role, whatever is asked.
        """
        try:
            if isinstance(question, Read):
                return await self._read(question)
            if isinstance(question, Look):
                return await self._look(question)
            if isinstance(question, FindWriters):
                found = await self._catalog.writers(question.oids)
                return Writers(found.names, found.seen)
            if isinstance(question, FindEnums):
                return Enums(await self._catalog.tables_with_enums(await self._catalog.published()))
            return await self._list(question)
        except TableBusyError as error:
            return Busy(error.message)
        except TransientError as error:
            return Lost(error)

    async def _read(self, question: Read) -> Answer:
        pool = self._at_the_slot if question.exported else self._idle
        # There are as many readers at the slot's snapshot as the engine asks at a time. No other can import it now.
        reader = pool.pop() if pool or question.exported else await self._open_reader()
        try:
            answer = await reader.read(question.query, question.bytes_max)
        except TableBusyError as error:
            pool.append(reader)
            query = question.query
            parts = {part.part.oid for part in query.table.parts}
            oids = {query.oid} if isinstance(query, PageQuery) else parts
            raise await self._busy(error, {query.table.oid, *oids}) from error
        except BaseException:
            reader.close()
            raise
        pool.append(reader)
        return answer

    async def _look(self, question: Look) -> Answer:
        catalog = self._catalog
        oid = question.oid
        leaves: dict[int, str] = {}
        problem = ""
        if not oid:
            published = await catalog.published()
            if question.name in await self.left_out(published):
                problem = LEFT_OUT
            oid = next((each for each, name in published.items() if name == question.name), 0)
            if not oid:
                leaves = {
                    each: published[each] for each in await catalog.leaves(question.name) if each in published
                }
        try:
            look = await catalog.look([oid] if oid else [])
        except TableBusyError as error:
            raise await self._busy(error, [oid]) from error
        if not look.tables:
            return Looked(None, TableDescription(), {}, problem, look.seen, leaves)
        table = look.tables[0]
        description = (await catalog.describe([table.oid]))[table.oid]
        await self._know_types({column.type_oid for column in table.relation.columns})
        problem = await catalog.examine(table, question.where) if question.where else ""
        return Looked(table, description, self._types, problem, look.seen)

    async def _busy(self, error: TableBusyError, oids: Collection[int]) -> TableBusyError:
        """The error with the names of those who have locked one of these tables, if they still have."""
        try:
            holders = await self._catalog.lock_holders(oids)
        except TransientError:
            return error
        return TableBusyError(locked_by(holders)) if holders else error

    async def _list(self, question: ListPublished) -> Answer:
        catalog = self._catalog
        tables = await catalog.published()
        members = await catalog.members()
        labels = await catalog.labels()
        after = await catalog.position()
        new = {oid: name for oid, name in tables.items() if oid not in question.known}
        return Published(tables, after, await catalog.estimates(new) if new else {}, labels, members)

    async def _know_types(self, oids: set[int]) -> None:
        missing = [oid for oid in oids if not is_lasting(oid, self._types)]
        if missing:
            self._types.update(await self._catalog.types(missing))

    async def _open_reader(self) -> SnapshotReader:
        reader = await SnapshotReader.open(
            self._dsn,
            application_name=f"{self._config.name} snapshot",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
            condition_timeout_s=self._config.snapshot.condition_timeout_s,
        )
        self._stack.callback(reader.close)
        return reader
