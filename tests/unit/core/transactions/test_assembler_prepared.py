"""Transactions that were prepared for two-phase commit: kept, and holding the flushed position, until decided."""

import pytest

from cdcd.core.errors import PositionError, ProtocolError
from cdcd.core.transactions.position import Position
from tests.unit.core.transactions.wire import (
    TIME,
    Receiver,
    begin,
    begin_prepare,
    block,
    commit,
    commit_prepared,
    described,
    emitted,
    insert,
    keepalive,
    origin,
    prepare,
    prepared,
    rollback_prepared,
    start,
    stream_abort,
    stream_commit,
    stream_prepare,
    truncate,
    typed,
)


@pytest.fixture
def receiver(tmp_path):
    return Receiver(tmp_path)


def test_a_prepared_transaction_leaves_when_it_is_committed(receiver):
    assert receiver.take(prepared(7, "gid", 50, insert("one"), emitted("two"))) == []
    assert receiver.assembler.prepared_open == 1
    assert receiver.take(commit_prepared(7, "gid", 100)) == ["open 7", "one", "two", "close 110"]
    assert receiver.assembler.prepared_open == 0
    assert receiver.spool.memory_bytes == 0


def test_a_streamed_transaction_may_be_prepared_too(receiver):
    receiver.take(
        block(7, insert("one", 7), insert("rolled back", 8)), stream_abort(7, 8), stream_prepare(7, "gid", 50)
    )
    assert (receiver.assembler.streamed_open, receiver.assembler.prepared_open) == (0, 1)
    assert receiver.take(commit_prepared(7, "gid", 100)) == ["open 7", "one", "close 110"]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_flushed_position_stays_before_an_undecided_prepare(streamed, receiver):
    if streamed:
        receiver.take(block(7, insert("one", 7)), stream_prepare(7, "gid", 50))
    else:
        receiver.take(prepared(7, "gid", 50, insert("one")))
    receiver.take(begin(8, 70), insert("two"), commit(70))
    assert receiver.ledger.acked == 80
    assert receiver.ledger.flushed == 0
    receiver.take(commit_prepared(7, "gid", 100))
    assert receiver.ledger.flushed == 110


def test_a_rolled_back_one_leaves_nothing_and_holds_nothing(receiver):
    receiver.take(prepared(7, "gid", 50, insert("one")), begin(8, 70), insert("two"), commit(70))
    assert receiver.take(rollback_prepared(7, "gid", 100)) == ["rolled back 110"]
    assert receiver.ledger.flushed == 110
    assert receiver.ledger.open_entries == 0
    assert len(receiver.spool) == 0


def test_each_undecided_one_holds_the_position(receiver):
    receiver.take(
        prepared(7, "one", 50), begin(8, 60), commit(60), prepared(9, "two", 80), begin(10, 90), commit(90)
    )
    receiver.take(rollback_prepared(7, "one", 200))
    assert receiver.ledger.flushed == 70
    receiver.take(commit_prepared(9, "two", 300))
    assert receiver.ledger.flushed == 310


def test_a_gid_is_used_again_after_a_rollback(receiver):
    receiver.take(prepared(7, "gid", 50, insert("one")), rollback_prepared(7, "gid", 60))
    receiver.take(prepared(8, "gid", 70, insert("two")))
    assert receiver.take(commit_prepared(8, "gid", 100)) == ["open 8", "two", "close 110"]


def test_a_gid_is_used_again_after_a_commit(receiver):
    receiver.take(prepared(7, "gid", 50, insert("one")), commit_prepared(7, "gid", 60))
    receiver.take(prepared(8, "gid", 80, insert("two")))
    assert receiver.take(commit_prepared(8, "gid", 100)) == ["open 8", "two", "close 110"]


@pytest.mark.parametrize(("xid", "gid"), [(8, "gid"), (7, "other")])
def test_gid_and_xid_must_both_be_right(xid, gid, receiver):
    receiver.take(prepared(7, "gid", 50))
    assert receiver.take(rollback_prepared(xid, gid, 60)) == []
    assert receiver.assembler.prepared_open == 1
    assert receiver.take(commit_prepared(xid, gid, 100)) == [
        f"no prepare of {gid}",
        f"open {xid}",
        "close 110",
    ]
    assert receiver.assembler.prepared_open == 1


