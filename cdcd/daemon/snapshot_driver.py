"""Answers the engine's questions about tables; the only place where the daemon reads tables.

This module decides nothing: a question becomes a query, and PostgreSQL's result becomes an answer. The connections
are not those of the stream, so the stream never waits for a lock that a look-up or a reader waits for.

The rows of a table are read with the table's role in `postgres.readers`. The same role examines a request's
condition, because this plans a query on the table. If PostgreSQL refuses a reader's role, the table fails: cdcd
never uses its own role instead.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final, Protocol

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection, Dsn, connect
from cdcd.adapters.postgres.publication import PublishedTable
from cdcd.adapters.postgres.readers import Access
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.snapshot_catalog import CatalogTimeouts, SnapshotCatalog
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.adapters.postgres.tables import locked_by
from cdcd.config.loading import Config
from cdcd.core.catalog.logical import is_lasting
from cdcd.core.catalog.patterns import matcher
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import (
    Answer,
    Busy,
    Compare,
    Compared,
    Differences,
    Enums,
    FindEnums,
    FindWriters,
    Gone,
    LetGo,
    ListPublished,
    Look,
    Looked,
    Lost,
    NextDifferences,
    NotComparable,
    Published,
    Question,
    Read,
    Taken,
    TakeSnapshot,
    Writers,
)
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.errors import FatalError, TransientError
from cdcd.core.facts import Observer
from cdcd.core.snapshot.reading import PageQuery, Refused, SourceTable
from cdcd.daemon.partition_watch import PartitionWatch
from cdcd.daemon.publication_follower import OwnerTrust, PublicationFollower
from cdcd.daemon.readers import Coalesced, ReaderPool, readers_of
from cdcd.daemon.settings import desired_tables

LOCK_TIMEOUT_S: Final = 2
"""Seconds that a change of the publication waits for the lock of a table. The listing of tables waits meanwhile."""

LEFT_OUT: Final = "tables.include or tables.exclude leaves the table out"


class Comparer(Protocol):
    """Compares topics with tables at one snapshot, in a thread of its own (`tools/heal/`)."""

    async def compare(self, table: str) -> Compared | NotComparable:
        """Compare the topic of `schema.table` with the table. TransientError: the snapshot or Kafka is lost."""

    async def next(self, bytes_max: int) -> Differences:
        """Return the next differences of the table that was compared last, of about `bytes_max` bytes."""

    def close(self) -> None:
        """End the comparison that is under way, and remove everything that was stored."""


MakeComparer = Callable[[Config, str], Comparer]
"""Makes a comparer from the configuration and the name of an exported snapshot."""


class SnapshotDriver:
    """Readers and look-ups of a session.

    Args:
        stack: closes the connections.
        partitions: has the partitions that the checkpoint remembers.
    """

    def __init__(
        self,
        config: Config,
        dsn: Dsn,
        stack: AsyncExitStack,
        observe: Observer,
        partitions: PartitionWatch,
        *,
        make_comparer: MakeComparer | None = None,
    ) -> None:
        self._partitions = partitions
        self._newest_before: int | None = None
        """See `Published.newest_before`; None: the published tables were not listed yet."""
        self._make_comparer = make_comparer
        self._comparer: Comparer | None = None
        self._config = config
        self._dsn = dsn
        self._readers = readers_of(config)
        timeouts = CatalogTimeouts(config.postgres.connect_timeout_s)
        self._catalog = SnapshotCatalog(
            dsn,
            config.postgres.publication,
            application_name=f"{config.name} snapshot catalog",
            timeouts=timeouts,
            selection=config.tables.selection,
            protects=bool(config.columns.patterns),
        )
        stack.push_async_callback(self._catalog.close)
        self._is_on_demand = matcher(config.on_demand(), "snapshot.exclude")
        self._follower = PublicationFollower(
            desired_tables(config),
            self._catalog,
            config.postgres.publication_changes,
            OwnerTrust(config.postgres.trusted_owners, config.security.strict),
            reader_of=self._reader_of,
            connect=self._connect,
            observe=observe,
        )
        self._writers = Coalesced(self._catalog.writers_of)
        self._looks = Coalesced(self._look_at)
        # cdcd's own role writes watermarks, and this never waits for a look-up.
        self._marker = SnapshotCatalog(
            dsn,
            config.postgres.publication,
            application_name=f"{config.name} snapshot marks",
            timeouts=timeouts,
        )
        stack.push_async_callback(self._marker.close)
        self._types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)
        self._exported = ""
        """Name of the slot's snapshot, exported again by `_holder`, for readers that are opened later."""
        self._holder: SnapshotReader | None = None
        self._kept: dict[int, SnapshotReader] = {}
        """Sessions that keep a snapshot for the reading of one table, by the number of the snapshot."""
        limit = config.snapshot.parallelism
        self._at_the_slot = ReaderPool(self._open_at_the_slot, limit)
        self._idle = ReaderPool(self._open_reader, limit)
        stack.callback(self._idle.close)
        stack.callback(self._let_go_of_all)
        stack.callback(self.close_export)
        stack.push_async_callback(self._close_comparer)

    async def published(self) -> dict[int, str]:
        """Return the published tables as `schema.table`, by oid."""
        if self._newest_before is None:
            members = await self._catalog.members()
            self._newest_before = max(members.values(), default=0)
        return await self._catalog.published()

    async def left_out(self, published: Collection[int]) -> list[str]:
        """Return the tables whose changes PostgreSQL sends although the pipeline leaves them out."""
        if self._config.tables.selection.is_all:
            return []
        return sorted(name for oid, name in (await self._catalog.sent()).items() if oid not in published)

    async def import_snapshot(self, name: str) -> ExportedTables:
        """Open the readers at the slot's snapshot, and read the definitions of the tables.

        The walsender that exported the snapshot must not run another command before this call returns. After that,
        the snapshot lives as long as the readers.

        Raises:
            TransientError, SourceError: PostgreSQL refuses the readers' connections or their import of the
                snapshot.
        """
        main = self._readers.main
        if self._readers.others:
            # The roles that read are known only with the tables, when the slot's snapshot can no longer be imported.
            self._holder = await self._open_reader(main)
            await self._holder.import_snapshot(name)
            self._exported = await self._holder.export_snapshot()
        else:
            for _ in range(self._config.snapshot.parallelism):
                reader = await self._open_reader(main)
                await reader.import_snapshot(name)
                self._at_the_slot.add(main, reader)
        look = await self._catalog.look_at(name)
        tables = {table.oid: table for table in look.tables}
        columns = {column.type_oid for table in tables.values() for column in table.relation.columns}
        await self._know_types(columns)
        descriptions = await self._catalog.describe([*tables, *look.locked])
        return ExportedTables(tables, descriptions, self._types, look.locked)

    async def _close_comparer(self) -> None:
        if self._comparer is not None:
            comparer, self._comparer = self._comparer, None
            await asyncio.to_thread(comparer.close)

    async def _compare(self, question: Compare) -> Answer:
        """Compare a table at the slot's snapshot with its topic."""
        if self._make_comparer is None:
            return NotComparable("this program cannot compare topics with tables")
        if self._comparer is None:
            name = self._exported
            if not name:
                main = self._readers.main
                reader = await self._at_the_slot.take(main)
                try:
                    name = await reader.export_snapshot()
                except BaseException:
                    self._at_the_slot.drop(reader)
                    raise
                self._at_the_slot.give(main, reader)
            self._comparer = self._make_comparer(self._config, name)
        return await self._comparer.compare(question.table.name)

    async def _next_differences(self, question: NextDifferences) -> Answer:
        assert self._comparer is not None, "a table was compared"
        return await self._comparer.next(question.bytes_max)

    def close_export(self) -> None:
        """Close the readers of the initial snapshot, which is read completely, so that the server can vacuum again."""
        self._at_the_slot.close()
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    async def answer(self, question: Question) -> Answer:
        """Answer a question by queries to PostgreSQL.

        Raises:
            FatalError: PostgreSQL refuses the connection or the role for every query.
        """
        try:
            if isinstance(question, Read):
                return await self._read(question)
            if isinstance(question, Look):
                return await self._look(question)
            if isinstance(question, TakeSnapshot):
                return await self._take_snapshot(question)
            if isinstance(question, LetGo):
                self._let_go(question.number)
                return Gone()
            if isinstance(question, FindWriters):
                found = await self._writers.ask(question.oids)
                return Writers(found.names, found.seen, found.people)
            if isinstance(question, Compare):
                return await self._compare(question)
            if isinstance(question, NextDifferences):
                return await self._next_differences(question)
            if isinstance(question, FindEnums):
                return Enums(await self._catalog.tables_with_enums(await self._catalog.published()))
            return await self._list(question)
        except TableBusyError as error:
            return Busy(error.message)
        except TransientError as error:
            return Lost(error)

    async def _take_snapshot(self, question: TakeSnapshot) -> Answer:
        access = self._readers.of(*question.table.place)
        try:
            reader = await self._open_reader(access)
        except FatalError as error:
            if access.place is None:
                raise
            return _refused(access, error)
        try:
            seen, after = await reader.take_snapshot()
            await self._marker.mark()
        except BaseException:
            reader.close()
            raise
        self._kept[question.number] = reader
        return Taken(seen, after)

    def _let_go(self, number: int) -> None:
        reader = self._kept.pop(number, None)
        if reader is not None:
            reader.close()

    def _let_go_of_all(self) -> None:
        for number in list(self._kept):
            self._let_go(number)

    async def _read_kept(self, question: Read) -> Answer:
        """Read at the snapshot that was taken with the question's number. After a TransientError it is gone."""
        reader = self._kept.get(question.kept)
        if reader is None:
            raise TransientError("The session that kept the snapshot is gone.")
        try:
            return await reader.read(question.query, question.bytes_max)
        except TableBusyError as error:
            raise await self._busy(error, _oids_of(question)) from error
        except BaseException:
            self._let_go(question.kept)
            raise

    async def _read(self, question: Read) -> Answer:
        if question.kept:
            return await self._read_kept(question)
        pool = self._at_the_slot if question.exported else self._idle
        access = self._readers.of(*question.query.table.place)
        try:
            reader = await pool.take(access)
        except FatalError as error:
            if access.place is None:
                raise
            return _refused(access, error)
        try:
            answer = await reader.read(question.query, question.bytes_max)
        except TableBusyError as error:
            pool.give(access, reader)
            raise await self._busy(error, _oids_of(question)) from error
        except BaseException:
            pool.drop(reader)
            raise
        pool.give(access, reader)
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
            looked = await self._looks.ask(oid)
        except TableBusyError as error:
            raise await self._busy(error, [oid]) from error
        if looked.table is None:
            return replace(looked, problem=problem or looked.problem, leaves=leaves)
        problem = await self._examine(looked.table, question.where) if question.where else ""
        return replace(looked, problem=problem)

    async def _look_at(self, oids: Sequence[int]) -> list[Looked]:
        """Look up the tables with these oids in one query; the answer for the oid 0 is only the snapshot."""
        wanted = sorted({oid for oid in oids if oid})
        look = await self._catalog.look(wanted)
        tables = {table.oid: table for table in look.tables}
        descriptions = await self._catalog.describe(list(tables)) if tables else {}
        await self._know_types(
            {column.type_oid for table in look.tables for column in table.relation.columns}
        )
        return [
            Looked(tables[oid], descriptions[oid], self._types, "", look.seen)
            if oid in tables
            else Looked(None, TableDescription(), {}, LEFT_OUT if oid in look.left_out else "", look.seen)
            for oid in oids
        ]

    async def _busy(self, error: TableBusyError, oids: Collection[int]) -> TableBusyError:
        """Return the error with the sessions that still lock one of these tables."""
        try:
            holders = await self._catalog.lock_holders(oids)
        except TransientError:
            return error
        return TableBusyError(locked_by(holders)) if holders else error

    async def _list(self, question: ListPublished) -> Answer:
        catalog = self._catalog
        await self._follower.follow()
        tables = await catalog.published()
        members = await catalog.members()
        labels = await catalog.labels()
        dropped = await catalog.dropped(question.bound) if question.bound else ()
        after = await catalog.position()
        new = {oid: name for oid, name in tables.items() if oid not in question.known}
        estimates = await catalog.estimates(new) if new else {}
        return Published(
            tables,
            after,
            estimates,
            labels,
            members,
            dropped,
            self._partitions.remembered,
            self._newest_before or 0,
        )

    async def _know_types(self, oids: set[int]) -> None:
        missing = [oid for oid in oids if not is_lasting(oid, self._types)]
        if missing:
            self._types.update(await self._catalog.types(missing))

    async def _examine(self, table: SourceTable, where: str) -> str:
        """Return why the condition cannot be used; empty if it can. The role that reads the table examines it."""
        access = self._readers.of(*table.place)
        if access.place is None:
            return await self._catalog.examine(table, where, access.trusted)
        try:
            catalog = SnapshotCatalog(
                access.dsn(),
                self._config.postgres.publication,
                application_name=f"{self._config.name} snapshot condition",
                timeouts=CatalogTimeouts(self._config.postgres.connect_timeout_s),
            )
            try:
                return await catalog.examine(table, where)
            finally:
                await catalog.close()
        except FatalError as error:
            return access.explained(error).message

    def _reader_of(self, table: PublishedTable) -> str | None:
        """The role that reads a table that is added, "" for cdcd's own role; None: its rows are not read."""
        if not self._config.reads_added or self._is_on_demand(table.qualified):
            return None
        access = self._readers.of(table.schema, table.name)
        return "" if access.place is None else access.role

    async def _connect(self) -> Connection:
        """A connection of cdcd's role that waits for no lock for longer than `LOCK_TIMEOUT_S`."""
        connection = await connect(
            self._dsn,
            application_name=f"{self._config.name} publication",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )
        with translated("preparing to alter the publication", {}):
            await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'".encode())
        return connection

    async def _open_at_the_slot(self, access: Access) -> SnapshotReader:
        assert self._exported, "without readers, the sessions are there already"
        reader = await self._open_reader(access)
        try:
            await reader.import_snapshot(self._exported)
        except BaseException:
            reader.close()
            raise
        return reader

    async def _open_reader(self, access: Access) -> SnapshotReader:
        return await SnapshotReader.open(
            access.dsn(),
            application_name=f"{self._config.name} snapshot",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
            condition_timeout_s=self._config.snapshot.condition_timeout_s,
            mark=None if access.place is None else self._marker.mark,
            types=self._types,
            queries=self._config.snapshot.query_texts,
            trusted=access.trusted,
        )


def _refused(access: Access, error: FatalError) -> Refused:
    """PostgreSQL refuses the role that reads the table."""
    explained = access.explained(error)
    return Refused(explained.message, hint=explained.hint)


def _oids_of(question: Read) -> set[int]:
    """The relations that the question locks."""
    query = question.query
    parts = {part.part.oid for part in query.table.parts}
    return {query.table.oid, *({query.oid} if isinstance(query, PageQuery) else parts)}
