"""Transactions that are streamed before anybody knows their fate."""

import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import pytest

from cdcd.core.errors import ProtocolError, TransientError
from cdcd.core.protocol.messages import LogicalMessage, Relation
from cdcd.core.protocol.peek import xid_of
from cdcd.core.transactions.drafts import SpoolItem, content_of, make_draft
from cdcd.core.transactions.open_transactions import UndecidableMessageError
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.steps import (
    Changes,
    Closed,
    Opened,
    RelationPreview,
    TransactionalMessage,
    TurnEnd,
)
from tests.unit.core.transactions.wire import (
    Receiver,
    begin,
    block,
    commit,
    commit_prepared,
    described,
    emitted,
    frame,
    insert,
    origin,
    start,
    stream_abort,
    stream_commit,
    stream_prepare,
    text_of,
    typed,
)


@pytest.fixture
def receiver(tmp_path):
    return Receiver(tmp_path)


def test_nothing_of_a_streamed_transaction_leaves_before_its_commit(receiver):
    assert receiver.take(block(7, described("a", xid=7), insert("one", 7))) == []
    assert receiver.assembler.streamed_open == 1
    assert receiver.ledger.open_entries == 0
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "relation a", "one", "close 110"]
    assert receiver.assembler.streamed_open == 0
    assert receiver.ledger.flushed == 110


def test_blocks_of_several_transactions_interleave(receiver):
    receiver.take(
        block(7, insert("7.1", 7)),
        block(8, insert("8.1", 8)),
        block(7, insert("7.2", 7), first=False),
        block(8, insert("8.2", 8), first=False),
    )
    assert receiver.take(begin(9, 50), insert("9.1"), commit(50)) == ["open 9", "9.1", "close 60"]
    assert receiver.take(stream_commit(8, 100)) == ["open 8", "8.1", "8.2", "close 110"]
    assert receiver.take(stream_commit(7, 200)) == ["open 7", "7.1", "7.2", "close 210"]


def test_the_abort_of_a_subtransaction_keeps_the_rest(receiver):
    # go-pq-cdc drops everything here (its issue 166).
    receiver.take(
        block(7, insert("one", 7), insert("rolled back", 8), insert("released", 9)),
        stream_abort(7, 8),
        block(7, insert("two", 7), insert("three", 10), first=False),
    )
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "one", "released", "two", "three", "close 110"]


def test_nested_subtransactions_are_aborted_one_by_one(receiver):
    receiver.take(
        block(7, insert("one", 7), insert("outer", 8), insert("inner", 9)),
        stream_abort(7, 9),
        stream_abort(7, 8),
    )
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "one", "close 110"]


def test_the_abort_of_the_transaction_drops_all_of_it(receiver):
    receiver.take(block(7, insert("one", 7), insert("two", 8)), block(9, insert("other", 9)), stream_abort(7))
    assert receiver.assembler.streamed_open == 1
    assert 7 not in receiver.spool
    assert receiver.take(stream_commit(9, 100)) == ["open 9", "other", "close 110"]
    assert receiver.spool.memory_bytes == 0


def test_an_abort_says_where_and_when_with_parallel_streaming(tmp_path):
    receiver = Receiver(tmp_path, abort_info=True)
    receiver.take(block(7, insert("one", 7), insert("two", 8)), stream_abort(7, 8, lsn=50))
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "one", "close 110"]
    receiver.take(block(9, insert("one", 9)), stream_abort(9, lsn=0))
    assert receiver.assembler.streamed_open == 0


@pytest.mark.parametrize("abort_info", [False, True])
def test_an_abort_in_the_other_form_than_agreed_is_refused(abort_info, tmp_path):
    receiver = Receiver(tmp_path, abort_info=abort_info)
    with pytest.raises(ProtocolError):
        receiver.steps(block(7, insert("one", 7)), stream_abort(7, lsn=None if abort_info else 50))


def test_the_abort_of_a_transaction_that_was_never_streamed_is_no_error(receiver):
    # PostgreSQL 18 announces it (reorderbuffer.c looks for aborted transactions before it streams them).
    assert receiver.take(stream_abort(7), stream_abort(7, 8)) == []
    assert receiver.assembler.counts["aborted"] == 0


def test_a_first_block_of_a_known_transaction_is_refused(receiver):
    with pytest.raises(ProtocolError, match="first segment of the transaction 7, which is open already"):
        receiver.steps(block(7), start(7))


