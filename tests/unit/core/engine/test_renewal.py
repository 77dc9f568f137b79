"""When the connection is renewed after a large message."""

from cdcd.core.engine.renewal import Renewal

LARGE = 1000
QUIET_S = 5.0


def renewal() -> Renewal:
    return Renewal(LARGE, QUIET_S)


def test_the_connection_is_renewed_once_postgresql_was_told_a_position_behind_the_message():
    one = renewal()
    one.arrived(LARGE + 1, now=10.0)
    assert not one.is_due(told=10_000, now=100.0)
    one.closed(500, undecided=0)
    assert not one.is_due(told=499, now=100.0)
    assert one.next_at(told=499) is None
    assert not one.is_due(told=500, now=14.9)
    assert one.next_at(told=500) == 15.0
    assert one.is_due(told=500, now=15.0)


def test_a_message_of_the_largest_ordinary_size_renews_nothing():
    one = renewal()
    one.arrived(LARGE, now=0.0)
    assert not one.is_pending
    one.arrived(-1, now=0.0)
    assert not one.is_pending


def test_a_transaction_that_is_not_decided_would_come_again_so_the_end_of_a_later_one_counts():
    one = renewal()
    one.arrived(LARGE + 1, now=0.0)
    one.closed(500, undecided=1)
    assert not one.is_due(told=600, now=100.0)
    one.closed(700, undecided=0)
    one.closed(900, undecided=0)
    assert one.is_due(told=700, now=100.0)


def test_a_further_large_message_puts_it_off():
    one = renewal()
    one.arrived(LARGE + 1, now=0.0)
    one.closed(500, undecided=0)
    one.arrived(LARGE + 1, now=4.0)
    assert not one.is_due(told=500, now=100.0)
    one.closed(600, undecided=0)
    assert not one.is_due(told=600, now=8.9)
    assert one.is_due(told=600, now=9.0)


def test_without_a_limit_nothing_is_renewed():
    one = Renewal(0, QUIET_S)
    one.arrived(1 << 40, now=0.0)
    assert not one.is_pending
