from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.engine.batch import GIVEN_AWAY, Batch, Watermark
from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.engine.queue import AWAITED_MAX, TICKETS_MAX, BatchQueue
from cdcd.core.engine.settings import BatchSettings
from cdcd.core.records.debezium_json.drafting import DraftedRecords
from cdcd.core.records.debezium_json.source_block import Envelope
from cdcd.core.records.encoder import Record
from cdcd.core.records.late_records import LateRecords
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import COVERED, Position

START = Position(commit_lsn=50, end_lsn=60)


def make(position: Position = START, **limits: Any) -> BatchQueue:
    sizes = {"bytes_max": 100, "records_max": 10, "queue_bytes_max": 1000}
    sizes |= {name: limits.pop(name) for name in (*sizes, "whole_bytes_max") if name in limits}
    return BatchQueue(position, BatchSettings(**sizes), **{"idle_s": 5.0, **limits})


def record(text: str) -> Record:
    return ("topic", None, text.encode(), None)


def add(queue: BatchQueue, *texts: str, size: int = 10, events: int | None = None) -> bool:
    records = [record(text) for text in texts]
    cut = queue.enqueue(records, size * len(texts), len(texts) if events is None else events)
    assert records == []
    return cut


def transaction(
    queue: BatchQueue, lsn: int, *texts: str, ticket: int = 0, size: int = 10, done: int = 0
) -> None:
    queue.begin(lsn, done)
    for text in texts:
        add(queue, text, size=size)
    queue.close(lsn, lsn + 10, 1, (ticket,))


def test_a_heartbeat_goes_out_at_once_with_the_position_of_what_is_closed():
    queue = make()
    beat = [record("beat")]
    queue.beat(beat, 10)
    assert beat == []
    assert queue.due_at(3.0) == 3.0
    batch = queue.cut_batch(3.0)
    assert (batch.heartbeat_bytes, batch.closes, batch.position, batch.rows) == (10, True, START, 0)
    transaction(queue, 100, "a")
    assert not queue.cut_batch(3.0).heartbeat_bytes


def test_rows_wait_for_their_topics_and_everything_behind_them_waits_too():
    queue = make()
    queue.insert([record("row")], 10, 1, ["topic"])
    transaction(queue, 100, "a")
    assert queue.due_at(3.0) is None
    queue.topics_ready(["other"])
    assert queue.due_at(3.0) is None
    queue.topics_ready(["topic"])
    assert queue.due_at(3.0) == 3.0
    assert texts(queue.cut_batch(3.0)) == ["row", "a"]


def test_a_full_batch_waits_for_its_topics_and_a_later_one_does_not_pass_it():
    queue = make(records_max=1)
    queue.insert([record("row")], 10, 1, ["topic"])
    queue.insert([record("ready")], 10, 1)
    assert queue.due_at(3.0) is None
    queue.topics_ready(["topic"])
    assert [texts(queue.cut_batch(3.0)), texts(queue.cut_batch(3.0))] == [["row"], ["ready"]]


def test_a_batch_waits_for_so_many_topics_at_most():
    queue = make(records_max=10_000, bytes_max=1000)
    names = [f"t{number}" for number in range(AWAITED_MAX + 1)]
    for name in names:
        queue.insert([(name, None, b"", None)], 1, 1, [name])
    queue.topics_ready(names[:-1])
    assert queue.cut_batch(0).count == AWAITED_MAX
    assert queue.due_at(0) is None


def test_rows_whose_topic_is_refused_leave_the_queue_and_their_table_is_set_aside_with_their_batch():
    queue, aside = make(records_max=2), AsideTable(7, 1, "topic")
    queue.insert([record("row"), ("other", None, b"other", None)], 8, 2, ["topic", "other"])
    queue.topics_refused(["topic"], [aside])
    assert (queue.size, queue.waiting, queue.due_at(3.0)) == (5, 1, None)
    queue.topics_ready(["other"])
    batch = queue.cut_batch(3.0)
    assert (texts(batch), batch.tables) == (["other"], (aside,))


def test_a_refused_topic_for_which_no_row_waits_leaves_the_queue_as_it_is():
    queue = make()
    queue.insert([record("row")], 10, 1)
    queue.topics_refused(["topic"], [])
    assert texts(queue.cut_batch(3.0)) == ["row"]


