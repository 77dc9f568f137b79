import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.peek import CHANGES
from cdcd.core.transactions.assembler import TRANSITIONS, StreamState
from cdcd.core.transactions.steps import Changes, Closed, Opened
from tests.unit.core.transactions.wire import (
    TIME,
    Receiver,
    alone,
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
    rollback_prepared,
    start,
    stop,
    stream_abort,
    stream_commit,
    stream_prepare,
    truncate,
    typed,
)


@pytest.fixture
def receiver(tmp_path):
    return Receiver(tmp_path)


# The table.

WAYS = {
    StreamState.IDLE: [],
    StreamState.TRANSACTION: [begin(7, 100)],
    StreamState.PREPARE: [begin_prepare(7, "gid", 100)],
    StreamState.STREAM: [start(7)],
}
TAGS = bytes(range(256))


def body(tag: int, state: StreamState) -> bytes:
    """A message with that tag that is right in that state."""
    xid = 7 if state is StreamState.STREAM else None
    samples = {
        "B": begin(8, 200),
        "C": commit(100),
        "R": described("a", xid=xid),
        "Y": typed(xid),
        "O": origin("upstream"),
        "I": insert("row", xid),
        "T": truncate(1, 2, xid=xid),
        "M": alone("m", 50) if state is StreamState.IDLE else emitted("m", xid),
        "S": start(8),
        "E": stop(),
        "c": stream_commit(5, 200),
        "A": stream_abort(5),
        "p": stream_prepare(5, "other", 200),
        "b": begin_prepare(8, "other", 200),
        "P": prepare(7, "gid", 100),
        "K": commit_prepared(6, "kept", 200),
        "r": rollback_prepared(6, "kept", 200),
    }
    return samples.get(chr(tag), b"w" + bytes(XLOG_HEADER - 1) + bytes((tag,)) + b"rest")


@pytest.mark.parametrize("state", StreamState)
def test_whatever_is_outside_of_the_table_is_refused(state, tmp_path):
    refused = []
    for tag in TAGS:
        if (state, tag) in TRANSITIONS or (state is StreamState.TRANSACTION and tag in CHANGES):
            continue
        receiver = Receiver(tmp_path)
        receiver.steps(WAYS[state])
        with pytest.raises(ProtocolError, match="out of place") as caught:
            receiver.steps(body(tag, state))
        assert state.name in caught.value.message
        refused.append(tag)
    assert len(refused) > 230


@pytest.mark.parametrize(
    ("state", "tag"), TRANSITIONS, ids=lambda part: chr(part) if isinstance(part, int) else part.name
)
def test_what_is_in_the_table_is_taken_and_leads_where_it_says(state, tag, tmp_path):
    if chr(tag) in "UD":
        tag = ord("I")
    receiver = Receiver(tmp_path)
    receiver.steps(
        block(5, insert("streamed", 5)), begin_prepare(6, "kept", 50), prepare(6, "kept", 50), WAYS[state]
    )
    if state is StreamState.IDLE and tag == ord("P"):
        receiver.steps(prepare(9, "alone", 60))
        return
    receiver.steps(body(tag, state))
    reached = TRANSITIONS[state, tag][0]
    with pytest.raises(ProtocolError, match=f"in the state {reached.name}"):
        receiver.steps(b"w" + bytes(XLOG_HEADER - 1) + b"?")


def test_each_state_can_be_left():
    assert {state for state, _ in TRANSITIONS} == set(StreamState)
    for state in StreamState:
        assert any(to is not state for (at, _), (to, _) in TRANSITIONS.items() if at is state)


# Frames.


@pytest.mark.parametrize(
    "damaged",
    [b"", b"w", b"k", b"?" * 40, b"w" + bytes(XLOG_HEADER - 1), keepalive(1)[:-1], keepalive(1) + b"x"],
    ids=["empty", "w", "k", "unknown", "without a message", "short", "long"],
)
def test_a_damaged_frame_is_refused(damaged, receiver):
    with pytest.raises(ProtocolError):
        receiver.steps(damaged)


@pytest.mark.parametrize("message", [begin(7, 100), start(7), begin_prepare(7, "g", 100), alone("m", 50)])
def test_a_message_that_is_cut_off_is_refused(message, tmp_path):
    for size in range(XLOG_HEADER + 1, len(message)):
        with pytest.raises(ProtocolError):
            Receiver(tmp_path).steps(message[:size])


# Normal transactions.


def test_a_normal_transaction_goes_straight_on(receiver):
    said = receiver.take(begin(7, 100), described("a"), insert("one"), insert("two"), commit(100))
    assert said == ["open 7", "relation a", "one", "two", "close 110"]
    assert receiver.ledger.flushed == 110


def test_its_changes_are_passed_on_before_its_commit_is_there(receiver):
    assert receiver.take(begin(7, 100), insert("one")) == ["open 7", "one"]
    assert receiver.take(insert("two")) == ["two"]
    assert receiver.ledger.flushed == 0
    assert receiver.take(commit(100)) == ["close 110"]


def test_it_says_when_and_after_whom_it_was_committed(receiver):
    steps = receiver.steps(begin(7, 100), commit(100), begin(8, 200), commit(200))
    assert isinstance(steps[0], Opened)
    assert isinstance(steps[2], Opened)
    first, second = [
        (step.kind, step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn, step.skip)
        for step in (steps[0], steps[2])
    ]
    assert first == ("plain", 7, 100, TIME, None, 0)
    assert second == ("plain", 8, 200, TIME, 100, 0)
    assert isinstance(steps[3], Closed)


