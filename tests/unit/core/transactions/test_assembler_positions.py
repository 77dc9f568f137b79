"""What a restart skips: transactions that the checkpoint covers, and the first events of one that was cut."""

import pytest

from cdcd.core.errors import PositionError
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.steps import Opened
from tests.unit.core.transactions.wire import (
    Receiver,
    alone,
    begin,
    block,
    commit,
    commit_prepared,
    described,
    emitted,
    insert,
    keepalive,
    origin,
    prepared,
    stream_abort,
    stream_commit,
)

COVERED = Position(commit_lsn=100, end_lsn=110)
CUT = Position(commit_lsn=200, end_lsn=200, events_done=2)


def sent_plain(xid: int, lsn: int, *texts: str) -> list[bytes]:
    return [begin(xid, lsn), *[insert(text) for text in texts], commit(lsn)]


def sent_streamed(xid: int, lsn: int, *texts: str) -> list[bytes]:
    rows = [insert(text, xid) for text in texts]
    return [*block(xid, *rows[:1]), *block(xid, *rows[1:], first=False), stream_commit(xid, lsn)]


def sent_prepared(xid: int, lsn: int, *texts: str) -> list[bytes]:
    rows = [insert(text) for text in texts]
    return [*prepared(xid, "gid", lsn - 20, *rows), commit_prepared(xid, "gid", lsn)]


in_every_way = pytest.mark.parametrize("sent", [sent_plain, sent_streamed, sent_prepared])


@in_every_way
def test_what_ends_before_the_checkpoint_is_skipped(sent, tmp_path):
    receiver = Receiver(tmp_path, COVERED)
    assert receiver.take(sent(7, 100, "one", "two")) == []
    assert receiver.ledger.open_entries == 0
    assert receiver.take(sent(8, 200, "three")) == ["open 8", "three", "close 210"]


@in_every_way
def test_what_starts_where_the_checkpoint_ends_is_not(sent, tmp_path):
    receiver = Receiver(tmp_path, COVERED)
    assert receiver.take(sent(7, 110, "one")) == ["open 7", "one", "close 120"]


@in_every_way
def test_the_first_events_of_a_cut_transaction_are_skipped(sent, tmp_path):
    receiver = Receiver(tmp_path, CUT)
    steps = receiver.steps(sent(7, 200, "one", "two", "three"))
    opened = steps[0]
    assert isinstance(opened, Opened)
    assert opened.skip == 2
    assert [step for step in map(Receiver._say, steps) if step == ["three"]] == [["three"]]
    assert receiver.take(sent(8, 300, "four")) == ["open 8", "four", "close 310"]


@in_every_way
def test_all_of_its_events_may_be_done(sent, tmp_path):
    receiver = Receiver(tmp_path, CUT)
    assert receiver.take(sent(7, 200, "one", "two")) == ["open 7", "close 210"]


@in_every_way
def test_fewer_events_than_are_done_stop_the_daemon(sent, tmp_path):
    receiver = Receiver(tmp_path, CUT)
    with pytest.raises(PositionError, match="1 more events of the transaction 0/C8 were delivered"):
        receiver.steps(sent(7, 200, "one"))


@in_every_way
def test_transactions_before_the_cut_one_are_skipped_wholly(sent, tmp_path):
    receiver = Receiver(tmp_path, CUT)
    assert receiver.take(sent(6, 100, "zero")) == []
    assert receiver.take(sent(7, 200, "one", "two", "three")) == ["open 7", "three", "close 210"]


def test_every_kind_of_event_counts_and_nothing_else(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=200, end_lsn=200, events_done=3))
    said = receiver.take(
        begin(7, 200),
        origin("upstream"),
        described("a"),
        insert("one"),
        emitted("two"),
        described("b"),
        insert("three"),
        insert("four"),
        commit(200),
    )
    assert said == [
        "open 7", "origin upstream", "relation a", "delivered two", "relation b", "four", "close 210"
    ]  # fmt: skip


def test_events_of_aborted_subtransactions_do_not_count(tmp_path):
    receiver = Receiver(tmp_path, CUT)
    receiver.take(block(7, insert("one", 7), insert("rolled back", 8), insert("two", 7), insert("three", 7)))
    assert receiver.take(stream_abort(7, 8), stream_commit(7, 200)) == ["open 7", "three", "close 210"]


def test_descriptions_of_skipped_transactions_are_passed_on(tmp_path):
    receiver = Receiver(tmp_path, COVERED)
    assert receiver.take(begin(7, 100), described("a"), insert("one"), commit(100)) == ["relation a"]


def test_a_keepalive_among_skipped_transactions_is_heard(tmp_path):
    receiver = Receiver(tmp_path, COVERED)
    assert receiver.take(begin(7, 100), keepalive(100), insert("one"), commit(100), keepalive(110)) == [
        "heard 100 within",
        "heard 110",
    ]


def test_what_is_skipped_is_acknowledged_at_once(tmp_path):
    # The slot may be behind the checkpoint: what Kafka holds is told without waiting for anything new.
    receiver = Receiver(tmp_path, COVERED, flushed=50)
    receiver.take(begin(7, 100), insert("one"), commit(100))
    assert receiver.ledger.flushed == 110


def test_a_message_that_ends_at_the_checkpoint_is_covered_and_a_commit_that_starts_there_is_not(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=0, end_lsn=100))
    said = receiver.take(alone("hello", 100), begin(7, 100), insert("one"), commit(100))
    assert said == ["open 7", "one", "close 110"]


def test_a_message_that_ends_after_the_checkpoint_is_sent(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=0, end_lsn=100))
    assert receiver.take(alone("hello", 104)) == ["alone hello"]
    assert receiver.ledger.flushed == 104


def test_a_message_that_filled_a_batch_by_itself_is_done(tmp_path):
    # Position in the middle of a "transaction" that is the message, with its one event done.
    receiver = Receiver(tmp_path, Position(commit_lsn=103, end_lsn=103, events_done=1))
    assert receiver.take(alone("hello", 104)) == []
    assert receiver.take(begin(7, 104), insert("one"), commit(104)) == ["open 7", "one", "close 114"]


def test_the_commit_before_the_first_one_is_known_from_the_checkpoint(tmp_path):
    receiver = Receiver(tmp_path, COVERED)
    (opened,) = receiver.steps(begin(7, 200))
    assert isinstance(opened, Opened)
    assert opened.last_commit_lsn == 100


def test_but_not_when_that_is_of_the_transaction_itself(tmp_path):
    receiver = Receiver(tmp_path, CUT)
    (opened,) = receiver.steps(begin(7, 200))
    assert isinstance(opened, Opened)
    assert opened.last_commit_lsn is None


def test_without_a_checkpoint_there_is_no_commit_before(tmp_path):
    (opened,) = Receiver(tmp_path).steps(begin(7, 200))
    assert isinstance(opened, Opened)
    assert opened.last_commit_lsn is None


def test_among_skipped_transactions_the_order_of_commits_does_not_matter(tmp_path):
    # The slot went back to a position before the checkpoint: all of it is covered.
    receiver = Receiver(tmp_path, Position(commit_lsn=500, end_lsn=510))
    assert receiver.take(sent_plain(7, 100, "one"), sent_plain(8, 200, "two")) == []