def test_a_large_transaction_does_not_hold_up_the_heartbeat_before_it():
    queue = make(whole_bytes_max=1000)
    queue.beat([record("beat")], 10)
    queue.begin(100, 0)
    while queue.due_at(0) != 0:
        add(queue, "part", size=50)
    batch = queue.cut_batch(0)
    assert (batch.heartbeat_bytes, batch.closes, texts(batch)) == (10, True, ["beat"])


def test_watermarks_go_out_at_once_behind_the_records_of_their_batch():
    queue = make()
    transaction(queue, 100, "a")
    queue.mark(Watermark(60, ("topic",)))
    assert queue.due_at(3.0) == 3.0
    batch = queue.cut_batch(3.0)
    assert (batch.watermark, texts(batch), batch.closes) == (Watermark(60, ("topic",)), ["a"], True)
    assert queue.cut_batch(3.0).watermark is None


def test_a_large_transaction_does_not_hold_up_the_watermarks_before_it():
    queue = make(whole_bytes_max=1000)
    queue.mark(Watermark(60, ("topic",)))
    queue.begin(100, 0)
    while queue.due_at(0) != 0:
        add(queue, "part", size=50)
    batch = queue.cut_batch(0)
    assert (batch.watermark, batch.closes, texts(batch)) == (Watermark(60, ("topic",)), True, [])


def deliver(queue: BatchQueue, ledger: Ledger) -> Position:
    batch = queue.cut_batch(0)
    for ticket in batch.tickets:
        ledger.ack(ticket)
    return batch.position


def texts(batch: Batch) -> list[str]:
    return [value.decode() for _, _, value, _ in batch.records if value is not None]


# Transactions in queue.


def test_small_transactions_share_a_batch():
    queue = make()
    transaction(queue, 100, "a", "b", ticket=1)
    transaction(queue, 200, "c", ticket=2)
    batch = queue.cut_batch(0)
    assert texts(batch) == ["a", "b", "c"]
    assert batch.tickets == [1, 2]
    assert (batch.base, batch.position) == (START, Position(200, 210))
    assert queue.due_at(0) is None


def test_a_batch_is_due_as_soon_as_a_transaction_is_complete():
    queue = make()
    queue.begin(100, 0)
    add(queue, "a")
    assert queue.due_at(7) is None
    queue.close(100, 110, 1, (0,))
    assert queue.due_at(7) == 7


def test_a_transaction_that_is_not_complete_stays_behind():
    queue = make()
    transaction(queue, 100, "a")
    queue.begin(200, 0)
    add(queue, "b")
    assert texts(queue.cut_batch(0)) == ["a"]
    assert queue.due_at(0) is None
    queue.close(200, 210, 1, (0,))
    assert texts(queue.cut_batch(0)) == ["b"]


@pytest.mark.parametrize("limit", [{"records_max": 3}, {"bytes_max": 30}])
def test_a_batch_ends_at_a_transactions_end(limit):
    queue = make(**limit)
    transaction(queue, 100, "a", "b")
    transaction(queue, 200, "c", "d")
    transaction(queue, 300, "e")
    assert texts(queue.cut_batch(0)) == ["a", "b", "c", "d"]
    assert texts(queue.cut_batch(0)) == ["e"]


@pytest.mark.parametrize(
    "limit", [{"records_max": 3}, {"bytes_max": 10}, {"bytes_max": 20, "queue_bytes_max": 60}]
)
def test_only_a_transaction_several_times_larger_than_a_batch_is_cut(limit):
    queue = make(**limit)
    transaction(queue, 100, "a", ticket=1)
    transaction(queue, 200, "b", "c", "d", "e", ticket=2)
    whole, first, rest = queue.cut_batch(0), queue.cut_batch(0), queue.cut_batch(0)
    assert (texts(whole), texts(first), texts(rest)) == (["a"], ["b", "c", "d"], ["e"])
    assert whole.position == Position(100, 110)
    assert first.position == Position(200, 200, 3)
    assert rest.position == Position(200, 210)
    assert (whole.tickets, first.tickets, rest.tickets) == ([1], [], [2])
    assert (first.base, rest.base) == (whole.position, first.position)


