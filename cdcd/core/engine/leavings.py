"""What a first start that ends leaves behind: the slot that it made is dropped, or kept and told of.

The rule: a slot that nobody reads holds WAL until the disk is full, so a start that made a slot and comes to nothing
takes it away again. A slot is dropped only by the start that made it, while that start holds the pipeline's lock, and
only if nothing was delivered by it. A slot that was there before is never dropped, because nobody knows what it stands
for. If the checkpoint may name the slot, and cannot be taken back, the slot stays: a checkpoint without its slot is a
gap, which the next start refuses.

What nothing was delivered of comes again by a new slot only if its start reads the rows that are there. With
`snapshot.mode: never`, changes since the slot was made would be missing, so such a slot stays once the checkpoint names
it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from cdcd.core.errors import FatalError, FencedError, PositionError, SinkError, TransientError

KEPT: Final = (
    "PostgreSQL keeps WAL for slot {slot}, which this process made, until cdcd runs again and goes on from it. If you "
    "do not need the pipeline any more, `cdcd drop` removes the slot."
)
"""What the end of a process says of a slot that stays."""


class Leaving(Enum):
    """What becomes of the slot."""

    NOTHING = "this start made no slot, or it is gone"
    DROP = "nothing names the slot, so it is dropped"
    FORGET = "the checkpoint names the slot and nothing else was delivered, so both are removed"
    KEEP = "the next start goes on from the slot"


@dataclass(slots=True)
class FirstStart:
    """How far a start has got that makes a slot.

    Attributes:
        made: the slot was made by this start.
        reads_rows: a start with a new slot reads the rows that are there.
        checkpoint: whether the checkpoint that names the slot was asked to be written, and whether it was.
    """

    made: bool = False
    reads_rows: bool = False
    checkpoint: Literal["none", "asked", "written"] = "none"

    def leaves(
        self, error: BaseException | None, *, has_shipped: bool, outcome_unknown: bool = False
    ) -> Leaving:
        """What to do when the session ends.

        Args:
            error: why it ends; None: somebody stopped it.
            has_shipped: whether rows or changes were handed over, delivered or not.
            outcome_unknown: whether Kafka gave no answer to the last commit.
        """
        if not self.made or isinstance(error, PositionError):
            # The error of a slot that was dropped or lost since is about that slot.
            return Leaving.NOTHING
        known = error is None or isinstance(error, (FatalError, TransientError))
        if not known or isinstance(error, FencedError):
            # Nobody knows what has happened, or another instance goes on from the slot.
            return Leaving.KEEP
        if self.checkpoint == "none":
            # The next session of this process would read beside the stream, which tables without keys do not allow.
            passes = isinstance(error, TransientError) and not self.reads_rows
            return Leaving.KEEP if passes else Leaving.DROP
        if self.checkpoint == "asked":
            # A refusal comes instead of the commit, unless an earlier commit of the same checkpoint had no answer.
            # Without a refusal, nobody knows whether it was committed.
            refused = isinstance(error, SinkError) and not outcome_unknown
            return Leaving.DROP if refused else Leaving.KEEP
        undone = isinstance(error, FatalError) and not has_shipped and self.reads_rows
        return Leaving.FORGET if undone else Leaving.KEEP
