"""Tables that are being read beside the stream: one `TablePlan` for each, from its first look-up to its end.

The rules:

- One task of a table is read at a time; another one for the same table waits.
- When the table changes its file, columns, name or oid, its plan ends, and with it every chunk of it, wherever that is:
  an answer that belongs to no present plan is dropped. The pages that were delivered stay delivered as long as the
  table has its file.
- A table that waits or is paused has no plan. It costs no memory but for the keys that it owes.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from cdcd.core.engine.fates import Fault
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.watched import WatchedTables
from cdcd.core.errors import FatalError, SourceError
from cdcd.core.facts import Observer, SnapshotRestarted, SnapshotWaiting
from cdcd.core.retry import Backoff
from cdcd.core.snapshot.chunks import Chunk, Chunks
from cdcd.core.snapshot.placement import Window
from cdcd.core.snapshot.reading import KEYS_PER_READ, Rows, SourceTable
from cdcd.core.snapshot.table_task import Key, TableTask
from cdcd.core.snapshot.visibility import Visibility

RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
"""Wait before a question is asked again whose answer did not help yet: the first wait, and the longest one."""

RENAMED: Final = (
    "the former rows of its topic have not ended yet: those of another table, or from before a gap"
)
"""Reason why a table waits if its topic still has rows of another table, or rows from before a gap. If the table's rows
were sent now, the checkpoint would not say after a restart that the topic has them."""

WAITING_S: Final = 5.0
"""A table that has waited for so long is reported, with whom it waits for."""


class PlanState(Enum):
    """What a plan waits for."""

    LOOK = "the table's description"
    TOPIC = "its topic"
    WRITERS = "whoever wrote when the window opened"
    SNAPSHOT = "the snapshot of a table without a key, and its place in the stream"
    PLAN = "its pages"
    READ = "rows"


@dataclass(slots=True, eq=False)
class OpenChunk:
    """Rows that were asked for. They are being read (`rows` is None), or wait for their place in the stream.

    Attributes:
        chunk: the pages; None: the rows with these `keys`.
        floor: a snapshot that was complete when the rows were asked for. The rows are read at a snapshot that sees no
            less.
        number: of the rows among those that wait.
    """

    plan: "TablePlan"
    chunk: Chunk | None
    keys: list[tuple[bytes | None, Key]]
    floor: Visibility
    rows: Rows | None = None
    number: int = 0


@dataclass(slots=True)
class OneSnapshot:
    """The snapshot at which a table without a key is read, and its place in the stream (`one_snapshot.py`).

    Attributes:
        number: number of the snapshot (`TakeSnapshot`); 0: it was not asked for.
        seen, after: as in `Taken`; `seen` is None until the answer has come.
        tries: how many snapshots were taken while the stream waited, and could not be placed.
        holds: the stream waits between two transactions.
        holds_since: when it began to wait for the rows, in monotonic seconds.
        is_placed: the former rows of the topic have ended, and the snapshot is true from there on.
        is_disturbed: a change came that must not stand before rows which are still to be sent.
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
        asked: a question of this plan is under way.
        retry_at: when the next question may be asked (monotonic seconds).
        has_said_waiting: it was reported that the table waits.
        is_locked: the last answer was that somebody has locked the table.
        writers: who wrote when the window opened and has not ended yet; None: not looked for yet.
        latest: the newest snapshot that an answer came with. Every later answer sees no less.
        sql_names: how SQL calls the table's parts, by oid.
        keys_at_once: how many owed rows one query asks for.
        one: the table has no key, so all of its rows are read at one snapshot; None: it has a key.
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
        """Ask again after a while, which is longer each time."""
        self.retry_at = now + self.backoff.next(1)

    def enter(self, state: PlanState, now: float) -> None:
        """Go on to another state, whose question may be asked at once."""
        self.state = state
        self.is_locked = False
        self.retry_at = now
        self.backoff.reset()


