import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.engine.feedback import WORTH_TELLING_S, Feedback, interval_for


def test_the_first_update_is_due_at_once():
    update = Feedback(10, now=0).due(100, 50, 0, 7)
    assert update is not None
    assert (update.written, update.flushed, update.applied, update.client_time) == (100, 50, 50, 7)
    assert not update.reply_requested


def test_then_one_is_due_at_every_interval():
    feedback = Feedback(10, now=0)
    feedback.due(100, 50, 0, 0)
    assert feedback.due(100, 50, 9.9, 0) is None
    assert feedback.due(100, 50, 10, 0) is not None
    assert feedback.due(100, 50, 19.9, 0) is None


def test_a_risen_position_is_told_soon():
    feedback = Feedback(10, now=0)
    feedback.due(100, 50, 0, 0)
    assert feedback.next_at(51) == WORTH_TELLING_S
    assert feedback.due(100, 51, WORTH_TELLING_S / 2, 0) is None
    update = feedback.due(100, 51, WORTH_TELLING_S, 0)
    assert update is not None
    assert update.flushed == 51


def test_what_was_received_is_no_reason_to_hurry():
    feedback = Feedback(10, now=0)
    feedback.due(100, 50, 0, 0)
    assert feedback.due(900, 50, 5, 0) is None


def test_a_question_is_answered_at_once_and_once():
    feedback = Feedback(10, now=0)
    feedback.due(100, 50, 0, 0)
    feedback.ask()
    assert feedback.due(100, 50, 0, 0) is not None
    assert feedback.due(100, 50, 0, 0) is None


def test_a_flushed_position_never_falls():
    feedback = Feedback(10, now=0)
    feedback.due(100, 50, 0, 0)
    update = feedback.due(20, 20, 10, 0)
    assert update is not None
    assert (update.written, update.flushed) == (50, 50)


@pytest.mark.parametrize(
    ("configured", "timeout", "interval"), [(10, 60, 10), (10, 9, 3), (10, 0, 10), (1, 60, 1), (10, 30, 10)]
)
def test_the_interval_is_well_below_the_servers_patience(configured, timeout, interval):
    assert interval_for(configured, timeout) == interval


@given(
    interval=st.floats(0.01, 60),
    events=st.lists(st.tuples(st.floats(0, 20), st.integers(0, 50), st.booleans()), max_size=60),
)
def test_whatever_happens_the_server_hears_in_time_and_positions_only_rise(interval, events):
    feedback = Feedback(interval, now=0)
    now = told_at = 0.0
    flushed = told = 0
    feedback.due(0, 0, now, 0)
    for wait, risen, asked in events:
        now += wait
        flushed += risen
        if asked:
            feedback.ask()
        next_at = feedback.next_at(flushed)
        update = feedback.due(flushed + 1, flushed, now, 0)
        if update is None:
            assert not asked
            assert now < next_at <= told_at + interval
        else:
            assert update.flushed == flushed >= told
            assert update.written >= update.flushed
            told, told_at = update.flushed, now
