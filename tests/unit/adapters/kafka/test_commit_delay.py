"""How long a transaction waits for its end after an outage.

When a fenced producer may be the work of the broker's timeout, and not of another instance.
"""

from cdcd.adapters.kafka.commit_delay import SETTLE_S, Expiry, Settling


def test_without_an_outage_no_transaction_waits():
    settling = Settling()
    assert settling.wait_s(100.0, 100.0) == 0
    settling.answered(100.0)
    assert settling.wait_s(100.0, 100.0) == 0


def test_after_an_outage_a_transaction_waits_until_kafka_has_answered_for_a_while():
    settling = Settling()
    settling.failed()
    settling.answered(100.0)
    # Further answers do not begin again.
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


TIMEOUT_S = 10.0


def test_a_transaction_expires_when_its_timeout_is_over():
    expiry = Expiry(TIMEOUT_S)
    assert not expiry.may_have_happened(0)
    expiry.begun(5)
    assert not expiry.may_have_happened(14.9)
    assert expiry.may_have_happened(15)
    expiry.committed()
    assert not expiry.may_have_happened(100)


def test_what_a_producer_left_open_may_fence_the_next_one_once():
    expiry = Expiry(TIMEOUT_S)
    expiry.begun(0)
    expiry.replaced()
    assert expiry.may_have_happened(1)
    # The one after that is fenced by somebody else.
    expiry.begun(2)
    expiry.replaced()
    assert not expiry.may_have_happened(3)


def test_producers_that_find_no_broker_do_not_make_it_forgotten():
    # GIVEN a transaction that is open when the broker goes away
    expiry = Expiry(TIMEOUT_S)
    expiry.begun(0)
    # WHEN one producer after the other comes to nothing
    for _ in range(5):
        expiry.replaced()
    # THEN the first one that works may still be fenced because of it
    assert expiry.may_have_happened(1)
    expiry.begun(2)
    assert expiry.may_have_happened(3)
    # AND a commit ends that
    expiry.committed()
    expiry.replaced()
    assert not expiry.may_have_happened(4)
