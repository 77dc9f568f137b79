"""Values under modes, beside what `test_debezium_modes.py` compares with a real Debezium."""

import json
from base64 import b64decode
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.logical import LogicalType
from cdcd.core.catalog.modes import ADDED, Modes
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ProtocolError
from cdcd.core.facts import Fact
from cdcd.core.facts.rules import ValueUnwritable
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.debezium_json.converters import converter_for, converter_of
from cdcd.core.records.debezium_json.mode_types import unscaled
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.unwritable import UnwritableError

PRECISE = Modes(decimal="precise")
NUMERIC, MONEY, TIMESTAMP, BYTEA = 1700, 790, 1114, 17
RELATION = Relation(
    None, 16_384, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "price", NUMERIC, -1))
)


@given(st.integers())
def test_the_bytes_of_a_number_are_read_back(number):
    text = f"{'-' if number < 0 else ''}{abs(number) // 1000}.{abs(number) % 1000:03}"
    assert int.from_bytes(unscaled(text, 3), "big", signed=True) == number


def test_a_number_of_the_greatest_length_is_written():
    text = "9" * 20_000
    written = json.loads(converter_for(NUMERIC, -1, {}, PRECISE).json(text))
    assert int.from_bytes(b64decode(written["value"]), "big") == int(Decimal(text))


def test_a_negative_scale_leaves_out_zeros_before_the_point():
    hundreds = (4 << 16 | -2 & 0x7FF) + 4
    written = json.loads(converter_for(NUMERIC, hundreds, {}, PRECISE).json("1200"))
    assert int.from_bytes(b64decode(written), "big") == 12
    with pytest.raises(ValueError, match="more digits"):
        converter_for(NUMERIC, hundreds, {}, PRECISE).json("1234")


@pytest.mark.parametrize("text", ["", "-", "x", "1.2.3", "--1"])
def test_what_is_no_number_is_refused(text):
    for modes in (PRECISE, Modes(decimal="double")):
        with pytest.raises((ValueError, ArithmeticError)):
            converter_for(NUMERIC, -1, {}, modes).json(text)


@pytest.mark.parametrize(
    ("modes", "oid", "text", "data"),
    [
        (PRECISE, MONEY, "-$1,234.50", (-123450).to_bytes(8, "big", signed=True)),
        (Modes(decimal="double"), MONEY, "-$1,234.50", (-123450).to_bytes(8, "big", signed=True)),
        (Modes(binary="hex"), BYTEA, "\\xff00", b"\xff\x00"),
        (Modes(binary="base64-url-safe"), BYTEA, "\\xfbff", b"\xfb\xff"),
        (Modes(time_precision="isostring"), 1082, "2000-01-02", (1).to_bytes(4, "big")),
        (Modes(time_precision="nanoseconds"), 1083, "00:00:01", (1_000_000).to_bytes(8, "big")),
        (Modes(time_precision="connect"), TIMESTAMP, "2000-01-01 00:00:01", (1_000_000).to_bytes(8, "big")),
        (Modes(time_precision="microseconds"), TIMESTAMP, "infinity", (2**63 - 1).to_bytes(8, "big")),
        (
            Modes(time_precision="isostring"),
            TIMESTAMP,
            "2000-01-01 00:00:01.5",
            (1_500_000).to_bytes(8, "big"),
        ),
        (
            Modes(interval="numeric"),
            1186,
            "1 mon 2 days 00:00:01",
            (1_000_000).to_bytes(8, "big") + (2).to_bytes(4, "big") + (1).to_bytes(4, "big"),
        ),
    ],
)
def test_text_and_binary_form_are_the_same(modes, oid, text, data):
    converter = converter_for(oid, -1, {}, modes)
    assert converter.binary(data) == converter.json(text)


@pytest.mark.parametrize("name", ADDED)
def test_what_stands_for_a_value_that_was_not_sent_is_json_and_not_null(name):
    converter = converter_of(LogicalType(name, modifier=(10 << 16 | 2) + 4))
    assert json.loads(converter.unchanged('<"gone">')) is not None
    assert all(json.loads(each) is not None for each in converter.unchanged_element("é"))


def test_the_placeholder_of_hexadecimal_digits_is_itself_and_that_of_base64_is_encoded():
    assert converter_for(BYTEA, -1, {}, Modes(binary="hex")).unchanged("gone") == '"gone"'
    written = json.loads(converter_for(BYTEA, -1, {}, Modes(binary="base64")).unchanged("gone"))
    assert b64decode(written) == b"gone"


@pytest.mark.parametrize(
    ("modes", "oid", "text", "key"),
    [
        (PRECISE, NUMERIC, "NaN", "decimal_handling_mode"),
        (PRECISE, NUMERIC, "-Infinity", "decimal_handling_mode"),
        (Modes(time_precision="nanoseconds"), TIMESTAMP, "9999-12-31 00:00:00", "time_precision_mode"),
    ],
)
def test_a_value_without_a_form_is_refused_with_what_to_do(modes, oid, text, key):
    with pytest.raises(UnwritableError) as refusal:
        converter_for(oid, -1, {}, modes).json(text)
    assert f"format.{key}" in refusal.value.hint


