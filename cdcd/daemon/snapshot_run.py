"""Incremental snapshots: chunks of tables read beside the stream, and put into it where they are true.

```
  worker: plan a table ─▶ read a chunk at a snapshot of its own ─▶ wait until it is sent ─▶ the next chunk
                                          │                                  ▲
  pipeline: note(changed keys) ─▶ Window  └▶ loaded ─▶ emit(position) ───────┘   between two transactions
```

When a chunk may be sent, and which of its rows are out of date by then, is `cdcd.snapshots.window`'s matter. What a
window remembers begins with the table's first chunk. What was streamed before that must be seen by every snapshot that
is taken, and a transaction is seen when it has ended: so whoever writes to the table at that moment is waited for, as
CREATE INDEX CONCURRENTLY does (by its locks, which go when the transaction is seen: xact.c, CommitTransaction).

No row is read at an old snapshot for long, no WAL is kept, and progress is delivered with the rows: a life that ends
costs the chunks that were on their way.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from cdcd.daemon.snapshot_source import BUSY_S, SnapshotSource
from cdcd.daemon.snapshot_state import SnapshotState
from cdcd.errors import SourceError
from cdcd.facts import (
    Observer,
    SnapshotSignalled,
    SnapshotSignalRefused,
    SnapshotStarted,
    SnapshotWaiting,
)
from cdcd.postgres.refusals import TableBusyError
from cdcd.postgres.snapshot_reader import SnapshotReader
from cdcd.protocol.messages import LogicalMessage
from cdcd.records.envelope import Record
from cdcd.records.formats.snapshot_rows import Place
from cdcd.snapshots.chunks import UNLIMITED, Chunk, Chunks
from cdcd.snapshots.markers import INCREMENTAL
from cdcd.snapshots.progress import Part, TableTask
from cdcd.snapshots.reading import Changed, PageQuery, Refused, Rows, SourceTable, TooLarge
from cdcd.snapshots.signals import PREFIX, Signal
from cdcd.snapshots.visibility import Visibility
from cdcd.snapshots.window import Window

ADDED_S: Final = 5.0
"""How often the publication is looked at for tables that were added."""

WAITING_BYTES_MAX: Final = 32 << 20
"""Rows that are read and wait for their place: a stream that is behind reaches it late."""

WRITERS_S: Final = 0.05
WRITERS_S_MAX: Final = 1.0
WAITING_S: Final = 5.0
"""After so long it is said whom a table waits for."""


@dataclass(slots=True, eq=False)
class _Open:
    """A chunk that is out: being read (`rows` is None), or waiting for its place in the stream.

    `floor` is a snapshot that was complete when the reading began, so that the chunk's own sees no less.
    """

    chunk: Chunk
    topic: str
    floor: Visibility | None
    rows: Rows | None = None
    void: bool = False


class SnapshotRun:
    """A life's incremental snapshots. The pipeline calls `note`, `redefined`, `signal` and `emit` as it reads.

    Args:
        signals: which requests are followed: all, without_where, off.
    """

    def __init__(
        self,
        state: SnapshotState,
        source: SnapshotSource,
        *,
        name: str,
        chunk_bytes: int,
        parallelism: int,
        added_tables: bool,
        signals: str,
        observe: Observer,
    ) -> None:
        self.state = state
        self.window = Window()
        self._source = source
        self._name = name
        self._chunk_bytes = chunk_bytes
        self._parallelism = parallelism
        self._added_tables = added_tables
        self._signals = signals
        self._observe = observe
        self._chunks = Chunks(chunk_bytes)
        self._tables: dict[str, SourceTable] = {}
        self._preparing: set[str] = set()
        self._open: list[_Open] = []
        self._latest: dict[str, Visibility] = {}
        self._announced = False
        self._waiting_bytes = 0

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Records of rows so far, by (schema.table, op)."""
        return self._source.encoder.counts

    # What the pipeline says, in the order of the stream.

    def note(self, xid: int, records: Iterable[Record]) -> None:
        """The committed transaction made these records."""
        for topic, key, _, _ in records:
            self.window.note(xid, topic, key)

    def redefined(self, schema: str, table: str) -> None:
        """A table has another form in the stream from here on: what is being read of it is read again."""
        for each in self._open:
            if each.chunk.task.name == f"{schema}.{table}":
                each.void = True

    def signal(self, message: LogicalMessage) -> None:
        """A message to the daemon itself; the progress is that after it."""
        if message.prefix != PREFIX:
            return
        try:
            signal = Signal.decode(message.content)
            if self._signals == "off" or (signal.where and self._signals != "all"):
                raise ValueError(f"snapshot.signals is {self._signals}")
        except ValueError as error:
            self._observe(SnapshotSignalRefused(reason=str(error)))
            return
        if signal.pipeline in ("", self._name):
            before = self.state.progress
            self.state.set(signal.apply(before))
            for task in before.tasks:
                if self.state.progress.find(task) is None:
                    self._forget(task)
            self._observe(SnapshotSignalled(action=signal.action, tables=list(signal.tables)))

    def emit(self, position: int) -> None:
        """Between two transactions, of which the former ends at `position`: send what has its place here."""
        for each in self._open.copy() if self._open else ():
            if each.rows is not None and each.rows.after is not None and each.rows.after <= position:
                self._send(each, each.rows, position)

    # Reading.

    async def run(self) -> None:
        """Read what there is to read, and what is asked for later. Ends by being cancelled, or raises."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._parallelism):
                group.create_task(self._work())
            group.create_task(self.state.report())
            if self._added_tables:
                group.create_task(self._look_for_added())

    async def _work(self) -> None:
        reader: SnapshotReader | None = None
        while True:
            progress = self.state.progress
            if progress.is_done and reader is not None:
                reader.close()
                reader = None
            task = None if progress.paused else self._unprepared()
            if task is not None:
                await self._prepare(task)
                continue
            chunk = None
            if not progress.paused and self._waiting_bytes < WAITING_BYTES_MAX:
                chunk = self._chunks.next()
            if chunk is None:
                self.state.changed.clear()
                await self.state.changed.wait()
                continue
            reader = reader or await self._source.open_reader()
            each = _Open(chunk, self._topic(chunk.task), self._latest.get(self._topic(chunk.task)))
            self._open.append(each)
            await self._read(reader, each)

    def _topic(self, task: TableTask) -> str:
        return self._source.encoder.topic_of(self._tables[task.name].oid)

    def _unprepared(self) -> TableTask | None:
        """The next table to be looked at: so many at a time as there are workers."""
        if len(self._preparing) + sum(map(self._chunks.has, self.state.progress.tasks)) >= self._parallelism:
            return None
        return next(
            (
                task
                for task in self.state.progress.tasks
                if task.name not in self._preparing and not self._chunks.has(task)
            ),
            None,
        )

    async def _prepare(self, task: TableTask) -> None:
        self._preparing.add(task.name)
        try:
            await self._plan(task)
        finally:
            self._preparing.discard(task.name)
            self.state.changed.set()

    async def _plan(self, task: TableTask) -> None:
        published = await self._source.published()
        oid = task.oid if task.oid in published else 0
        if not oid:
            oid = next((each for each, name in published.items() if name == task.name), 0)
        tables = await self._source.look([oid]) if oid else []
        if not tables:
            self.state.end(task, "there is no such table in the publication")
            return
        table = tables[0]
        await self._source.describe(table.relation)
        if not self._source.encoder.has_key(table.oid):
            # One that was dropped before its key was looked up has none either.
            if await self._source.look([table.oid]):
                self._refuse_keyless(task)
            else:
                self.state.end(task, "it was dropped")
            return
        if task.where and (problem := await self._source.examine(table, task.where)):
            self.state.end(task, f"the where can not be used: {problem}")
            return
        self._tables[task.name] = table
        topic = self._source.encoder.topic_of(table.oid)
        self.window.watch(topic)
        await self._await_writers(task, [table.oid, *(each.part.oid for each in table.parts)])
        # Looked at again: rows that are there from now on are in the stream, and those before are on these pages.
        tables = await self._source.look([table.oid])
        current = self.state.progress.find(task)
        if not tables or current is None:
            self.state.end(task, "it was dropped")
            self._forget(task)
            return
        self._tables[task.name] = table = tables[0]
        # It may have been altered while its writers were waited for.
        await self._source.describe(table.relation)
        before = {part.oid: part for part in current.parts or ()}
        parts = tuple(_go_on(before.get(each.part.oid), each.part) for each in table.parts)
        self.state.set(self.state.progress.plan(task, table.oid, parts))
        planned = self.state.progress.find(task)
        assert planned is not None, "it was found a moment ago"
        if not self._announced:
            self._announced = True
            self._observe(
                SnapshotStarted(
                    tables=len(self.state.progress.tasks),
                    bytes=planned.size,
                    method=self.state.progress.method,
                )
            )
        self.state.begin(planned)
        self._chunks.add(planned)
        self._finish(planned)

    def _refuse_keyless(self, task: TableTask) -> None:
        if task.request:
            self.state.end(task, "it has no key, by which a row could be told from its changes")
            return
        raise SourceError(
            f"The rows of {task.name} are not all read, and can not be read beside the stream: the table has no key, "
            "by which a row could be told from its changes.",
            hint="Give it a primary key, or a unique one without NULLs and REPLICA IDENTITY USING INDEX. Or go on "
            "without the rows that were not read: snapshot.mode: never.",
        )

    async def _await_writers(self, task: TableTask, oids: list[int]) -> None:
        """Until whoever writes to the table now has ended."""
        waiting = await self._source.writers(oids)
        began, wait_s, told = time.monotonic(), WRITERS_S, False
        while waiting:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, WRITERS_S_MAX)
            waiting &= await self._source.writers(oids)
            if waiting and not told and time.monotonic() - began > WAITING_S:
                told = True
                self._observe(SnapshotWaiting(table=task.name, writers=sorted(waiting)))

    async def _read(self, reader: SnapshotReader, each: _Open) -> None:
        chunk, table = each.chunk, self._tables[each.chunk.task.name]
        sql_name = next(part.sql_name for part in table.parts if part.part.oid == chunk.part)
        query = PageQuery(
            sql_name,
            chunk.part,
            chunk.filenode,
            chunk.begin,
            chunk.end,
            table,
            (table.row_filter, chunk.task.where),
        )
        await self.state.wait_for_room()
        try:
            rows = await reader.read(query, UNLIMITED if chunk.pages == 1 else 2 * self._chunk_bytes)
        except TableBusyError:
            self._close(each)
            self._chunks.give_back(chunk)
            await asyncio.sleep(BUSY_S)
            return
        if isinstance(rows, TooLarge):
            self._close(each)
            self._chunks.split(chunk)
            return
        if isinstance(rows, Changed | Refused):
            self._close(each)
            if isinstance(rows, Refused):
                if not chunk.task.request:
                    raise SourceError(f"{table.name} can not be read: {rows.reason}", hint=rows.hint)
                self.state.end(chunk.task, rows.reason)
            self._forget(chunk.task)
            self.state.changed.set()
            return
        each.rows = rows
        assert rows.seen is not None, "it has a snapshot of its own"
        self._latest[each.topic] = rows.seen
        self._waiting_bytes += rows.size
        position = self.state.place
        if position is not None:
            self.emit(position)

    def _send(self, each: _Open, rows: Rows, position: int) -> None:
        chunk, state = each.chunk, self.state
        assert rows.seen is not None, "it has a snapshot of its own"
        self._close(each)
        if state.progress.find(chunk.task) is None or not self._chunks.has(chunk.task):
            return
        overtaken = self.window.overtaken(each.topic, rows.seen)
        if overtaken is None or each.void:
            self._chunks.give_back(chunk)
            return
        place = Place(
            lsn=rows.after or position,
            commit_lsn=position - 1,
            first=INCREMENTAL,
            last=INCREMENTAL,
            others=INCREMENTAL,
            serial=state.progress.serial,
        )
        oid = self._tables[chunk.task.name].oid
        count, size = self._source.encoder.encode_rows(
            oid, rows.lines, place, time.time_ns() // 1000, state.tail, overtaken
        )
        self._chunks.settle(chunk)
        state.put(state.progress.deliver(chunk.task, chunk.part, chunk.begin, chunk.end, count), size)
        floors = [
            open_.rows.seen if open_.rows else open_.floor
            for open_ in self._open
            if open_.topic == each.topic
        ]
        known = [floor for floor in floors if floor is not None]
        if len(known) == len(floors):
            self.window.forget(each.topic, [*known, rows.seen])
        self._finish(chunk.task)

    def _close(self, each: _Open) -> None:
        self._open.remove(each)
        if each.rows is not None:
            self._waiting_bytes -= each.rows.size
        self.state.changed.set()

    def _finish(self, task: TableTask) -> None:
        """End the table if everything of it is on its way."""
        if self._chunks.is_exhausted(task):
            self._forget(task)
            self.state.end(task)
            self.state.changed.set()

    def _forget(self, task: TableTask) -> None:
        """Nothing more is read of the table, or all is planned anew."""
        self._chunks.drop(task)
        table = self._tables.get(task.name)
        others = any(each.name == task.name and self._chunks.has(each) for each in self.state.progress.tasks)
        if table is not None and not others:
            topic = self._source.encoder.topic_of(table.oid)
            self.window.unwatch(topic)
            self._latest.pop(topic, None)

    async def _look_for_added(self) -> None:
        """Tables that were added to the publication since the progress knows of it."""
        while True:
            published = await self._source.published()
            progress = self.state.progress
            if progress.known is None:
                self.state.set(replace(progress, known=tuple(published)))
            elif published.keys() != set(progress.known):
                added = [
                    TableTask(name, oid, request="added")
                    for oid, name in published.items()
                    if oid not in progress.known and not self._source.is_excluded(name)
                ]
                self.state.set(replace(progress.add(added), known=tuple(published)))
            await asyncio.sleep(ADDED_S)


def _go_on(before: Part | None, now: Part) -> Part:
    """A part as far as it was read, unless its rows lie elsewhere since."""
    return now if before is None or before.filenode != now.filenode else before