def test_one_that_is_not_so_large_stays_whole():
    queue = make(bytes_max=20)
    transaction(queue, 100, "a", ticket=1)
    transaction(queue, 200, *"bcdef", ticket=2)
    transaction(queue, 300, "g", ticket=3)
    assert texts(queue.cut_batch(0)) == [*"abcdef"]
    assert texts(queue.cut_batch(0)) == ["g"]


def test_it_says_when_it_cuts():
    queue = make(records_max=3)
    queue.begin(100, 0)
    assert not add(queue, "a", "b")
    assert add(queue, "c")
    assert not add(queue, "d")


def test_a_cut_counts_events_not_records():
    queue = make(records_max=4)
    queue.begin(100, 0)
    add(queue, "delete", "tombstone", "insert", events=1)
    add(queue, events=2)
    add(queue, "a", events=1)
    assert queue.cut_batch(0).position == Position(100, 100, 4)


def test_a_cut_counts_on_after_what_was_done_before():
    queue = make(Position(100, 100, 7), records_max=2)
    queue.begin(100, 7)
    add(queue, "h", "i")
    assert queue.cut_batch(0).position == Position(100, 100, 9)


def test_a_cut_transaction_may_end_with_nothing_more():
    queue = make(records_max=2)
    transaction(queue, 100, "a", "b", ticket=1)
    assert queue.cut_batch(0).position == Position(100, 100, 2)
    rest = queue.cut_batch(0)
    assert (texts(rest), rest.tickets, rest.position) == ([], [1], Position(100, 110))


def test_which_does_not_wait():
    queue = make(records_max=2)
    transaction(queue, 100, "a", "b")
    queue.cut_batch(1000.0)
    assert queue.due_at(1001.0) == 1001.0


def test_the_rest_of_a_transaction_whose_events_were_all_done_ends_it():
    queue = make(Position(100, 100, 2))
    transaction(queue, 100, done=2)
    assert queue.cut_batch(0).position == Position(100, 110)


def test_a_transaction_without_records_moves_the_position_but_is_not_the_last_commit():
    queue = make()
    transaction(queue, 100, ticket=1)
    batch = queue.cut_batch(0)
    assert (batch.position, batch.tickets) == (Position(50, 110), [1])


def test_a_message_moves_the_position_but_is_no_commit():
    queue = make()
    queue.begin(99, 0)
    add(queue, "message")
    queue.close(99, 100, None, (1,))
    batch = queue.cut_batch(0)
    assert (texts(batch), batch.position, batch.commit_time) == (["message"], Position(50, 100), None)


def test_a_message_that_fills_a_batch_is_complete_with_it():
    queue = make(records_max=1)
    queue.begin(99, 0)
    add(queue, "message")
    queue.close(99, 100, None, (1,))
    assert queue.cut_batch(0).position == Position(99, 99, 1)
    rest = queue.cut_batch(0)
    assert (rest.position, rest.tickets) == (Position(99, 100), [1])


def test_the_commit_time_is_the_last_transactions():
    queue = make()
    queue.begin(100, 0)
    add(queue, "a")
    queue.close(100, 110, 7, (0,))
    queue.begin(200, 0)
    add(queue, "b")
    queue.close(200, 210, 8, (0,))
    assert queue.cut_batch(0).commit_time == 8


# Room.


def test_there_is_room_until_the_limit_and_again_after_delivery():
    queue = make(queue_bytes_max=100)
    transaction(queue, 100, *"abcdefghi")
    room = [queue.room]
    transaction(queue, 200, "j")
    room.append(queue.room)
    batch = queue.cut_batch(0)
    room.append(queue.room)
    queue.release(batch)
    room.append(queue.room)
    assert room == [True, False, False, True], "what is out still counts"
    assert queue.size == 0


def test_a_queue_smaller_than_a_batch_is_refused():
    # A transaction of 60 bytes would wait for room, and nothing would be due.
    with pytest.raises(AssertionError):
        make(bytes_max=100, queue_bytes_max=50)


def test_a_full_queue_always_has_something_due():
    queue = make(bytes_max=100, queue_bytes_max=100, records_max=1000)
    queue.begin(100, 0)
    while queue.room:
        add(queue, "a")
    assert queue.due_at(0) == 0


# Keepalives.


