"""The texts of frames, which sessions without conversion replace: all of them, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Column,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamPrepare,
    Truncate,
    Type,
    Update,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.texts import TextKind, texts_of, with_texts
from cdcd.core.protocol.writer import write_message

ROW = (b"1", None, UNCHANGED, "é".encode(), b"a", "größer".encode())
COLUMNS = (Column(1, "é", 25, -1), Column(0, "b", 23, -1), Column(0, "ü", 25, 7))


def frame_of(message: Message) -> bytes:
    return write_frame(XLogData(7, 7, 9, write_message(message)))


def upper(text: bytes, _kind: TextKind) -> bytes:
    """Another text of another length, as a conversion makes it."""
    return text.decode().upper().encode() * 2


MESSAGES: list[tuple[Message, list[bytes]]] = [
    (Insert(None, 1, ROW), [b"\xc3\xa9", "größer".encode()]),
    (Insert(5, 1, ROW), [b"\xc3\xa9", "größer".encode()]),
    (Update(None, 1, "O", ROW, ROW), [b"\xc3\xa9", "größer".encode()] * 2),
    (Update(5, 1, "", None, ROW), [b"\xc3\xa9", "größer".encode()]),
    (Delete(None, 1, "K", ROW), [b"\xc3\xa9", "größer".encode()]),
    (Relation(None, 1, "ö", "ä", "d", COLUMNS), ["ö".encode(), "ä".encode(), "é".encode(), "ü".encode()]),
    (Relation(5, 1, "", "t", "f", COLUMNS[1:]), ["ü".encode()]),
    (Type(5, 2, "ö", "ä"), ["ö".encode(), "ä".encode()]),
    (Origin(8, "ä"), ["ä".encode()]),
    (LogicalMessage(None, True, 9, "ä", b"\xff"), ["ä".encode()]),
    (LogicalMessage(5, True, 9, "ä", "ä".encode()), ["ä".encode()]),
    (BeginPrepare(1, 2, 3, 4, "ä"), ["ä".encode()]),
    (Prepare(1, 2, 3, 4, "ä"), ["ä".encode()]),
    (StreamPrepare(1, 2, 3, 4, "ä"), ["ä".encode()]),
    (CommitPrepared(1, 2, 3, 4, "ä"), ["ä".encode()]),
    (RollbackPrepared(1, 2, 3, 4, 6, "ä"), ["ä".encode()]),
    (Begin(1, 2, 3), []),
    (Truncate(None, False, False, (1, 2)), []),
]


@pytest.mark.parametrize(("message", "texts"), MESSAGES)
def test_every_text_is_found_and_a_frame_with_others_reads_as_the_same_message(
    message: Message, texts: list[bytes]
):
    frame = frame_of(message)
    in_stream = getattr(message, "xid", None) == 5
    found = texts_of(frame, in_stream)
    assert [frame[text.begin : text.end] for text in found] == texts
    assert with_texts(frame, found, lambda text, _: text) == frame
    changed = with_texts(frame, found, upper)
    read = read_message(changed, XLOG_HEADER, in_stream=in_stream)
    assert type(read) is type(message)
    assert [changed[text.begin : text.end] for text in texts_of(changed, in_stream)] == [
        upper(text, TextKind.VALUE) for text in texts
    ]


def test_what_becomes_of_a_text_depends_on_what_it_is():
    kinds = [text.kind for message, _ in MESSAGES for text in texts_of(frame_of(message), False)]
    assert set(kinds) == {TextKind.VALUE, TextKind.NAME, TextKind.LABEL}


def test_ascii_is_left_alone_and_so_are_keepalives():
    assert texts_of(frame_of(Insert(None, 1, (b"a", b"1"))), False) == []
    assert texts_of(b"k" + bytes(17), False) == []


@given(st.sampled_from(MESSAGES), st.integers(0, 200), st.integers(0, 255), st.booleans())
def test_a_frame_that_is_malformed_is_left_to_the_strict_reader(message, at, byte, cut):
    frame = frame_of(message[0])
    at = min(at, len(frame) - 1)
    changed = frame[:at] if cut else frame[:at] + bytes([byte]) + frame[at + 1 :]
    for in_stream in (False, True):
        found = texts_of(changed, in_stream)
        assert with_texts(changed, found, lambda text, _: text) == changed
