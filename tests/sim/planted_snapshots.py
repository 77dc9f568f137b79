"""Bugs in reading tables and in requests of strangers. cdcd had most of them, or nearly had them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.actions import Busy, Looked, Published, Writers
from cdcd.core.engine.chunk_reads import ChunkReads
from cdcd.core.engine.exported import Exported
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.look_ups import LookUps
from cdcd.core.engine.one_snapshot import OneSnapshots
from cdcd.core.engine.owners import Owners
from cdcd.core.engine.plans import OpenChunk, Plans, TablePlan
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.requests import Requests
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.watched import WatchedTables
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.encoder import Record
from cdcd.core.snapshot.chunks import Chunk
from cdcd.core.snapshot.placement import Window
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Changed, KeyQuery, PageQuery, Rows, SourceTable, Visibility
from cdcd.core.snapshot.signals import PREFIX, Signal
from cdcd.core.snapshot.table_task import Key, TableTask
from tests.sim.asking import Asker
from tests.sim.catalog import Definition
from tests.sim.client import Client

Part = type[SnapshotTasks | WatchedTables | Plans | LookUps | ChunkReads | OneSnapshots]


def incremental_with(*parts: Part) -> type[Incremental]:
    """An `Incremental` of which these parts are replaced."""

    class Planted(Incremental):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            replaced: Any
            every = (self.tasks, self.watched, self.plans, self.look_ups, self.reads, self.snapshots)
            for replaced in every:
                for part in parts:
                    if issubclass(part, type(replaced)):
                        replaced.__class__ = part

    return Planted


class ForgetsUnsentValues(WatchedTables):
    """A row that a change overtook counts as delivered, though the change left a value of it out."""

    def note(
        self,
        xid: int,
        topic: str,
        key: bytes | None,
        values: Key | None,
        *,
        moved: bool,
        secret: bool = False,
    ) -> None:
        super().note(xid, topic, key, None, moved=moved)


class ForgetsUnsentValuesAtARestart(WatchedTables):
    """What is owed lives in memory only."""

    def write_down(self) -> Any:
        tasks = self._tasks
        for number in self._owed:
            task = tasks.find(number)
            if task is not None:
                tasks.progress = tasks.progress.owe(task, ())
        return tasks.progress


class TellsBeforeDelivery(SnapshotTasks):
    """Reports a table when its last rows are on their way."""

    def end(self, task: TableTask, *arguments: Any, **options: Any) -> bool:
        has_ended = super().end(task, *arguments, **options)
        self.report_delivered(self.progress, 0.0)
        return has_ended


class ForgetsTablesWhoseRowsWait(SnapshotTasks):
    """The description of a table is forgotten although rows of it wait for Kafka."""

    def report_delivered(self, progress: Progress | None, now: float) -> set[int]:
        return super().report_delivered(progress, now) | {ended.oid for ended in self._untold}


class OwesFromThePlanOn(WatchedTables):
    """A change that was streamed before the table was planned owes nothing, though the plan's snapshot lacks it."""

    def forget_seen(self, task: TableTask, window: Window | None, seen: Visibility | None) -> None:
        owed = self.owed(task)
        if owed is not None and not task.has_begun:
            owed.begin(())


class NotesNothing(WatchedTables):
    """Rows of a chunk are sent though a newer change of them stands before."""

    def note(
        self,
        xid: int,
        topic: str,
        key: bytes | None,
        values: Key | None,
        *,
        moved: bool,
        secret: bool = False,
    ) -> None:
        for number in self._owed_of.get(topic, ()):
            if key is not None:
                self._owed[number].note(key, values, moved=moved)


class SendsAtOnce(ChunkReads):
    """Does not wait until the stream is past what the chunk's snapshot sees."""

    def send_due(self, position: int, now: float) -> None:
        super().send_due(1 << 62, now)


