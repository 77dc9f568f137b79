"""Bugs in the reading of tables without a key, which are read at one snapshot."""

from typing import Final

from cdcd.core.engine.chunk_reads import ChunkReads
from cdcd.core.engine.look_ups import LookUps
from cdcd.core.engine.one_snapshot import OneSnapshots
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


KEYLESS_BUGS: Final[dict[str, type[OneSnapshots | LookUps | ChunkReads]]] = {
    "keyless_placed_anywhere": PlacesAnywhere,
    "keyless_change_sent_twice": LeavesNothingOut,
}
