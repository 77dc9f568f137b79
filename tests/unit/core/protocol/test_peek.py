"""What is read without decoding is what the strict reader reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.protocol.frames import XLOG_HEADER, Keepalive, XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Begin,
    Binary,
    Column,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    TupleData,
    Update,
)
from cdcd.core.protocol.peek import (
    BEGIN,
    CHANGES,
    COMMIT,
    DELETE,
    HEAD_BYTES,
    INSERT,
    KEEPALIVE_BYTES,
    MESSAGE,
    RELATION,
    ROWS,
    STREAMED_HEAD_BYTES,
    TRUNCATE,
    UPDATE,
    XLOG_DATA,
    described_relations,
    first_row,
    key_values,
    lsn_of,
    message_prefix,
    picked_values,
    read_head,
    relation_oids,
    row_width,
    tag_of,
    xid_of,
)
from cdcd.core.protocol.writer import write_message

OID = 0x80000001
LSN = 2**63 + 5

values = st.one_of(
    st.none(), st.just(UNCHANGED), st.binary(max_size=300), st.builds(Binary, st.binary(max_size=9))
)
rows = st.lists(values, min_size=1, max_size=5).map(tuple)
xids = st.one_of(st.none(), st.integers(1, 2**32 - 1))


def frame_of(message: Message) -> bytes:
    return write_frame(XLogData(LSN, LSN, 0, write_message(message)))


def test_tags_are_those_of_the_messages():
    kinds = {Insert: INSERT, Update: UPDATE, Delete: DELETE, Truncate: TRUNCATE, Relation: RELATION}
    for kind, tag in {**kinds, LogicalMessage: MESSAGE}.items():
        assert vars(kind)["tag"] == tag
    assert sorted(ROWS) == sorted((Insert.tag, Update.tag, Delete.tag))
    assert ROWS | {Truncate.tag} == CHANGES
    assert XLogData.tag == XLOG_DATA
    assert len(write_frame(Keepalive(1, 2, True))) == KEEPALIVE_BYTES


def test_begin_and_commit_are_read_as_they_were_written():
    assert BEGIN.unpack(frame_of(Begin(LSN, -7, 9))) == (LSN, -7, 9)
    assert COMMIT.unpack(frame_of(Commit(LSN, LSN + 1, -7))) == (0, LSN, LSN + 1, -7)


@given(xids, rows)
def test_the_head_of_a_row(xid: int | None, row: TupleData):
    in_stream = xid is not None
    frame = frame_of(Insert(xid, OID, row))
    assert (tag_of(frame), lsn_of(frame), relation_oids(frame, in_stream)) == (INSERT, LSN, [OID])
    assert read_head(frame, in_stream) == (LSN, INSERT, OID, ord("N"), len(row))
    at = STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES
    assert row_width(frame, at - 3) == len(row)
    if xid is not None:
        assert xid_of(frame) == xid


@given(xids, st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=4))
def test_the_relations_of_a_truncate(xid: int | None, oids: list[int]):
    frame = frame_of(Truncate(xid, True, False, tuple(oids)))
    assert relation_oids(frame, xid is not None) == oids


def test_other_messages_are_about_no_relation_that_has_rows():
    assert relation_oids(frame_of(LogicalMessage(None, True, 1, "p", b"content")), False) == []
    assert relation_oids(frame_of(Relation(None, 5, "s", "t", "d", (Column(0, "a", 25, -1),))), False) == []


@given(
    xids, st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20), st.binary(max_size=9)
)
def test_the_prefix_of_a_logical_message(xid: int | None, prefix: str, content: bytes):
    frame = frame_of(LogicalMessage(xid, True, LSN, prefix, content))
    assert message_prefix(frame, xid is not None) == prefix.encode()


def test_a_prefix_without_an_end_is_what_is_left():
    frame = frame_of(LogicalMessage(None, True, LSN, "cdcd.snapshot", b""))
    assert message_prefix(frame[: frame.index(b"cdcd") + 4], False) == b"cdcd"
    assert message_prefix(frame[:30], False) == b""


def expected(
    row: TupleData, old: TupleData | None, indexes: list[int]
) -> tuple[tuple[bool, bytes], ...] | None:
    found = []
    for index in indexes:
        value = row[index]
        if value is UNCHANGED and old is not None:
            value = old[index]
        if value is None or value is UNCHANGED:
            return None
        found.append((True, value.data) if isinstance(value, Binary) else (False, value))
    return tuple(found)


@given(xids, rows, st.sampled_from(["insert", "update", "K", "O"]), st.data())
def test_the_key_is_that_of_the_new_row(xid: int | None, row: TupleData, kind: str, data: st.DataObject):
    old = data.draw(st.tuples(*[values] * len(row)))
    message: Message = Insert(xid, OID, row)
    before = old if kind in "KO" else None
    if kind != "insert":
        message = Update(xid, OID, kind if before is not None else "", before, row)
    indexes = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=3))
    assert key_values(frame_of(message), xid is not None, indexes) == expected(row, before, indexes)


def test_a_deleted_row_has_no_new_key():
    assert key_values(frame_of(Delete(None, OID, "K", (b"1",))), False, [0]) is None


def test_a_row_that_is_cut_off_is_an_error():
    frame = frame_of(Update(7, OID, "O", (b"1", Binary(b"old")), (b"1", b"new")))
    for size in range(XLOG_HEADER + 5, len(frame)):
        with pytest.raises((ValueError, IndexError)):
            key_values(frame[:size], True, [0])


def test_single_values_of_a_row_are_picked():
    row = (b"1", None, UNCHANGED, Binary(b"\1"), b"last")
    message = write_frame(XLogData(0, 0, 0, write_message(Insert(None, 7, row))))
    at = first_row(False)
    assert picked_values(message, at, 5, [0, 2, 3]) == ([b"1", UNCHANGED, Binary(b"\1")], len(message))
    assert picked_values(message, at, 5, [1, 4]) == ([None, b"last"], len(message))
    assert picked_values(message, at, 5, []) == ([], len(message))
    with pytest.raises(ValueError, match="another number of columns"):
        picked_values(message, at, 4, [0])
    with pytest.raises((ValueError, IndexError)):
        picked_values(message[:-1], at, 5, [0])


def test_the_relations_that_frames_describe_are_those_of_relation_messages_alone():
    described = Relation(None, 7, "public", "t", "d", ())
    other = Relation(None, 0xFFFFFFFE, "public", "u", "d", (Column(1, "id", 23, -1),))
    messages: list[Message] = [described, Insert(None, 9, TupleData((b"1",))), other]
    frames = [write_frame(XLogData(1, 1, 1, write_message(each))) for each in messages]
    assert described_relations([*frames, write_frame(Keepalive(1, 1, False))]) == [7, 0xFFFFFFFE]
