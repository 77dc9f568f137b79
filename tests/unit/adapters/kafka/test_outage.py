"""How long a transaction waits for its end after an outage.

When a fenced producer may be the work of the broker's timeout, and not of another instance.
"""

from dataclasses import replace

import pytest

from cdcd.adapters.kafka.outage import (
    HANGS_S,
    LOOK_S,
    SETTLE_S,
    EndOffsets,
    Expiry,
    HangingTransactions,
    Settling,
    is_acknowledged,
)
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.transactions.position import Position


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


PLACE = ("shop.public.orders", 0)
TOPIC = frozenset({PLACE[0]})


class Outage:
    """An outage that is over, during which a topic was written."""

    def __init__(self) -> None:
        self.now = 100.0
        self.transactions = HangingTransactions()
        self.transactions.failed(TOPIC)
        assert self.transactions.answered((), self.now) == TOPIC

    def look(self, ends: EndOffsets, seconds: float = 1.0, written: frozenset[str] = frozenset()) -> bool:
        """Whether a transaction is found to hang when it is looked at so much later."""
        self.now += seconds
        assert self.transactions.answered(written, self.now) == TOPIC
        return self.transactions.looked({PLACE: ends}, written, self.now) == [PLACE]


@pytest.fixture
def outage() -> Outage:
    return Outage()


def test_a_partition_that_shows_its_records_hangs_nowhere(outage: Outage):
    assert not outage.look(EndOffsets(500, 500))
    assert not outage.look(EndOffsets(500, 500))
    assert not outage.transactions.hanging
    assert outage.transactions.answered((), outage.now + LOOK_S) == frozenset()


def test_readers_that_stop_while_nothing_is_written_tell_of_a_hanging_transaction_once(outage: Outage):
    assert not outage.look(EndOffsets(2, 500))
    assert not outage.look(EndOffsets(2, 500), HANGS_S - 1)
    assert outage.look(EndOffsets(2, 500), 1)
    assert outage.transactions.hanging == {PLACE: 2}
    assert not outage.look(EndOffsets(2, 500))
    # However long it takes, it is looked at until readers go on.
    assert not outage.look(EndOffsets(2, 500), 10 * LOOK_S)
    assert outage.transactions.hanging
    assert not outage.look(EndOffsets(502, 502))
    assert not outage.transactions.hanging
    assert outage.transactions.answered((), outage.now + 1) == frozenset()


def test_a_transaction_that_is_open_does_not_hang(outage: Outage):
    # A large transaction is written for minutes.
    for _ in range(100):
        assert not outage.look(EndOffsets(2, 500), 1, TOPIC)
    # Its end is still on its way.
    assert not outage.look(EndOffsets(2, 500))
    assert not outage.look(EndOffsets(800, 800))


def test_readers_that_go_on_stop_for_other_reasons(outage: Outage):
    for stable in range(2, 100):
        assert not outage.look(EndOffsets(stable, 500))
    assert not outage.transactions.hanging


def test_a_partition_of_which_nobody_tells_is_as_before(outage: Outage):
    assert not outage.look(EndOffsets(2, 500))
    assert outage.transactions.looked({}, (), outage.now + 1) == []
    assert outage.look(EndOffsets(2, 500), HANGS_S)
    assert outage.transactions.looked({}, (), outage.now + 1) == []
    assert outage.transactions.hanging


def test_topics_that_are_written_right_after_an_outage_are_looked_at_and_later_ones_are_not():
    transactions = HangingTransactions()
    assert transactions.answered(TOPIC, 1.0) == frozenset()
    transactions.failed(())
    assert transactions.answered((), 2.0) == frozenset()
    assert transactions.answered(TOPIC, 3.0) == TOPIC
    transactions.looked({PLACE: EndOffsets(3, 3)}, TOPIC, 3.0)
    assert transactions.answered({"shop.public.other"}, 3.0 + LOOK_S) == frozenset()


VISIBLE = Checkpoint("7001", 1, "publication=shop", Position(90, 100), 100)
HIDDEN = replace(VISIBLE, position=Position(190, 200), flushed_lsn=200)


def test_a_hidden_checkpoint_that_postgresql_was_told_of_was_acknowledged():
    assert is_acknowledged(HIDDEN, VISIBLE, told=200)
    assert is_acknowledged(HIDDEN, VISIBLE, told=150)


def test_a_hidden_checkpoint_that_this_process_saw_acknowledged_was():
    assert is_acknowledged(HIDDEN, VISIBLE, committed=replace(HIDDEN))
    assert not is_acknowledged(HIDDEN, VISIBLE, committed=VISIBLE)


@pytest.mark.parametrize(
    ("hidden", "visible", "told"),
    [
        (None, VISIBLE, 200),
        (HIDDEN, VISIBLE, 100),
        (HIDDEN, VISIBLE, 201),
        (HIDDEN, None, 200),
    ],
    ids=["none", "a former one reaches it", "it does not reach it", "no former one"],
)
def test_otherwise_nobody_can_tell(hidden: Checkpoint | None, visible: Checkpoint | None, told: int):
    assert not is_acknowledged(hidden, visible, told=told)
