import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.engine.feedback import WORTH_TELLING_S, Feedback, PreparedAge, interval_for
from cdcd.core.facts import Fact
from cdcd.core.facts.transactions import PreparedOld
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US

MINUTE_US = 60_000_000


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


def test_each_prepared_transaction_is_warned_of_once_from_the_age_on_that_holds_now():
    facts: list[Fact] = []
    ages = PreparedAge(120.0, facts.append)
    at = 7 * MINUTE_US
    now = POSTGRES_EPOCH_US + at
    ages.check(None, 50, now)
    ages.check(("a", at), 50, now + MINUTE_US)
    assert facts == []
    ages.warning_age_s = 60.0
    for minutes in (1, 2):
        ages.check(("a", at), 60, now + minutes * MINUTE_US)
    ages.check(("b", at + MINUTE_US), 70, now + 3 * MINUTE_US)
    assert facts == [
        PreparedOld(gid="a", age_s=60, held_at="0/3C"),
        PreparedOld(gid="b", age_s=120, held_at="0/46"),
    ]
