from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.snapshots.progress import Progress
from cdcd.engine.queue import TICKETS_MAX, Batch, Batches, Record
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import COVERED, Position

START = Position(commit_lsn=50, end_lsn=60)


def make(position: Position = START, **limits: Any) -> Batches:
    return Batches(
        position, **{"bytes_max": 100, "records_max": 10, "queue_bytes_max": 1000, "idle_s": 5.0, **limits}
    )


def record(text: str) -> Record:
    return ("topic", None, text.encode(), None)


def add(batches: Batches, *texts: str, size: int = 10, events: int | None = None) -> bool:
    batches.tail.extend(record(text) for text in texts)
    return batches.add(size * len(texts), len(texts) if events is None else events)


def transaction(
    batches: Batches, lsn: int, *texts: str, ticket: int = 0, size: int = 10, done: int = 0
) -> None:
    batches.begin(lsn, done)
    for text in texts:
        add(batches, text, size=size)
    batches.close(lsn, lsn + 10, 1, (ticket,))


def deliver(batches: Batches, ledger: Ledger) -> Position:
    batch = batches.take(0)
    for ticket in batch.tickets:
        ledger.ack(ticket)
    return batch.position


def texts(batch: Batch) -> list[str]:
    return [value.decode() for _, _, value, _ in batch.records if value is not None]


# Transactions in batches.


def test_small_transactions_share_a_batch():
    batches = make()
    transaction(batches, 100, "a", "b", ticket=1)
    transaction(batches, 200, "c", ticket=2)
    batch = batches.take(0)
    assert texts(batch) == ["a", "b", "c"]
    assert batch.tickets == [1, 2]
    assert (batch.base, batch.position) == (START, Position(200, 210))
    assert batches.due_at(0) is None


def test_a_batch_is_due_as_soon_as_a_transaction_is_complete():
    batches = make()
    batches.begin(100, 0)
    add(batches, "a")
    assert batches.due_at(7) is None
    batches.close(100, 110, 1, (0,))
    assert batches.due_at(7) == 7


def test_a_transaction_that_is_not_complete_stays_behind():
    batches = make()
    transaction(batches, 100, "a")
    batches.begin(200, 0)
    add(batches, "b")
    assert texts(batches.take(0)) == ["a"]
    assert batches.due_at(0) is None
    batches.close(200, 210, 1, (0,))
    assert texts(batches.take(0)) == ["b"]


@pytest.mark.parametrize("limit", [{"records_max": 3}, {"bytes_max": 30}])
def test_a_batch_ends_at_a_transactions_end(limit):
    batches = make(**limit)
    transaction(batches, 100, "a", "b")
    transaction(batches, 200, "c", "d")
    transaction(batches, 300, "e")
    assert texts(batches.take(0)) == ["a", "b", "c", "d"]
    assert texts(batches.take(0)) == ["e"]


@pytest.mark.parametrize(
    "limit", [{"records_max": 3}, {"bytes_max": 10}, {"bytes_max": 20, "queue_bytes_max": 60}]
)
def test_only_a_transaction_several_times_larger_than_a_batch_is_cut(limit):
    batches = make(**limit)
    transaction(batches, 100, "a", ticket=1)
    transaction(batches, 200, "b", "c", "d", "e", ticket=2)
    whole, first, rest = batches.take(0), batches.take(0), batches.take(0)
    assert (texts(whole), texts(first), texts(rest)) == (["a"], ["b", "c", "d"], ["e"])
    assert whole.position == Position(100, 110)
    assert first.position == Position(200, 200, 3)
    assert rest.position == Position(200, 210)
    assert (whole.tickets, first.tickets, rest.tickets) == ([1], [], [2])
    assert (first.base, rest.base) == (whole.position, first.position)


def test_one_that_is_not_so_large_stays_whole():
    batches = make(bytes_max=20)
    transaction(batches, 100, "a", ticket=1)
    transaction(batches, 200, *"bcdef", ticket=2)
    transaction(batches, 300, "g", ticket=3)
    assert texts(batches.take(0)) == [*"abcdef"]
    assert texts(batches.take(0)) == ["g"]


def test_it_says_when_it_cuts():
    batches = make(records_max=3)
    batches.begin(100, 0)
    assert not add(batches, "a", "b")
    assert add(batches, "c")
    assert not add(batches, "d")


