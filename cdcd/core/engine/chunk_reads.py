"""Chunks of planned tables: which one is read next, what comes back, and which of its rows are sent.

```
 next ─▶ Read ─▶ answered ─▶ WaitingRows ─▶ send_due ─▶ the queue
   ▲                │ too large: two halves      │ a change of the table that no key tells: read again
   └────────────────┴────────────────────────────┘
```

The rules (`snapshot/placement.py`):

- Rows are sent when the stream is past everything that their snapshot sees, without those that a transaction which the
  snapshot does not see has changed before that place.
- A table is complete when all of its pages were delivered and it owes no row (`placement.Owed`).
"""

from typing import Final

from cdcd.core.engine.actions import Busy, Lost, Read, ReadAnswer
from cdcd.core.engine.fates import BELONGS, SNAPSHOT, fault_of_rows
from cdcd.core.engine.one_snapshot import is_sent
from cdcd.core.engine.plans import RENAMED, OpenChunk, Plans, PlanState, TablePlan
from cdcd.core.engine.rendering import Rendering
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.records.encoder import Encoded
from cdcd.core.snapshot.chunks import page_query
from cdcd.core.snapshot.placement import Window, oldest
from cdcd.core.snapshot.reading import Changed, KeyQuery, PageQuery, Refused, Rows, TooLarge, bytes_max
from cdcd.core.snapshot.signals import RESUMED

WAITING_BYTES_MAX: Final = 32 << 20
"""Bytes of rows that may wait for their place. A stream that is far behind reaches that place late."""

_OWN_FATES: Final = ("", RESUMED)
"""Requests without whose rows a topic is wrong: of the initial snapshot, and of a table that comes back."""
LACKS_ROWS: Final = (
    ". The former rows of the topic have ended, and not all rows were read: read the table again"
)
"""What a failure means to a table without a key."""

LOSSES_MAX: Final = 3
"""A request with a condition is given up after so many lost connections: the condition itself may end them
(`pg_terminate_backend`)."""


