from collections.abc import Callable

import pytest

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.cursor import Cursor


def refused(cursor: Cursor, read: Callable[[], object], text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read()
    assert caught.value.message == text
    assert "Nothing past it was confirmed" in caught.value.hint


def test_integers_are_big_endian_and_as_wide_as_their_name_says():
    cursor = Cursor(b"\x01" + b"\x01\x02" + b"\xff" * 4 + b"\xff" * 4 + b"\xff" * 8 + b"\xff" * 8, "M")
    assert cursor.uint8("a") == 1
    assert cursor.uint16("b") == 0x0102
    assert cursor.int32("c") == -1
    assert cursor.uint32("d") == 2**32 - 1
    assert cursor.int64("e") == -1
    assert cursor.uint64("f") == 2**64 - 1
    cursor.finish()


@pytest.mark.parametrize(
    ("method", "size"),
    [("uint8", 1), ("uint16", 2), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8), ("xid", 4)],
)
def test_a_short_integer_is_refused_with_message_field_and_offset(method, size):
    cursor = Cursor(b"x" * (3 + size - 1), "M", 3)
    refused(
        cursor,
        lambda: getattr(cursor, method)("f"),
        f"M: field f at offset 3: {size} bytes expected, {size - 1} left.",
    )


def test_a_string_ends_at_the_first_zero_byte():
    cursor = Cursor(b"ab\0\0", "M")
    assert cursor.string("f") == "ab"
    assert cursor.string("g") == ""
    cursor.finish()


def test_a_string_without_an_end_is_refused():
    cursor = Cursor(b"abc", "M", 1)
    refused(cursor, lambda: cursor.string("f"), "M: field f at offset 1: the string has no end.")


def test_a_string_that_is_not_utf8_is_refused_at_its_first_wrong_byte():
    cursor = Cursor(b"ab\xff\0", "M")
    refused(cursor, lambda: cursor.string("f"), "M: field f at offset 2: not UTF-8: invalid start byte.")


def test_a_length_and_so_many_bytes():
    cursor = Cursor(b"\0\0\0\x02ab", "M")
    assert cursor.sized("f") == b"ab"
    cursor.finish()


def test_a_length_beyond_the_end_is_refused():
    cursor = Cursor(b"\0\0\0\x03ab", "M")
    refused(cursor, lambda: cursor.sized("f"), "M: field f at offset 4: 3 bytes expected, 2 left.")


def test_a_negative_length_is_refused():
    cursor = Cursor(b"\xff\xff\xff\xff", "M")
    refused(cursor, lambda: cursor.sized("f"), "M: field f at offset 0: the length -1 is negative.")


def test_known_flags_are_given_back_and_unknown_ones_refused():
    assert Cursor(b"\x02", "M").flags("f", 3) == 2
    cursor = Cursor(b"\x06", "M")
    refused(cursor, lambda: cursor.flags("f", 3), "M: field f at offset 0: unrecognized flags 0x06.")


def test_a_boolean_is_0_or_1():
    assert Cursor(b"\x01", "M").boolean("f") is True
    assert Cursor(b"\x00", "M").boolean("f") is False
    cursor = Cursor(b"\x02", "M")
    refused(cursor, lambda: cursor.boolean("f"), "M: field f at offset 0: 2 is neither 0 nor 1.")


def test_0_is_no_transaction_id():
    cursor = Cursor(bytes(4), "M")
    refused(cursor, lambda: cursor.xid("f"), "M: field f at offset 0: 0 is no transaction id.")


def test_an_lsn_that_must_be_set_is_not_0():
    cursor = Cursor(bytes(8), "M")
    refused(cursor, lambda: cursor.set_lsn("f"), "M: field f at offset 0: the LSN is not set.")


def test_bytes_after_the_last_field_are_refused():
    cursor = Cursor(b"ab", "M")
    cursor.uint8("f")
    refused(cursor, cursor.finish, "M: field end at offset 1: 1 bytes left over.")


def test_the_rest_is_all_that_is_left():
    cursor = Cursor(b"abc", "M", 1)
    assert cursor.rest() == b"bc"
    cursor.finish()
