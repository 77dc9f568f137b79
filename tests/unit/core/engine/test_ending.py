"""Why a session ends, and when."""

from cdcd.core.engine.ending import UNSTREAMED_S, Ending, LogDeliveredError, StreamingAgainError
from cdcd.core.errors import TransientError
from cdcd.core.facts import Fact
from cdcd.core.facts.process import PostgresStopping
from cdcd.core.facts.start import LockLost

LOST = TransientError("the connection is gone", hint="Reconnecting.")


def ending(facts: list[Fact], unstreamed_until: int = 0) -> Ending:
    return Ending(unstreamed_until=unstreamed_until, grace_s=5.0, observe=facts.append, now=100.0)


def test_the_first_failure_is_the_reason():
    session = ending([])
    session.fail(None)
    assert session.error is None
    session.fail(LOST)
    session.fail(TransientError("another one"))
    assert session.error is LOST


def test_a_lost_lock_ends_the_session():
    facts: list[Fact] = []
    session = ending(facts)
    session.lock_lost(LOST, "08006", shutting_down=False, now=101.0)
    assert session.error is LOST
    assert facts == [LockLost(sqlstate="08006", reason=LOST.message)]


def test_a_shutdown_of_postgresql_leaves_a_grace_period_for_what_is_not_delivered():
    facts: list[Fact] = []
    session = ending(facts)
    assert not session.is_over(101.0, undelivered=False)
    session.lock_lost(LOST, "57P01", shutting_down=True, now=101.0)
    assert facts[1:] == [PostgresStopping(sqlstate="57P01", grace_s=5.0)]
    assert session.error is None
    assert not session.is_over(105.9, undelivered=True)
    assert session.is_over(105.9, undelivered=False)
    assert session.is_over(106.0, undelivered=True)


def test_streaming_begins_again_when_the_transaction_is_delivered_and_a_minute_has_passed():
    session = ending([], unstreamed_until=150)
    later = 100.0 + UNSTREAMED_S + 1
    session.note_position(150, later)
    session.note_position(151, 101.0)
    assert session.error is None
    session.note_position(151, later)
    assert isinstance(session.error, StreamingAgainError)


def test_a_session_that_streams_goes_on():
    session = ending([])
    session.note_position(151, 100.0 + UNSTREAMED_S + 1)
    assert session.error is None


def test_a_session_that_delivers_from_the_log_ends_where_the_log_does():
    session = Ending(unstreamed_until=0, logged_until=150, grace_s=5.0, observe=lambda _: None, now=100.0)
    session.note_position(149, 101.0)
    assert session.error is None
    session.note_position(150, 101.0)
    assert isinstance(session.error, LogDeliveredError)