def test_a_further_block_of_an_unknown_transaction_is_refused(receiver):
    with pytest.raises(ProtocolError, match="further segment of the transaction 7, which is not known"):
        receiver.steps(start(7, first=False))


def test_after_its_abort_a_transaction_is_not_known_any_more(receiver):
    receiver.steps(block(7), stream_abort(7))
    with pytest.raises(ProtocolError, match="which is not known"):
        receiver.steps(start(7, first=False))


def test_the_commit_of_an_unknown_transaction_is_refused(receiver):
    with pytest.raises(ProtocolError, match="Stream Commit of the unknown transaction 7"):
        receiver.steps(stream_commit(7, 100))


def test_an_empty_block_is_a_transaction_without_changes(receiver):
    assert receiver.take(block(7), stream_commit(7, 100)) == ["open 7", "close 110"]


def test_its_origin_is_said_once_at_its_beginning(receiver):
    receiver.take(block(7, origin("upstream", 0), insert("one", 7)), block(7, insert("two", 7), first=False))
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "origin upstream", "one", "two", "close 110"]


def test_after_a_lost_connection_nothing_streamed_is_left(receiver):
    receiver.take(block(7, insert("one", 7)), block(8, insert("two", 8)))
    receiver.assembler.close()
    assert len(receiver.spool) == 0
    assert receiver.assembler.streamed_open == 0


def test_what_is_larger_than_memory_is_replayed_in_pieces(tmp_path):
    receiver = Receiver(tmp_path, memory_bytes_max=1000)
    texts = [f"{number}{'x' * 500}" for number in range(2000)]
    receiver.take(block(7, *[insert(text, 7) for text in texts]))
    assert receiver.spool.disk_bytes > 1_000_000
    pieces = receiver.assembler.assemble([stream_commit(7, 100)])
    next(pieces)
    first = next(pieces)
    assert isinstance(first, Changes)
    assert 1 < len(first.items) < len(texts)
    rest = [step for step in pieces if isinstance(step, Changes)]
    assert sum(len(step.items) for step in rest) == len(texts) - len(first.items)


# Descriptions.


def test_descriptions_of_an_aborted_subtransaction_count(receiver):
    receiver.take(
        block(7, described("a", xid=8), insert("rolled back", 8)),
        stream_abort(7, 8),
        block(7, insert("kept", 7), first=False),
    )
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "relation a", "kept", "close 110"]


def test_a_transaction_is_replayed_by_its_own_descriptions(receiver):
    receiver.take(block(7, described("old", xid=7), insert("one", 7)))
    assert receiver.take(begin(8, 50), described("new"), insert("two"), commit(50)) == [
        "open 8",
        "relation new",
        "two",
        "close 60",
    ]
    # Afterwards the one that was received last is in force again.
    assert receiver.take(stream_commit(7, 100)) == [
        "open 7",
        "relation old",
        "one",
        "relation new",
        "close 110",
    ]
    assert receiver.take(begin(9, 200), insert("three"), commit(200)) == ["open 9", "three", "close 210"]


def test_a_description_in_a_later_block_stays_in_force(receiver):
    receiver.take(
        block(7, described("old", xid=7), insert("one", 7)),
        begin(8, 50),
        described("middle"),
        commit(50),
        block(7, described("new", xid=7), insert("two", 7), first=False),
    )
    said = receiver.take(stream_commit(7, 100))
    assert said == ["open 7", "relation old", "one", "relation new", "two", "close 110"]


def test_of_two_streamed_transactions_the_description_received_last_stays(receiver):
    receiver.take(
        block(7, described("first", xid=7), insert("7", 7)),
        block(8, described("second", xid=8), insert("8", 8)),
    )
    assert receiver.take(stream_commit(8, 100)) == ["open 8", "relation second", "8", "close 110"]
    assert receiver.take(stream_commit(7, 200)) == [
        "open 7",
        "relation first",
        "7",
        "relation second",
        "close 210",
    ]


def test_descriptions_of_an_aborted_transaction_do_not_count(receiver):
    receiver.take(begin(6, 10), described("a"), commit(10))
    receiver.take(block(7, described("b", xid=7), insert("7", 7)), stream_abort(7))
    receiver.take(block(8, described("a", xid=8), insert("8", 8)))
    assert receiver.take(stream_commit(8, 100)) == ["open 8", "relation a", "8", "close 110"]


def test_types_are_announced_before_the_relations_that_use_them(receiver):
    receiver.take(block(7, typed(7), described("a", xid=7), insert("one", 7)))
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "type mood", "relation a", "one", "close 110"]


