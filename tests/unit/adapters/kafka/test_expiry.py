"""When a fenced producer may be the work of the broker's timeout, and not of another instance."""

from cdcd.adapters.kafka.expiry import Expiry

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
