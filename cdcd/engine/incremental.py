"""Tables that are read beside the stream: what is asked of PostgreSQL next, and where its answers go.

```
 task ─▶ LOOK ─▶ TOPIC ─▶ WRITERS ─▶ PLAN ─▶ READ ─▶ end
           ▲        (until whoever wrote when the window opened has ended)
           └────── the table changed, or its window gave up ──┘
```

The rules (design, "Snapshot"; `snapshots/placement.py`, `snapshots/progress.py`):

- One task of a table is read at a time; another one for the same table waits.
- A `_Reading` is one plan. When the table changes its file, columns, identity or oid, the plan ends, and with it
  every chunk of it, wherever that is: an answer that belongs to no present plan is dropped. The pages that were
  delivered stay delivered as long as the table has its file.
- The window opens before anybody is asked who writes to the table. What was streamed before that must be seen by every
  snapshot that is taken afterwards, and a transaction is seen when it has ended; so whoever writes at that moment is
  waited for, as CREATE INDEX CONCURRENTLY does (by the locks, which go when the transaction is seen: xact.c,
  CommitTransaction).
- A table is complete when all of its pages were delivered and it owes no row (`placement.Owed`).
- A table that waits or is paused costs no memory but for the keys that it owes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Protocol

from cdcd.engine.actions import (
    Answer,
    Busy,
    FindWriters,
    Look,
    Looked,
    Lost,
    Question,
    Read,
    ReadAnswer,
    Writers,
)
from cdcd.errors import FatalError, SinkError, SourceError
from cdcd.facts import (
    Observer,
    SnapshotFinished,
    SnapshotProgressed,
    SnapshotRestarted,
    SnapshotStarted,
    SnapshotTableFailed,
    SnapshotTableFinished,
    SnapshotWaiting,
)
from cdcd.protocol.messages import Relation
from cdcd.records.formats.snapshot_rows import Encoded
from cdcd.records.relations import TableDescription, TypeDescription
from cdcd.retry import Backoff
from cdcd.snapshots.chunks import Chunk, Chunks
from cdcd.snapshots.markers import Marked
from cdcd.snapshots.placement import Owed, Window, oldest
from cdcd.snapshots.progress import Key, Part, Progress, TableTask, form_of
from cdcd.snapshots.reading import (
    KEYS_PER_READ,
    Changed,
    KeyQuery,
    PageQuery,
    Refused,
    Rows,
    SourceTable,
    TooLarge,
    bytes_max,
)
from cdcd.snapshots.signals import OWN_REQUESTS
from cdcd.snapshots.visibility import Visibility

WAITING_BYTES_MAX: Final = 32 << 20
"""Rows that are read and wait for their place: a stream that is behind reaches it late."""

RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
"""How long until a question is asked again that had no use yet, at first and at most."""

WAITING_S: Final = 5.0
"""After so long it is said whom a table waits for."""

LOSSES_MAX: Final = 3
"""A request whose condition costs so many connections is given up: it may end them itself (pg_terminate_backend)."""

ERROR_MAX: Final = 500
"""Characters that are told of why a request failed: PostgreSQL repeats what its sender wrote, or raises."""

REPORT_S: Final = 10.0
"""How often the log tells of each table that is being read."""


class Rendering(Protocol):
    """What makes records of rows, and of whose description the reading of a table depends."""

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> str:
        """Know the table as it is now; returns its topic. SinkError: it can have none."""

    def key_columns(self, oid: int) -> tuple[str, ...]:
        """The names of the columns that make the record's key; () for a table without one."""

    def topic_is_ready(self, topic: str) -> bool:
        """Whether records may go to the topic; if not, it is being made ready."""

    def topic_of(self, oid: int) -> str: ...

    def put(
        self,
        oid: int,
        rows: Rows,
        *,
        event_no: int,
        dropped: set[bytes],
        progress: Callable[[Encoded], None],
        marked: Marked[Any] | None = None,
    ) -> None:
        """Put the rows into the queue between two transactions.

        Args:
            event_no: the number of the last row before them.
            dropped: keys whose rows are left out.
            progress: called before the queue takes the rows; it sets what is true with them.
            marked: how the first and the last row are marked, in an initial snapshot.
        """