def test_a_keepalive_moves_the_position_with_a_ticket_of_its_own():
    queue, ledger = make(), Ledger(60)
    queue.advance(ledger, 100, asked=False)
    batch = queue.cut_batch(0)
    assert (batch.records, batch.position) == ([], Position(50, 100))
    assert ledger.flushed == 60
    for ticket in batch.tickets:
        ledger.ack(ticket)
    assert ledger.flushed == 100


def test_further_keepalives_use_the_same_ticket():
    queue, ledger = make(), Ledger(60)
    for wal_end in (100, 200, 300):
        queue.advance(ledger, wal_end, asked=False)
    assert ledger.open_entries == 1
    assert queue.position == Position(50, 300)


def test_but_not_after_something_else_was_opened():
    # Sealed again, the first ticket would say that the PREPARE between the two is over.
    queue, ledger = make(), Ledger(60)
    queue.advance(ledger, 100, asked=False)
    undecided = ledger.open()
    queue.advance(ledger, 200, asked=False)
    for ticket in queue.cut_batch(0).tickets:
        ledger.ack(ticket)
    assert ledger.flushed == 100
    ledger.ack(undecided)
    assert ledger.flushed == 200


def test_nor_after_its_batch_was_taken():
    queue, ledger = make(), Ledger(60)
    queue.advance(ledger, 100, asked=False)
    out = queue.cut_batch(0)
    queue.advance(ledger, 200, asked=False)
    for ticket in out.tickets:
        ledger.ack(ticket)
    assert ledger.flushed == 100


def test_nor_after_a_transaction():
    queue, ledger = make(), Ledger(60)
    queue.advance(ledger, 100, asked=False)
    ticket = ledger.open()
    transaction(queue, 150, "a", ticket=ticket)
    ledger.seal(ticket, 160)
    queue.advance(ledger, 200, asked=False)
    assert ledger.open_entries == 3


def test_a_keepalive_that_says_nothing_new_costs_nothing():
    queue, ledger = make(), Ledger(60)
    queue.advance(ledger, 60, asked=True)
    queue.advance(ledger, 40, asked=True)
    assert ledger.open_entries == 0
    assert queue.due_at(0) is None


def test_a_keepalive_before_the_rest_of_a_cut_transaction_does_not_touch_its_count():
    # Reset, a second restart would send the first seven events again.
    queue, ledger = make(Position(200, 200, 7)), Ledger(60)
    queue.advance(ledger, 200, asked=False)
    assert queue.position == Position(200, 200, 7)
    assert deliver(queue, ledger) == Position(200, 200, 7)
    assert ledger.flushed == 200


def test_what_was_done_before_a_cut_transaction_is_covered_by_its_position():
    # A message that was cut off alone is followed by a transaction that is cut: the message must not come again.
    queue = make(Position(99, 99, 1), records_max=2)
    queue.begin(100, 0)
    add(queue, "a", "b")
    position = queue.cut_batch(0).position
    assert position.skip(99) == COVERED
    assert position.skip(100) == 2


def test_after_a_restart_what_the_checkpoint_covers_is_confirmed_too():
    queue, ledger = make(Position(50, 100)), Ledger(60)
    queue.advance(ledger, 90, asked=False)
    queue.advance(ledger, 100, asked=False)
    assert deliver(queue, ledger) == Position(50, 100)
    assert ledger.flushed == 100
    queue.advance(ledger, 100, asked=False)
    assert queue.due_at(0) is None


def test_but_not_before_what_is_open_is_over():
    queue, ledger = make(Position(50, 100)), Ledger(60)
    undecided = ledger.open()
    queue.advance(ledger, 90, asked=False)
    assert ledger.flushed == 60
    ledger.ack(undecided)
    queue.advance(ledger, 90, asked=False)
    deliver(queue, ledger)
    assert ledger.flushed == 90


def test_a_rollback_of_a_prepared_one_moves_the_position_and_is_owed_with_it():
    queue = make()
    queue.roll_back(100, (3, 7))
    batch = queue.cut_batch(0)
    assert (batch.position, batch.tickets, batch.records) == (Position(50, 100), [3, 7], [])


def test_but_never_back():
    queue = make(Position(200, 210))
    queue.roll_back(100, (3, 7))
    assert queue.cut_batch(0).position == Position(200, 210)