def test_a_cut_counts_events_not_records():
    batches = make(records_max=4)
    batches.begin(100, 0)
    add(batches, "delete", "tombstone", "insert", events=1)
    add(batches, events=2)
    add(batches, "a", events=1)
    assert batches.take(0).position == Position(100, 100, 4)


def test_a_cut_counts_on_after_what_was_done_before():
    batches = make(Position(100, 100, 7), records_max=2)
    batches.begin(100, 7)
    add(batches, "h", "i")
    assert batches.take(0).position == Position(100, 100, 9)


def test_a_cut_transaction_may_end_with_nothing_more():
    batches = make(records_max=2)
    transaction(batches, 100, "a", "b", ticket=1)
    assert batches.take(0).position == Position(100, 100, 2)
    rest = batches.take(0)
    assert (texts(rest), rest.tickets, rest.position) == ([], [1], Position(100, 110))


def test_which_does_not_wait():
    batches = make(records_max=2)
    transaction(batches, 100, "a", "b")
    batches.take(1000.0)
    assert batches.due_at(1001.0) == 1001.0


def test_the_rest_of_a_transaction_whose_events_were_all_done_ends_it():
    batches = make(Position(100, 100, 2))
    transaction(batches, 100, done=2)
    assert batches.take(0).position == Position(100, 110)


def test_a_transaction_without_records_moves_the_position_but_is_not_the_last_commit():
    batches = make()
    transaction(batches, 100, ticket=1)
    batch = batches.take(0)
    assert (batch.position, batch.tickets) == (Position(50, 110), [1])


def test_a_message_moves_the_position_but_is_no_commit():
    batches = make()
    batches.begin(99, 0)
    add(batches, "message")
    batches.close(99, 100, None, (1,))
    batch = batches.take(0)
    assert (texts(batch), batch.position, batch.commit_time) == (["message"], Position(50, 100), None)


def test_a_message_that_fills_a_batch_is_complete_with_it():
    batches = make(records_max=1)
    batches.begin(99, 0)
    add(batches, "message")
    batches.close(99, 100, None, (1,))
    assert batches.take(0).position == Position(99, 99, 1)
    rest = batches.take(0)
    assert (rest.position, rest.tickets) == (Position(99, 100), [1])


def test_the_commit_time_is_the_last_transactions():
    batches = make()
    batches.begin(100, 0)
    add(batches, "a")
    batches.close(100, 110, 7, (0,))
    batches.begin(200, 0)
    add(batches, "b")
    batches.close(200, 210, 8, (0,))
    assert batches.take(0).commit_time == 8


# Room.


def test_there_is_room_until_the_limit_and_again_after_delivery():
    batches = make(queue_bytes_max=100)
    transaction(batches, 100, *"abcdefghi")
    room = [batches.room]
    transaction(batches, 200, "j")
    room.append(batches.room)
    batch = batches.take(0)
    room.append(batches.room)
    batches.delivered(batch)
    room.append(batches.room)
    assert room == [True, False, False, True], "what is out still counts"
    assert batches.size == 0


def test_a_queue_smaller_than_a_batch_is_refused():
    # A transaction of 60 bytes would wait for room, and nothing would be due.
    with pytest.raises(AssertionError):
        make(bytes_max=100, queue_bytes_max=50)


def test_a_full_queue_always_has_something_due():
    batches = make(bytes_max=100, queue_bytes_max=100, records_max=1000)
    batches.begin(100, 0)
    while batches.room:
        add(batches, "a")
    assert batches.due_at(0) == 0


def test_records_that_wait_are_counted():
    batches = make(records_max=2)
    transaction(batches, 100, "a", "b", "c")
    assert batches.records_waiting == 3
    batches.take(0)
    assert batches.records_waiting == 1


# Keepalives.


def test_a_keepalive_moves_the_position_with_a_ticket_of_its_own():
    batches, ledger = make(), Ledger(60)
    batches.advance(ledger, 100, asked=False)
    batch = batches.take(0)
    assert (batch.records, batch.position) == ([], Position(50, 100))
    assert ledger.flushed == 60
    for ticket in batch.tickets:
        ledger.ack(ticket)
    assert ledger.flushed == 100