class _State(Enum):
    """What a reading is waiting for."""

    LOOK = "the table's description"
    TOPIC = "its topic"
    WRITERS = "whoever wrote when the window opened"
    PLAN = "its pages"
    READ = "rows"


@dataclass(slots=True, eq=False)
class _Open:
    """Rows that were asked for: being read (`rows` is None), or waiting for their place in the stream.

    `floor` is a snapshot that was complete when they were asked for, so that the one they are read at sees no less.
    """

    reading: "_Reading"
    chunk: Chunk | None
    keys: list[tuple[bytes | None, Key]]
    floor: Visibility
    rows: Rows | None = None


class _Reading:
    """One plan of one table."""

    def __init__(self, task: TableTask, now: float) -> None:
        self.task = task
        self.state = _State.LOOK
        self.asked = False
        self.retry_at = now
        self.backoff = Backoff(RETRY_S, RETRY_S_MAX)
        self.began = now
        self.told = False
        self.table: SourceTable | None = None
        self.topic = ""
        self.window: Window | None = None
        self.writers: frozenset[str] | None = None
        self.latest: Visibility | None = None
        self.chunks: Chunks | None = None
        self.open: list[_Open] = []
        self.keys_at_once = KEYS_PER_READ

    def later(self, now: float) -> None:
        """Ask again after a while."""
        self.retry_at = now + self.backoff.next(1)

    def at_once(self, state: _State, now: float) -> None:
        self.state = state
        self.retry_at = now
        self.backoff.reset()


@dataclass(slots=True)
class _Pace:
    """What of a table was read in this session: since when, and from where."""

    began: float
    pages: int
    rows: int


