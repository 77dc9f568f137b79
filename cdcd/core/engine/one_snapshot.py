"""Reads tables without a key: sends a truncate record, then all rows of one snapshot, then the changes that the
snapshot lacks.

Without a key, it is unknown which row a change is about, so rows of several snapshots cannot be matched with
changes, as `placement.py` does for tables with a key. So all rows are read at one snapshot, which gets a position
in the stream:

```
 stream   … changes │ truncate record │ rows, and the changes that the snapshot does not see │ changes …
                    └ the place                                                              └ `after`
```

The rules:

- The position is between two transactions. The snapshot sees every change of the table before this position. So the
  rows restore everything that the truncate record has removed.
- After the position, changes that the snapshot sees are left out, because the rows include them. From `after` on,
  which is an LSN behind everything that the snapshot sees, there are no such changes any more. The table is not
  complete before that. So a restart that would deliver such a change twice reads the table again.
- An INSERT that the snapshot does not see may be sent between the rows. Any other change may be about a row that
  was not sent yet. So the table is then read once more, and the stream waits at the new position during that, but
  at most for `HOLD_S`, because the owner of a large table must not delay the others. After that the reading fails,
  and the table's name is reported.
- Nothing of an earlier reading is kept: a new plan takes a new snapshot, and begins with a truncate record.

A snapshot is taken while the stream goes on. If the stream has passed a change that the snapshot does not see, the
next snapshot is taken while the stream waits, which takes one query. A transaction that was streamed can stay
invisible for long, because it waits for a synchronous standby. So the stream waits for at most `TRIES_MAX`
snapshots, and then goes on.
"""

from typing import Final

from cdcd.core.engine.actions import Taken, TakeSnapshot
from cdcd.core.engine.fates import SNAPSHOT
from cdcd.core.engine.plans import RENAMED, OneSnapshot, Plans, PlanState, TablePlan
from cdcd.core.engine.rendering import Rendering
from cdcd.core.errors import SourceError
from cdcd.core.protocol import peek
from cdcd.core.transactions.drafts import SpoolItem, oids_of, only

TRIES_MAX: Final = 5
"""Number of snapshots that are taken while the stream waits, before the stream goes on."""

HOLD_S: Final = 30.0
"""Seconds that the stream waits for the rows of one table, as long as for a lock (`exported.GIVE_UP_S`)."""

_UNSEEN: Final = "a transaction that was streamed is not visible to snapshots yet"
_DISTURBED: Final = (
    "it has no key, and rows were updated or deleted meanwhile: the stream waits for the next reading"
)


_TOO_LONG: Final = (
    "it has no key, and rows were updated or deleted while it was read. So the stream waited for its rows, and not all "
    f"of them were read within {HOLD_S:.0f} s. The topic lacks rows: add a primary key, or read the table when it is "
    "not updated"
)