class ChunkReads:
    """Reads the tables whose plans are in `PlanState.READ`."""

    def __init__(self, plans: Plans, rendering: Rendering, settings: SnapshotSettings) -> None:
        self._tasks = plans.tasks
        self._watched = plans.watched
        self._plans = plans
        self._waiting = plans.waiting
        self._rendering = rendering
        self._chunk_bytes = settings.chunk_bytes
        self._parallelism = settings.parallelism
        self._being_read = 0
        self._position = 0
        """The end of the last transaction of the stream."""
        self._losses: dict[int, int] = {}
        """By the number of the task: connections that were lost while its rows were read."""

    # Questions.

    def next(self) -> tuple[OpenChunk, Read] | None:
        """What to read now, and the chunk that the answer is for; None: nothing."""
        if self._waiting.bytes >= WAITING_BYTES_MAX or self._being_read >= self._parallelism:
            return None
        for plan in self._plans:
            if plan.state is not PlanState.READ:
                continue
            each = self._open_keys(plan) or self._open_pages(plan)
            if each is None:
                continue
            plan.open.append(each)
            self._being_read += 1
            query = self._query(each)
            kept = 0 if plan.one is None else plan.one.number
            return each, Read(query, bytes_max(query, self._chunk_bytes), kept=kept)
        return None

    def _open_keys(self, plan: TablePlan) -> OpenChunk | None:
        """Rows that the table owes, unless some are being read already."""
        owed = None if plan.one is not None else self._watched.owed(plan.task)
        # By its length: compiled, the truth of an object that may be None is whether it is there.
        if owed is None or len(owed) == 0 or any(each.keys for each in plan.open):
            return None
        assert plan.latest is not None
        return OpenChunk(plan, None, owed.some(plan.keys_at_once), plan.latest)

    def _open_pages(self, plan: TablePlan) -> OpenChunk | None:
        assert plan.chunks is not None
        assert plan.latest is not None
        if plan.one is not None and plan.open:
            # The session that holds the snapshot answers one question at a time.
            return None
        chunk = plan.chunks.next()
        return None if chunk is None else OpenChunk(plan, chunk, [], plan.latest)

    def _query(self, each: OpenChunk) -> PageQuery | KeyQuery:
        plan, chunk = each.plan, each.chunk
        table, where = plan.table, plan.task.where
        assert table is not None
        if chunk is not None:
            return page_query(table, plan.sql_names[chunk.part], chunk, where)
        keys = tuple(key for _, key in each.keys)
        return KeyQuery(table, self._rendering.key_columns(table.oid), keys, (table.row_filter, where))

    # Answers.

    def rows_read(self, each: OpenChunk, answer: ReadAnswer | Busy | Lost, now: float) -> None:
        """The answer for a chunk. It is dropped if the chunk's plan is over."""
        self._being_read -= 1
        plan = each.plan
        if not self._plans.is_current(plan):
            return
        if isinstance(answer, Rows):
            if plan.one is None:
                assert answer.seen is not None, "it has a snapshot of its own"
                plan.latest = answer.seen
            self._waiting.add(each, answer)
            self.advance(plan)
            return
        plan.open.remove(each)
        if isinstance(answer, TooLarge):
            self._divide(each)
        elif not isinstance(answer, Refused):
            self._read_later(plan, answer, now)
        else:
            self.refused(plan, answer)

    def refused(self, plan: TablePlan, answer: Refused) -> None:
        """PostgreSQL refuses to let the table of the plan be read."""
        task = plan.task
        is_aside = task.ended and self._plans.sets_aside
        if task.request not in _OWN_FATES and not is_aside:
            self._plans.end(task, f"{answer.reason}{LACKS_ROWS if task.ended else ''}", hint=answer.hint)
        else:
            self._plans.fail(plan, SNAPSHOT, answer.error(plan.task.name))

    def _divide(self, each: OpenChunk) -> None:
        """The rows are too large: ask for fewer at a time."""
        plan = each.plan
        assert plan.chunks is not None
        if each.chunk is not None:
            plan.chunks.split(each.chunk)
        else:
            plan.keys_at_once = max(1, len(each.keys) // 2)
        self.advance(plan)

    def _read_later(self, plan: TablePlan, answer: Changed | Busy | Lost, now: float) -> None:
        """The table has changed or is locked, or the connection was lost: plan the table again, a little later."""
        task = plan.task
        reason = answer.error.message if isinstance(answer, Lost) else answer.reason
        if isinstance(answer, Lost) and task.where:
            self._losses[task.number] = self._losses.get(task.number, 0) + 1
            if self._losses[task.number] >= LOSSES_MAX:
                self._plans.end(
                    task,
                    f"{LOSSES_MAX} connections were lost while they read rows with the condition (where): "
                    f"{reason}",
                )
                return
        self._plans.begin_again(plan, reason, now, is_locked=isinstance(answer, Busy))

    # Sending.

    def send_due(self, position: int, now: float) -> None:
        """Between two transactions: send the rows that have their place here. The former one ends at `position`."""
        self._position = position
        for each in self._waiting.due(position):
            # One that was sent before it may have ended their plan.
            if each in each.plan.open:
                self._send(each, now)
        if not len(self._plans):
            return
        for plan in self._plans:
            # Changes of the stream may have left nothing to read again by key, so that no answer ends the table.
            if plan.state is PlanState.READ and not plan.open:
                self.finish(plan, now)

    def _send(self, each: OpenChunk, now: float) -> None:
        plan, chunk, rows = each.plan, each.chunk, each.rows
        window, chunks, table = plan.window, plan.chunks, plan.table
        assert rows is not None
        assert window is not None
        assert chunks is not None
        assert table is not None
        plan.open.remove(each)
        self._waiting.remove(each)
        if not self._plans.owns(table):
            self._plans.begin_again(plan, RENAMED, now)
            return
        if window.gave_up:
            self._plans.forget(plan)
            return
        # Changes that stand behind the place of the one snapshot do not overtake its rows.
        overtaken = set[bytes]() if plan.one is not None else self._overtaken(window, rows)
        if overtaken is None:
            if chunk is not None:
                chunks.give_back(chunk)
            return
        task = plan.task
        owed = self._watched.owed(task)

        def deliver(encoded: Encoded) -> None:
            self._tasks.count(task, chunk, encoded.rows)
            if owed is None:
                return
            owed.note_rows(encoded.keys or ())
            if chunk is None:
                owed.settle(each.keys, overtaken)

        try:
            self._rendering.put(
                table.oid, rows, event_no=self._tasks.progress.event_no, dropped=overtaken, progress=deliver
            )
        except BELONGS as error:
            if not self._plans.sets_aside:
                raise
            self._plans.fail(plan, fault_of_rows(error), error)
            return
        if chunk is not None:
            chunks.settle(chunk)
        self.advance(plan)
        self.finish(plan, now)

    def _overtaken(self, window: Window, rows: Rows) -> set[bytes] | None:
        assert rows.seen is not None, "they were read beside the stream"
        return window.overtaken(rows.seen)

    def advance(self, plan: TablePlan) -> None:
        """Let the window forget what every open chunk sees, and every later one."""
        if plan.window is None or plan.latest is None:
            return
        seen = [each.rows.seen if each.rows and each.rows.seen else each.floor for each in plan.open]
        plan.window.advance(oldest(seen) if seen else plan.latest)

    def finish(self, plan: TablePlan, now: float) -> None:
        """End the table if all of its rows are on their way."""
        chunks, task, owed = plan.chunks, plan.task, self._watched.owed(plan.task)
        assert chunks is not None
        if plan.one is not None:
            if is_sent(plan) and self._position >= plan.one.after:
                self._plans.end(task, now=now)
            elif is_sent(plan):
                plan.one.holds = False
            return
        assert owed is not None, "the table is planned"
        if owed.gave_up:
            self._plans.restart(task, "too many rows were to be read again by their keys")
            return
        if not chunks.is_exhausted(task):
            return
        owed.closed = True
        if not len(owed) and not plan.open:
            self._plans.end(task, now=now)
