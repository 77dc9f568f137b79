"""The initial snapshot: all tables as they were when the slot began, read side by side before streaming starts.

The slot's creation exports a snapshot that sees exactly what was committed before the slot's first position. Readers
import it, take the tables' pages chunk by chunk, and every row becomes a record with op `r` that stands before all
changes. Progress goes out with the rows; a session that ends in the middle takes the snapshot with it, and the next
one goes on incrementally (`incremental.py`) with the pages that are left, because the slot is there and has every
change since.
"""

from collections.abc import Iterable, Mapping

from cdcd.engine.actions import Answer, Busy, Lost, Question, Read
from cdcd.engine.incremental import Incremental, Rendering
from cdcd.errors import CdcdError, SourceError
from cdcd.records.formats.snapshot_rows import Encoded
from cdcd.snapshots.chunks import Chunk, Chunks
from cdcd.snapshots.markers import Marked, Markers
from cdcd.snapshots.progress import TableTask, form_of
from cdcd.snapshots.reading import PageQuery, Refused, Rows, SourceTable, TooLarge, bytes_max

_Read = tuple[Chunk, Rows]


class Exported:
    """Reads everything at the slot's snapshot, before streaming.

    Args:
        incremental: keeps the progress, which this moves on; reads afterwards what could not be read here.
        tables: the published tables as they were then, by oid; those that wait are read.
    """

    def __init__(
        self,
        incremental: Incremental,
        rendering: Rendering,
        tables: Mapping[int, SourceTable],
        *,
        chunk_bytes: int,
        parallelism: int,
    ) -> None:
        self.failure: CdcdError | None = None
        self._incremental = incremental
        self._rendering = rendering
        self._chunk_bytes = chunk_bytes
        self._parallelism = parallelism
        self._markers: Markers[_Read] = Markers()
        self._chunks = Chunks(chunk_bytes)
        self._being_read = 0
        self._tasks: dict[int, TableTask] = {}
        self._told: set[int] = set()
        """Tables of which was said that they are locked."""
        self._wanted = {oid: tables[oid] for oid in incremental.progress.waiting.oids if oid in tables}
        for oid, table in self._wanted.items():
            self._chunks.add(TableTask(table.name, oid, parts=tuple(each.part for each in table.parts)))
        parts = [each for table in self._wanted.values() for each in table.parts]
        incremental.announce(sum(each.part.size for each in parts))
        self._sql_names = {each.part.oid: each.sql_name for each in parts}

    @property
    def is_done(self) -> bool:
        """Whether every chunk is read, or left to others."""
        return not self._being_read and self._chunks.peek() is None

    def topics(self) -> tuple[str, ...]:
        """The topics of the tables that may have rows."""
        return tuple(
            self._rendering.topic_of(oid)
            for oid, table in self._wanted.items()
            if any(each.part.pages for each in table.parts)
        )

    def next_question(self, now: float) -> tuple[object, Question] | None:
        """A chunk to be read, and whom the answer is for; None: nothing now."""
        if self._being_read >= self._parallelism:
            return None
        chunk = self._chunks.next()
        if chunk is None:
            return None
        self._begin_up_to(chunk.task.oid, now)
        table = self._wanted[chunk.task.oid]
        query = PageQuery(
            self._sql_names[chunk.part],
            chunk.part,
            chunk.filenode,
            chunk.begin,
            chunk.end,
            table,
            (table.row_filter,),
        )
        self._being_read += 1
        return chunk, Read(query, bytes_max(query, self._chunk_bytes), exported=True)

    def _begin_up_to(self, oid: int, now: float) -> None:
        """Take the tables up to this one among the tasks; those that are empty end at once."""
        incremental = self._incremental
        while oid not in self._tasks:
            begun = incremental.progress.begin_next(incremental.names)
            assert begun is not None, "a table that is read was waiting"
            progress, task = begun
            table = self._wanted.get(task.oid)
            if table is not None:
                parts = tuple(each.part for each in table.parts)
                progress = progress.plan(task, table.oid, table.name, parts, form_of(table.columns))
            incremental.replace(progress)
            found = progress.find(task)
            assert found is not None
            self._tasks[task.oid] = found
            if table is None:
                # It was dropped, or taken out of the publication, when the slot was made.
                incremental.end(found, "there was no such table at the slot's snapshot", now)
            else:
                incremental.start_pace(found, now)
                if found.is_done:
                    incremental.end(found, "", now)

    def answered(self, asked: object, answer: Answer, now: float) -> None:
        """The answer to a question."""
        assert isinstance(asked, Chunk)
        chunk = asked
        self._being_read -= 1
        if isinstance(answer, Lost):
            self.failure = answer.error
        elif isinstance(answer, Refused):
            self.failure = SourceError(
                f"The rows of {chunk.task.name} can not be read: {answer.reason}", hint=answer.hint
            )
        elif isinstance(answer, TooLarge):
            self._chunks.split(chunk)
        elif isinstance(answer, Rows):
            if self._chunks.settle(chunk):
                self._take(chunk, answer, now)
        elif isinstance(answer, Busy):
            if chunk.task.oid not in self._told:
                self._told.add(chunk.task.oid)
                self._incremental.tell_waiting(chunk.task.name, answer.reason)
            self._chunks.give_back(chunk)
        else:
            # Altered or dropped since the snapshot: what is left of it is looked at again, and read incrementally.
            self._chunks.drop(chunk.task)

    def finish(self, now: float) -> None:
        """Send what was held back. Call it once `is_done`; what is not read by now is read incrementally."""
        waiting = self._incremental.progress.waiting
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

            self._rendering.put(
                chunk.task.oid,
                rows,
                event_no=self._incremental.progress.event_no,
                dropped=set(),
                progress=deliver,
                marked=marked,
            )

    def _deliver(self, chunk: Chunk, rows: int, now: float) -> None:
        incremental, task = self._incremental, self._tasks[chunk.task.oid]
        incremental.replace(incremental.progress.deliver(task, chunk.part, chunk.begin, chunk.end, rows))
        found = incremental.progress.find(task)
        if found is not None and found.is_done:
            incremental.end(found, "", now)