class OneSnapshots:
    """Gives the snapshots of tables without a key their positions: `ask` requests one, and `place` is called between
    two transactions.
    """

    def __init__(self, plans: Plans, rendering: Rendering) -> None:
        self._tasks = plans.tasks
        self._plans = plans
        self._rendering = rendering
        self._numbers = 0
        self._stalls: set[int] = set()
        """Numbers of tasks whose reading was disturbed, for which the stream waits until their rows are read."""

    @property
    def holds(self) -> bool:
        """True if the stream waits between two transactions."""
        return len(self._plans) > 0 and any(plan.one is not None and plan.one.holds for plan in self._plans)

    @property
    def filters(self) -> bool:
        """True if changes of a table are left out because its snapshot's rows include them."""
        return any(plan.one is not None and plan.one.is_placed for plan in self._plans)

    def begin(self, plan: TablePlan) -> None:
        """Note that the plan's table has no key."""
        plan.one = OneSnapshot()

    def ask(self, plan: TablePlan) -> TakeSnapshot:
        """Return the question for the plan's snapshot."""
        assert plan.one is not None
        assert plan.table is not None
        self._numbers += 1
        plan.one.number = self._numbers
        if plan.task.number in self._stalls:
            plan.one.holds = True
        return TakeSnapshot(self._numbers, plan.table)

    def taken(self, plan: TablePlan, answer: Taken) -> None:
        """Note that the snapshot of the plan was taken; `place` is called afterwards, between two transactions."""
        one = plan.one
        assert one is not None
        one.seen, one.after = answer.seen, answer.after
        # No question is asked before the snapshot has its place.
        plan.asked = True

    def place(self, now: float) -> None:
        """Give the snapshots that were taken their positions between two transactions, if the stream allows it."""
        for plan in self._plans:
            one = plan.one
            if one is None or one.is_placed or one.seen is None:
                continue
            window, table = plan.window, plan.table
            assert window is not None
            assert table is not None
            if not self._plans.owns(table):
                self._plans.begin_again(plan, RENAMED, now)
            elif window.overtaken(one.seen) == set():
                self._place(plan, one, table.oid, now)
            else:
                self._try_again(plan, one, now)

    def _place(self, plan: TablePlan, one: OneSnapshot, oid: int, now: float) -> None:
        tasks = self._tasks
        self._rendering.end_former_rows((oid,), tasks.take_number())
        tasks.replace(tasks.progress.end_rows(plan.task))
        found = tasks.progress.find(plan.task)
        assert found is not None, "a task that is being read has not ended"
        plan.task = found
        one.is_placed = True
        one.holds, one.holds_since = plan.task.number in self._stalls, now
        plan.asked = False
        plan.enter(PlanState.PLAN, now)

    def _try_again(self, plan: TablePlan, one: OneSnapshot, now: float) -> None:
        """Take another snapshot while the stream waits, because the stream has passed a change that this one does not
        see.
        """
        if one.tries >= TRIES_MAX:
            self._plans.begin_again(plan, _UNSEEN, now)
            return
        self._plans.let_go.append(one.number)
        plan.one = OneSnapshot(tries=one.tries + 1, holds=True)
        plan.asked = False
        if one.tries:
            plan.retry_later(now)

    def rest(self, xid: int, item: SpoolItem, in_stream: bool) -> tuple[SpoolItem | None, bool]:
        """Return the rest of a change in the transaction `xid`, and whether a window must be told of it.

        The rest is None if the snapshots of the change's tables see it.
        """
        gone: set[int] = set()
        is_ours = False
        oids = oids_of(item, in_stream)
        for plan in self._plans:
            one, table = plan.one, plan.table
            if one is None or not one.is_placed or table is None or table.oid not in oids:
                continue
            assert one.seen is not None
            if one.seen.sees(xid):
                gone.add(table.oid)
                continue
            is_ours = True
            is_insert = isinstance(item, bytes) and peek.tag_of(item) == peek.INSERT
            if not is_insert and not is_sent(plan):
                one.is_disturbed = True
        if gone:
            return only(item, in_stream, [oid for oid in oids if oid not in gone]), True
        return item, not is_ours or len(oids) > 1

    def _give_up(self, plan: TablePlan) -> None:
        if self._plans.sets_aside:
            message = f"The rows of {plan.task.name} cannot be read: {_TOO_LONG}."
            self._plans.fail(plan, SNAPSHOT, SourceError(message))
        else:
            self._plans.end(plan.task, _TOO_LONG)

    def end_disturbed(self, now: float) -> None:
        """Read the tables again whose readings were disturbed, or give them up; called between two transactions."""
        for plan in self._plans:
            one = plan.one
            if one is None:
                continue
            if one.holds and one.is_placed and now - one.holds_since > HOLD_S:
                self._give_up(plan)
            elif one.is_disturbed:
                self._stalls.add(plan.task.number)
                self._plans.restart(plan.task, _DISTURBED)


def is_sent(plan: TablePlan) -> bool:
    """Return whether all rows of the plan's snapshot are sent or being delivered."""
    chunks = plan.chunks
    return (
        plan.state is PlanState.READ
        and not plan.open
        and chunks is not None
        and chunks.is_exhausted(plan.task)
    )
