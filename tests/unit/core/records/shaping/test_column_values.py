"""Values of columns in expressions."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILT_IN, BUILTIN_TYPES
from cdcd.core.protocol.messages import UNCHANGED, Binary, Column
from cdcd.core.records.shaping.column_values import KINDS, NOT_A_NUMBER, UNREADABLE, UNSENT, ColumnValues
from cdcd.core.records.shaping.evaluation import BOOL, DECIMAL, DOUBLE, INT, STRING, TIMESTAMP, Missing

OIDS = {row.name: row.oid for row in BUILT_IN}
MOOD, DOMAIN = 90_001, 90_002
TYPES = {
    **BUILTIN_TYPES,
    MOOD: TypeDescription(MOOD, "public", "mood", "e", "E", 0, 0, -1),
    DOMAIN: TypeDescription(DOMAIN, "public", "positive", "d", "N", 0, OIDS["int4"], -1),
}


def column(oid: int) -> ColumnValues:
    return ColumnValues(Column(0, "c", oid, -1), 3, TYPES)


def us(year: int, month: int, day: int, **rest: int) -> int:
    return (
        datetime(year, month, day, tzinfo=UTC) + timedelta(**rest) - datetime(1970, 1, 1, tzinfo=UTC)
    ) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("name", "kind", "text", "value"),
    [
        ("bool", BOOL, b"t", True),
        ("bool", BOOL, b"f", False),
        ("int2", INT, b"-5", -5),
        ("int8", INT, b"9223372036854775807", 2**63 - 1),
        ("oid", INT, b"4294967295", 2**32 - 1),
        ("float4", DOUBLE, b"1.5", 1.5),
        ("float8", DOUBLE, b"-Infinity", float("-inf")),
        ("numeric", DECIMAL, b"100.010", Decimal("100.010")),
        ("numeric", DECIMAL, b"Infinity", Decimal("Infinity")),
        ("text", STRING, "ä€".encode(), "ä€"),
        ("bpchar", STRING, b"DE   ", "DE   "),
        ("uuid", STRING, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("jsonb", STRING, b'{"a": 1}', '{"a": 1}'),
        ("inet", STRING, b"10.0.0.1/8", "10.0.0.1/8"),
        ("date", TIMESTAMP, b"2026-01-31", us(2026, 1, 31)),
        ("date", TIMESTAMP, b"0044-03-15 BC", -63517824000000000),
        ("timestamp", TIMESTAMP, b"2026-01-31 12:00:00.5", us(2026, 1, 31, hours=12, milliseconds=500)),
        ("timestamptz", TIMESTAMP, b"2026-01-31 12:00:00+00", us(2026, 1, 31, hours=12)),
        ("timestamptz", TIMESTAMP, b"0044-03-15 00:00:00+00 BC", -63517824000000000),
        ("timestamptz", TIMESTAMP, b"infinity", 2**63),
        ("date", TIMESTAMP, b"-infinity", -(2**63)),
    ],
)
def test_a_value_is_read_from_postgresqls_text(name: str, kind: str, text: bytes, value: object):
    found = column(OIDS[name])
    assert (found.index, found.kind) == (3, kind)
    assert found.of(text) == value


def test_null_is_a_value_and_what_is_not_known_says_why():
    number = column(OIDS["numeric"])
    assert number.of(None) is None
    for given, reason in (
        (UNCHANGED, UNSENT),
        (b"NaN", NOT_A_NUMBER),
        (b"x", UNREADABLE),
        (b"\xff", UNREADABLE),
    ):
        found = number.of(given)
        assert isinstance(found, Missing)
        assert found.reason == reason


def test_enums_are_strings_and_domains_are_what_they_are_over():
    assert column(MOOD).kind == STRING
    assert column(DOMAIN).kind == INT


def test_values_in_binary_form_are_the_same():
    assert column(OIDS["int4"]).of(Binary(b"\xff\xff\xff\xfb")) == -5
    assert column(OIDS["text"]).of(Binary("ä".encode())) == "ä"
    assert column(OIDS["bool"]).of(Binary(b"\1")) is True
    # 2026-01-31 12:00:00, in microseconds since 2000.
    since = us(2026, 1, 31, hours=12) - us(2000, 1, 1)
    assert column(OIDS["timestamptz"]).of(Binary(since.to_bytes(8, "big"))) == us(2026, 1, 31, hours=12)
    assert isinstance(column(OIDS["int4"]).of(Binary(b"\1")), Missing)


@pytest.mark.parametrize("name", ["bytea", "interval", "time", "timetz", "money", "bit", "point", "tsvector"])
def test_other_types_have_no_value(name: str):
    assert column(OIDS[name]).kind == ""


def test_an_array_has_no_value():
    assert column(next(row.array_oid for row in BUILT_IN if row.name == "int4")).kind == ""


def test_every_kind_is_of_a_logical_type():
    logical = {row.logical for row in BUILT_IN} | {"enum", "ltree"}
    assert KINDS.keys() <= logical
