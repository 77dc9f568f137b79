"""Bugs in the healing of topics after a gap."""

from dataclasses import replace
from typing import Final

from cdcd.core.engine.actions import Answer, Differences, NotComparable
from cdcd.core.engine.healing import Healing
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.startup import STEPS, Start
from cdcd.core.engine.startup_positions import Step
from cdcd.core.snapshot.reading import SourceTable


class ForgetsDeletes(Healing):
    """Rows that only the topic has stay there."""

    def comparison_answered(self, asked: object, answer: Answer, now: float) -> None:
        if isinstance(answer, Differences) and answer.rows > len(answer.deletes):
            answer = replace(answer, deletes=())
        super().comparison_answered(asked, answer, now)


class EndsWithTheFirstDifferences(Healing):
    """The table counts as healed when the first differences are on their way."""

    def comparison_answered(self, asked: object, answer: Answer, now: float) -> None:
        super().comparison_answered(asked, answer, now)
        if isinstance(answer, Differences) and answer.rows:
            super().comparison_answered(asked, Differences(), now)


class TakesWhatIsNotComparable(Healing):
    """A table that cannot be compared counts as healed."""

    def comparison_answered(self, asked: object, answer: Answer, now: float) -> None:
        super().comparison_answered(
            asked, Differences() if isinstance(answer, NotComparable) else answer, now
        )

    def _take(self, table, answer):
        if self._compared is None:
            from cdcd.core.engine.actions import Compared

            self._compared = Compared(0, 0, 0)
        super()._take(table, answer)


class CountsLate(Healing):
    """A batch of differences may have the same progress as the batch before it."""

    def _take(self, table: SourceTable, answer: Differences) -> None:
        tasks = self._tasks

        class Late(SnapshotTasks):
            def take_numbers(self, count: int) -> int:
                return int(tasks.progress.event_no) + 1

        self._tasks = Late(tasks.progress, names={}, observe=lambda _: None, changed=lambda: None)
        super()._take(table, answer)
        self._tasks = tasks
        if answer.rows:
            tasks.take_numbers(answer.rows)


def goes_on_with_the_slot(start: Start) -> Step:
    """An attempt that did not end goes on with its slot, as if the attempt had ended."""
    found = start.positions.found
    yield from start.fence()
    found = start.positions.found
    slot = start.positions.slot
    if slot is None and found is not None and found.snapshot is not None and len(found.snapshot.healing):
        start.positions.found = replace(
            found, snapshot=found.snapshot.end_healing(found.snapshot.healing.oids)
        )
        start.positions._heals = False
        yield from start.positions._look_at_slot()
        yield from start.positions._compare()


HEALING_BUGS: Final[dict[str, type[Healing]]] = {
    "healing_forgets_deletes": ForgetsDeletes,
    "healing_ends_with_the_first_differences": EndsWithTheFirstDifferences,
    "healing_takes_what_is_not_comparable": TakesWhatIsNotComparable,
    "healing_counts_late": CountsLate,
}

HEALING_STARTS: Final = tuple(goes_on_with_the_slot if step is Start.fence else step for step in STEPS)
