"""Bugs in the reading of tables and in what strangers ask for: most of them cdcd had (DECISIONS), or nearly had."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cdcd.engine.actions import Published, Writers
from cdcd.engine.exported import Exported
from cdcd.engine.incremental import Incremental
from cdcd.engine.requests import Requests
from cdcd.engine.tables import PublishedTables
from cdcd.protocol.messages import LogicalMessage
from cdcd.snapshots.progress import Key, TableTask
from cdcd.snapshots.reading import Changed, KeyQuery, PageQuery, Rows, SourceTable
from cdcd.snapshots.signals import PREFIX, Signal
from tests.sim.asking import Asker
from tests.sim.catalog import Definition
from tests.sim.client import Client


class ForgetsUnsentValues(Incremental):
    """A row that a change overtook counts as delivered, though the change left a value of it out."""

    def note(self, xid: int, topic: str, key: bytes | None, values: Key | None, *, moved: bool) -> None:
        super().note(xid, topic, key, None, moved=moved)


class ForgetsUnsentValuesAtARestart(Incremental):
    """What is owed lives in memory only."""

    def to_write_down(self) -> Any:
        for number in self._owed:
            task = self._task(number)
            if task is not None:
                self.progress = self.progress.owe(task, ())
        return self.progress


class NotesNothing(Incremental):
    """Rows of a chunk are sent though a newer change of them stands before."""

    def note(self, xid: int, topic: str, key: bytes | None, values: Key | None, *, moved: bool) -> None:
        for number in self._owed_of.get(topic, ()):
            if key is not None:
                self._owed[number].note(key, values, moved=moved)


class SendsAtOnce(Incremental):
    """Does not wait until the stream is past what the chunk's snapshot sees."""

    def between(self, position: int, now: float) -> None:
        super().between(1 << 62, now)


class IgnoresTruncate(Incremental):
    def truncated(self, xid: int, oids: Iterable[int]) -> None:
        pass


class AwaitsNobody(Incremental):
    """Who wrote to the table before the window opened may be streamed already, and yet no snapshot sees it."""

    def _found_writers(self, reading: Any, answer: Writers, now: float) -> None:
        super()._found_writers(reading, Writers(frozenset(), answer.seen), now)


class ForgetsTooMuch(Incremental):
    """The window forgets what the newest chunk sees, though older ones are still open."""

    def _advance(self, reading: Any) -> None:
        if reading.window is not None and reading.latest is not None:
            reading.window.advance(reading.latest)


class TakesOldChunks(Incremental):
    """A chunk of a former plan that waits for its place counts for the present one."""

    def _forget(self, reading: Any) -> None:
        kept = [each for each in reading.open if each.rows is not None]
        super()._forget(reading)
        self._waiting += kept
        self._waiting_bytes += sum(each.rows.size for each in kept)

    def between(self, position: int, now: float) -> None:
        for each in self._waiting:
            current = self._readings.get(each.reading.task.number)
            if each not in each.reading.open and current is not None and current.chunks is not None:
                each.reading = current
                current.open.append(each)
        super().between(position, now)


class KeepsPagesOfTheFormerFile(Incremental):
    """After VACUUM FULL, pages that were read of the former file count as read."""

    def _plan(self, reading: Any, table: SourceTable, now: float) -> None:
        files = {each.part.oid: each.part.filenode for each in table.parts}
        current = self.progress.find(reading.task)
        if current is not None and current.parts is not None:
            parts = tuple(replace(part, filenode=files.get(part.oid, 0)) for part in current.parts)
            self.progress = self.progress.plan(reading.task, current.oid, current.name, parts, current.form)
        super()._plan(reading, table, now)


class CountsBeforeDelivery(Incremental):
    """Pages are counted when they are read, and not with their rows."""

    def _read(self, each: Any, answer: Any, now: float) -> None:
        chunk, task = each.chunk, each.reading.task
        if isinstance(answer, Rows) and chunk is not None:
            self._set(self.progress.deliver(task, chunk.part, chunk.begin, chunk.end, 0))
        super()._read(each, answer, now)


class ReadsUnderAnyName(Incremental):
    """Rows go to the topic of the name that the table has now, where the stream has not got to yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "owns": lambda _oid, _name: True})


class MergesByName(Incremental):
    """A task for a name is taken for that of the name's former owner."""

    def add(self, tasks: Iterable[TableTask]) -> None:
        present = {task.name for task in self.progress.tasks}
        super().add([task for task in tasks if task.name not in present])


class EndsWithPages(Incremental):
    """A table is complete when its pages are delivered, whatever is owed."""

    def _finish(self, reading: Any, now: float) -> None:
        if reading.chunks.is_exhausted(reading.task) and not reading.open:
            self._end(reading.task, now=now)
        else:
            super()._finish(reading, now)


class SettlesWhatChanged(Exported):
    """What could not be read at the slot's snapshot, because the table was rewritten, counts as read."""

    def answered(self, ticket: object, answer: Any, now: float) -> None:
        super().answered(ticket, Rows([], 0) if isinstance(answer, Changed) else answer, now)


class KnowsEverything(PublishedTables):
    """Tables that were added are taken for known."""

    def listed(self, answer: Published) -> list[int]:
        for oid, name in answer.tables.items():
            if self._seen.former(name) is None:
                self._seen.take(oid, name)
                self._seen.settle(oid)
        return super().listed(answer)


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
    """What can not be read ends the session, at every start."""

    def take(self, message: LogicalMessage) -> None:
        if message.prefix == PREFIX:
            Signal.decode(message.content)
        super().take(message)


def _signal(message: LogicalMessage) -> Signal:
    """What the message asks for; what can not be read asks for nothing."""
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
            self._incremental.add(
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
                    self._incremental.cancel(task, "cancelled")
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
