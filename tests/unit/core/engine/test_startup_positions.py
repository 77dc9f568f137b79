"""Where a session's flushed position begins. What is compared, and when, is in test_startup.py."""

import pytest

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.startup_positions import first_flush
from cdcd.core.transactions.position import Position


@pytest.mark.parametrize(
    ("told", "in_checkpoint", "confirmed", "expected"),
    [
        (0, 100, 90, 90),
        (95, 100, 90, 95),
        # Another instance may hold an undecided PREPARE before what this process was told.
        (120, 100, 90, 100),
        (120, 100, 110, 110),
    ],
)
def test_a_session_begins_to_flush_no_further_than_slot_or_checkpoint_say(
    told, in_checkpoint, confirmed, expected
):
    start = Checkpoint("1", 1, "", Position(90, 130), in_checkpoint)
    assert first_flush(told, start, confirmed, two_phase=False) == expected
    # PostgreSQL may send a PREPARE behind the slot's position only once, so no later position counts.
    assert first_flush(told, start, confirmed, two_phase=True) == confirmed