@pytest.mark.parametrize("position", [Position(commit_lsn=80, end_lsn=100), Position()])
def test_a_commit_without_a_prepare_is_said_and_has_nothing_to_send(position, tmp_path):
    # PostgreSQL 15 to 17, of a transaction that only locked rows; or the slot was past the PREPARE at the first start.
    receiver = Receiver(tmp_path, position)
    assert receiver.take(commit_prepared(7, "gid", 100)) == ["no prepare of gid", "open 7", "close 110"]
    assert receiver.ledger.flushed == 110


def test_a_commit_of_an_unknown_one_before_the_checkpoint_is_done_already(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=80, end_lsn=100))
    assert receiver.take(commit_prepared(7, "gid", 99)) == []
    assert receiver.ledger.open_entries == 0


def test_a_rollback_of_an_unknown_one_is_no_error(receiver):
    assert receiver.take(rollback_prepared(7, "gid", 100)) == []
    assert receiver.assembler.counts["rolled_back"] == 0


def test_after_a_restart_it_comes_again_and_what_was_committed_meanwhile_is_skipped(tmp_path):
    # Told: nothing past the PREPARE at 50. Delivered: the commit at 70.
    receiver = Receiver(tmp_path, Position(commit_lsn=70, end_lsn=80))
    said = receiver.take(prepared(7, "gid", 50, insert("one")), begin(8, 70), insert("two"), commit(70))
    assert said == []
    assert receiver.take(commit_prepared(7, "gid", 100)) == ["open 7", "one", "close 110"]


def test_one_that_is_delivered_comes_again_without_a_trace(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=100, end_lsn=110))
    assert receiver.take(prepared(7, "gid", 50, insert("one")), commit_prepared(7, "gid", 100)) == []
    assert receiver.ledger.open_entries == 0
    assert receiver.ledger.flushed == 110
    assert len(receiver.spool) == 0


def test_one_whose_rollback_the_checkpoint_covers_comes_again_without_a_trace(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=100, end_lsn=110))
    assert receiver.steps(prepared(7, "gid", 50, insert("one")), rollback_prepared(7, "gid", 100)) == []
    assert receiver.ledger.open_entries == 0
    assert len(receiver.spool) == 0


def test_a_prepare_without_begin_prepare_has_no_changes(receiver):
    # PostgreSQL 18, of a transaction that only locked rows.
    assert receiver.take(prepare(7, "gid", 50), keepalive(60)) == ["heard 60"]
    assert receiver.assembler.prepared_open == 1
    assert receiver.take(commit_prepared(7, "gid", 100)) == ["open 7", "close 110"]
    assert receiver.ledger.flushed == 110


def test_its_origin_is_said_before_its_changes(receiver):
    receiver.take(prepared(7, "gid", 50, origin("upstream"), insert("one")))
    assert receiver.take(commit_prepared(7, "gid", 100)) == ["open 7", "origin upstream", "one", "close 110"]


@pytest.mark.parametrize("message", [begin_prepare(7, "again", 70), prepare(7, "again", 70)])
@pytest.mark.parametrize("known", ["prepared", "streamed"])
def test_a_transaction_that_is_open_is_not_prepared_anew(message, known, receiver):
    receiver.take(prepared(7, "gid", 50) if known == "prepared" else block(7))
    with pytest.raises(ProtocolError, match="7, which is open already"):
        receiver.steps(message)


def test_prepare_must_be_of_the_begun_transaction(receiver):
    with pytest.raises(ProtocolError, match="Prepare of 8 inside the transaction 7"):
        receiver.steps(begin_prepare(7, "gid", 50), prepare(8, "gid", 50))


def test_stream_prepare_of_an_unknown_transaction_is_refused(receiver):
    with pytest.raises(ProtocolError, match="Stream Prepare of the unknown transaction 7"):
        receiver.steps(stream_prepare(7, "gid", 50))


def test_a_stream_commit_of_a_prepared_transaction_is_refused(receiver):
    receiver.take(block(7, insert("one", 7)), stream_prepare(7, "gid", 50))
    with pytest.raises(ProtocolError, match="unknown transaction 7"):
        receiver.steps(stream_commit(7, 100))


def test_the_oldest_is_the_one_with_the_earliest_prepare_time(receiver):
    assert receiver.assembler.oldest_prepared() is None
    receiver.take(begin_prepare(7, "young", 50), prepare(7, "young", 50, TIME + 10))
    receiver.take(begin_prepare(8, "old", 70), prepare(8, "old", 70, TIME - 10))
    assert receiver.assembler.oldest_prepared() == ("old", TIME - 10)
    receiver.take(rollback_prepared(8, "old", 100))
    assert receiver.assembler.oldest_prepared() == ("young", TIME + 10)