def test_descriptions_of_a_transaction_that_is_skipped_still_count(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=100, end_lsn=110))
    receiver.take(block(7, described("a", xid=7), insert("one", 7)))
    assert receiver.take(stream_commit(7, 100)) == ["relation a"]
    assert receiver.take(begin(8, 200), insert("two"), commit(200)) == ["open 8", "two", "close 210"]


# Messages: in a stream each names the transaction, whichever subtransaction wrote it.


def test_messages_are_kept_where_no_subtransaction_was_aborted_after_them(receiver):
    receiver.take(
        block(7, insert("one", 7), insert("rolled back", 8)),
        stream_abort(7, 8),
        block(7, emitted("two", 7), first=False),
    )
    assert receiver.take(stream_commit(7, 100)) == ["open 7", "one", "two", "close 110"]


def test_a_message_that_may_be_rolled_back_is_asked_for_again(receiver):
    receiver.take(block(7, insert("one", 8), emitted("whose?", 7)), stream_abort(7, 8))
    with pytest.raises(UndecidableMessageError) as caught:
        receiver.steps(stream_commit(7, 100))
    assert caught.value.commit_lsn == 100
    assert isinstance(caught.value, TransientError)
    assert receiver.ledger.open_entries == 0


def test_nobody_asks_for_what_is_delivered_already(tmp_path):
    receiver = Receiver(tmp_path, Position(commit_lsn=100, end_lsn=110))
    receiver.take(block(7, insert("one", 8), emitted("whose?", 7)), stream_abort(7, 8))
    assert receiver.take(stream_commit(7, 100)) == []


def test_nor_for_what_is_rolled_back_wholly(receiver):
    assert (
        receiver.take(block(7, insert("one", 8), emitted("whose?", 7)), stream_abort(7, 8), stream_abort(7))
        == []
    )


def test_a_prepared_transaction_is_asked_for_again_when_it_commits(receiver):
    receiver.take(
        block(7, insert("one", 8), emitted("whose?", 7)), stream_abort(7, 8), stream_prepare(7, "gid", 50)
    )
    with pytest.raises(UndecidableMessageError):
        receiver.steps(commit_prepared(7, "gid", 100))


def test_a_non_transactional_message_in_a_block_is_refused(receiver):
    # The server decodes nothing between Stream Start and Stream Stop, so none can come there.
    with pytest.raises(ProtocolError, match="non-transactional message inside a stream"):
        receiver.steps(start(7), frame(LogicalMessage(7, False, 50, "prefix", b"hello")))


# Rows of which the caller keeps something else than the frame.


def by_xid(items: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]) -> list[SpoolItem]:
    """A draft for each run of rows with one xid."""
    frames = [one for one in items if isinstance(one, bytes)]
    drafts: list[SpoolItem] = []
    for xid, run in groupby(frames, key=xid_of):
        texts = [text_of(one, in_stream=True).encode() for one in run]
        drafts.append(make_draft(xid, 1, len(texts), 100, texts))
    return drafts


@pytest.fixture
def drafting(tmp_path):
    return Receiver(tmp_path, draft=by_xid)


def streamed(receiver: Receiver, *rows: tuple[int, str]) -> None:
    """Stream rows of transaction 7, each by its xid."""
    receiver.take(block(7, *[insert(text, xid) for xid, text in rows]))


def values(receiver: Receiver, lsn: int = 200) -> list[bytes]:
    steps = receiver.assembler.assemble([stream_commit(7, lsn)])
    kept = [one for step in steps if isinstance(step, Changes) for one in step.items]
    found: list[bytes] = []
    for one in kept:
        if isinstance(one, tuple):
            gone, texts = content_of(one)
            assert isinstance(texts, list)
            found += texts[gone:]
    return found


def test_drafts_are_given_back_at_the_commit(drafting):
    streamed(drafting, (7, "one"), (8, "two"), (7, "three"))
    assert values(drafting) == [b"one", b"two", b"three"]


def test_drafts_of_an_aborted_subtransaction_are_not(drafting):
    streamed(drafting, (7, "one"), (8, "two"), (8, "three"), (7, "four"))
    drafting.take(stream_abort(7, 8))
    assert values(drafting) == [b"one", b"four"]