class EndsWithItsLastAnswer(ChunkReads):
    """A table whose last rows by key were sent by changes, or truncated, has nothing to read and never ends."""

    def send_due(self, position: int, now: float) -> None:
        for each in self._waiting.due(position):
            if each in each.plan.open:
                self._send(each, now)


class IgnoresTruncate(WatchedTables):
    def truncated(self, xid: int, oids: Iterable[int]) -> None:
        pass


class AwaitsNobody(LookUps):
    """Who wrote to the table before the window opened may be streamed already, and yet no snapshot sees it."""

    def found_writers(self, plan: TablePlan, answer: Writers, now: float) -> None:
        super().found_writers(plan, Writers(frozenset(), answer.seen), now)


class ForgetsTooMuch(ChunkReads):
    """The window forgets what the newest chunk sees, though older ones are still open."""

    def advance(self, plan: TablePlan) -> None:
        if plan.window is not None and plan.latest is not None:
            plan.window.advance(plan.latest)


class KeepsOldChunks(Plans):
    """Rows of a plan that is over wait on."""

    def forget(self, plan: TablePlan) -> None:
        kept = [(each, each.rows) for each in plan.open if each.rows is not None]
        super().forget(plan)
        for each, rows in kept:
            self.waiting.add(each, rows)


class TakesOldChunks(ChunkReads):
    """They count for the present plan."""

    def send_due(self, position: int, now: float) -> None:
        for each in list(self._waiting._chunks.values()):
            current = next((plan for plan in self._plans if plan.task.number == each.plan.task.number), None)
            if each not in each.plan.open and current is not None and current.chunks is not None:
                each.plan = current
                current.open.append(each)
        super().send_due(position, now)


class KeepsPagesOfTheFormerFile(LookUps):
    """After VACUUM FULL, pages that were read of the former file count as read."""

    def _plan(self, plan: TablePlan, table: SourceTable, now: float) -> None:
        files = {each.part.oid: each.part.filenode for each in table.parts}
        tasks = self._tasks
        current = tasks.progress.find(plan.task)
        if current is not None and current.parts is not None:
            parts = tuple(replace(part, filenode=files.get(part.oid, 0)) for part in current.parts)
            tasks.progress = tasks.progress.plan(plan.task, current.oid, current.name, parts, current.form)
        super()._plan(plan, table, now)


class CountsBeforeDelivery(ChunkReads):
    """Pages are counted when they are read, and not with their rows."""

    def rows_read(self, each: OpenChunk, answer: Any, now: float) -> None:
        chunk, task, tasks = each.chunk, each.plan.task, self._tasks
        if isinstance(answer, Rows) and chunk is not None:
            tasks.replace(tasks.progress.deliver(task, chunk.part, chunk.begin, chunk.end, 0))
        super().rows_read(each, answer, now)


class ReadsUnderAnyName(Incremental):
    """Rows go to the topic of the name that the table has now, where the stream has not got to yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "owns": lambda _oid, _name: True})


class MergesByName(SnapshotTasks):
    """A task for a name is taken for that of the name's former owner."""

    def add(self, tasks: Iterable[TableTask]) -> None:
        present = {task.name for task in self.progress.tasks}
        super().add([task for task in tasks if task.name not in present])


class EndsWithPages(ChunkReads):
    """A table is complete when its pages are delivered, whatever is owed."""

    def finish(self, plan: TablePlan, now: float) -> None:
        if plan.chunks is not None and plan.chunks.is_exhausted(plan.task) and not plan.open:
            self._plans.end(plan.task, now=now)
        else:
            super().finish(plan, now)


class SettlesWhatChanged(Exported):
    """What could not be read at the slot's snapshot, because the table was rewritten, counts as read."""

    def chunk_read(self, ticket: object, answer: Any, now: float) -> None:
        super().chunk_read(ticket, Rows([], 0) if isinstance(answer, Changed) else answer, now)