def test_further_keepalives_use_the_same_ticket():
    batches, ledger = make(), Ledger(60)
    for wal_end in (100, 200, 300):
        batches.advance(ledger, wal_end, asked=False)
    assert ledger.open_entries == 1
    assert batches.position == Position(50, 300)


def test_but_not_after_something_else_was_opened():
    # Sealed anew, the first ticket would say that the PREPARE between the two is over.
    batches, ledger = make(), Ledger(60)
    batches.advance(ledger, 100, asked=False)
    undecided = ledger.open()
    batches.advance(ledger, 200, asked=False)
    for ticket in batches.take(0).tickets:
        ledger.ack(ticket)
    assert ledger.flushed == 100
    ledger.ack(undecided)
    assert ledger.flushed == 200


def test_nor_after_its_batch_was_taken():
    batches, ledger = make(), Ledger(60)
    batches.advance(ledger, 100, asked=False)
    out = batches.take(0)
    batches.advance(ledger, 200, asked=False)
    for ticket in out.tickets:
        ledger.ack(ticket)
    assert ledger.flushed == 100


def test_nor_after_a_transaction():
    batches, ledger = make(), Ledger(60)
    batches.advance(ledger, 100, asked=False)
    ticket = ledger.open()
    transaction(batches, 150, "a", ticket=ticket)
    ledger.seal(ticket, 160)
    batches.advance(ledger, 200, asked=False)
    assert ledger.open_entries == 3


def test_a_keepalive_that_says_nothing_new_costs_nothing():
    batches, ledger = make(), Ledger(60)
    batches.advance(ledger, 60, asked=True)
    batches.advance(ledger, 40, asked=True)
    assert ledger.open_entries == 0
    assert batches.due_at(0) is None


def test_a_keepalive_before_the_rest_of_a_cut_transaction_does_not_touch_its_count():
    # Reset, a second restart would send the first seven events again.
    batches, ledger = make(Position(200, 200, 7)), Ledger(60)
    batches.advance(ledger, 200, asked=False)
    assert batches.position == Position(200, 200, 7)
    assert deliver(batches, ledger) == Position(200, 200, 7)
    assert ledger.flushed == 200


def test_what_was_done_before_a_cut_transaction_is_covered_by_its_position():
    # A message that was cut off alone is followed by a transaction that is cut: the message must not come again.
    batches = make(Position(99, 99, 1), records_max=2)
    batches.begin(100, 0)
    add(batches, "a", "b")
    position = batches.take(0).position
    assert position.skip(99) == COVERED
    assert position.skip(100) == 2


def test_after_a_restart_what_the_checkpoint_covers_is_confirmed_too():
    batches, ledger = make(Position(50, 100)), Ledger(60)
    batches.advance(ledger, 90, asked=False)
    batches.advance(ledger, 100, asked=False)
    assert deliver(batches, ledger) == Position(50, 100)
    assert ledger.flushed == 100
    batches.advance(ledger, 100, asked=False)
    assert batches.due_at(0) is None


def test_but_not_before_what_is_open_is_over():
    batches, ledger = make(Position(50, 100)), Ledger(60)
    undecided = ledger.open()
    batches.advance(ledger, 90, asked=False)
    assert ledger.flushed == 60
    ledger.ack(undecided)
    batches.advance(ledger, 90, asked=False)
    deliver(batches, ledger)
    assert ledger.flushed == 90


def test_a_rollback_of_a_prepared_one_moves_the_position_and_is_owed_with_it():
    batches = make()
    batches.roll_back(100, (3, 7))
    batch = batches.take(0)
    assert (batch.position, batch.tickets, batch.records) == (Position(50, 100), [3, 7], [])


def test_but_never_back():
    batches = make(Position(200, 210))
    batches.roll_back(100, (3, 7))
    assert batches.take(0).position == Position(200, 210)


def test_and_no_position_that_waits_to_be_delivered():
    batches, ledger = make(Position(50, 60)), Ledger(60)
    ticket = ledger.open()
    transaction(batches, 100, "a", ticket=ticket)
    ledger.seal(ticket, 110)
    batches.advance(ledger, 110, asked=False)
    assert ledger.flushed == 60


def test_a_batch_without_records_waits_for_company():
    batches, ledger = make(idle_s=5.0), Ledger(60)
    batches.advance(ledger, 100, asked=False)
    batches.take(1000.0)
    batches.advance(ledger, 200, asked=False)
    assert batches.due_at(1001.0) == 1005.0
    transaction(batches, 300, "a")
    assert batches.due_at(1001.0) == 1001.0