def test_and_no_position_that_waits_to_be_delivered():
    queue, ledger = make(Position(50, 60)), Ledger(60)
    ticket = ledger.open()
    transaction(queue, 100, "a", ticket=ticket)
    ledger.seal(ticket, 110)
    queue.advance(ledger, 110, asked=False)
    assert ledger.flushed == 60


def test_a_batch_without_records_waits_for_company():
    queue, ledger = make(idle_s=5.0), Ledger(60)
    queue.advance(ledger, 100, asked=False)
    queue.cut_batch(1000.0)
    queue.advance(ledger, 200, asked=False)
    assert queue.due_at(1001.0) == 1005.0
    transaction(queue, 300, "a")
    assert queue.due_at(1001.0) == 1001.0


def test_unless_the_server_asks():
    queue, ledger = make(), Ledger(60)
    queue.advance(ledger, 100, asked=False)
    queue.cut_batch(1000.0)
    queue.advance(ledger, 200, asked=False)
    queue.advance(ledger, 200, asked=True)
    assert queue.due_at(1001.0) == 1001.0


def test_or_there_are_very_many():
    queue = make()
    queue.cut_batch(1000.0)
    for number in range(TICKETS_MAX):
        assert queue.due_at(1001.0) != 1001.0
        transaction(queue, 100 + 10 * number, ticket=number)
    assert queue.due_at(1001.0) == 1001.0


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
def test_whatever_comes_positions_say_what_the_queue_hold(counts, takes, records_max, bytes_max):
    queue = make(records_max=records_max, bytes_max=bytes_max, queue_bytes_max=100_000)
    sent = [Sent(100 + 20 * number, events, number) for number, events in enumerate(counts)]
    out: list[Batch] = []
    turns = iter(takes)
    for one in sent:
        queue.begin(one.lsn, 0)
        for number, records in enumerate(one.events):
            add(queue, *[f"{one.lsn}.{number}"] * records, events=1)
            if next(turns, False) and queue.due_at(0) == 0:
                out.append(queue.cut_batch(0))
        queue.close(one.lsn, one.lsn + 10, 1, (one.ticket,))
    while queue.due_at(1e9) is not None:
        out.append(queue.cut_batch(1e9))
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
    assert queue.size == sum(batch.size for batch in out)


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


# Snapshots.

ROWS = Progress(event_no=3)