class Incremental:
    """The tables of a session that are read beside the stream.

    The engine calls `note` and `redefined` in the order of the stream, `between` after each transaction, and carries
    questions and answers. `changed` is called whenever the progress has changed without rows; `names` are those of the
    published tables, by oid.
    """

    def __init__(
        self,
        progress: Progress,
        rendering: Rendering,
        *,
        chunk_bytes: int,
        parallelism: int,
        names: Mapping[int, str],
        observe: Observer,
        changed: Callable[[], None],
    ) -> None:
        self.progress = progress
        self.names = names
        self._rendering = rendering
        self._chunk_bytes = chunk_bytes
        self._parallelism = parallelism
        self._observe = observe
        self._changed = changed
        self._readings: dict[int, _Reading] = {}
        self._being_read = 0
        self._losses: dict[int, int] = {}
        """By task: connections that were lost while its rows were read."""
        self._owed: dict[int, Owed] = {}
        self._owed_of: dict[str, list[int]] = {}
        self._topics: dict[int, str] = {}
        self._windows: dict[str, Window] = {}
        self._waiting: list[_Open] = []
        self._waiting_bytes = 0
        self._announced = False
        self._busy = not progress.is_done
        self._paces: dict[int, _Pace] = {}
        self._report_at = 0.0
        self.failure: FatalError | None = None
        """Why the session can not go on, if so."""
        for task in progress.tasks:
            if task.unsettled:
                self._restart(task, "more rows were to be read again than the checkpoint can hold")
            elif task.has_begun:
                self._owed[task.number] = Owed(task.owed)

    # The stream.

    @property
    def watches(self) -> bool:
        """Whether `note` needs to be called at all."""
        return bool(self._windows or self._owed)

    def is_watched(self, topic: str) -> bool:
        return topic in self._windows or topic in self._owed_of

    def note(self, xid: int, topic: str, key: bytes | None, values: Key | None, *, moved: bool) -> None:
        """The committed transaction `xid` made a record with this key; `values` and `moved` as `Owed.note`."""
        window = self._windows.get(topic)
        if window is not None:
            window.note(xid, key)
        numbers = self._owed_of.get(topic)
        if numbers is not None and key is not None:
            for number in numbers:
                self._owed[number].note(key, values, moved=moved)

    def truncated(self, xid: int, oids: Iterable[int]) -> None:
        """The committed transaction emptied these tables."""
        for oid in oids:
            topic = self._topics.get(oid, "")
            if topic in self._windows:
                self._windows[topic].note(xid, None)
            for number in self._owed_of.get(topic, ()):
                self._owed[number].truncated()

    def defined(self, oid: int, topic: str) -> None:
        """The stream has described a relation: what is owed of it is known by its topic from here on."""
        former = self._topics.get(oid)
        if former == topic:
            return
        self._topics[oid] = topic
        self._index_owed()

    def redefined(self, oid: int) -> None:
        """A table has another form in the stream from here on: it is planned anew."""
        for reading in list(self._readings.values()):
            if reading.task.oid == oid:
                self._forget(reading)

    def between(self, position: int, now: float) -> None:
        """Between two transactions, of which the former ends at `position`: send what has its place here."""
        for each in self._waiting.copy() if self._waiting else ():
            if each not in each.reading.open:
                # The one before it ended their plan.
                continue
            assert each.rows is not None
            if each.rows.after is not None and each.rows.after <= position:
                self._send(each, each.rows, now)

    # Requests.

    def add(self, tasks: Iterable[TableTask]) -> None:
        self._set(self.progress.add(tasks))

    def set_paused(self, paused: bool) -> None:
        """Read no further, or go on. What is being read is read again then: a window must not wait for hours."""
        self._set(replace(self.progress, paused=paused))
        if paused:
            for reading in list(self._readings.values()):
                self._forget(reading)

    def cancel(self, task: TableTask, why: str) -> None:
        """Give up what of the task is not read."""
        self._end(task, why)

    def read_anew(self, oid: int, name: str, request: str) -> None:
        """All rows of the table with this oid are to be read, whatever was read of it before."""
        for task in self.progress.tasks:
            if oid and task.oid == oid and not task.where:
                self._forget_task(task)
                self._read_from_beginning(task)
                if task.request not in OWN_REQUESTS:
                    self._set(self.progress.restart(task, request))
                return
        self.add([TableTask(name, oid, request=request)])

    def to_write_down(self) -> Progress | None:
        """The progress as the checkpoint has it; None: no snapshot was ever asked for."""
        progress = self.progress
        for number, owed in self._owed.items():
            task = self._task(number)
            if task is not None:
                progress = progress.owe(task, owed.to_write_down())
        self.progress = progress
        return None if progress == Progress() else progress

    def take_number(self) -> int:
        """Number an event that is no row of a table, among those rows."""
        self._set(replace(self.progress, event_no=self.progress.event_no + 1))
        return self.progress.event_no

    def touch(self) -> None:
        """The progress is to be written down soon, changed or not."""
        self._changed()

    # What the initial snapshot moves on.

    def replace(self, progress: Progress) -> None:
        """The progress, changed by somebody who counts rows in it."""
        self._set(progress)

    def announce(self, size: int) -> None:
        """Tables are read from now on, of `size` bytes as far as that is known. Said once in a session."""
        if not self._announced:
            self._announced = True
            self._observe(
                SnapshotStarted(tables=self.progress.tables_left, bytes=size, method=self.progress.method)
            )

    def tell_waiting(self, table: str, why: str) -> None:
        """The table can not be read now."""
        self._observe(SnapshotWaiting(table=table, writers=[why]))

    def start_pace(self, task: TableTask, now: float) -> None:
        """The table is being read from now on."""
        self._busy = True
        self._paces.setdefault(task.number, _Pace(now, task.pages_done, task.rows))

    def end(self, task: TableTask, error: str, now: float) -> None:
        """The table is complete, or can not be read."""
        self._end(task, error, now=now)

    # Questions.

    def next_question(self, now: float) -> tuple[object, Question] | None:
        """What to ask now, and whom the answer is for; None: nothing. `answered` brings the answer."""
        if self.progress.paused:
            return None
        for reading in list(self._readings.values()):
            if reading.window is not None and reading.window.gave_up:
                self._forget(reading)
            elif not reading.asked and reading.retry_at <= now:
                question = self._question(reading)
                if question is not None:
                    reading.asked = True
                    return reading, question
        read = self._next_read()
        if read is not None:
            return read
        return self._next_table(now)

    def next_at(self) -> float | None:
        """When `next_question` has one to ask again, if nothing else happens before."""
        times = [
            reading.retry_at
            for reading in self._readings.values()
            if not reading.asked and reading.state in (_State.LOOK, _State.WRITERS, _State.PLAN)
        ]
        return None if self.progress.paused else min(times, default=None)

    def topics_ready(self, now: float) -> None:
        """Some topics are there that were not before."""
        for reading in self._readings.values():
            if reading.state is _State.TOPIC and self._rendering.topic_is_ready(reading.topic):
                reading.at_once(_State.WRITERS, now)

    def answered(self, asked: object, answer: Answer, now: float) -> None:
        """The answer to a question."""
        if isinstance(asked, _Open):
            self._being_read -= 1
            assert isinstance(answer, Rows | TooLarge | Changed | Refused | Busy | Lost)
            self._read(asked, answer, now)
            return
        assert isinstance(asked, _Reading)
        asked.asked = False
        if self._readings.get(asked.task.number) is not asked:
            return
        if isinstance(answer, Busy | Lost):
            reason = answer.reason if isinstance(answer, Busy) else answer.error.message
            self._say_waiting(asked, [reason], now)
            asked.later(now)
        elif isinstance(answer, Looked):
            self._looked(asked, answer, now)
        else:
            assert isinstance(answer, Writers)
            self._found_writers(asked, answer, now)

    def report(self, now: float) -> None:
        """Tell the log of each table that is being read, now and then."""
        if now < self._report_at:
            return
        self._report_at = now + REPORT_S
        for task in self.progress.tasks:
            pace = self._paces.get(task.number)
            if pace is not None and now - pace.began >= REPORT_S:
                self._observe(_progressed(task, pace, now))

    def _question(self, reading: _Reading) -> Question | None:
        task, table = reading.task, reading.table
        if reading.state in (_State.LOOK, _State.PLAN):
            examined = reading.state is _State.PLAN
            return Look(task.oid, task.name, "" if examined else task.where)
        if reading.state is _State.WRITERS:
            assert table is not None
            return FindWriters((table.oid, *(each.part.oid for each in table.parts)))
        return None

    def _next_read(self) -> tuple[object, Question] | None:
        if self._waiting_bytes >= WAITING_BYTES_MAX or self._being_read >= self._parallelism:
            return None
        for reading in self._readings.values():
            if reading.state is not _State.READ:
                continue
            assert reading.chunks is not None
            assert reading.latest is not None
            each = self._open_keys(reading)
            if each is None:
                chunk = reading.chunks.next()
                if chunk is None:
                    continue
                each = _Open(reading, chunk, [], reading.latest)
            reading.open.append(each)
            self._being_read += 1
            query = self._query(each)
            return each, Read(query, bytes_max(query, self._chunk_bytes))
        return None

    def _query(self, each: _Open) -> PageQuery | KeyQuery:
        table, chunk = each.reading.table, each.chunk
        assert table is not None
        conditions = (table.row_filter, each.reading.task.where)
        if chunk is None:
            keys = tuple(key for _, key in each.keys)
            return KeyQuery(table, self._rendering.key_columns(table.oid), keys, conditions)
        sql_name = next(part.sql_name for part in table.parts if part.part.oid == chunk.part)
        return PageQuery(sql_name, chunk.part, chunk.filenode, chunk.begin, chunk.end, table, conditions)

    def _open_keys(self, reading: _Reading) -> _Open | None:
        """Rows that the table owes, unless some are being read already."""
        owed = self._owed.get(reading.task.number)
        # By its length: compiled, the truth of an object that may be None is whether it is there.
        if owed is None or len(owed) == 0 or any(each.keys for each in reading.open):
            return None
        assert reading.latest is not None
        return _Open(reading, None, owed.some(reading.keys_at_once), reading.latest)

    def _next_table(self, now: float) -> tuple[object, Question] | None:
        """Begin with another table: so many at a time as there are connections."""
        if len(self._readings) >= self._parallelism:
            return None
        names = {reading.task.name for reading in self._readings.values()}
        oids = {reading.task.oid for reading in self._readings.values()}
        for task in self.progress.tasks:
            if task.number in self._readings or task.name in names or (task.oid and task.oid in oids):
                continue
            return self._begin(task, now)
        begun = self.progress.begin_next(self.names)
        if begun is None or begun[1].oid in oids:
            return None
        self._set(begun[0])
        return self._begin(begun[1], now)

    def _begin(self, task: TableTask, now: float) -> tuple[object, Question]:
        reading = self._readings[task.number] = _Reading(task, now)
        reading.asked = True
        return reading, Look(task.oid, task.name, task.where)

    # Answers.

    def _looked(self, reading: _Reading, answer: Looked, now: float) -> None:
        task, table = reading.task, answer.table
        if table is None:
            self._end(task, "there is no such table in the publication")
            return
        if answer.problem:
            self._end(task, f"the where can not be used: {answer.problem}")
            return
        if any(
            other is not reading and other.table is not None and other.table.oid == table.oid
            for other in self._readings.values()
        ):
            # Another task of this table was looked at first. This one begins when that one has ended.
            self._know(task, table)
            self._forget(reading)
            return
        try:
            topic = self._rendering.define(table.relation, answer.description, answer.types)
        except SinkError as error:
            self._end(task, error.message)
            return
        if not self._rendering.key_columns(table.oid):
            self._refuse_keyless(task, table)
            return
        planned = reading.state is _State.PLAN
        if planned and (reading.table is None or not _same_table(reading.table, table)):
            # The window is that of another table, or not all writers of this one were waited for.
            self._forget(reading)
            return
        reading.table, reading.latest = table, answer.seen
        if planned:
            self._plan(reading, table, now)
            return
        self._know(task, table)
        if topic in self._windows:
            # The table that had this name before is still being read into the topic: this one waits.
            self._forget(reading)
            return
        reading.topic = topic
        self._topics[table.oid] = topic
        reading.window = self._windows[topic] = Window()
        self._index_owed()
        ready = self._rendering.topic_is_ready(topic)
        reading.at_once(_State.WRITERS if ready else _State.TOPIC, now)

    def _know(self, task: TableTask, table: SourceTable) -> None:
        current = self.progress.find(task)
        if current is not None and (current.oid, current.name) != (table.oid, table.name):
            # What was delivered of another table, or of this one to another topic, is no part of this task.
            keeps = current.oid in (0, table.oid) and current.name in ("", table.name)
            parts = current.parts if keeps else None
            dropped = None if keeps else self._owed.pop(task.number, None)
            self._set(self.progress.plan(task, table.oid, table.name, parts, current.form))
            if dropped is not None:
                # The caller may give up before the table is watched anew, and the stream goes on.
                self._index_owed()
        found = self.progress.find(task)
        assert found is not None, "a task that is being read has not ended"
        self._readings[task.number].task = found

    def _refuse_keyless(self, task: TableTask, table: SourceTable) -> None:
        if task.request:
            self._end(task, "it has no key, by which a row could be told from its changes")
            return
        self.failure = SourceError(
            f"The rows of {table.name} are not all read, and can not be read beside the stream: the table has no key, "
            "by which a row could be told from its changes.",
            hint="Give it a primary key, or a unique one without NULLs and REPLICA IDENTITY USING INDEX. Or go on "
            "without the rows that were not read: snapshot.mode: never.",
        )

    def _found_writers(self, reading: _Reading, answer: Writers, now: float) -> None:
        reading.writers = answer.names if reading.writers is None else reading.writers & answer.names
        reading.latest = answer.seen
        self._advance(reading)
        if not reading.writers:
            reading.at_once(_State.PLAN, now)
            return
        self._say_waiting(reading, sorted(reading.writers), now)
        reading.later(now)

    def _say_waiting(self, reading: _Reading, whom: list[str], now: float) -> None:
        if not reading.told and now - reading.began > WAITING_S:
            reading.told = True
            self._observe(SnapshotWaiting(table=reading.task.name, writers=whom))

    def _plan(self, reading: _Reading, table: SourceTable, now: float) -> None:
        """All rows that are there from now on are in the stream, and those before are on these pages."""
        task = reading.task
        current = self.progress.find(task)
        assert current is not None, "a task that is being read has not ended"
        form = form_of(table.columns)
        altered = current.form not in (0, form)
        before = {} if altered else {part.oid: part for part in current.parts or ()}
        parts = tuple(_go_on(before.get(each.part.oid), each.part) for each in table.parts)
        if current.has_begun and not any(part.done for part in parts):
            reason = "its columns were altered" if altered else "it was rewritten"
            self._observe(SnapshotRestarted(table=table.name, reason=reason))
            self._owed.pop(task.number, None)
        self._set(self.progress.plan(task, table.oid, table.name, parts, form))
        found = self.progress.find(task)
        assert found is not None
        reading.task = found
        self._owed.setdefault(task.number, Owed())
        self._index_owed()
        self.announce(found.size)
        self.start_pace(found, now)
        reading.chunks = Chunks(self._chunk_bytes)
        reading.chunks.add(found)
        reading.at_once(_State.READ, now)
        self._advance(reading)
        self._finish(reading, now)

    def _read(self, each: _Open, answer: ReadAnswer | Busy | Lost, now: float) -> None:
        reading = each.reading
        if self._readings.get(reading.task.number) is not reading:
            return
        if isinstance(answer, Rows):
            assert answer.seen is not None, "it has a snapshot of its own"
            each.rows = answer
            reading.latest = answer.seen
            self._waiting.append(each)
            self._waiting_bytes += answer.size
            self._advance(reading)
            return
        reading.open.remove(each)
        assert reading.chunks is not None
        if isinstance(answer, TooLarge):
            if each.chunk is not None:
                reading.chunks.split(each.chunk)
            else:
                reading.keys_at_once = max(1, len(each.keys) // 2)
            self._advance(reading)
        elif isinstance(answer, Refused):
            self._refused(reading.task, answer)
        else:
            self._forget_for_a_while(reading, answer, now)

    def _forget_for_a_while(self, reading: _Reading, answer: Changed | Busy | Lost, now: float) -> None:
        """The table has changed or is locked, or the connection was lost: look at it again, a little later."""
        reason = answer.error.message if isinstance(answer, Lost) else answer.reason
        task = reading.task
        if isinstance(answer, Lost) and task.where:
            self._losses[task.number] = self._losses.get(task.number, 0) + 1
            if self._losses[task.number] >= LOSSES_MAX:
                self._end(
                    task, f"{LOSSES_MAX} connections that read rows with this where were lost: {reason}"
                )
                return
        backoff, began, told = reading.backoff, reading.began, reading.told
        self._forget(reading)
        again = self._readings[task.number] = _Reading(task, now)
        again.backoff, again.began, again.told = backoff, began, told
        again.later(now)
        self._say_waiting(again, [reason], now)

    def _refused(self, task: TableTask, answer: Refused) -> None:
        if task.request:
            self._end(task, answer.reason)
        else:
            self.failure = SourceError(
                f"The rows of {task.name} can not be read: {answer.reason}", hint=answer.hint
            )

    # Sending.

    def _send(self, each: _Open, rows: Rows, now: float) -> None:
        reading = each.reading
        window, chunks, table = reading.window, reading.chunks, reading.table
        assert window is not None
        assert chunks is not None
        assert table is not None
        assert rows.seen is not None
        self._close(each)
        overtaken = None if window.gave_up else window.overtaken(rows.seen)
        if overtaken is None:
            if window.gave_up:
                self._forget(reading)
            elif each.chunk is not None:
                chunks.give_back(each.chunk)
            return
        task, chunk = reading.task, each.chunk
        owed = self._owed[task.number]

        def deliver(encoded: Encoded) -> None:
            if chunk is None:
                self.progress = self.progress.count(task, encoded.rows)
            else:
                self.progress = self.progress.deliver(task, chunk.part, chunk.begin, chunk.end, encoded.rows)
            owed.delivered(encoded.keys or ())
            if chunk is None:
                owed.settle(each.keys, overtaken)

        self._rendering.put(
            table.oid, rows, event_no=self.progress.event_no, dropped=overtaken, progress=deliver
        )
        if chunk is not None:
            chunks.settle(chunk)
        self._advance(reading)
        self._finish(reading, now)

    def _close(self, each: _Open) -> None:
        each.reading.open.remove(each)
        self._waiting.remove(each)
        assert each.rows is not None
        self._waiting_bytes -= each.rows.size

    def _advance(self, reading: _Reading) -> None:
        """Let the window forget what every open chunk sees, and every later one."""
        if reading.window is None or reading.latest is None:
            return
        seen = [each.rows.seen if each.rows and each.rows.seen else each.floor for each in reading.open]
        reading.window.advance(oldest(seen) if seen else reading.latest)

    def _finish(self, reading: _Reading, now: float) -> None:
        """End the table if everything of it is on its way."""
        chunks, task = reading.chunks, reading.task
        assert chunks is not None
        owed = self._owed[task.number]
        if owed.gave_up:
            self._restart(task, "too many rows were to be read again by their keys")
            self._forget(reading)
            return
        if not chunks.is_exhausted(task):
            return
        owed.closed = True
        if not len(owed) and not reading.open:
            self._end(task, now=now)

    # Ends.

    def _end(self, task: TableTask, error: str = "", *, now: float = 0.0) -> None:
        """The table is complete, or can not be read."""
        current = self.progress.find(task)
        self._forget_task(task)
        if current is None:
            return
        self._set(self.progress.end(task, error))
        if self._owed.pop(task.number, None) is not None:
            self._index_owed()
        pace = self._paces.pop(task.number, None)
        if error:
            told = error if len(error) <= ERROR_MAX else f"{error[:ERROR_MAX]}…"
            self._observe(SnapshotTableFailed(table=current.name, error=told))
        else:
            seconds = 0.0 if pace is None else now - pace.began
            self._observe(
                SnapshotTableFinished(table=current.name, rows=current.rows, seconds=round(seconds, 3))
            )
        if self.progress.is_done and self._busy:
            self._busy = False
            self._observe(SnapshotFinished(rows=self.progress.event_no))

    def _restart(self, task: TableTask, reason: str) -> None:
        """Read the table from its beginning."""
        self._observe(SnapshotRestarted(table=task.name, reason=reason))
        self._read_from_beginning(task)

    def _read_from_beginning(self, task: TableTask) -> None:
        self._set(self.progress.restart(task))
        self._owed.pop(task.number, None)
        self._index_owed()

    def _forget_task(self, task: TableTask) -> None:
        reading = self._readings.get(task.number)
        if reading is not None:
            self._forget(reading)

    def _forget(self, reading: _Reading) -> None:
        """The plan is over: answers that still come for it are dropped, and the table is looked at again."""
        del self._readings[reading.task.number]
        self._windows.pop(reading.topic, None)
        for each in reading.open:
            if each.rows is not None:
                self._waiting.remove(each)
                self._waiting_bytes -= each.rows.size
        reading.open.clear()

    def _set(self, progress: Progress) -> None:
        if progress is not self.progress:
            self.progress = progress
            self._changed()

    def _task(self, number: int) -> TableTask | None:
        return next((task for task in self.progress.tasks if task.number == number), None)

    def _index_owed(self) -> None:
        """By topic, who owes rows of it; a table that was not described yet has no change yet."""
        self._owed_of.clear()
        for task in self.progress.tasks:
            if task.has_begun and task.number not in self._owed:
                # The initial snapshot has left it in the middle.
                self._owed[task.number] = Owed(task.owed)
            topic = self._topics.get(task.oid)
            if topic is not None and task.number in self._owed:
                self._owed_of.setdefault(topic, []).append(task.number)


def _same_table(one: SourceTable, other: SourceTable) -> bool:
    """Whether the writers of the one were those of the other, and its rows have the same form."""
    return (
        one.oid == other.oid
        and one.name == other.name
        and one.columns == other.columns
        and {each.part.oid for each in one.parts} >= {each.part.oid for each in other.parts}
    )


def _go_on(before: Part | None, now: Part) -> Part:
    """A part as far as it was read, unless its rows lie elsewhere since."""
    return now if before is None or before.filenode != now.filenode else before


def _progressed(task: TableTask, pace: _Pace, now: float) -> SnapshotProgressed:
    seconds = max(now - pace.began, 1e-3)
    rate = (task.pages_done - pace.pages) / seconds
    return SnapshotProgressed(
        table=task.name,
        rows=task.rows,
        share=round(task.share, 4),
        bytes=int(task.size * task.share),
        rows_per_s=round((task.rows - pace.rows) / seconds),
        left_s=round((task.pages - task.pages_done) / rate) if rate > 0 else None,
    )
