"""Look-ups in the catalog before a table's rows can be read, from a new plan to its pages.

```
 LOOK ─▶ TOPIC ─▶ WRITERS ─────▶ PLAN ─▶ READ (`chunk_reads.py`)
                     │ no key     ▲
                     └▶ SNAPSHOT ─┘ (`one_snapshot.py`)
```

The rule: the window opens before the writers of the table are looked up. Every snapshot that is taken afterwards
must see what was streamed before, and a snapshot sees a transaction once it has ended. So every transaction that
writes to the table at that moment is awaited, as CREATE INDEX CONCURRENTLY does (by its locks, which are released
when the transaction becomes visible: xact.c, CommitTransaction).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cdcd.core.engine.actions import FindWriters, Look, Looked, Question, Writers
from cdcd.core.engine.chunk_reads import ChunkReads
from cdcd.core.engine.fates import BELONGS, RULE, SET_ASIDE, fault_of
from cdcd.core.engine.one_snapshot import OneSnapshots
from cdcd.core.engine.plans import RENAMED, Plans, PlanState, TablePlan
from cdcd.core.engine.rendering import Rendering
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.snapshot_tasks import excess
from cdcd.core.errors import ConfigError, SinkError, SourceError
from cdcd.core.facts import Observer
from cdcd.core.facts.snapshot import SnapshotPartitions, SnapshotRestarted
from cdcd.core.snapshot.chunks import Chunks
from cdcd.core.snapshot.reading import SourceTable
from cdcd.core.snapshot.signals import OWN_REQUESTS, RESUMED
from cdcd.core.snapshot.table_task import Part, TableTask, form_of

HELD_S: Final = 2.0
"""Seconds until a large table that has to wait for other large ones is looked up again."""

PARTITIONS_NAMED: Final = 10
"""Maximum number of partitions that an event names in place of their table."""

_NO_KEY = (
    "it has no key, or rows may share the key that key.columns chooses. Such a table can be read again only with a "
    "truncate record, which topics.truncate or topics.skipped_operations turns off"
)
_NO_WHERE = (
    "it has no key, or rows may share the key that key.columns chooses. A truncate record ends the former rows of "
    "such a table, "
    "so it is read as a whole: ask for it without a where"
)


class LookUps:
    """Advances plans from `PlanState.LOOK` to `PlanState.READ`.

    Args:
        snapshots: reads tables without a key; None if such tables cannot be read.
        aside: the tables that are set aside, by oid.
    """

    def __init__(
        self,
        plans: Plans,
        reads: ChunkReads,
        snapshots: OneSnapshots | None,
        rendering: Rendering,
        settings: SnapshotSettings,
        *,
        observe: Observer,
        aside: Mapping[int, object],
    ) -> None:
        self._aside = aside
        self._snapshots = snapshots
        self._tasks = plans.tasks
        self._watched = plans.watched
        self._plans = plans
        self._reads = reads
        self._rendering = rendering
        self._chunk_bytes = settings.chunk_bytes
        self._large_max = settings.parallelism if settings.tables_ahead else None
        """Maximum number of tables with more than one chunk that have a window at a time; None if the caller limits
        this."""
        self._observe = observe

    def begin(self, task: TableTask, now: float) -> tuple[TablePlan, Question]:
        """Begin a plan for the task, with its first question."""
        plan = self._plans.begin(task, now)
        plan.asked = True
        return plan, Look(task.oid, task.name, task.where)

    def next(self, plan: TablePlan, now: float) -> Question | None:
        """Return the next question about the table; None if there is none, or one is open."""
        if plan.asked or plan.retry_at > now:
            return None
        question = self._question(plan)
        plan.asked = question is not None
        return question

    def topics_ready(self, now: float) -> None:
        """Note that more topics are ready."""
        for plan in self._plans:
            if plan.state is PlanState.TOPIC and self._rendering.topic_is_ready(plan.topic):
                plan.enter(PlanState.WRITERS, now)

    def _question(self, plan: TablePlan) -> Question | None:
        task, table = plan.task, plan.table
        if plan.state is PlanState.LOOK:
            return Look(task.oid, task.name, task.where)
        if plan.state is PlanState.PLAN:
            # The first look-up has already checked the condition.
            return Look(task.oid, task.name)
        if plan.state is PlanState.WRITERS:
            assert table is not None
            return FindWriters((table.oid, *(each.part.oid for each in table.parts)))
        if plan.state is PlanState.SNAPSHOT:
            assert self._snapshots is not None, "the rows of a table without a key need them"
            return self._snapshots.ask(plan)
        return None

    # The table.

    def _found_none(self, task: TableTask, answer: Looked) -> None:
        """End or replace a task whose table cannot be read: the table is partitioned or gone, or there is a problem."""
        if answer.leaves:
            self._expand(task, answer.leaves)
        elif task.oid and task.request in OWN_REQUESTS and not task.askers and not answer.problem:
            # Nobody waits for its rows, and another table may have its name by now. A table whose present name is
            # left out is not gone: it may come back to a name without an event in the stream.
            self._plans.end_gone(task)
        else:
            self._plans.end(task, answer.problem or "there is no such table in the publication")

    def looked(self, plan: TablePlan, answer: Looked, now: float) -> None:
        """Take the catalog's answer for a new plan, or for one that needs its pages."""
        task, table = plan.task, answer.table
        if table is None:
            self._found_none(task, answer)
            return
        if answer.problem:
            self._plans.end(task, f"the where cannot be used: {answer.problem}", code=ConfigError.exit_code)
            return
        if table.oid in self._aside:
            self._plans.end(task, SET_ASIDE)
            return
        if self._is_planned_by_another(plan, table):
            # Another task for this table was looked up first, so this one begins when that one has ended.
            self._know(plan, table)
            self._plans.forget(plan)
            return
        if not self._plans.owns(table):
            self._plans.begin_again(plan, RENAMED, now)
            return
        try:
            described = replace(answer.description, numbers=table.numbers)
            topic = self._rendering.define(table.relation, described, answer.types)
        except BELONGS as error:
            if self._plans.sets_aside:
                self._know(plan, table)
                self._plans.fail(plan, fault_of(error), error)
                return
            if not isinstance(error, SinkError):
                raise
            self._plans.end(task, error.message, code=error.exit_code, hint=error.hint)
            return
        if not self._rendering.key_columns(table.oid):
            if self._snapshots is None or task.where:
                self._refuse_keyless(plan, table)
                return
            if plan.one is None:
                self._snapshots.begin(plan)
        if plan.state is PlanState.PLAN:
            self._planned(plan, table, answer, now)
        else:
            self._open(plan, table, answer, topic, now)

    def _expand(self, task: TableTask, leaves: Mapping[int, str]) -> None:
        """Read the partitions in place of the table, because the table is published through them."""
        current = self._present(task)
        tasks = self._tasks
        others = replace(
            tasks.progress, tasks=tuple(each for each in tasks.progress.tasks if each is not current)
        )
        problem = excess(others, [replace(current, name=name, oid=oid) for oid, name in leaves.items()])
        if problem:
            problem = f"it is published through {len(leaves)} partitions: {problem}"
            self._plans.end(task, problem, code=ConfigError.exit_code)
            return
        self._plans.forget_task(task)
        tasks.replace(tasks.progress.expand(task, leaves))
        names = list(leaves.values())
        self._observe(
            SnapshotPartitions(table=task.name, partitions=names[:PARTITIONS_NAMED], count=len(names))
        )

    def _is_planned_by_another(self, plan: TablePlan, table: SourceTable) -> bool:
        return any(
            other is not plan and other.table is not None and other.table.oid == table.oid
            for other in self._plans
        )

    def _open(self, plan: TablePlan, table: SourceTable, answer: Looked, topic: str, now: float) -> None:
        """Open the window of a new plan."""
        plan.table, plan.latest = table, answer.seen
        self._know(plan, table)
        if self._watched.has_window(topic):
            # The table that had this name before is still being read into the topic, so this one waits.
            self._plans.forget(plan)
            return
        if self._has_too_many(plan):
            plan.table = None
            plan.retry_at = now + HELD_S
            return
        plan.topic = topic
        plan.window = self._watched.open_window(table.oid, topic)
        if plan.one is None:
            # The key of a change is owed from here on, because the stream can have a change before snapshots see it.
            self._watched.watch_owed(plan.task)
        ready = self._rendering.topic_is_ready(topic)
        plan.enter(PlanState.WRITERS if ready else PlanState.TOPIC, now)

    def _has_too_many(self, plan: TablePlan) -> bool:
        """Return whether the table has to wait until another large one is read."""
        if self._large_max is None or not self._is_large(plan):
            return False
        watched = [each for each in self._plans if each.window is not None and not each.is_locked]
        return sum(map(self._is_large, watched)) >= self._large_max

    def _is_large(self, plan: TablePlan) -> bool:
        """Return whether the table has more than one chunk."""
        table = plan.table
        return table is not None and sum([each.part.size for each in table.parts]) > self._chunk_bytes

    def _know(self, plan: TablePlan, table: SourceTable) -> None:
        """Store the table's present oid and name in the task."""
        task = plan.task
        current = self._tasks.progress.find(task)
        if current is not None and (current.oid, current.name) != (table.oid, table.name):
            # Rows that were delivered of another table, or to another topic, do not count for this task.
            keeps = current.oid in (0, table.oid) and current.name in ("", table.name)
            parts = current.parts if keeps else None
            progress = self._tasks.progress.plan(task, table.oid, table.name, parts, current.form)
            self._tasks.replace(progress)
            if not keeps:
                self._watched.forget_owed(task)
        plan.task = self._present(task)

    def _present(self, task: TableTask) -> TableTask:
        """Return the present state of the task."""
        found = self._tasks.progress.find(task)
        assert found is not None, "a task that is being read has not ended"
        return found

    def _refuse_keyless(self, plan: TablePlan, table: SourceTable) -> None:
        task = plan.task
        if task.request not in ("", RESUMED):
            self._plans.end(task, _NO_WHERE if task.where and self._snapshots is not None else _NO_KEY)
            return
        error = SourceError(
            f"The snapshot of {table.name} is not complete and cannot go on. {table.name} has no key, or key.columns "
            "chooses a key that several rows may share. Such a table can be read again only with a truncate record, "
            "which topics.truncate or topics.skipped_operations turns off.",
            hint=f"Add a primary key to {table.name}, which must not be DEFERRABLE. If key.columns chooses the key, "
            "add the columns of the primary key there. To go on without the table's rows, set "
            f"snapshot.exclude: [{table.name}], or snapshot.mode: never for all tables.",
        )
        self._know(plan, table)
        self._plans.fail(plan, RULE, error)

    # Its writers.

    def found_writers(self, plan: TablePlan, answer: Writers, now: float) -> None:
        """Take the transactions that write to the table now."""
        plan.writers = answer.names if plan.writers is None else plan.writers & answer.names
        plan.latest = answer.seen
        self._reads.advance(plan)
        self._watched.forget_seen(plan.task, plan.window, answer.seen)
        if not plan.writers:
            plan.enter(PlanState.PLAN if plan.one is None else PlanState.SNAPSHOT, now)
            return
        self._plans.say_waiting(plan, [answer.people.get(each, each) for each in sorted(plan.writers)], now)
        plan.retry_later(now)

    # Its pages.

    def _planned(self, plan: TablePlan, table: SourceTable, answer: Looked, now: float) -> None:
        if plan.table is None or not _same_table(plan.table, table):
            # The window is that of another table, or not all writers of this one were waited for.
            self._plans.forget(plan)
            return
        plan.table, plan.latest = table, answer.seen
        self._plan(plan, table, now)

    def _plan(self, plan: TablePlan, table: SourceTable, now: float) -> None:
        """Every row that is changed from now on is in the stream, and every other one is on these pages."""
        task = plan.task
        current = self._present(task)
        form = form_of(table.columns)
        altered = current.form not in (0, form)
        before = {part.oid: part for part in current.parts or ()}
        if altered or plan.one is not None:
            before = {}
        parts = tuple(_go_on(before.get(each.part.oid), each.part) for each in table.parts)
        restarts = current.has_begun and not any(part.done for part in parts)
        if restarts:
            reason = "its columns were altered" if altered else "it was rewritten"
            self._observe(SnapshotRestarted(table=table.name, reason=reason))
        self._tasks.replace(self._tasks.progress.plan(task, table.oid, table.name, parts, form))
        plan.task = self._present(task)
        self._watched.forget_seen(plan.task, plan.window, plan.latest)
        self._tasks.announce(plan.task.size)
        self._tasks.start_pace(plan.task, now)
        plan.sql_names = table.sql_names
        plan.chunks = Chunks(self._chunk_bytes)
        plan.chunks.add(plan.task)
        plan.enter(PlanState.READ, now)
        self._reads.advance(plan)
        self._reads.finish(plan, now)


def _same_table(one: SourceTable, other: SourceTable) -> bool:
    """Return whether the writers of `other` were looked up together with those of `one`, and both have the same
    columns.
    """
    return (
        one.oid == other.oid
        and one.name == other.name
        and one.columns == other.columns
        and {each.part.oid for each in one.parts} >= {each.part.oid for each in other.parts}
    )


def _go_on(before: Part | None, now: Part) -> Part:
    """Return the part with the pages that were read of it before, unless its rows are in another file since."""
    return now if before is None or not before.done or before.filenode != now.filenode else before