class WaitsForTheLock(Exported):
    """A table that somebody has locked while it is read at the slot's snapshot is asked for until it is free."""

    def chunk_read(self, asked: object, answer: Any, now: float) -> None:
        if isinstance(answer, Busy) and isinstance(asked, Chunk):
            self._being_read -= 1
            self._chunks.give_back(asked)
        else:
            super().chunk_read(asked, answer, now)


class ForgetsWhatWasLocked(Exported):
    """A table that could not be looked at, because somebody has locked it, is taken for one that is not there."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "locked": {}})


class KeepsTheTurnOfLockedTables(Incremental):
    """A table that somebody has locked keeps others from being begun with."""

    def plan_answered(self, asked: object, answer: Any, now: float) -> None:
        super().plan_answered(asked, answer, now)
        for plan in self.plans:
            plan.is_locked = False


class ExpandsNothing(LookUps):
    """A partitioned table that is published through its partitions is a table that is not there."""

    def looked(self, plan: TablePlan, answer: Looked, now: float) -> None:
        super().looked(plan, replace(answer, leaves={}), now)


class TakesWhatIsLeftOutForGone(LookUps):
    """A table whose present name is left out counts as dropped, so nobody reads it when it is back."""

    def looked(self, plan: TablePlan, answer: Looked, now: float) -> None:
        super().looked(plan, replace(answer, problem="") if answer.table is None else answer, now)


class ReadsOnePartition(LookUps):
    """Of the partitions that a table is published through, one is read."""

    def looked(self, plan: TablePlan, answer: Looked, now: float) -> None:
        first = dict(list(answer.leaves.items())[:1])
        super().looked(plan, replace(answer, leaves=first), now)


class KnowsEverything(PublishedTables):
    """Tables that were added are taken for known."""

    def listed(self, answer: Published) -> list[int]:
        for oid, name in answer.tables.items():
            if self._seen.former(name) is None:
                self._seen.take(oid, name)
                self._seen.settle(oid)
        return super().listed(answer)


class ForgetsWhoWaits(SnapshotTasks):
    """Tables that are added take the place of those that still wait."""

    def await_added(self, added: Mapping[int, str]) -> None:
        self.names.update(added)
        if added:
            self.replace(replace(self.progress, waiting=Oids(added), begun=0, added=Oids(added)))


class KnowsNoOids(PublishedTables):
    """A table is known by its name: another one that takes it goes on with its topic."""

    def described(self, oid: int, name: str) -> bool:
        self._seen.take(oid, name)
        return False

    def due(self, position: int, known: Callable[[int], bool]) -> list[int]:
        self._due.clear()
        return []


class AddsOnlyWhatIsListedFirst(PublishedTables):
    """A table whose first change comes before the list is taken for known."""

    def described(self, oid: int, name: str) -> bool:
        ends = super().described(oid, name)
        self._seen.settle(oid)
        return ends


class ForgetsWhoTookFreeNames(PublishedTables):
    """That a table has rows under a name that nobody had lives in memory only, until a list has the table."""

    def settle(self, oid: int, name: str) -> None:
        if self._delivered.former(name) is not None:
            super().settle(oid, name)


class LeavesRowsUnderTheFormerName(PublishedTables):
    """A table that is renamed to a name that no table had counts as a new table, whose rows are read only on demand."""

    def _former(self, owners: Owners, oid: int, name: str) -> int | None:
        return owners.former(name)


class TakesItsOwnNameBack(PublishedTables):
    """A table that comes back to a name goes on with its topic, which lacks what was changed under another name."""

    def described(self, oid: int, name: str) -> bool:
        if self._seen.former(name) != oid:
            return super().described(oid, name)
        for owners in (self._seen, self._delivered):
            owners.take(oid, name)
        return False


def listed_too_early(
    before: Mapping[int, str], after: Mapping[int, str], exported: Mapping[int, str] | None
) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """What is added to the publication while the slot's creation waits counts as added later."""
    return before, {}


