import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.protocol.messages import Begin, Insert, Origin, StreamAbort, StreamStop, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from tests.unit.core.protocol.strategies import by_class

CASES = [
    (message, in_stream, abort_info)
    for in_stream in (False, True)
    for abort_info in (False, True)
    for message in by_class(in_stream=in_stream, abort_info=abort_info)
]


@pytest.mark.parametrize(
    ("message", "in_stream", "abort_info"),
    CASES,
    ids=[f"{message.__name__}-{in_stream=}-{abort_info=}" for message, in_stream, abort_info in CASES],
)
@given(data=st.data())
def test_a_message_that_is_written_reads_back_equal(message, in_stream, abort_info, data):
    one = data.draw(by_class(in_stream=in_stream, abort_info=abort_info)[message])
    assert read_message(write_message(one), in_stream=in_stream, abort_info=abort_info) == one


def test_the_bytes_are_those_of_the_manual():
    assert write_message(Begin(0x0102030405060708, -1, 5)) == (
        b"B" + bytes(range(1, 9)) + b"\xff" * 8 + b"\0\0\0\x05"
    )
    assert write_message(Insert(7, 16385, (b"ab", None))) == (
        b"I" + b"\0\0\0\x07" + b"\0\0\x40\x01" + b"N" + b"\0\x02" + b"t\0\0\0\x02ab" + b"n"
    )
    assert write_message(Update(None, 1, "O", (), ())) == b"U\0\0\0\x01O\0\0N\0\0"
    assert write_message(Origin(1, "ü")) == b"O" + bytes(7) + b"\x01" + b"\xc3\xbc\0"
    assert write_message(StreamStop()) == b"E"


def test_a_string_with_a_zero_byte_is_our_own_bug():
    with pytest.raises(AssertionError):
        write_message(Origin(1, "a\0b"))


def test_an_abort_time_without_its_lsn_is_our_own_bug():
    with pytest.raises(AssertionError):
        write_message(StreamAbort(1, 2, None, 3))