def test_unless_the_server_asks():
    batches, ledger = make(), Ledger(60)
    batches.advance(ledger, 100, asked=False)
    batches.take(1000.0)
    batches.advance(ledger, 200, asked=False)
    batches.advance(ledger, 200, asked=True)
    assert batches.due_at(1001.0) == 1001.0


def test_or_there_are_very_many():
    batches = make()
    batches.take(1000.0)
    for number in range(TICKETS_MAX):
        assert batches.due_at(1001.0) != 1001.0
        transaction(batches, 100 + 10 * number, ticket=number)
    assert batches.due_at(1001.0) == 1001.0


# All of it together.


@dataclass
class Sent:
    """A source transaction: its place, and its events with the number of records of each."""

    lsn: int
    events: list[int]
    ticket: int


@given(
    counts=st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=12),
    takes=st.lists(st.booleans(), max_size=60),
    records_max=st.integers(1, 8),
    bytes_max=st.integers(1, 100),
)
def test_whatever_comes_positions_say_what_the_batches_hold(counts, takes, records_max, bytes_max):
    batches = make(records_max=records_max, bytes_max=bytes_max, queue_bytes_max=100_000)
    sent = [Sent(100 + 20 * number, events, number) for number, events in enumerate(counts)]
    out: list[Batch] = []
    turns = iter(takes)
    for one in sent:
        batches.begin(one.lsn, 0)
        for number, records in enumerate(one.events):
            add(batches, *[f"{one.lsn}.{number}"] * records, events=1)
            if next(turns, False) and batches.due_at(0) == 0:
                out.append(batches.take(0))
        batches.close(one.lsn, one.lsn + 10, 1, (one.ticket,))
    while batches.due_at(1e9) is not None:
        out.append(batches.take(1e9))
    held: list[str] = []
    tickets: list[int] = []
    for batch in out:
        held += texts(batch)
        tickets += batch.tickets
        assert held == covered(sent, batch.position)
        assert_whole(sent, len(held), min(records_max, -(-bytes_max // 10)))
        assert all(sent[ticket].lsn < batch.position.end_lsn for ticket in tickets)
    assert tickets == [one.ticket for one in sent]
    assert held == covered(sent, Position(0, 10_000))
    assert batches.size == sum(batch.size for batch in out)


def covered(sent: list[Sent], position: Position) -> list[str]:
    """The records that a restart from `position` leaves out."""
    held: list[str] = []
    for one in sent:
        skip = position.skip(one.lsn)
        events = one.events if skip == COVERED else one.events[:skip]
        held += [f"{one.lsn}.{number}" for number, records in enumerate(events) for _ in range(records)]
    return held


def assert_whole(sent: list[Sent], cut: int, small: int) -> None:
    """No transaction that is smaller than a batch has a part on either side of `cut`."""
    at = 0
    for one in sent:
        size = sum(one.events)
        assert not (at < cut < at + size and size < small)
        at += size


ROWS = Progress(serial=3)


def test_rows_of_a_snapshot_go_out_with_the_progress_that_counts_them():
    batches = make()
    batches.tail.append(record("row"))
    batches.snapshot = ROWS
    batches.insert(10)
    batch = batches.take(0)
    assert (texts(batch), batch.snapshot, batch.position, batch.size) == (["row"], ROWS, START, 10)
    batches.delivered(batch)
    assert batches.size == 0


def test_progress_without_rows_is_sent_soon_and_stays_until_it_changes():
    batches = make()
    assert batches.due_at(7) is None
    batches.snapshot = ROWS
    batches.touch()
    assert batches.due_at(7) == 7
    assert batches.take(7).snapshot == ROWS
    transaction(batches, 100, "a")
    assert batches.take(7).snapshot == ROWS


def test_progress_that_a_transaction_changed_goes_out_with_it_and_not_before():
    batches = make()
    transaction(batches, 100, "a")
    batches.begin(200, 0)
    batches.snapshot = ROWS
    batches.touch()
    assert batches.take(0).snapshot is None
    add(batches, "b")
    between = [batches.between]
    batches.close(200, 210, 1, (1,))
    assert [*between, batches.between] == [False, True]
    assert batches.take(0).snapshot == ROWS
