"""Which logical messages are taken whole, and what takes the place of the others."""

import hashlib

import pytest

from cdcd.core.protocol import peek
from cdcd.core.protocol.copydata import LARGE_BYTES, take_frames
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import Insert, LogicalMessage
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.shortened import PREFIX_BYTES_MAX, MessageLimits, read_digest
from cdcd.core.protocol.writer import write_message

LSN = 0x1_0000_00F0


def frame_of(
    content: bytes, *, prefix: str = "p", xid: int | None = None, transactional: bool = True
) -> bytes:
    message = LogicalMessage(xid, transactional, LSN, prefix, content)
    return write_frame(XLogData(LSN, LSN, 7, write_message(message)))


def message_in(frame: bytes, *, in_stream: bool = False) -> LogicalMessage:
    message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(message, LogicalMessage)
    return message


@pytest.mark.parametrize("xid", [None, 742])
def test_a_message_beyond_its_limit_becomes_its_size_and_digest(xid):
    content = b"abc" * 1000
    short = MessageLimits({}, 2999).shorten(memoryview(frame_of(content, xid=xid)))
    assert short is not None
    assert peek.shortened_bytes(short) == len(content)
    message = message_in(short, in_stream=xid is not None)
    assert (message.xid, message.transactional, message.lsn, message.prefix) == (xid, True, LSN, "p")
    assert read_digest(message.content) == hashlib.sha256(content).digest()
    assert (peek.lsn_of(short), peek.sent_at_of(short)) == (LSN, 7)


def test_a_message_of_the_largest_size_is_taken_whole():
    frame = frame_of(b"abc")
    assert MessageLimits({}, 3).shorten(memoryview(frame)) is None
    assert peek.shortened_bytes(frame) == -1


def test_of_a_message_that_nobody_asked_for_only_the_size_is_taken():
    short = MessageLimits({b"cdcd.publish": 10}, None).shorten(memoryview(frame_of(b"abc" * 1000)))
    assert short is not None
    assert peek.shortened_bytes(short) == 3000
    assert message_in(short).content == b""


def test_a_prefix_has_its_own_limit():
    limits = MessageLimits({b"cdcd.publish": 10}, None)
    assert limits.shorten(memoryview(frame_of(b"0123456789", prefix="cdcd.publish"))) is None
    short = limits.shorten(memoryview(frame_of(b"0123456789a", prefix="cdcd.publish")))
    assert short is not None
    assert peek.shortened_bytes(short) == 11
    assert read_digest(message_in(short).content) == hashlib.sha256(b"0123456789a").digest()


def test_a_long_prefix_is_cut_between_two_characters_whatever_the_content_is():
    prefix = "x" * (PREFIX_BYTES_MAX - 1) + "é" * 100_000
    short = MessageLimits().shorten(memoryview(frame_of(b"abc", prefix=prefix)))
    assert short is not None
    message = message_in(short)
    assert message.prefix == "x" * (PREFIX_BYTES_MAX - 1)
    assert read_digest(message.content) == hashlib.sha256(b"abc").digest()
    assert len(short) < 2 * PREFIX_BYTES_MAX


def test_rows_and_what_is_malformed_are_left_to_the_strict_reader():
    limits = MessageLimits({}, None)
    row = write_frame(XLogData(LSN, LSN, 7, write_message(Insert(None, 5, (b"a" * 100,)))))
    whole = frame_of(b"abc" * 100)
    for frame in (row, whole[:-1], whole + b"x", whole[:30], b"", whole[:XLOG_HEADER]):
        assert limits.shorten(memoryview(frame)) is None


def test_a_frame_whose_place_in_the_stream_is_not_certain_is_taken_whole():
    # The xid, the flags and half of the LSN look like the LSN of the header.
    lsn = 0x0101010101010101
    message = LogicalMessage(0x01010101, True, lsn, "p", b"abc")
    frame = write_frame(XLogData(lsn, lsn, 7, write_message(message)))
    assert MessageLimits({}, None).shorten(memoryview(frame)) is None


def test_only_large_frames_are_asked_about_and_the_size_on_the_wire_counts():
    small, large = b"s" * LARGE_BYTES, b"l" * (LARGE_BYTES + 1)
    waiting = [small, large, small]
    asked: list[int] = []

    def get_copy_data(_: int) -> tuple[int, memoryview]:
        data = waiting.pop(0) if waiting else b""
        return len(data), memoryview(data)

    def shorten(data: memoryview) -> bytes | None:
        asked.append(len(data))
        return b"short"

    frames: list[bytes] = []
    assert take_frames(get_copy_data, frames, LARGE_BYTES + 2, shorten) == (len(large), 1 - LARGE_BYTES)
    assert frames == [small, b"short"]
    assert asked == [len(large)]
