"""What servers send is tested with real ones (tests/integration/test_types.py); here is what they do not send."""

import json
from uuid import UUID

import pytest

from cdcd.core.catalog.logical import logical_type
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import SourceError
from cdcd.core.records.debezium_json.converters import converter_for

PLACEHOLDER = "__debezium_unavailable_value"
BYTES = list(PLACEHOLDER.encode())

OIDS = {kind.name: oid for oid, kind in BUILTIN_TYPES.items()}


def user_type(
    oid: int, name: str, kind: str, category: str, *, element: int = 0, base: int = 0
) -> TypeDescription:
    return TypeDescription(oid, "public", name, kind, category, element, base, -1)


def converted(name: str, text: str, modifier: int = -1) -> str:
    return converter_for(OIDS[name], modifier, {}).json(text)


@pytest.mark.parametrize(
    ("name", "stands_for_it"),
    [
        ("text", PLACEHOLDER),
        ("jsonb", PLACEHOLDER),
        ("xml", PLACEHOLDER),
        ("numeric", PLACEHOLDER),
        ("tsvector", PLACEHOLDER),
        ("polygon", PLACEHOLDER),
        ("bytea", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("varbit", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("_text", [PLACEHOLDER]),
        ("_jsonb", [PLACEHOLDER]),
        ("_numeric", [PLACEHOLDER]),
        ("_timestamptz", [PLACEHOLDER]),
        ("_bool", [PLACEHOLDER]),
        ("_bytea", ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
        ("_int4", BYTES),
        ("_int8", BYTES),
        ("_date", BYTES),
        ("_timestamp", BYTES),
        ("_float8", BYTES),
        ("_uuid", ["e4e6a6a8-4b2c-3a1e-8c0c-000000000000"]),
    ],
)
def test_a_value_that_was_not_sent_has_debeziums_placeholder_of_its_type(name, stands_for_it):
    made = json.loads(converter_for(OIDS[name], -1, {}).unchanged(PLACEHOLDER))
    if name == "_uuid":
        assert UUID(made[0]).version == 3
        assert len(made) == 1
    else:
        assert made == stands_for_it


def test_no_placeholder_is_null_and_every_one_is_json():
    for oid in BUILTIN_TYPES:
        for text in (PLACEHOLDER, "", 'ü"\\'):
            assert json.loads(converter_for(oid, -1, {}).unchanged(text)) is not None


def test_an_array_of_numbers_has_the_placeholders_bytes_as_java_signs_them():
    assert json.loads(converter_for(OIDS["_int4"], -1, {}).unchanged("é")) == [-61, -87]
    assert converter_for(OIDS["_float8"], -1, {}).unchanged("A") == "[65.0]"


def test_types_that_nobody_knows_are_their_text():
    types = {70_000: user_type(70_000, "address", "c", "C"), 70_001: user_type(70_001, "blob", "b", "U")}
    for oid in (70_000, 70_001, 70_002):
        converter = converter_for(oid, -1, types)
        assert converter.json('("Main Street",7)') == '"(\\"Main Street\\",7)"'
        assert logical_type(oid, -1, types).reads_binary == (oid == 70_000)


def test_a_domain_is_as_its_base_type_with_the_domains_modifier():
    ms = TypeDescription(70_000, "public", "at_ms", "d", "D", 0, OIDS["timestamp"], 3)
    outer = TypeDescription(70_001, "public", "outer", "d", "D", 0, 70_000, -1)
    array = user_type(70_002, "_outer", "b", "A", element=70_001)
    types = {kind.oid: kind for kind in (ms, outer, array)}
    assert converter_for(70_001, -1, types).json("1970-01-01 00:00:01.5") == "1500"
    assert converter_for(70_002, -1, types).json('{"1970-01-01 00:00:01.5"}') == "[1500]"


def test_a_domain_whose_base_was_dropped_is_its_text():
    types = {70_000: user_type(70_000, "d", "d", "S", base=70_009)}
    assert converter_for(70_000, -1, types).json("x") == '"x"'


def test_types_without_an_end_are_refused():
    types = {70_000: user_type(70_000, "d", "d", "S", base=70_000)}
    with pytest.raises(SourceError, match="nested"):
        converter_for(70_000, -1, types)


def test_a_type_in_pg_catalog_is_not_taken_for_an_extensions():
    types = {70_000: TypeDescription(70_000, "pg_catalog", "hstore", "b", "U", 0, 0, -1)}
    assert converter_for(70_000, -1, types).json('"a"=>"1"') == '"\\"a\\"=>\\"1\\""'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bool", ""), ("bool", "true"), ("float8", ""), ("float8", "nan"), ("float8", "1,5x"), ("numeric", ""),
        ("numeric", "nan"), ("money", "1.234,50 €"), ("money", "$1"), ("bytea", "\\001"), ("bytea", "\\xzz"),
        ("bytea", ""), ("date", "today"), ("date", "31/01/2024"), ("date", "infinity y"), ("timestamp", "x y"),
        ("timestamp", "infinity+"), ("timestamptz", "2024-01-01 00:00:00"), ("timestamptz", "infinitely"),
        ("time", "12"), ("timetz", "12:00:00"), ("interval", "P1Y"), ("bit", "2"), ("point", "1,2"), ("point", "(1)"),
        ("point", "(a,b)"), ("_int4", "1,2"), ("_text", "{a"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_of_the_types_form_is_refused(name, text):
    with pytest.raises(ValueError, match=r"."):
        converted(name, text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("$0.00", "0.00"),
        ("-$1,234,567.50", "-1234567.50"),
        ("($1.00)", "-1.00"),
        ("1.00", "1.00"),
        ("-1.00", "-1.00"),
    ],
)
def test_money_is_the_amount_without_symbol_and_separators(text, amount):
    assert converted("money", text) == f'"{amount}"'


def test_a_point_may_be_nowhere():
    made = json.loads(converted("point", "(NaN,-Infinity)"))
    assert (made["x"], made["y"], made["srid"]) == ("NaN", "-Infinity", None)


@pytest.mark.parametrize(
    "name", ["bool", "int4", "oid", "float4", "numeric", "money", "date", "time", "timetz"]
)
def test_a_binary_value_of_a_wrong_length_is_refused(name):
    converter = converter_for(OIDS[name], -1, {})
    for size in (0, 3, 5, 7, 9, 13):
        with pytest.raises(ValueError, match=r"."):
            converter.binary(bytes(size) if name != "numeric" else b"\0\1" * size)


def test_a_jsonb_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version"):
        converter_for(OIDS["jsonb"], -1, {}).binary(b"\x02{}")


def test_the_char_type_escapes_what_is_no_ascii():
    converter = converter_for(OIDS["char"], -1, {})
    assert [converter.binary(data) for data in (b"a", b'"', b"\0", b"\x80")] == [
        '"a"',
        '"\\""',
        '""',
        '"\\\\200"',
    ]
