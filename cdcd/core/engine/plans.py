"""Tables that are being read beside the stream: one `TablePlan` for each, from its first look-up to its end.

The rules:

- Only one task of a table is read at a time; another task for the same table waits.
- When the file, columns, name or oid of the table change, its plan ends with all its chunks, and an answer for an
  ended plan is dropped. The pages that were delivered count as delivered as long as the table keeps its file.
- A table that waits or is paused has no plan. It needs no memory except for the keys that it owes.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from cdcd.core.engine.fates import Fates
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.watched import WatchedTables
from cdcd.core.errors import FatalError, SourceError
from cdcd.core.facts import Observer
from cdcd.core.facts.snapshot import SnapshotRestarted, SnapshotWaiting
from cdcd.core.retry import Backoff
from cdcd.core.snapshot.chunks import Chunk, Chunks
from cdcd.core.snapshot.placement import Window
from cdcd.core.snapshot.reading import KEYS_PER_READ, Rows, SourceTable, Visibility
from cdcd.core.snapshot.table_task import Key, TableTask

RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
"""Seconds before a question is asked again whose answer did not help yet: the first wait, and the longest one."""

RENAMED: Final = (
    "the former rows of its topic have not ended yet: those of another table, or from before a gap"
)
"""Reason why a table waits if its topic still has rows of another table, or rows from before a gap. If the table's
rows were sent now, a checkpoint would not show after a restart that the topic has them."""

WAITING_S: Final = 5.0
"""Seconds after which a waiting table is reported, with the transactions that it waits for."""


class PlanState(Enum):
    """What a plan waits for next."""

    LOOK = "the table's description"
    TOPIC = "its topic"
    WRITERS = "whoever wrote when the window opened"
    SNAPSHOT = "the snapshot of a table without a key, and its place in the stream"
    PLAN = "its pages"
    READ = "rows"


@dataclass(slots=True, eq=False)
class OpenChunk:
    """Rows that were requested, and are being read (`rows` is None) or wait for their position in the stream.

    Attributes:
        chunk: the pages; None if these are the rows with these `keys`.
        floor: a snapshot that was complete when the rows were requested. The rows are read at a snapshot that sees
            at least as much.
        number: number of these rows among those that wait.
    """

    plan: "TablePlan"
    chunk: Chunk | None
    keys: list[tuple[bytes | None, Key]]
    floor: Visibility
    rows: Rows | None = None
    number: int = 0


@dataclass(slots=True)
class OneSnapshot:
    """The snapshot at which a table without a key is read, and its position in the stream (`one_snapshot.py`).

    Attributes:
        number: number of the snapshot (`TakeSnapshot`); 0 if it was not requested.
        seen, after: as in `Taken`; `seen` is None until the answer arrives.
        tries: number of snapshots that were taken while the stream waited, but could not be used.
        holds: whether the stream waits between two transactions.
        holds_since: when it began to wait for the rows, in monotonic seconds.
        is_placed: whether the earlier rows of the topic are ended, and the snapshot is valid from there on.
        is_disturbed: whether a change arrived that must not precede rows which are still to be sent.
    """

    number: int = 0
    seen: Visibility | None = None
    after: int = 0
    tries: int = 0
    holds: bool = False
    holds_since: float = 0.0
    is_placed: bool = False
    is_disturbed: bool = False


class TablePlan:
    """One plan of one table.

    Attributes:
        asked: whether a question of this plan is open.
        retry_at: when the next question may be asked (monotonic seconds).
        has_said_waiting: whether it was reported that the table waits.
        is_locked: whether the last answer was that another session has locked the table.
        writers: transactions that wrote when the window opened and have not ended yet; None if not looked up yet.
        latest: the newest snapshot of an answer, so that every later answer sees at least as much.
        sql_names: quoted SQL names of the table's parts, by oid.
        keys_at_once: number of owed rows that one query requests.
        one: the single snapshot at which a table without a key is read; None if the table has a key.
    """

    def __init__(self, task: TableTask, now: float) -> None:
        self.task = task
        self.state = PlanState.LOOK
        self.asked = False
        self.retry_at = now
        self.backoff = Backoff(RETRY_S, RETRY_S_MAX)
        self.began = now
        self.has_said_waiting = False
        self.is_locked = False
        self.table: SourceTable | None = None
        self.topic = ""
        self.window: Window | None = None
        self.writers: frozenset[str] | None = None
        self.latest: Visibility | None = None
        self.chunks: Chunks | None = None
        self.sql_names: dict[int, str] = {}
        self.open: list[OpenChunk] = []
        self.keys_at_once = KEYS_PER_READ
        self.one: OneSnapshot | None = None

    def retry_later(self, now: float) -> None:
        """Allow the next question only after a while, which becomes longer each time."""
        self.retry_at = now + self.backoff.next(1)

    def enter(self, state: PlanState, now: float) -> None:
        """Enter another state, whose question may be asked at once."""
        self.state = state
        self.is_locked = False
        self.retry_at = now
        self.backoff.reset()


class WaitingRows:
    """Rows that were read and wait for their position in the stream, which is the high watermark of their snapshot."""

    def __init__(self) -> None:
        self.bytes = 0
        self._chunks: dict[int, OpenChunk] = {}
        self._places: list[tuple[int, int]] = []
        """A heap of positions, each with the number of a chunk, which may have been removed already."""
        self._last = 0

    def add(self, each: OpenChunk, rows: Rows) -> None:
        """Add the rows that were read for an open chunk.

        If the stream has already reached the position of their snapshot, they are due at once.
        """
        self._last += 1
        each.rows, each.number = rows, self._last
        self._chunks[each.number] = each
        heappush(self._places, (rows.after or 0, each.number))
        self.bytes += rows.size

    def remove(self, each: OpenChunk) -> None:
        """Remove the rows, because they have their position or their plan has ended."""
        assert each.rows is not None
        del self._chunks[each.number]
        self.bytes -= each.rows.size

    def due(self, position: int) -> list[OpenChunk]:
        """Return the chunks whose snapshots see only what the stream, which is at `position`, has reached.

        This is called after every transaction, so it examines no chunk that has to wait. Each chunk is returned
        once.
        """
        places = self._places
        if not places or places[0][0] > position:
            return []
        found = []
        while places and places[0][0] <= position:
            each = self._chunks.get(heappop(places)[1])
            if each is not None:
                found.append(each)
        return found


class Plans:
    """The current plans by the numbers of their tasks; each plan has the window in `watched` under its topic.

    Args:
        owns: returns whether a table, by its oid, has a name where the stream is.
    """

    def __init__(
        self,
        tasks: SnapshotTasks,
        watched: WatchedTables,
        waiting: WaitingRows,
        observe: Observer,
        fates: Fates,
        owns: Callable[[int, str], bool],
    ) -> None:
        self._fates = fates
        self._owns = owns
        self.tasks = tasks
        self.watched = watched
        self.waiting = waiting
        self._observe = observe
        self._plans: dict[int, TablePlan] = {}
        self.let_go: deque[int] = deque()
        """Numbers of snapshots whose plans have ended."""
        self.failure: FatalError | None = None
        """The error because of which the session cannot go on, as rows that the configuration asks for cannot be
        read."""

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[TablePlan]:
        """Yield all plans in the order in which they began; plans may begin and end during the iteration."""
        return iter(list(self._plans.values()))

    def owns(self, table: SourceTable) -> bool:
        """Return whether the table has its name where the stream is."""
        return self._owns(table.oid, table.name)

    def is_current(self, plan: TablePlan) -> bool:
        """Return whether the plan has not ended."""
        return self._plans.get(plan.task.number) is plan

    def has(self, task: TableTask) -> bool:
        """Return whether there is a plan for the task."""
        return task.number in self._plans

    def begin(self, task: TableTask, now: float) -> TablePlan:
        """Return a new plan for the task, which must not have one."""
        plan = self._plans[task.number] = TablePlan(task, now)
        return plan

    def forget(self, plan: TablePlan) -> None:
        """End the plan: later answers for it are dropped, and the table is looked up again."""
        del self._plans[plan.task.number]
        self.watched.close_window(plan.topic)
        if plan.one is not None and plan.one.number:
            self.let_go.append(plan.one.number)
        for each in plan.open:
            if each.rows is not None:
                self.waiting.remove(each)
        plan.open.clear()
        self.watched.forget_unread(plan.task)

    def forget_task(self, task: TableTask) -> None:
        """End the plan of the task, if it has one."""
        plan = self._plans.get(task.number)
        if plan is not None:
            self.forget(plan)

    def begin_again(self, plan: TablePlan, reason: str, now: float, *, is_locked: bool = False) -> None:
        """End the plan because of `reason`; the next plan for its task waits a while, longer each time."""
        self.forget(plan)
        again = self.begin(plan.task, now)
        again.backoff, again.began = plan.backoff, plan.began
        again.has_said_waiting = plan.has_said_waiting
        again.is_locked = is_locked
        again.retry_later(now)
        self.say_waiting(again, [reason], now)

    def say_waiting(self, plan: TablePlan, whom: list[str], now: float) -> None:
        """Report once for a table that has waited for `WAITING_S` which transactions or what else it waits for."""
        if not plan.has_said_waiting and now - plan.began > WAITING_S:
            plan.has_said_waiting = True
            self._observe(SnapshotWaiting(table=plan.task.name, writers=whom))

    def end(
        self,
        task: TableTask,
        error: str = "",
        *,
        code: int = SourceError.exit_code,
        hint: str = "",
        now: float = 0.0,
    ) -> None:
        """End the task, because its table is complete or because of `error`, whose exit code is `code`."""
        self.forget_task(task)
        if self.tasks.end(task, error, code=code, hint=hint, now=now):
            self.watched.forget_owed(task)

    def end_gone(self, task: TableTask) -> None:
        """End the task, because its table was dropped or is not published any more."""
        self.forget_task(task)
        self.tasks.end_gone(task)
        self.watched.forget_owed(task)

    @property
    def sets_aside(self) -> bool:
        """True if a table whose rows cannot be read is set aside."""
        return self._fates.sets_aside

    def fail(self, plan: TablePlan, fault: str, error: FatalError) -> None:
        """Set the plan's table aside, or end the session, because rows that the configuration asks
        for cannot be read.
        """
        if self._fates.sets_aside:
            self._fates.fault(plan.task.oid, fault, error)
        else:
            self.failure = error

    def restart(self, task: TableTask, reason: str) -> None:
        """Read the table from its beginning because of `reason`, and report this."""
        self._observe(SnapshotRestarted(table=task.name, reason=reason))
        self.read_from_beginning(task)

    def read_from_beginning(self, task: TableTask) -> None:
        """Forget all pages that were read and all rows that are owed, and end the task's plan."""
        self.forget_task(task)
        self.tasks.replace(self.tasks.progress.restart(task))
        self.watched.forget_owed(task)
