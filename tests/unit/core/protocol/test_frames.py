import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import (
    XLOG_HEADER,
    Keepalive,
    StatusUpdate,
    XLogData,
    read_frame,
    read_status,
    write_frame,
)
from tests.unit.core.protocol.strategies import frames, statuses


@given(frames)
def test_a_frame_that_is_written_reads_back_equal(frame):
    assert read_frame(write_frame(frame)) == frame


@given(statuses)
def test_a_status_update_that_is_written_reads_back_equal(status):
    assert read_status(write_frame(status)) == status


def test_the_bytes_are_those_of_the_manual():
    data = (
        b"w" + b"\0\0\0\0\x01\x6b\x37\x48" + b"\0\0\0\0\x01\x6b\x37\x49" + b"\0\0\0\0\0\0\0\x05" + b"payload"
    )
    assert read_frame(data) == XLogData(0x16B3748, 0x16B3749, 5, b"payload")
    assert data[XLOG_HEADER:] == b"payload"
    keepalive = b"k" + b"\0\0\0\0\0\0\0\x07" + b"\xff" * 8 + b"\x01"
    assert read_frame(keepalive) == Keepalive(7, -1, reply_requested=True)
    status = b"r" + bytes(7) + b"\x03" + bytes(7) + b"\x02" + bytes(7) + b"\x01" + bytes(7) + b"\x09" + b"\0"
    assert write_frame(StatusUpdate(3, 2, 1, 9)) == status


@given(frames.filter(lambda frame: isinstance(frame, Keepalive)))
def test_every_prefix_of_a_keepalive_and_every_byte_after_it_is_refused(frame):
    data = write_frame(frame)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            read_frame(data[:size])
    with pytest.raises(ProtocolError, match=r"Keepalive: .* 1 bytes left over"):
        read_frame(data + b"\0")


@pytest.mark.parametrize("size", range(XLOG_HEADER))
def test_a_piece_of_wal_without_its_whole_header_is_refused(size):
    with pytest.raises(ProtocolError):
        read_frame(b"w".ljust(XLOG_HEADER, b"\0")[:size])


@given(statuses)
def test_every_prefix_of_a_status_update_and_every_byte_after_it_is_refused(status):
    data = write_frame(status)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            read_status(data[:size])
    with pytest.raises(ProtocolError, match=r"StatusUpdate: .* 1 bytes left over"):
        read_status(data + b"\0")


def test_an_unknown_frame_is_refused_by_name():
    with pytest.raises(ProtocolError, match="frame: field tag at offset 0: unknown frame 's'"):
        read_frame(b"s" + bytes(17))
    with pytest.raises(ProtocolError, match="StatusUpdate: field tag at offset 0: unknown frame 'h'"):
        read_status(b"h" + bytes(33))


def test_a_reply_request_that_is_neither_yes_nor_no_is_refused():
    with pytest.raises(ProtocolError, match="Keepalive: field reply_requested at offset 17"):
        read_frame(b"k" + bytes(16) + b"\x02")


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_protocol_errors(data):
    for read in (read_frame, read_status):
        try:
            frame = read(data)
        except ProtocolError:
            continue
        assert write_frame(frame) == data