def listed_too_late(
    before: Mapping[int, str], after: Mapping[int, str], exported: Mapping[int, str] | None
) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """What is added behind the slot is read at the slot's snapshot, and lacks what was written in between."""
    return after, {}


class FailsOnMalformed(Requests):
    """What cannot be read ends the session, at every start."""

    def take(self, message: LogicalMessage) -> None:
        if message.prefix == PREFIX:
            Signal.decode(message.content)
        super().take(message)


def _signal(message: LogicalMessage) -> Signal:
    """What the message asks for; what cannot be read asks for nothing."""
    try:
        return Signal.decode(message.content if message.prefix == PREFIX else b"")
    except ValueError:
        return Signal("")


class TakesAnySize(Requests):
    """All requests go into the checkpoint."""

    def take(self, message: LogicalMessage) -> None:
        signal = _signal(message)
        if signal.action == "start":
            request = signal.request or "signal"
            self._incremental.tasks.add(
                [TableTask(name, request=request, where=signal.where) for name in signal.tables]
            )
        super().take(message)


class CancelsEverything(Requests):
    """Also what the configuration asked for."""

    def take(self, message: LogicalMessage) -> None:
        signal = _signal(message)
        if signal.action == "cancel":
            for task in self._incremental.progress.tasks:
                if not signal.tables or task.name in signal.tables:
                    self._incremental.plans.end(task, "cancelled")
        super().take(message)


class UncheckedClient(Client):
    """Reads by name, and looks at nothing but what `checks` says."""

    checks: tuple[str, ...] = ()

    def changed(self, query: PageQuery | KeyQuery, table: Definition) -> str:
        reason = super().changed(query, table)
        return reason if reason in self.checks else ""


class ByNameClient(Client):
    """Pages are read of the table that has the name now, whichever it is."""

    def read(self, query: Any, snapshot: Any, bytes_max: int) -> Any:
        table = self.database.by_name(self.name_of(query))
        if table is not None and isinstance(query, PageQuery) and table.key == self._key(query):
            planned = replace(query.table, relation=replace(query.table.relation, oid=table.oid))
            query = replace(query, filenode=table.filenode, table=replace(planned, columns=table.fingerprint))
        return super().read(query, snapshot, bytes_max)

    def _key(self, query: PageQuery) -> tuple[str, ...]:
        """Where the names of columns differ, the query fails."""
        return self.database.first[query.table.oid].key


class KeepsThePlan(Incremental):
    """A table that is altered in the stream is read on as it was planned."""

    def redefined(self, oid: int) -> None:
        pass


class AnyFileClient(UncheckedClient):
    checks = ("another table has its name", "it was altered")


class AnyColumnsClient(UncheckedClient):
    """Columns that were added since the plan are not read."""

    checks = ("another table has its name", "it was rewritten")


def asking(client: type[Client]) -> type[Asker]:
    """An asker with another client."""

    class Planted(Asker):
        clients = client

    return Planted


class EndsFormerRowsAtEachStart(PublishedTables):
    """The session keeps in memory only which tables have ended their former rows after a gap."""

    def end_outdated(self, oids: Collection[int]) -> None:
        self._ended.update(oids)


class EndsFormerRowsLate(PublishedTables):
    """Rows of a table are sent before the former rows, from before a gap, have ended."""

    def outdated(self) -> list[int]:
        return []

    def is_new(self, oid: int, name: str) -> bool:
        return not self._seen.owns(oid, name)


def ends_nothing(
    progress: Progress, _found: Progress, _published: Mapping[int, str], _excluded: Iterable[str]
) -> Progress:
    """Former rows never end, so that rows which were deleted in a gap stay in the topics."""
    return progress


class SendsBeforeTheTopic(BatchQueue):
    """Rows of the initial snapshot do not wait for their topics."""

    def insert(self, records: list[Record], size: int, rows: int = 0, awaits: Collection[str] = ()) -> None:
        super().insert(records, size, rows)