def test_after_a_lost_connection_nothing_prepared_is_left(receiver):
    receiver.take(prepared(7, "gid", 50, insert("one")))
    receiver.assembler.close()
    assert receiver.assembler.prepared_open == 0
    assert receiver.spool.memory_bytes == 0


# Descriptions: Begin Prepare … Prepare is part of the normal order, in which each is sent once.


def test_it_is_replayed_by_the_description_that_was_in_force_when_it_came(receiver):
    receiver.take(begin(6, 10), described("old"), insert("zero"), commit(10))
    receiver.take(prepared(7, "gid", 50, insert("one")))
    receiver.take(begin(8, 70), described("new"), insert("two"), commit(70))
    said = receiver.take(commit_prepared(7, "gid", 100))
    assert said == ["open 7", "relation old", "one", "relation new", "close 110"]


def test_a_truncated_relation_is_described_likewise(receiver):
    receiver.take(begin(6, 10), described("a", oid=1), described("b", oid=2), commit(10))
    receiver.take(prepared(7, "gid", 50, truncate(1, 2, 3)))
    receiver.take(begin(8, 70), described("c", oid=2), commit(70))
    said = receiver.take(commit_prepared(7, "gid", 100))
    assert said == ["open 7", "relation a", "relation b", "truncate (1, 2, 3)", "relation c", "close 110"]


def test_a_description_within_it_counts_at_once_for_what_comes_meanwhile(receiver):
    assert receiver.take(prepared(7, "gid", 50, typed(), described("a"), insert("one"))) == [
        "type mood",
        "relation a",
    ]
    assert receiver.take(begin(8, 70), insert("two"), commit(70)) == ["open 8", "two", "close 80"]
    said = receiver.take(commit_prepared(7, "gid", 100))
    assert said == ["open 7", "type mood", "relation a", "one", "close 110"]


def test_also_when_it_is_rolled_back(receiver):
    receiver.take(prepared(7, "gid", 50, described("a"), insert("one")), rollback_prepared(7, "gid", 60))
    assert receiver.take(begin(8, 70), insert("two"), commit(70)) == ["open 8", "two", "close 80"]


def test_a_definition_that_changes_within_it_is_replayed_so(receiver):
    receiver.take(begin(6, 10), described("old"), commit(10))
    receiver.take(prepared(7, "gid", 50, insert("one"), described("new"), insert("two")))
    said = receiver.take(commit_prepared(7, "gid", 100))
    assert said == ["open 7", "relation old", "one", "relation new", "two", "close 110"]


def test_a_streamed_one_does_not_count_for_the_normal_order_until_it_commits(receiver):
    receiver.take(begin(6, 10), described("old"), commit(10))
    receiver.take(block(7, described("new", xid=7), insert("one", 7)), stream_prepare(7, "gid", 50))
    assert receiver.take(begin(8, 70), insert("two"), commit(70)) == ["open 8", "two", "close 80"]
    said = receiver.take(commit_prepared(7, "gid", 100))
    assert said == ["open 7", "relation new", "one", "close 110"]


def test_interleaved_with_the_blocks_of_others(receiver):
    receiver.take(block(7, insert("7.1", 7)), prepared(8, "gid", 50, insert("8.1")), start(7, first=False))
    receiver.take(insert("7.2", 7), *block(7)[1:])
    assert receiver.take(commit_prepared(8, "gid", 100)) == ["open 8", "8.1", "close 110"]
    assert receiver.take(stream_commit(7, 200)) == ["open 7", "7.1", "7.2", "close 210"]


# A transaction whose PREPARE the slot is past may be streamed once more, without its PREPARE.


@pytest.mark.parametrize("decided", [commit_prepared(7, "gid", 90), rollback_prepared(7, "gid", 90)])
def test_what_was_decided_before_and_is_streamed_again_is_forgotten(decided, tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=90, end_lsn=100))
    assert receiver.take(block(7, insert("one", 7)), decided) == []
    assert receiver.assembler.streamed_open == 0
    assert len(receiver.spool) == 0


def test_unless_its_commit_is_missing_in_kafka(receiver):
    with pytest.raises(PositionError, match="its PREPARE was never received"):
        receiver.steps(block(7, insert("one", 7)), commit_prepared(7, "gid", 90))
