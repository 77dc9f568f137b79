"""Tables that are read beside the stream: what is asked of PostgreSQL next, and where its answers go.

```
 task ─▶ LOOK ─▶ TOPIC ─▶ WRITERS ─▶ (SNAPSHOT) ─▶ PLAN ─▶ READ ─▶ end
           ▲     `look_ups.py`                          │ `chunk_reads.py`
           └── the table changed, or its window gave up ──┘
```

`Incremental` is composed of parts that have one concern each. Here is the order: which plan asks first, and which table
is begun next.

| part | concern |
|---|---|
| `SnapshotTasks` | which tables are to be read, how far each is, what the log is told |
| `WatchedTables` | changes in the stream that matter to them, and the rows that they owe |
| `Plans` | what is being read now, from a first look-up to its end |
| `LookUps` | what must be known of a table before its rows can be read |
| `OneSnapshots` | where the one snapshot of a table without a key has its place |
| `ChunkReads` | which pages are read, and which of their rows are sent |
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from cdcd.core.engine.actions import Answer, Busy, LetGo, Looked, Lost, Question, Taken, Writers
from cdcd.core.engine.chunk_reads import ChunkReads
from cdcd.core.engine.fates import SET_ASIDE, Fates
from cdcd.core.engine.look_ups import LookUps
from cdcd.core.engine.one_snapshot import OneSnapshots
from cdcd.core.engine.plans import OneSnapshot, OpenChunk, Plans, PlanState, TablePlan, WaitingRows
from cdcd.core.engine.rendering import Rendering
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.watched import WatchedTables
from cdcd.core.errors import FatalError
from cdcd.core.facts import Observer
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Changed, Refused, Rows, TooLarge
from cdcd.core.snapshot.signals import OWN_REQUESTS
from cdcd.core.snapshot.table_task import TableTask

_ASKS = (PlanState.LOOK, PlanState.WRITERS, PlanState.SNAPSHOT, PlanState.PLAN)
"""The states in which a plan has a question by itself."""


def _always(_oid: int, _name: str) -> bool:
    return True


class Incremental:
    """The tables of a session that are read beside the stream.

    The engine carries questions and answers and says when topics are ready (`look_ups`). Whoever makes records of the
    stream says what happens in it, in its order: to `watched` which rows change, by `redefined` which tables change,
    and to `reads` where a transaction has ended.

    Args:
        settings: size of chunks, and how many tables and chunks are read at a time.
        fates: the tables that are set aside, which are not read. It takes the faults of tables; if it sets no table
            aside, a fault ends the session (`failure`).
        owns: says whether a table, by oid, has a name where the stream is.
        ends_rows: truncate records are made, by which tables without a key are read.
    """

    def __init__(
        self,
        tasks: SnapshotTasks,
        rendering: Rendering,
        settings: SnapshotSettings,
        fates: Fates,
        *,
        observe: Observer,
        owns: Callable[[int, str], bool] = _always,
        ends_rows: bool = True,
    ) -> None:
        self._aside: Mapping[int, object] = fates.aside
        self.tasks = tasks
        self.watched = WatchedTables(tasks)
        self.waiting = WaitingRows()
        self.plans = Plans(tasks, self.watched, self.waiting, observe, fates, owns)
        self.reads = ChunkReads(self.plans, rendering, settings)
        self.snapshots = OneSnapshots(self.plans, rendering)
        self.look_ups = LookUps(
            self.plans,
            self.reads,
            self.snapshots if ends_rows else None,
            rendering,
            settings,
            observe=observe,
            aside=self._aside,
        )
        self._parallelism = settings.parallelism
        self._tables_max = settings.parallelism + settings.tables_ahead
        for task in tasks.progress.tasks:
            if task.unsettled:
                self.plans.restart(task, "more rows were to be read again than the checkpoint can hold")
            elif task.has_begun and not task.ended:
                self.watched.resume_owed(task)

    @property
    def progress(self) -> Progress:
        """How far the reading of all tables has got."""
        return self.tasks.progress

    @property
    def failure(self) -> FatalError | None:
        """Why the session cannot go on, if so."""
        return self.plans.failure

    def redefined(self, oid: int) -> None:
        """The stream describes this table otherwise from here on: plan it again."""
        for plan in self.plans:
            if plan.task.oid == oid:
                self.plans.forget(plan)

    def leave(self, oid: int, reason: str) -> None:
        """The table is set aside: it is not read any more."""
        for task in self.progress.tasks:
            if task.oid == oid:
                self.plans.end(task, reason)

    # What is to be read.

    def set_paused(self, paused: bool) -> None:
        """Read no further, or go on. What is being read is read again then: a window must not wait for hours."""
        self.tasks.replace(replace(self.progress, paused=paused))
        if paused:
            for plan in self.plans:
                self.plans.forget(plan)

    def read_anew(self, oid: int, name: str, request: str) -> None:
        """Read the table with this oid from its beginning, also if some or all of its rows were read before."""
        for task in self.progress.tasks:
            if oid and task.oid == oid and not task.where:
                self.plans.read_from_beginning(task)
                if task.request not in OWN_REQUESTS:
                    self.tasks.replace(self.progress.restart(task, request))
                return
        self.tasks.replace(self.progress.take_from_waiting(oid))
        self.tasks.add([TableTask(name, oid, request=request)])

    # Questions.

    def next_question(self, now: float) -> tuple[object, Question] | None:
        """What to ask now, and whom the answer is for; None: nothing. `plan_answered` brings the answer."""
        if self.plans.let_go:
            number = self.plans.let_go.popleft()
            return number, LetGo(number)
        if self.progress.paused:
            return None
        for plan in self.plans:
            if plan.window is not None and plan.window.gave_up:
                self.plans.forget(plan)
                continue
            question = self.look_ups.next(plan, now)
            if question is not None:
                return plan, question
        read = self.reads.next()
        return self._next_table(now) if read is None else read

    def next_at(self) -> float | None:
        """When `next_question` has a question to ask again, if nothing else happens before."""
        times = [plan.retry_at for plan in self.plans if not plan.asked and plan.state in _ASKS]
        return None if self.progress.paused else min(times, default=None)

    def _next_table(self, now: float) -> tuple[object, Question] | None:
        """Begin with another table. As many are read at a time as there are connections; `ahead` more are looked up.

        A table that somebody has locked uses no connection while it waits, so another table has its turn meanwhile.
        That is so for as many locked tables as there are connections, because each of them takes memory.
        """
        locked = sum(plan.is_locked for plan in self.plans)
        if len(self.plans) - min(locked, self._parallelism) >= self._tables_max:
            return None
        names = {plan.task.name for plan in self.plans}
        oids = {plan.task.oid for plan in self.plans}
        for task in self.progress.tasks:
            if self.plans.has(task) or task.name in names or (task.oid and task.oid in oids):
                continue
            if task.oid in self._aside:
                self.plans.end(task, SET_ASIDE)
                continue
            return self.look_ups.begin(task, now)
        while True:
            begun = self.progress.begin_next(self.tasks.names)
            if begun is None or begun[1].oid in oids:
                return None
            self.tasks.replace(begun[0])
            if begun[1].oid not in self._aside:
                return self.look_ups.begin(begun[1], now)
            self.plans.end(begun[1], SET_ASIDE)

    # Answers.

    def plan_answered(self, asked: object, answer: Answer, now: float) -> None:
        """The answer to a question of `next_question`."""
        if isinstance(asked, OpenChunk):
            assert isinstance(answer, Rows | TooLarge | Changed | Refused | Busy | Lost)
            self.reads.rows_read(asked, answer, now)
            return
        if isinstance(asked, int):
            # A snapshot was let go of.
            return
        assert isinstance(asked, TablePlan)
        asked.asked = False
        if not self.plans.is_current(asked):
            if isinstance(answer, Taken) and asked.one is not None:
                # It was let go of before it was taken.
                self.plans.let_go.append(asked.one.number)
            return
        if isinstance(answer, Busy | Lost):
            reason = answer.reason if isinstance(answer, Busy) else answer.error.message
            asked.is_locked = isinstance(answer, Busy)
            if asked.state is PlanState.SNAPSHOT:
                # The stream does not wait for a connection.
                asked.one = OneSnapshot()
            self.plans.say_waiting(asked, [reason], now)
            asked.retry_later(now)
        elif isinstance(answer, Looked):
            self.look_ups.looked(asked, answer, now)
        elif isinstance(answer, Taken):
            self.snapshots.taken(asked, answer)
        elif isinstance(answer, Refused):
            self.reads.refused(asked, answer)
        else:
            assert isinstance(answer, Writers)
            self.look_ups.found_writers(asked, answer, now)
