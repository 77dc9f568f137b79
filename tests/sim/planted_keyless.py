"""Bugs in the reading of tables without a key, which are read at one snapshot."""

from typing import Any, Final

from cdcd.core.engine.chunk_reads import ChunkReads
from cdcd.core.engine.look_ups import LookUps
from cdcd.core.engine.one_snapshot import OneSnapshots
from cdcd.core.engine.plans import OneSnapshot, PlanState, TablePlan
from cdcd.core.snapshot.placement import Window
from cdcd.core.transactions.drafts import SpoolItem


class PlacesAnywhere(OneSnapshots):
    """The snapshot gets its place although the stream has passed changes that it does not see."""

    def place(self, now: float) -> None:
        for plan in self._plans:
            if plan.window is not None and plan.one is not None:
                plan.window = Window()
        super().place(now)


class LeavesNothingOut(OneSnapshots):
    """Changes that the rows have are sent once more."""

    def rest(self, xid: int, item: SpoolItem, in_stream: bool) -> tuple[SpoolItem | None, bool]:
        super().rest(xid, item, in_stream)
        return item, False


class LeavesEverythingOut(OneSnapshots):
    """Changes are left out as long as the table is read, whether its snapshot sees them or not."""

    def rest(self, xid: int, item: SpoolItem, in_stream: bool) -> tuple[SpoolItem | None, bool]:
        rest, is_noted = super().rest(xid, item, in_stream)
        return (rest, True) if is_noted else (None, False)


class IsNeverDisturbed(OneSnapshots):
    """Rows follow an update or a delete of them."""

    def rest(self, xid: int, item: SpoolItem, in_stream: bool) -> tuple[SpoolItem | None, bool]:
        found = super().rest(xid, item, in_stream)
        for plan in self._plans:
            if plan.one is not None:
                plan.one.is_disturbed = False
        return found


class EndsNoFormerRows(OneSnapshots):
    """The rows follow without a truncate record."""

    def _place(self, plan: TablePlan, one: OneSnapshot, oid: int, now: float) -> None:
        rendering = self._rendering

        class Silent:
            def end_former_rows(self, oids: Any, event_no: int) -> None:
                pass

        self._rendering = Silent()  # type: ignore[assignment]
        super()._place(plan, one, oid, now)
        self._rendering = rendering


class GoesOnAtAnotherSnapshot(OneSnapshots):
    """After a lost connection, the pages that are left are read at another snapshot, without a truncate record."""

    def _place(self, plan: TablePlan, one: OneSnapshot, oid: int, now: float) -> None:
        found = self._tasks.progress.find(plan.task)
        if found is None or not found.has_begun:
            super()._place(plan, one, oid, now)
            return
        one.is_placed = True
        one.holds = False
        plan.asked = False
        plan.task = found
        plan.enter(PlanState.PLAN, now)


KEYLESS_BUGS: Final[dict[str, type[OneSnapshots | LookUps | ChunkReads]]] = {
    "keyless_placed_anywhere": PlacesAnywhere,
    "keyless_change_sent_twice": LeavesNothingOut,
    "keyless_change_lost": LeavesEverythingOut,
    "keyless_row_behind_its_change": IsNeverDisturbed,
    "keyless_former_rows_not_ended": EndsNoFormerRows,
    "keyless_goes_on_at_another_snapshot": GoesOnAtAnotherSnapshot,
}