@pytest.mark.parametrize("done", [0, 1, 2, 3, 4])
def test_what_the_checkpoint_covers_is_left_out_of_drafts(tmp_path, done):
    receiver = Receiver(tmp_path, Position(200, 200, done), draft=by_xid)
    streamed(receiver, (7, "one"), (7, "two"), (8, "aborted"), (9, "three"), (7, "four"))
    receiver.take(stream_abort(7, 8))
    assert values(receiver) == [b"one", b"two", b"three", b"four"][done:]


def test_drafts_of_a_transaction_that_is_delivered_are_left_out(tmp_path):
    receiver = Receiver(tmp_path, Position(200, 210), draft=by_xid)
    streamed(receiver, (7, "one"))
    assert values(receiver) == []


def test_the_relations_described_so_far_are_given_with_the_rows(tmp_path):
    seen: list[tuple[list[SpoolItem], list[int]]] = []

    def look(items: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]) -> list[SpoolItem]:
        seen.append((items, sorted(relations)))
        return items

    receiver = Receiver(tmp_path, draft=look)
    one, two, three = insert("one", 7), insert("two", 7), insert("three", 7)
    receiver.take(block(7, described("a", xid=7, oid=1), one, two, described("b", xid=7, oid=2), three))
    assert seen == [([one, two], [1]), ([three], [1, 2])]
    receiver.take(begin(8, 100), insert("plain"), commit(100))
    assert len(seen) == 2


# Turns of other tasks, and transactions that need no replay.


def test_other_tasks_get_a_turn_after_each_run_of_rows_that_arrives(receiver):
    frames = block(7, described("a", xid=7), insert("one", 7), insert("two", 7), described("b", xid=7))
    kinds = [type(step) for step in receiver.assembler.assemble(frames)]
    assert kinds == [RelationPreview, TurnEnd, RelationPreview]


def test_other_tasks_get_a_turn_for_each_list_that_is_skipped_of_a_half_delivered_transaction(tmp_path):
    rows = [insert(f"{number}{'x' * 5000}", 7) for number in range(300)]
    receiver = Receiver(tmp_path, Position(200, 200, 299), memory_bytes_max=1000)
    receiver.take(block(7, *rows))
    lists = len(list(receiver.spool.replay(7)))
    assert lists > 4
    kinds = [type(step) for step in receiver.assembler.assemble([stream_commit(7, 200)])]
    assert kinds == [Opened, *[TurnEnd] * (lists - 1), Changes, Closed]


def empty_spool_files(directory: Path) -> None:
    """Take away what is on disk: to read it would be an error."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and str(entry.readlink()).startswith(str(directory)):
            os.truncate(entry, 0)


def test_of_a_transaction_that_is_delivered_no_row_is_read(tmp_path):
    receiver = Receiver(tmp_path, Position(200, 210), memory_bytes_max=1000)
    rows = [insert("x" * 500, 7) for _ in range(100)]
    receiver.take(block(7, described("old", xid=7), *rows, described("new", xid=7), *rows))
    assert receiver.spool.disk_bytes
    empty_spool_files(tmp_path)
    assert receiver.take(stream_commit(7, 200)) == ["relation new"]
    assert receiver.spool.disk_bytes == receiver.spool.memory_bytes == 0
    assert receiver.take(begin(8, 300), insert("two"), commit(300)) == ["open 8", "two", "close 310"]


def test_a_delivered_transaction_leaves_newer_descriptions_in_force(tmp_path):
    receiver = Receiver(tmp_path, Position(200, 210))
    receiver.take(block(7, described("old", xid=7), insert("one", 7)))
    assert receiver.take(begin(8, 100), described("new"), commit(100)) == ["relation new"]
    assert receiver.take(stream_commit(7, 200)) == []


# Logical messages in their place.


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_messages_stand_between_the_changes_and_count_as_one_event_each(tmp_path, done):
    receiver = Receiver(tmp_path, Position(200, 200, done), draft=by_xid)
    receiver.take(block(7, insert("one", 7), emitted("two", 7), insert("three", 7)))
    steps = list(receiver.assembler.assemble([stream_commit(7, 200)]))
    kinds = [type(step) for step in steps if not isinstance(step, Opened | Closed | TurnEnd)]
    # A message that is delivered already follows, because it may concern the events behind it.
    assert kinds == [[Changes, TransactionalMessage], [TransactionalMessage]][done > 0] + [Changes] * (
        done < 3
    )
    assert [step.is_delivered for step in steps if isinstance(step, TransactionalMessage)] == [done > 1]
    assert all(step.in_stream for step in steps if isinstance(step, TransactionalMessage))
