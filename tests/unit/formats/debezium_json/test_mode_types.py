"""Values under modes, beside what `test_debezium_modes.py` compares with a real Debezium."""

import json
from base64 import b64decode
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import ConfigError
from cdcd.formats.debezium_json.converter import UnwritableError
from cdcd.formats.debezium_json.converters import converter_for, converter_of
from cdcd.formats.debezium_json.encoder import DebeziumJsonEncoder
from cdcd.formats.debezium_json.mode_types import unscaled
from cdcd.formats.debezium_json.snapshot_rows import SnapshotEncoder
from cdcd.formats.encoder import EncoderSettings, SnapshotPosition
from cdcd.protocol.frames import XLogData, write_frame
from cdcd.protocol.messages import Column, Insert, Relation
from cdcd.protocol.writer import write_message
from cdcd.rows.logical import LogicalType
from cdcd.rows.modes import ADDED, Modes
from cdcd.rows.relations import TableDescription

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
    _, hint = refusal.value.args
    assert f"format.{key}" in hint


def test_the_daemon_ends_with_the_column_and_the_hint_whether_the_row_is_streamed_or_read():
    settings = EncoderSettings("1", "p", "d", modes=PRECISE)
    encoder = DebeziumJsonEncoder(settings)
    encoder.define(RELATION, TableDescription(), {})
    encoder.begin(1, 2, 3, None)
    frame = write_frame(XLogData(1, 1, 0, write_message(Insert(None, 16_384, (b"1", b"NaN")))))
    with pytest.raises(ConfigError, match="'price' has a value that cannot be written") as streamed:
        encoder.encode(frame, False, 0, [])
    rows = SnapshotEncoder(settings)
    rows.define(RELATION, TableDescription(), {})
    with pytest.raises(ConfigError, match="'price' has a value that cannot be written") as read:
        rows.encode_rows(16_384, [b"1\tNaN\n"], SnapshotPosition(1, 0, "true", "true", "true"), 0, [], set())
    assert "string or double" in streamed.value.hint
    assert read.value.hint == streamed.value.hint
