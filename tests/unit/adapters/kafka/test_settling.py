"""How long a transaction waits for its end after an outage."""

from cdcd.adapters.kafka.settling import SETTLE_S, Settling


def test_without_an_outage_no_transaction_waits():
    settling = Settling()
    assert settling.wait_s(100.0, 100.0) == 0
    settling.answered(100.0)
    assert settling.wait_s(100.0, 100.0) == 0


def test_after_an_outage_a_transaction_waits_until_kafka_has_answered_for_a_while():
    settling = Settling()
    settling.failed()
    settling.answered(100.0)
    # Further answers do not begin anew.
    settling.answered(101.0)
    assert settling.wait_s(100.5, 101.0) == SETTLE_S - 1
    assert settling.wait_s(100.5, 100.0 + SETTLE_S) == 0


def test_an_outage_in_between_begins_anew():
    settling = Settling()
    settling.failed()
    settling.answered(100.0)
    settling.failed()
    settling.answered(102.0)
    assert settling.wait_s(102.0, 102.0) == SETTLE_S


def test_no_transaction_waits_longer_if_nobody_can_say_whether_kafka_answers():
    settling = Settling()
    settling.failed()
    assert settling.wait_s(100.0, 100.0) == SETTLE_S
    assert settling.wait_s(100.0, 100.0 + SETTLE_S) == 0