def test_changes_come_in_runs_that_descriptions_and_messages_interrupt(receiver):
    steps = receiver.steps(
        begin(7, 100),
        insert("one"),
        truncate(1),
        emitted("two"),
        insert("three"),
        described("a"),
        insert("four"),
        commit(100),
    )
    assert [len(step.items) for step in steps if isinstance(step, Changes)] == [2, 1, 1]


def test_a_transaction_from_elsewhere_says_so_before_its_changes(receiver):
    said = receiver.take(begin(7, 100), origin("upstream"), insert("one"), commit(100))
    assert said == ["open 7", "origin upstream", "one", "close 110"]


def test_an_empty_transaction_moves_the_position(receiver):
    assert receiver.take(begin(7, 100), commit(100)) == ["open 7", "close 110"]
    assert receiver.ledger.flushed == 110


def test_a_commit_of_another_transaction_than_the_begun_one_is_refused(receiver):
    with pytest.raises(
        ProtocolError, match="Commit at 0/65 ends a transaction that Begin announced for 0/64"
    ):
        receiver.steps(begin(7, 100), commit(101))


def test_commits_that_go_back_are_refused(receiver):
    with pytest.raises(ProtocolError, match="comes after a later commit"):
        receiver.steps(begin(7, 100), commit(100), begin(8, 99))


def test_the_entry_is_open_from_the_moment_that_begin_is_decoded(receiver):
    receiver.steps(begin(7, 100))
    assert receiver.ledger.open_entries == 1


# Keepalives.


def test_a_keepalive_between_transactions_is_idle_and_one_within_is_not(receiver):
    assert receiver.take(keepalive(90), begin(7, 100), keepalive(91), insert("one"), keepalive(92)) == [
        "heard 90",
        "open 7",
        "heard 91 within",
        "heard 92 within",
        "one",
    ]
    assert receiver.take(commit(100), keepalive(110)) == ["close 110", "heard 110"]


def test_a_keepalive_within_a_block_or_a_prepare_is_not_idle_either(receiver):
    assert receiver.take(start(7), keepalive(5), stop(), keepalive(6)) == ["heard 5 within", "heard 6"]
    assert receiver.take(begin_prepare(8, "g", 50), keepalive(7), prepare(8, "g", 50), keepalive(60)) == [
        "heard 7 within",
        "heard 60",
    ]


def test_a_keepalive_raises_what_is_received_and_nothing_else(receiver):
    receiver.steps(keepalive(90))
    assert (receiver.ledger.received, receiver.ledger.flushed) == (90, 0)


# Non-transactional messages.


def test_a_message_alone_is_an_event_with_a_place_of_its_own(receiver):
    assert receiver.take(alone("hello", 100)) == ["alone hello"]
    assert receiver.ledger.flushed == 100


def test_a_message_that_ends_where_a_commit_starts_does_not_confirm_that_commit(receiver):
    # decode.c gives a message the LSN of its record's end, which is where the next record may start.
    said = receiver.take(alone("hello", 100), begin(7, 100), insert("one"), commit(100))
    assert said == ["alone hello", "open 7", "one", "close 110"]


def test_a_message_comes_between_the_blocks_of_streamed_transactions(receiver):
    said = receiver.take(
        block(7, insert("one", 7)),
        alone("hello", 50),
        block(7, insert("two", 7), first=False),
        stream_commit(7, 100),
    )
    assert said == ["alone hello", "open 7", "one", "two", "close 110"]


def test_a_transactional_message_outside_of_a_transaction_is_refused(receiver):
    with pytest.raises(ProtocolError, match="outside of a transaction"):
        receiver.steps(emitted("hello"))


def test_messages_keep_the_order_too(receiver):
    with pytest.raises(ProtocolError, match="comes after a later commit"):
        receiver.steps(begin(7, 100), commit(100), alone("hello", 90))


def test_a_message_in_a_transaction_is_one_of_its_events(receiver):
    said = receiver.take(begin(7, 100), insert("one"), emitted("two"), insert("three"), commit(100))
    assert said == ["open 7", "one", "two", "three", "close 110"]


# However the frames arrive.


@given(cuts=st.lists(st.integers(1, 17)))
def test_where_the_frames_are_cut_into_lists_changes_nothing(cuts, tmp_path_factory):
    frames = [
        begin(7, 100),
        described("a"),
        insert("one"),
        insert("two"),
        commit(100),
        *block(8, described("b", xid=8), insert("three", 8), insert("four", 9)),
        keepalive(120),
        alone("hello", 150),
        stream_abort(8, 9),
        *block(8, insert("five", 8), first=False),
        stream_commit(8, 200),
    ]
    whole = Receiver(tmp_path_factory.getbasetemp()).take(frames)
    parted = Receiver(tmp_path_factory.getbasetemp())
    said: list[str] = []
    at = 0
    for cut in [*cuts, len(frames)]:
        said += parted.take(frames[at : at + cut])
        at += cut
    assert said == whole


def test_counts_say_what_came(receiver):
    receiver.take(
        begin(7, 100),
        commit(100),
        block(8, insert("a", 8)),
        stream_abort(8, 9),
        stream_commit(8, 200),
        block(10, insert("b", 10)),
        stream_abort(10),
        begin_prepare(11, "g", 300),
        prepare(11, "g", 300),
        rollback_prepared(11, "g", 400),
        alone("m", 500),
    )
    assert receiver.assembler.counts == {
        "plain": 1,
        "streamed": 1,
        "prepared": 0,
        "message": 1,
        "aborted": 1,
        "subtransaction_aborted": 1,
        "rolled_back": 1,
    }
