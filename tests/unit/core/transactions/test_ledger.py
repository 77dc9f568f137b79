import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.transactions.ledger import Ledger


def test_flushed_is_the_end_of_the_longest_acknowledged_prefix():
    ledger = Ledger()
    first, second, third = (ledger.open() for _ in range(3))
    for ticket, end in ((first, 100), (second, 200), (third, 300)):
        ledger.seal(ticket, end)
    ledger.ack(second)
    assert (ledger.acked, ledger.flushed) == (200, 0)
    ledger.ack(first)
    assert ledger.flushed == 200
    ledger.ack(third)
    assert ledger.flushed == 300


def test_an_entry_without_an_end_holds_the_position_and_leaves_none():
    ledger = Ledger(50)
    undecided = ledger.open()
    ledger.seal(later := ledger.open(), 200)
    ledger.ack(later)
    assert ledger.flushed == 50
    ledger.ack(undecided)
    assert ledger.flushed == 200


def test_it_starts_where_the_server_was_told_last():
    ledger = Ledger(50)
    assert (ledger.received, ledger.sent, ledger.acked, ledger.flushed) == (50, 50, 50, 50)


def test_a_position_before_the_start_changes_nothing():
    ledger = Ledger(50)
    ledger.seal(ticket := ledger.open(), 40)
    ledger.ack(ticket)
    assert ledger.flushed == 50


def test_hearing_raises_what_is_received_only():
    ledger = Ledger()
    ledger.hear(100)
    ledger.hear(50)
    assert (ledger.received, ledger.flushed) == (100, 0)


def test_sending_raises_what_is_sent_only():
    ledger = Ledger()
    ledger.send(100)
    ledger.send(50)
    assert (ledger.sent, ledger.acked, ledger.flushed) == (100, 0, 0)


def test_only_the_last_ticket_may_move():
    ledger = Ledger()
    assert not ledger.is_last(-1)
    assert not ledger.is_last(0)
    first = ledger.open()
    assert ledger.is_last(first)
    second = ledger.open()
    assert not ledger.is_last(first)
    ledger.seal(second, 100)
    ledger.ack(second)
    assert not ledger.is_last(second)
    assert not ledger.is_last(first)


@pytest.mark.parametrize("misuse", ["twice", "never opened", "sealed after it was acknowledged"])
def test_a_ticket_that_is_not_open_is_a_bug(misuse):
    ledger = Ledger()
    ticket = ledger.open()
    if misuse != "never opened":
        ledger.ack(ticket)
    with pytest.raises(AssertionError, match="is not open"):
        {
            "twice": lambda: ledger.ack(ticket),
            "never opened": lambda: ledger.ack(ticket + 1),
            "sealed after it was acknowledged": lambda: ledger.seal(ticket, 100),
        }[misuse]()


def test_what_an_undecided_prepare_holds_up_takes_no_memory():
    ledger = Ledger()
    undecided = ledger.open()
    for end in range(1, 10_000):
        ledger.seal(ticket := ledger.open(), end)
        ledger.ack(ticket)
    assert ledger.open_entries == 1
    assert sys.getsizeof(ledger._ends) + sys.getsizeof(ledger._behind) < 2000
    ledger.ack(undecided)
    assert ledger.flushed == 9999


def test_the_first_undecided_prepare_holds_whatever_was_decided_behind_it():
    ledger = Ledger(50)
    first = ledger.open()
    ledger.seal(between := ledger.open(), 150)
    second = ledger.open()
    ledger.seal(behind := ledger.open(), 250)
    assert ledger.flushed_with(()) == 50
    assert ledger.flushed_with([between, second, behind]) == 50
    assert ledger.flushed_with([first, between, behind]) == 150
    ledger.ack(second)
    ledger.ack(behind)
    assert ledger.flushed_with([between]) == 50
    assert ledger.flushed_with([first, between]) == 250
    ledger.ack(first)
    assert (ledger.flushed, ledger.flushed_with([between])) == (50, 250)


def test_postgresql_is_told_nothing_past_the_limit_whatever_is_acknowledged():
    ledger = Ledger(50)
    ledger.limit = 80
    ledger.seal(first := ledger.open(), 100)
    assert (ledger.flushed, ledger.flushed_with([first])) == (50, 100)
    ledger.ack(first)
    assert (ledger.acked, ledger.flushed, ledger.flushed_with(())) == (100, 80, 100)
    ledger.limit = 120
    assert ledger.flushed == 100


class Model:
    """The rule in so many words, without thrift."""

    def __init__(self) -> None:
        self.entries: list[list[int]] = []

    def flushed(self) -> int:
        best = 0
        for end, acked in self.entries:
            if not acked:
                break
            best = max(best, end)
        return best


@given(data=st.data())
def test_any_order_of_acknowledgements_gives_what_the_rule_says(data):
    ledger = Ledger()
    model = Model()
    end = 0
    still_open: list[int] = []
    told = 0
    for _ in range(data.draw(st.integers(1, 60))):
        if still_open and data.draw(st.booleans()):
            ticket = still_open.pop(data.draw(st.integers(0, len(still_open) - 1)))
            expected = ledger.flushed_with([ticket])
            ledger.ack(ticket)
            assert ledger.flushed == expected
            model.entries[ticket][1] = 1
        else:
            ticket = ledger.open()
            sealed = data.draw(st.booleans())
            end += data.draw(st.integers(0, 10))
            model.entries.append([end if sealed else 0, 0])
            if sealed:
                ledger.seal(ticket, end)
            still_open.append(ticket)
        assert ledger.flushed == model.flushed()
        assert told <= ledger.flushed <= ledger.acked <= ledger.received
        assert ledger.open_entries == len(still_open)
        told = ledger.flushed
