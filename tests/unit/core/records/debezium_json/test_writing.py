"""What is written byte by byte is what the converters of uncompiled code make."""

from decimal import Decimal
from struct import pack
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from cdcd.core.catalog import binary
from cdcd.core.records.debezium_json.converter import float_json
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.writing import (
    copy,
    write_decimal,
    write_digits,
    write_double,
    write_integer,
    write_string,
    write_uuid,
)
from tests.unit.core.catalog.test_binary import numeric

AROUND = b"<>"


def around(data: bytes) -> tuple[bytes, int, int]:
    """`data` in the middle of something, and where it is."""
    return AROUND[:1] + data + AROUND[1:], 1, 1 + len(data)


@given(st.binary(max_size=200))
def test_a_copy_is_all_of_the_bytes_and_no_others(data):
    out = BytesWriter()
    copy(*around(data), out)
    assert out.getvalue() == data


@given(st.binary(max_size=40) | st.text(max_size=100).map(str.encode))
@example(bytes(range(256)))
@example(b"x" * 300 + b'"' + b"y" * 300)
def test_a_string_is_quoted_as_json_wants_it(data):
    out = BytesWriter()
    write_string(*around(data), out)
    assert out.getvalue() == quote(data.decode("latin-1")).encode("latin-1")


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
@example(0)
@example(-10)
def test_an_integer_has_its_digits(number):
    out = BytesWriter()
    write_integer(number, out)
    assert out.getvalue() == str(number).encode()


@given(st.integers(0, 10**9), st.integers(1, 12))
def test_so_many_last_digits_are_written_with_zeros_before_them(number, digits):
    out = BytesWriter()
    write_digits(number, digits, out)
    assert out.getvalue() == f"{number:0{digits}}"[-digits:].encode()


@given(
    st.floats()
    | st.integers(-(10**12), 10**12).map(lambda cents: cents / 100)
    | st.integers(-(10**9), 10**9).map(lambda millionths: millionths / 10**6)
    | st.integers(-(10**6), 10**6).map(float)
)
@example(0.0)
@example(0.1)
@example(0.00010000000000000002)
@example(999999999.999999)
@example(123456789.1234567)
@example(float("nan"))
@example(float("-inf"))
def test_a_double_has_its_shortest_digits_or_is_left(value):
    out = BytesWriter()
    if write_double(value, out):
        assert out.getvalue().decode() == float_json(binary.float8_text(pack("!d", value)))
    else:
        assert not len(out)


@pytest.mark.parametrize("value", [0.25, -1234.5, 1.0, 99999999.123456, 0.0001])
def test_a_double_as_most_are_is_not_left(value):
    assert write_double(value, BytesWriter())


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30))
@example(Decimal("0.00"))
@example(Decimal("-0.0000001"))
@example(Decimal(10000))
@example(Decimal("1E+12"))
def test_a_numeric_keeps_every_digit_and_its_scale(value):
    data = numeric(value)
    out = BytesWriter()
    assert write_decimal(*around(data), out)
    assert out.getvalue() == f'"{binary.numeric_text(data)}"'.encode()


@given(
    st.lists(st.integers(0, 10_000), max_size=6),
    st.integers(-6, 8),
    st.sampled_from([0, 0x4000, 0xC000, 0xD000, 1]),
    st.integers(0, 40),
)
def test_a_numeric_of_any_groups_is_the_same_or_left(groups, weight, sign, scale):
    data = pack(f"!HhHH{len(groups)}H", len(groups), weight, sign, scale, *groups)
    out = BytesWriter()
    if write_decimal(*around(data), out):
        assert out.getvalue() == f'"{binary.numeric_text(data)}"'.encode()
    else:
        assert not len(out)
        assert sign in (0xC000, 0xD000, 1) or 10_000 in groups


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(9), pack("!HhHH", 1, 0, 0, 0)])
def test_what_is_too_short_for_a_numeric_is_left(data):
    assert not write_decimal(*around(data), BytesWriter())


@given(st.uuids())
def test_a_uuid_is_its_text(value: UUID):
    out = BytesWriter()
    data, at, _ = around(value.bytes)
    write_uuid(data, at, out)
    assert out.getvalue() == f'"{value}"'.encode()
