"""The initial snapshot: reads all tables in parallel as they were when the slot was created, before the stream starts.

Creating the slot exports a snapshot, which sees exactly what was committed before the slot's first position.
Readers import that snapshot and read the tables chunk by chunk. Every row becomes a record with op `r`, and all
these records precede all changes.

The progress is delivered together with the rows. If a session ends before all is read, the exported snapshot is
lost. The next session reads the remaining pages beside the stream (`incremental.py`), which works because the slot
exists and has every change since then.

A table that another session has locked is also left to be read beside the stream, so that it delays neither other
tables nor the stream. But without truncate records, a table without a key cannot be read beside the stream. So its
lock is awaited after all other tables. If nothing else is left to read, reading the table is given up `GIVE_UP_S`
after its lock was met, and its name is reported, because the owner of one table must not delay the stream.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from cdcd.core.engine.actions import Answer, Busy, Lost, Question, Read
from cdcd.core.engine.fates import BELONGS, SET_ASIDE, SNAPSHOT, Fates, fault_of_rows
from cdcd.core.engine.rendering import Rendering
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.errors import CdcdError, FatalError
from cdcd.core.records.encoder import Encoded
from cdcd.core.records.markers import Marked, Markers
from cdcd.core.snapshot.chunks import Chunk, Chunks, page_query
from cdcd.core.snapshot.reading import Refused, Rows, TooLarge, bytes_max
from cdcd.core.snapshot.table_task import TableTask, form_of

_Read = tuple[Chunk, Rows]

GIVE_UP_S: Final = 30.0
"""Seconds that the stream waits for the lock of a table without a key, which is longer than an ALTER TABLE without a
rewrite takes, and short enough for the other tables."""


class Exported:
    """Reads the waiting tables at the slot's snapshot.

    The caller calls `next_question` until `is_done`, and then `finish`.

    Args:
        tasks: the progress. Tables that cannot be read here stay in it, and are read beside the stream.
        found: the published tables as they were at the slot's snapshot.
        fates: the tables that are set aside. It takes the faults of tables; if it sets no table aside, a fault ends the
            session (`failure`).
        ends_rows: truncate records are made, by which tables without a key can be read beside the stream.
    """

    def __init__(
        self,
        tasks: SnapshotTasks,
        rendering: Rendering,
        found: ExportedTables,
        settings: SnapshotSettings,
        fates: Fates,
        *,
        ends_rows: bool,
    ) -> None:
        self._fates = fates
        self._aside: Mapping[int, object] = fates.aside
        self.failure: CdcdError | None = None
        """The error because of which the session cannot go on; None if there is none."""
        self._tasks = tasks
        self._rendering = rendering
        self._chunk_bytes = settings.chunk_bytes
        self._parallelism = settings.parallelism
        self._markers: Markers[_Read] = Markers()
        self._chunks = Chunks(settings.chunk_bytes)
        self._being_read = 0
        self._told: set[int] = set()
        """Oids of tables that were reported as locked."""
        self._locked = found.locked
        self._unread = () if ends_rows else found.locked_keyless()
        """Oids of the locked tables that cannot be read beside the stream."""
        self._postpones_keyless = ends_rows
        self._locked_since: dict[int, float] = {}
        """When the locks of tables without a key were met (monotonic seconds), by oid."""
        self._begun: dict[int, TableTask] = {}
        """The tasks of tables whose reading has begun, by oid."""
        self._tables = {oid: found.tables[oid] for oid in tasks.progress.waiting.oids if oid in found.tables}
        self._sql_names: dict[int, str] = {}
        size = 0
        for oid, table in self._tables.items():
            parts = tuple(each.part for each in table.parts)
            self._chunks.add(TableTask(table.name, oid, parts=parts))
            self._sql_names.update(table.sql_names)
            size += sum(part.size for part in parts)
        tasks.announce(size)

    @property
    def is_done(self) -> bool:
        """True if every chunk was read, or is left to be read beside the stream."""
        return not self._being_read and self._chunks.peek() is None

    def has(self, oid: int) -> bool:
        """Return whether the table exists and is defined at the slot's snapshot."""
        return oid in self._tables

    def topics(self) -> tuple[str, ...]:
        """Return the topics of the tables that may have rows, without tables that are set aside."""
        return tuple(
            self._rendering.topic_of(oid)
            for oid, table in self._tables.items()
            if oid not in self._aside and any(each.part.pages for each in table.parts)
        )

    def next_question(self, now: float) -> tuple[object, Question] | None:
        """Return the next chunk to read, and the question for it; None if there is nothing to ask now."""
        if self._being_read >= self._parallelism:
            return None
        chunk = self._chunks.next()
        if chunk is None:
            return None
        self._begin_up_to(chunk.task.oid, now)
        query = page_query(self._tables[chunk.task.oid], self._sql_names[chunk.part], chunk)
        self._being_read += 1
        return chunk, Read(query, bytes_max(query, self._chunk_bytes), exported=True)

    def _begin_up_to(self, oid: int, now: float) -> None:
        """Make tasks of the waiting tables up to this one, in their order. A table without pages ends at once."""
        tasks = self._tasks
        while oid not in self._begun:
            begun = tasks.progress.begin_next(tasks.names)
            assert begun is not None, "a table that is read was waiting"
            progress, task = begun
            table = self._tables.get(task.oid)
            if table is not None:
                parts = tuple(each.part for each in table.parts)
                progress = progress.plan(task, table.oid, table.name, parts, form_of(table.columns))
            tasks.replace(progress)
            found = progress.find(task)
            assert found is not None
            self._begun[task.oid] = found
            if task.oid in self._aside:
                tasks.end(found, SET_ASIDE, now=now)
            elif task.oid in self._unread:
                tasks.end(found, _given_up(self._locked[task.oid], found.name), now=now)
            elif task.oid in self._locked:
                tasks.tell_postponed(found.name, self._locked[task.oid])
            elif table is None:
                # The table was dropped or unpublished before the slot was created.
                tasks.end(found, "there was no such table at the slot's snapshot", now=now)
            else:
                tasks.start_pace(found, now)
                if found.is_done:
                    tasks.end(found, now=now)

    def chunk_read(self, asked: object, answer: Answer, now: float) -> None:
        """Take the answer to the question for a chunk."""
        assert isinstance(asked, Chunk)
        chunk = asked
        self._being_read -= 1
        if isinstance(answer, Lost):
            self.failure = answer.error
        elif isinstance(answer, Refused):
            self._fail(chunk.task.oid, SNAPSHOT, answer.error(chunk.task.name))
        elif isinstance(answer, TooLarge):
            self._chunks.split(chunk)
        elif isinstance(answer, Rows):
            self._locked_since.pop(chunk.task.oid, None)
            if self._chunks.settle(chunk):
                self._take(chunk, answer, now)
        elif isinstance(answer, Busy):
            # A table that was set aside meanwhile is not read any more, and its description may be forgotten.
            if self._chunks.has(chunk.task):
                self._pass_over(chunk, answer.reason, now)
        else:
            # The table was altered or dropped since the snapshot was taken, so its remaining rows are read beside the
            # stream.
            self._chunks.drop(chunk.task)

    def _fail(self, oid: int, fault: str, error: FatalError) -> None:
        if self._fates.sets_aside:
            self._fates.fault(oid, fault, error)
        else:
            self.failure = error

    def skip(self, oids: Iterable[int]) -> None:
        """Do not read these tables, because their topics equal them. The progress does not have them any more."""
        for oid in oids:
            table = self._tables.pop(oid)
            parts = tuple(each.part for each in table.parts)
            self._chunks.drop(TableTask(table.name, oid, parts=parts))

    def leave(self, oid: int, reason: str) -> None:
        """Stop reading the table, because it is set aside."""
        table = self._tables.get(oid)
        if table is None:
            return
        parts = tuple(each.part for each in table.parts)
        self._chunks.drop(TableTask(table.name, oid, parts=parts))
        self._markers.discard(oid)
        begun = self._begun.get(oid)
        if begun is not None:
            self._tasks.end(begun, reason)

    def _pass_over(self, chunk: Chunk, reason: str, now: float) -> None:
        """Note that another session has locked the chunk's table, and let other tables have their turn."""
        task = chunk.task
        if self._postpones_keyless or self._rendering.key_columns(task.oid):
            self._tasks.tell_postponed(task.name, reason)
            self._chunks.drop(task)
            return
        if task.oid not in self._told:
            self._told.add(task.oid)
            self._tasks.tell_waiting(task.name, reason)
        since = self._locked_since.setdefault(task.oid, now)
        self._chunks.put_off(chunk)
        is_alone = all(each.oid in self._locked_since for each in self._chunks.left())
        if now - since >= GIVE_UP_S and is_alone:
            self._chunks.drop(task)
            self._markers.discard(task.oid)
            self._tasks.end(self._begun[task.oid], _given_up(reason, task.name), now=now)

    def finish(self, now: float) -> None:
        """Send the rows that were held back until it was known which row is the last.

        This is called once `is_done` is true.
        """
        waiting = self._tasks.progress.waiting
        if waiting.oids:
            self._begin_up_to(waiting.oids[-1], now)
        self._put_all(self._markers.finish(), now)

    def _take(self, chunk: Chunk, rows: Rows, now: float) -> None:
        ready: list[Marked[_Read]] = []
        if rows.lines:
            ready += self._markers.add(chunk.task.oid, (chunk, rows))
        else:
            self._deliver(chunk, 0, now)
        if self._chunks.is_exhausted(chunk.task):
            ready += self._markers.complete(chunk.task.oid)
        self._put_all(ready, now)

    def _put_all(self, ready: Iterable[Marked[_Read]], now: float) -> None:
        for marked in ready:
            chunk, rows = marked.chunk

            def deliver(encoded: Encoded, chunk: Chunk = chunk) -> None:
                self._deliver(chunk, encoded.rows, now)

            if chunk.task.oid in self._aside:
                continue
            try:
                self._rendering.put(
                    chunk.task.oid,
                    rows,
                    event_no=self._tasks.progress.event_no,
                    dropped=set(),
                    progress=deliver,
                    marked=marked,
                )
            except BELONGS as error:
                self._fates.fault(chunk.task.oid, fault_of_rows(error), error)

    def _deliver(self, chunk: Chunk, rows: int, now: float) -> None:
        """Count the chunk's pages and rows, and end the task with its last page."""
        tasks, task = self._tasks, self._begun[chunk.task.oid]
        tasks.replace(tasks.progress.deliver(task, chunk.part, chunk.begin, chunk.end, rows))
        found = tasks.progress.find(task)
        if found is not None and found.is_done:
            tasks.end(found, now=now)


def _given_up(reason: str, table: str) -> str:
    return (
        f"{reason}. The table has no key, so its rows cannot be read beside the stream, and the stream does not wait "
        f"for the lock. To read the rows, add a primary key to {table} and ask for a snapshot of it, or start the "
        "pipeline from scratch (`cdcd reset`) when the lock is gone."
    )