PRECISE_KEYS = [
    # Numbers beyond those that a numeric(4,2), and any numeric, can have.
    ((4, 2), "NaN", 20_000),
    ((4, 2), "Infinity", 10_000),
    (None, "-Infinity", (-131_072, -1)),
    (None, "NaN", (-131_072, 2)),
]


@pytest.mark.parametrize(("size", "text", "number"), PRECISE_KEYS)
def test_in_a_key_a_number_that_no_row_can_have_stands_for_one_that_is_none(size, text, number):
    modifier = -1 if size is None else (size[0] << 16 | size[1]) + 4
    converter = converter_for(NUMERIC, modifier, {}, PRECISE)
    with pytest.raises(UnwritableError) as refusal:
        converter.json(text)
    written = json.loads(converter.json(refusal.value.nearest))
    if size is None:
        found: Any = (written["scale"], int.from_bytes(b64decode(written["value"]), "big", signed=True))
    else:
        found = int.from_bytes(b64decode(written), "big", signed=True)
    assert found == number


@pytest.mark.parametrize(
    ("text", "micros"), [("9999-12-31 00:00:00", 2**63), ("0001-01-01 00:00:00", -(2**63))]
)
@pytest.mark.parametrize("mode", ["nanoseconds"])
def test_in_a_key_the_end_of_the_time_that_is_held_stands_for_a_far_timestamp(mode, text, micros):
    converter = converter_for(TIMESTAMP, -1, {}, Modes(time_precision=mode))
    with pytest.raises(UnwritableError) as refusal:
        converter.json(text)
    assert abs(int(converter.json(refusal.value.nearest)) - micros) < 2000


def test_the_end_of_the_time_that_microseconds_hold_is_in_the_year_294247():
    converter = converter_for(TIMESTAMP, -1, {}, Modes(time_precision="microseconds"))
    with pytest.raises(UnwritableError) as refusal:
        converter.json("294276-12-31 23:59:59.999999")
    assert int(converter.json(refusal.value.nearest)) == 2**63 - 2
    assert "microseconds" in refusal.value.problem


def test_null_stands_for_a_value_without_a_form_whether_the_row_is_streamed_or_read():
    settings = EncoderSettings("1", "p", "d", modes=PRECISE)
    facts: list[Fact] = []
    encoder = record_stream(settings, False, facts.append)
    encoder.define(RELATION, TableDescription(), {})
    encoder.begin(1, 2, 3, None)
    out: list[Record] = []
    frame = write_frame(XLogData(1, 1, 0, write_message(Insert(None, 16_384, (b"1", b"NaN")))))
    encoder.encode(frame, False, 0, out)
    rows = record_stream(settings, False, facts.append)
    rows.define(RELATION, TableDescription(), {})
    lines = [b"1\t1.50\n", b"2\tNaN\n", b"3\t\\N\n"]
    encoded = rows.encode_rows(
        16_384, lines, SnapshotPosition(1, 0, "true", "true", "true"), 0, out, {b'{"id":3}'}
    )
    assert encoded.rows == 2
    found = [(json.loads(value or b"")["after"], headers) for _, _, value, headers in out]
    header = [("cdcd.unwritable", b'["price"]')]
    assert found[0] == ({"id": 1, "price": None}, header)
    assert found[1][0]["price"] is not None
    assert found[1][1] is None
    assert found[2] == ({"id": 2, "price": None}, header)
    assert encoder.unwritable == rows.unwritable == {("public.t", "price"): 1}
    assert [fact.column for fact in facts if isinstance(fact, ValueUnwritable)] == ["price", "price"]


def test_a_malformed_value_beside_one_without_a_form_is_refused_by_its_name():
    encoder = record_stream(EncoderSettings("1", "p", "d", modes=PRECISE))
    encoder.define(RELATION, TableDescription(), {})
    encoder.begin(1, 2, 3, None)
    frame = write_frame(XLogData(1, 1, 0, write_message(Insert(None, 16_384, (b"\xff", b"NaN")))))
    with pytest.raises(ProtocolError, match="'id'"):
        encoder.encode(frame, False, 0, [])


def test_a_key_that_is_none_is_a_number_that_no_row_can_have_and_is_named():
    described = replace(RELATION, columns=(RELATION.columns[0], Column(1, "price", NUMERIC, -1)))
    encoder = record_stream(EncoderSettings("1", "p", "d", modes=PRECISE))
    encoder.define(described, TableDescription(), {})
    encoder.begin(1, 2, 3, None)
    out: list[Record] = []
    frame = write_frame(XLogData(1, 1, 0, write_message(Delete(None, 16_384, "K", (b"1", b"NaN")))))
    encoder.encode(frame, False, 0, out)
    assert [(json.loads(key or b"")["price"]) is None for _, key, _, _ in out] == [False, False]
    assert [headers for _, _, _, headers in out] == [[("cdcd.unwritable", b'["price"]')]] * 2


@pytest.mark.parametrize("digits", [1, 3999, 4000, 4001, 8001, 147_455])
@pytest.mark.parametrize("first", [0, 9])
def test_numbers_of_any_length_have_the_bytes_of_their_integer(digits: int, first: int):
    power = 10 ** (digits - 1)
    number = first * power + 7 * (power - 1) // 9
    text = f"{first}" + "7" * (digits - 1)
    assert int.from_bytes(unscaled(text, 0), "big", signed=True) == number
    assert int.from_bytes(unscaled(f"-{text}", 0), "big", signed=True) == -number