class Reading:
    """How far the reading of tables has got, as the queue asks for it."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def __call__(self) -> Progress | None:
        return self.progress


def test_rows_of_a_snapshot_go_out_with_the_progress_that_counts_them():
    reading = Reading()
    queue = make(progress=reading)
    records = [record("row")]
    reading.progress = ROWS
    queue.insert(records, 10)
    batch = queue.cut_batch(0)
    assert records == []
    assert (texts(batch), batch.snapshot, batch.position, batch.size) == (["row"], ROWS, START, 10)
    assert batch.closes
    queue.release(batch)
    assert queue.size == 0


def test_rows_of_a_snapshot_fill_batches_like_others():
    queue = make(records_max=2)
    for name in "abc":
        queue.insert([record(name)], 10)
    assert texts(queue.cut_batch(0)) == ["a", "b"]
    assert texts(queue.cut_batch(0)) == ["c"]


def test_progress_without_rows_is_sent_soon_and_stays_until_it_changes():
    reading = Reading()
    queue = make(progress=reading)
    assert queue.due_at(7) is None
    reading.progress = ROWS
    queue.touch()
    assert queue.due_at(7) == 7
    assert queue.cut_batch(7).snapshot == ROWS
    transaction(queue, 100, "a")
    assert queue.cut_batch(7).snapshot == ROWS


def test_the_progress_is_asked_for_when_the_batch_ends():
    reading = Reading()
    queue = make(bytes_max=20, progress=reading)
    transaction(queue, 100, "a")
    transaction(queue, 200, "b")
    reading.progress = ROWS
    transaction(queue, 300, "c")
    assert queue.cut_batch(0).snapshot is None
    assert queue.cut_batch(0).snapshot == ROWS


def test_rows_of_a_snapshot_have_no_place_within_a_transaction():
    queue = make()
    between = [queue.between]
    queue.begin(100, 0)
    between.append(queue.between)
    with pytest.raises(AssertionError):
        queue.insert([record("row")], 10)
    queue.close(100, 110, 1, (0,))
    assert [*between, queue.between] == [True, False, True]


# Whole transactions.


def whole(position: Position = START, **limits: Any) -> BatchQueue:
    """Parts of 2 records, transactions of up to 100 bytes as a whole."""
    return make(position, **{"records_max": 2, "whole_bytes_max": 100, **limits})


def drain(queue: BatchQueue) -> list[Batch]:
    out = []
    while queue.due_at(1e9) is not None:
        out.append(queue.cut_batch(1e9))
    return out


def test_a_large_transaction_is_handed_over_in_parts_of_one_kafka_transaction():
    queue = whole()
    transaction(queue, 100, *"abcde", ticket=1)
    parts = drain(queue)
    assert [texts(part) for part in parts] == [["a", "b"], ["c", "d"], ["e"]]
    assert [part.closes for part in parts] == [False, False, True]
    # THEN before the last part nothing of it counts: neither its position nor its ticket
    assert [part.position for part in parts] == [START, START, Position(100, 110)]
    assert [part.tickets for part in parts] == [[], [], [1]]
    assert [part.commit_time for part in parts] == [None, None, 1]


def test_what_came_before_a_large_transaction_does_not_wait_for_its_end():
    queue = whole()
    transaction(queue, 100, "a", ticket=1)
    queue.begin(200, 0)
    add(queue, "b", "c")
    before, part = queue.cut_batch(0), queue.cut_batch(0)
    assert (texts(before), before.closes, before.tickets) == (["a"], True, [1])
    assert (texts(part), part.closes, part.position) == (["b", "c"], False, Position(100, 110))


def test_while_a_kafka_transaction_is_open_nothing_ends_it_but_its_own_end():
    queue = whole()
    queue.begin(100, 0)
    add(queue, "a", "b")
    assert not queue.cut_batch(0).closes
    queue.touch()
    assert queue.due_at(1e9) is None
    queue.close(100, 110, 1, (0,))
    assert queue.due_at(7) == 7
    assert queue.cut_batch(7).closes


def test_the_end_of_a_large_transaction_does_not_wait_for_company():
    queue = whole()
    transaction(queue, 100, "a", "b")
    assert not queue.cut_batch(1000.0).closes
    assert queue.due_at(1001.0) == 1001.0


def test_nor_does_the_end_of_a_large_message():
    queue = make(records_max=1, whole_bytes_max=100)
    queue.begin(99, 0)
    add(queue, "message")
    queue.close(99, 100, None, (1,))
    assert not queue.cut_batch(1000.0).closes
    assert queue.due_at(1001.0) == 1001.0


def test_a_transaction_beyond_the_limit_is_cut_there_and_says_so_every_time():
    queue = whole(whole_bytes_max=40)
    queue.begin(100, 0)
    said = [add(queue, *pair) for pair in ("ab", "cd", "ef")]
    add(queue, "g")
    queue.close(100, 110, 1, (1,))
    parts = drain(queue)
    assert said == [False, True, True]
    assert [part.closes for part in parts] == [False, True, True, True]
    assert [part.position for part in parts] == [
        START,
        Position(100, 100, 4),
        Position(100, 100, 6),
        Position(100, 110),
    ]
    assert [part.tickets for part in parts] == [[], [], [], [1]]


def test_what_a_transaction_asked_for_counts_where_it_is_cut():
    reading = Reading()

    def counted() -> None:
        reading.progress = ROWS

    queue = whole(whole_bytes_max=40, progress=reading, before_cut=counted)
    queue.begin(100, 0)
    add(queue, "a", "b")
    add(queue, "c", "d")
    part, cut = queue.cut_batch(0), queue.cut_batch(0)
    assert (part.closes, part.snapshot) == (False, None)
    assert (cut.closes, cut.snapshot) == (True, ROWS)


def test_every_part_is_a_kafka_transaction_where_nothing_has_to_be_whole():
    queue = whole(whole_bytes_max=0)
    transaction(queue, 100, *"abcde")
    assert all(part.closes for part in drain(queue))


def test_a_transaction_much_larger_than_the_queue_always_has_a_part_due():
    queue = make(bytes_max=50, queue_bytes_max=60, records_max=1000, whole_bytes_max=1 << 30)
    queue.begin(100, 0)
    parts = 0
    for _ in range(200):
        while queue.room:
            add(queue, "a")
        batch = queue.cut_batch(0)
        assert not batch.closes
        queue.release(batch)
        parts += 1
    assert queue.size <= 60
    assert parts == 200


def test_handing_over_goes_on_after_the_record_that_was_refused():
    batch = Batch(START, START, [record("a"), record("b"), ("topic", b"k", b"c", [("h", b"v")])])
    taken: list[tuple[Any, ...]] = []

    def produce(topic: str, value: bytes, key: bytes | None, headers: Any = None) -> None:
        if value == b"b" and len(taken) == 1:
            taken.append(("full",))
            raise BufferError
        taken.append((topic, key, value, headers))

    with pytest.raises(BufferError):
        batch.hand_over(produce)
    batch.hand_over(produce)
    assert taken == [
        ("topic", None, b"a", None),
        ("full",),
        ("topic", None, b"b", None),
        ("topic", b"k", b"c", [("h", b"v")]),
    ]


def test_records_that_were_passed_on_are_forgotten_but_for_large_ones():
    large = ("topic", b"k", b"x" * 100, None)
    refused = ("other", None, b"r", [("h", b"v")])
    batch = Batch(START, START, [record("a"), large, refused, record("b")])
    taken: list[tuple[Any, ...]] = []
    full = [True]

    def produce(topic: str, value: bytes, key: bytes | None, headers: Any = None) -> None:
        if topic == "other" and full:
            full.clear()
            raise BufferError
        taken.append((topic, key, value, headers))

    with pytest.raises(BufferError):
        batch.give_away(produce, 50)
    assert batch.records == [GIVEN_AWAY, large, refused, record("b")]
    batch.give_away(produce, 50)
    assert taken == [record("a"), large, refused, record("b")]
    assert batch.records == [GIVEN_AWAY, large, GIVEN_AWAY, GIVEN_AWAY]
    assert batch.topics == {"topic", "other"}


def test_records_that_were_passed_on_are_never_sent_again():
    batch = Batch(START, START, [record("a")])
    batch.give_away(lambda *_: None, 50)
    batch.handed_over = 0
    with pytest.raises(AssertionError, match="never sent again"):
        batch.hand_over(lambda *_: None)


def late(*rows: str) -> LateRecords:
    """Records whose values are these rows, each with its number in the transaction behind it."""
    parts = [part for each in rows for part in (b"", each.encode(), b"")]
    return DraftedRecords("topic", False, parts, 0, 1, Envelope(b"", b"", b"", b"", b""))


def test_records_that_are_made_late_count_like_others_and_stand_in_their_places():
    queue = make(bytes_max=1000, records_max=100, queue_bytes_max=10_000)
    queue.begin(100, 0)
    assert not queue.enqueue([record("a")], 1, 1)
    assert not queue.enqueue([record("b")], 1, 3, late("c", "dd"))
    assert not queue.enqueue([record("e")], 1, 1)
    assert (queue.size, queue.waiting) == (8, 5)
    queue.close(100, 150, 7, (1,))
    batch = queue.cut_batch(0)
    assert (batch.size, batch.count, batch.rows) == (8, 5, 5)
    assert texts(batch) == ["a", "b", "c1", "dd2", "e"]
    assert batch.count == 5
    queue.release(batch)
    assert (queue.size, queue.waiting) == (0, 0)


def test_a_part_ends_when_records_that_are_made_late_fill_it():
    queue = make(bytes_max=1000, records_max=3, whole_bytes_max=10_000, queue_bytes_max=10_000)
    queue.begin(100, 0)
    queue.enqueue([], 0, 2, late("a", "b"))
    assert queue.due_at(0) is None
    queue.enqueue([], 0, 1, late("c"))
    part = queue.cut_batch(0)
    assert (part.closes, texts(part)) == (False, ["a1", "b2", "c1"])


@pytest.mark.parametrize("refused", range(6))
def test_handing_over_goes_on_within_records_that_are_made_late(refused):
    batch = Batch(START, START, [record("a"), late("b", "c", "d"), record("e"), late("f")], has_late=True)
    taken: list[Record] = []
    full = [True]

    def produce(topic: str, value: bytes, key: bytes | None) -> None:
        if len(taken) == refused and full:
            full.clear()
            raise BufferError
        taken.append((topic, key, value, None))

    with pytest.raises(BufferError):
        batch.hand_over(produce)
    assert batch.handed_over == refused
    batch.hand_over(produce)
    assert taken == [record(value) for value in ("a", "b1", "c2", "d3", "e", "f1")]
    assert (batch.handed_over, batch.topics) == (6, {"topic"})


def test_what_stands_in_place_of_a_record_that_was_made_late_is_handed_over():
    batch = Batch(START, START, [late("a", "b", "c")], has_late=True)
    batch.records[1] = record("instead")
    taken: list[bytes] = []
    batch.hand_over(lambda topic, value, key: taken.append(value))
    assert taken == [b"a1", b"instead", b"c3"]


def test_records_that_were_made_late_and_passed_on_are_forgotten_but_for_large_ones():
    batch = Batch(START, START, [late("a", "b"), late("c", "x" * 100)], has_late=True)
    batch.give_away(lambda *_: None, 50)
    assert batch.records == [GIVEN_AWAY, GIVEN_AWAY, record("c1"), record("x" * 100 + "2")]
    again = Batch(START, START, [late("a", "b")], has_late=True)
    again.give_away(lambda *_: None, 50)
    again.handed_over = 0
    with pytest.raises(AssertionError, match="never sent again"):
        again.hand_over(lambda *_: None)


@given(
    counts=st.lists(st.integers(0, 12), max_size=8),
    takes=st.lists(st.booleans(), max_size=100),
    records_max=st.integers(1, 4),
    whole_bytes_max=st.sampled_from([0, 30, 60, 1000]),
)
def test_a_reader_of_kafka_sees_whole_transactions_up_to_the_limit(
    counts, takes, records_max, whole_bytes_max
):
    queue = make(records_max=records_max, queue_bytes_max=100_000, whole_bytes_max=whole_bytes_max)
    sent = [Sent(100 + 20 * number, [1] * count, number) for number, count in enumerate(counts)]
    out: list[Batch] = []
    turns = iter(takes)
    cut: set[int] = set()
    for one in sent:
        queue.begin(one.lsn, 0)
        for number, _ in enumerate(one.events):
            if add(queue, f"{one.lsn}.{number}"):
                cut.add(one.lsn)
            if next(turns, False) and queue.due_at(0) == 0:
                out.append(queue.cut_batch(0))
        queue.close(one.lsn, one.lsn + 10, 1, (one.ticket,))
    out += drain(queue)
    seen: list[str] = []
    waiting: list[str] = []
    for batch in out:
        waiting += texts(batch)
        if not batch.closes:
            assert batch.position == batch.base
            assert not batch.tickets
            continue
        seen += waiting
        waiting = []
        # THEN the position says exactly what is seen, and a transaction is seen in parts only if that was said
        assert seen == covered(sent, batch.position)
        for one in sent:
            own = [text for text in seen if text.startswith(f"{one.lsn}.")]
            assert len(own) in (0, len(one.events)) or one.lsn in cut
    assert waiting == []
    assert all(10 * len(one.events) >= whole_bytes_max for one in sent if one.lsn in cut)
    assert [ticket for batch in out for ticket in batch.tickets] == [one.ticket for one in sent]


# Records that are no events.


def test_what_is_appended_behind_the_last_event_is_never_a_part_of_its_own():
    queue = make(records_max=2, whole_bytes_max=0)
    queue.begin(100, 0)
    assert add(queue, "a", "b")
    end = [record("end")]
    queue.append(end, 10)
    assert end == []
    queue.close(100, 110, 1, (0,))
    first, last = queue.cut_batch(0), queue.cut_batch(0)
    assert texts(first) == ["a", "b"]
    assert first.position == Position(100, 100, 2)
    assert texts(last) == ["end"]
    assert (last.position, last.rows, last.size) == (Position(100, 110), 0, 10)


def test_a_part_has_the_counts_of_the_records_up_to_it():
    counted = {"public.t": 0}
    queue = make(records_max=2, whole_bytes_max=0, counts=lambda: tuple(counted.items()))
    queue.begin(100, 0)
    for number in (2, 4):
        counted["public.t"] = number
        add(queue, "a", "b")
    queue.close(100, 110, 1, (0,))
    positions = [queue.cut_batch(0).position for _ in range(3)]
    assert [position.counts for position in positions] == [(("public.t", 2),), (("public.t", 4),), ()]
