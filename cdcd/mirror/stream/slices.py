"""Which part of a topic is applied next.

The rule: a part ends at offsets, and in a topic with several partitions also at a place among the changes. Every
partition is complete up to that place, so that what is applied never waits for what lies in another partition.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cdcd.mirror.kafka import Offsets
from cdcd.mirror.stream.frontier import Tip
from cdcd.mirror.targets.state import WHOLE, At, Origin, Reach


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a topic that is applied together.

    Attributes:
        start: by partition, the offset at which the part begins.
        reach: where the part ends.
        batch_id: number of Spark's batch.
        cut: the LSN that the target's commit is as of; None: of no particular LSN.
        origin: the topic that the offsets are of.
        all: True if one `apply` gets all changes of the part, so that its commit may record the end of the part.
    """

    start: Offsets
    reach: Reach
    batch_id: int
    cut: int | None
    origin: Origin
    all: bool = True

    def not_all(self) -> "Slice":
        """The slice for an `apply` that gets only some of the changes."""
        return replace(self, cut=None, all=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """For `Target.apply`."""
        reach = Reach(self.reach.until, waiting=self.reach.waiting) if self.all else None
        return {
            "batch_id": self.batch_id, "consistent_lsn": self.cut, "origin": self.origin, "reach": reach,
        }  # fmt: skip


def reach_of(
    start: Offsets,
    ends: Offsets,
    size: int,
    cut: int | None,
    tip: Callable[[], Tip] | None,
    first: Callable[[Offsets, Offsets], At | None],
) -> tuple[Reach, bool]:
    """Which part of the topic the next step has, about `size` records, and whether nothing is left for now.

    Args:
        cut: as in `TableMirror.advance`, and `tip`.
        first: gives the first change between the offsets of each partition (`frontier.first_change`).
    """
    furthest = dict(ends)
    if cut is not None:
        bound = (cut, WHOLE)
    elif len(ends) == 1:
        until = slice_of(start, ends, size)
        return Reach(until), until == ends
    else:
        assert tip is not None, "the topic has several partitions"
        now = tip()
        furthest = {partition: max(end, now.ends.get(partition, 0)) for partition, end in ends.items()}
        bound = (now.complete_lsn, WHOLE)
    if distance(start, furthest) <= size:
        return Reach(furthest, bound), True
    # In proportion to all that is there, and not to the batch: what lies in the batch may wait for a record that lies
    # behind its end in another partition.
    until = slice_of(start, furthest, size)
    later = {partition: end for partition, end in furthest.items() if until[partition] < end}
    found = first(until, later)
    if found is not None:
        # Each commit of a consistent mirror is as of an LSN.
        bound = min(bound, found if cut is None else (found[0] - 1, WHOLE))
    return Reach(until, bound), False


def distance(start: Offsets, ends: Offsets) -> int:
    """How many offsets lie between."""
    return sum(max(0, end - start.get(partition, 0)) for partition, end in ends.items())


def slice_of(start: Offsets, ends: Offsets, most: int) -> dict[int, int]:
    """The ends, or as far as `most` offsets go, in the same proportion in each partition."""
    left = {partition: max(0, end - start.get(partition, 0)) for partition, end in ends.items()}
    total = distance(start, ends)
    if total <= most:
        return dict(ends)
    return {
        partition: end - left[partition] + max(min(1, left[partition]), left[partition] * most // total)
        for partition, end in ends.items()
    }
