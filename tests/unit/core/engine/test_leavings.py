import pytest

from cdcd.core.engine.leavings import FirstStart, Leaving
from cdcd.core.errors import FencedError, PositionError, SinkError, SourceError, TransientError

REFUSED = SourceError("permission denied")
KAFKA = SinkError("not authorized")
AWAY = TransientError("no answer")
OTHER = FencedError("another instance")
BUG = KeyError("a bug")
GONE = PositionError("the slot was dropped while it was in use")


@pytest.mark.parametrize(
    ("error", "unnamed", "asked", "written"),
    [
        # (the checkpoint was not asked for, was asked for, was written), each without anything delivered
        (None, Leaving.DROP, Leaving.KEEP, Leaving.KEEP),
        (REFUSED, Leaving.DROP, Leaving.KEEP, Leaving.FORGET),
        (KAFKA, Leaving.DROP, Leaving.DROP, Leaving.FORGET),
        (AWAY, Leaving.DROP, Leaving.KEEP, Leaving.KEEP),
        (OTHER, Leaving.KEEP, Leaving.KEEP, Leaving.KEEP),
        (BUG, Leaving.KEEP, Leaving.KEEP, Leaving.KEEP),
        (GONE, Leaving.NOTHING, Leaving.NOTHING, Leaving.NOTHING),
    ],
)
def test_a_slot_that_the_start_made_goes_unless_something_may_go_on_from_it(
    error: BaseException | None, unnamed: Leaving, asked: Leaving, written: Leaving
):
    def leaves(first: FirstStart, has_shipped: bool = False) -> Leaving:
        return first.leaves(error, has_shipped=has_shipped)

    assert leaves(FirstStart(made=True, reads_rows=True)) is unnamed
    assert leaves(FirstStart(made=True, reads_rows=True, checkpoint="asked")) is asked
    assert leaves(FirstStart(made=True, reads_rows=True, checkpoint="written")) is written
    # THEN what was handed over may have been delivered
    handed_over = leaves(FirstStart(made=True, reads_rows=True, checkpoint="written"), True)
    assert handed_over is (Leaving.NOTHING if error is GONE else Leaving.KEEP)
    # AND a slot that was there before is not touched
    for checkpoint in ("none", "asked", "written"):
        first = FirstStart(made=False, reads_rows=True, checkpoint=checkpoint)
        assert leaves(first) is Leaving.NOTHING


def test_without_rows_that_are_read_again_a_slot_stays_as_soon_as_changes_may_count_on_it():
    first = FirstStart(made=True)
    assert first.leaves(REFUSED, has_shipped=False) is Leaving.DROP
    assert first.leaves(AWAY, has_shipped=False) is Leaving.KEEP
    first.checkpoint = "written"
    assert first.leaves(REFUSED, has_shipped=False) is Leaving.KEEP


def test_a_refusal_after_a_commit_without_an_answer_leaves_the_slot_that_a_checkpoint_may_name():
    asked = FirstStart(made=True, reads_rows=True, checkpoint="asked")
    assert asked.leaves(KAFKA, has_shipped=False, outcome_unknown=False) is Leaving.DROP
    assert asked.leaves(KAFKA, has_shipped=False, outcome_unknown=True) is Leaving.KEEP
    # THEN a start that has not got to its checkpoint is not concerned
    assert FirstStart(made=True).leaves(KAFKA, has_shipped=False, outcome_unknown=True) is Leaving.DROP