class WaitingRows:
    """Rows that were read and wait for their place in the stream, which is where their snapshot's high watermark is."""

    def __init__(self) -> None:
        self.bytes = 0
        self._chunks: dict[int, OpenChunk] = {}
        self._places: list[tuple[int, int]] = []
        """A heap of places with the number of the chunk there. The chunk may be gone already."""
        self._last = 0

    def add(self, each: OpenChunk, rows: Rows) -> None:
        """The rows of an open chunk were read. Rows of a snapshot that has its place in the stream are due at once."""
        self._last += 1
        each.rows, each.number = rows, self._last
        self._chunks[each.number] = each
        heappush(self._places, (rows.after or 0, each.number))
        self.bytes += rows.size

    def remove(self, each: OpenChunk) -> None:
        """The rows have their place now, or their plan is over."""
        assert each.rows is not None
        del self._chunks[each.number]
        self.bytes -= each.rows.size

    def due(self, position: int) -> list[OpenChunk]:
        """The chunks whose snapshots see nothing that the stream, which is at `position`, has not reached.

        It is asked for after every transaction, so it looks at no chunk that has to wait. A chunk is given once.
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
    """The plans under way, by the numbers of their tasks; each has the window in `watched` that bears its topic."""

    def __init__(
        self,
        tasks: SnapshotTasks,
        watched: WatchedTables,
        waiting: WaitingRows,
        observe: Observer,
        fault: Fault | None = None,
    ) -> None:
        self._fault = fault
        self._tasks = tasks
        self._watched = watched
        self._waiting = waiting
        self._observe = observe
        self._plans: dict[int, TablePlan] = {}
        self.let_go: deque[int] = deque()
        """Numbers of snapshots whose plans are over."""
        self.failure: FatalError | None = None
        """Why the session cannot go on: rows that the configuration asks for cannot be read."""

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[TablePlan]:
        """All plans, in the order in which they began. Plans may begin and end meanwhile."""
        return iter(list(self._plans.values()))

    def is_current(self, plan: TablePlan) -> bool:
        """Whether the plan is not over."""
        return self._plans.get(plan.task.number) is plan

    def has(self, task: TableTask) -> bool:
        """Whether there is a plan for the task."""
        return task.number in self._plans

    def begin(self, task: TableTask, now: float) -> TablePlan:
        """A new plan for the task, which has none."""
        plan = self._plans[task.number] = TablePlan(task, now)
        return plan

    def forget(self, plan: TablePlan) -> None:
        """The plan is over: answers that still come for it are dropped, and the table is looked up again."""
        del self._plans[plan.task.number]
        self._watched.close_window(plan.topic)
        if plan.one is not None and plan.one.number:
            self.let_go.append(plan.one.number)
        for each in plan.open:
            if each.rows is not None:
                self._waiting.remove(each)
        plan.open.clear()
        self._watched.forget_unread(plan.task)

    def forget_task(self, task: TableTask) -> None:
        """The task's plan is over, if it has one."""
        plan = self._plans.get(task.number)
        if plan is not None:
            self.forget(plan)

    def begin_again(self, plan: TablePlan, reason: str, now: float, *, is_locked: bool = False) -> None:
        """The plan is over because of `reason`. The next one for its task waits a while, longer each time."""
        self.forget(plan)
        again = self.begin(plan.task, now)
        again.backoff, again.began = plan.backoff, plan.began
        again.has_said_waiting = plan.has_said_waiting
        again.is_locked = is_locked
        again.retry_later(now)
        self.say_waiting(again, [reason], now)

    def say_waiting(self, plan: TablePlan, whom: list[str], now: float) -> None:
        """Report once whom, or what, a table waits for that has waited for `WAITING_S`."""
        if not plan.has_said_waiting and now - plan.began > WAITING_S:
            plan.has_said_waiting = True
            self._observe(SnapshotWaiting(table=plan.task.name, writers=whom))

    def end(
        self, task: TableTask, error: str = "", *, code: int = SourceError.exit_code, now: float = 0.0
    ) -> None:
        """The task ends: its table is complete, or `error`, which stands for the exit code `code`, says why not."""
        self.forget_task(task)
        if self._tasks.end(task, error, code=code, now=now):
            self._watched.forget_owed(task)

    @property
    def sets_aside(self) -> bool:
        """Whether a table whose rows cannot be read is set aside."""
        return self._fault is not None

    def fail(self, plan: TablePlan, fault: str, error: FatalError) -> None:
        """Rows that the configuration asks for cannot be read: the plan's table is set aside, or the session ends."""
        if self._fault is None:
            self.failure = error
        else:
            self._fault(plan.task.oid, fault, error)

    def restart(self, task: TableTask, reason: str) -> None:
        """Read the table from its beginning, because of `reason`."""
        self._observe(SnapshotRestarted(table=task.name, reason=reason))
        self.read_from_beginning(task)

    def read_from_beginning(self, task: TableTask) -> None:
        """No page of the table counts as read, and no row is owed. The task's plan is over."""
        self.forget_task(task)
        self._tasks.replace(self._tasks.progress.restart(task))
        self._watched.forget_owed(task)
