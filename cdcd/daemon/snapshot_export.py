"""The initial snapshot: all tables as they were when the slot began, read side by side before streaming starts.

The slot's creation exports a snapshot that sees exactly what was committed before the slot's first position. Readers
import it, take the tables' pages chunk by chunk, and every row becomes a record with op `r` that stands before all
changes. Progress goes out with the rows; a life that ends in the middle takes the snapshot with it, and the next
one goes on incrementally with the pages that are left, because the slot is there and has every change since.
"""

import asyncio
import time

from cdcd.daemon.snapshot_source import BUSY_S, SnapshotSource
from cdcd.daemon.snapshot_state import SnapshotState
from cdcd.errors import SourceError
from cdcd.facts import Observer, SnapshotStarted
from cdcd.postgres.refusals import TableBusyError
from cdcd.postgres.snapshot_reader import SnapshotReader
from cdcd.records.formats.snapshot_rows import Place
from cdcd.snapshots.chunks import UNLIMITED, Chunk, Chunks
from cdcd.snapshots.markers import ROW, Marked, Markers, marker_of_single
from cdcd.snapshots.reading import Changed, PageQuery, Refused, Rows, SourceTable, TooLarge

_Read = tuple[Chunk, Rows]


class ExportedSnapshot:
    """Reads everything at the slot's snapshot; `run` it once, before streaming.

    Args:
        position: the slot's first position, as an LSN.
    """

    def __init__(
        self,
        state: SnapshotState,
        source: SnapshotSource,
        *,
        snapshot: str,
        position: int,
        chunk_bytes: int,
        parallelism: int,
        observe: Observer,
    ) -> None:
        self._state = state
        self._source = source
        self._snapshot = snapshot
        self._position = position
        self._chunk_bytes = chunk_bytes
        self._parallelism = parallelism
        self._observe = observe
        self._chunks = Chunks(chunk_bytes)
        self._markers: Markers[_Read] = Markers()
        self._tables: dict[int, SourceTable] = {}
        self._sql_names: dict[int, str] = {}
        self._readers: list[SnapshotReader] = []

    async def import_snapshot(self) -> None:
        """Open the readers at the snapshot, which from here on lives as long as they do, and plan what they read.

        The walsender that exported it must do nothing else before this returns.
        """
        for _ in range(self._parallelism):
            reader = await self._source.open_reader()
            await reader.import_snapshot(self._snapshot)
            self._readers.append(reader)
        for table in await self._source.look_at(self._snapshot):
            self._tables[table.oid] = table
            self._sql_names |= {each.part.oid: each.sql_name for each in table.parts}
        state = self._state
        progress = state.progress
        for task in progress.tasks:
            found = self._tables.get(task.oid)
            if found is not None:
                progress = progress.plan(task, found.oid, tuple(each.part for each in found.parts))
        state.set(progress)
        self._observe(
            SnapshotStarted(
                tables=len(progress.tasks),
                bytes=sum(task.size for task in progress.tasks),
                method=progress.method,
            )
        )

    async def run(self) -> None:
        """Read until every chunk is on its way to Kafka.

        Raises:
            TransientError: a reader's connection is lost, and the snapshot with it.
            SourceError: a table may not be read.
        """
        state = self._state
        for task in state.progress.tasks:
            if task.parts is None:
                continue
            await self._source.describe(self._tables[task.oid].relation)
            if task.is_done:
                state.end(task)
            else:
                self._chunks.add(task)
                state.begin(task)
        report = asyncio.create_task(state.report(), name="report")
        try:
            async with asyncio.TaskGroup() as group:
                for reader in self._readers:
                    group.create_task(self._work(reader))
        finally:
            report.cancel()
        for marked in self._markers.finish():
            self._put(marked)
        for reader in self._readers:
            reader.close()
        if not state.progress.is_done:
            state.interrupted()

    async def _work(self, reader: SnapshotReader) -> None:
        while True:
            await self._state.wait_for_room()
            chunk = self._chunks.next()
            if chunk is None:
                return
            table = self._tables[chunk.task.oid]
            query = PageQuery(
                self._sql_names[chunk.part],
                chunk.part,
                chunk.filenode,
                chunk.begin,
                chunk.end,
                table,
                (table.row_filter, chunk.task.where),
            )
            bytes_max = UNLIMITED if chunk.pages == 1 else 2 * self._chunk_bytes
            try:
                rows = await reader.read(query, bytes_max)
            except TableBusyError:
                self._chunks.give_back(chunk)
                await asyncio.sleep(BUSY_S)
                continue
            if isinstance(rows, TooLarge):
                self._chunks.split(chunk)
                continue
            if isinstance(rows, Changed):
                # Altered or dropped since the snapshot; what is left of it is looked at again, and read incrementally.
                self._chunks.drop(chunk.task)
                continue
            if isinstance(rows, Refused):
                raise SourceError(f"{table.name} can not be read: {rows.reason}", hint=rows.hint)
            if self._chunks.settle(chunk):
                self._take(chunk, rows)

    def _take(self, chunk: Chunk, rows: Rows) -> None:
        ready: list[Marked[_Read]] = []
        if rows.lines:
            ready += self._markers.add(chunk.task.oid, (chunk, rows))
        else:
            self._state.set(self._state.progress.deliver(chunk.task, chunk.part, chunk.begin, chunk.end, 0))
        if self._chunks.is_exhausted(chunk.task):
            ready += self._markers.complete(chunk.task.oid)
        for marked in ready:
            self._put(marked)
        self._end(chunk)

    def _put(self, marked: Marked[_Read]) -> None:
        chunk, rows = marked.chunk
        state = self._state
        single = len(rows.lines) == 1
        place = Place(
            lsn=self._position,
            commit_lsn=self._position - 1,
            first=marker_of_single(marked) if single else marked.first,
            last=marker_of_single(marked) if single else marked.last,
            others=ROW,
            serial=state.progress.serial,
        )
        now_us = time.time_ns() // 1000
        count, size = self._source.encoder.encode_rows(
            chunk.task.oid, rows.lines, place, now_us, state.tail, set()
        )
        state.put(
            state.progress.deliver(chunk.task, chunk.part, chunk.begin, chunk.end, count),
            size,
        )
        self._end(chunk)

    def _end(self, chunk: Chunk) -> None:
        task = self._state.progress.find(chunk.task)
        if task is not None and task.is_done:
            self._state.end(task)
