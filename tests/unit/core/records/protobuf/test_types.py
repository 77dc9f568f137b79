"""Every type, with usual and rare values, under each of Debezium's modes: Google's runtime reads what JSON has."""

import json
from collections.abc import Mapping, Sequence

import pytest

from cdcd.core.catalog import logical, types
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import Extension
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.debezium_json import connect_schema, converters
from cdcd.core.records.debezium_json.connect_schema import primitive
from cdcd.core.records.encoder import Record
from tests.debezium.capture import TYPES
from tests.debezium.capture_modes import RARE
from tests.unit.core.records.avro.reading import without
from tests.unit.core.records.debezium_json.test_debezium_modes import MODES, SENT, TYPED, rare_cases
from tests.unit.core.records.debezium_json.test_debezium_schemas import OWN, column
from tests.unit.core.records.debezium_json.test_new_type import FRACTION, Fraction
from tests.unit.core.records.protobuf.reading import Schemas, expected
from tests.unit.core.records.protobuf.test_golden_records import described

OID = 16_384
ID = Column(1, "id", 23, -1)


def compare(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | None]],
    types: Mapping[int, TypeDescription],
    modes: Modes,
) -> list[tuple[str, ...]]:
    """Encode rows both ways and compare them; of each row, the columns that only Protobuf has no form for."""
    relation = Relation(None, OID, "public", "t", "d", (ID, *columns))
    schemas = Schemas()
    plain = record_stream(schemas.settings(key_format="json", value_format="json", modes=modes))
    protobuf = record_stream(schemas.settings(modes=modes))
    for encoder in (plain, protobuf):
        encoder.define(relation, described(relation), types)
        encoder.begin(7, 1000, 0, 900)
    schemas.register(protobuf, OID)
    found: list[tuple[str, ...]] = []
    for number, row in enumerate(rows):
        values = tuple([None if value is None else value.encode() for value in (str(number), *row)])
        frame = write_frame(XLogData(500, 500, 0, write_message(Insert(None, OID, values))))
        made: list[list[Record]] = [[], []]
        plain.encode(frame, False, 1_000_000, made[0])
        protobuf.encode(frame, False, 1_000_000, made[1])
        ((_, _, in_json, json_headers),), ((_, key, value, headers),) = made
        assert key is not None
        assert value is not None
        assert schemas.read(key)[1] == {"id": number}
        named = _unwritable(headers)
        schema_id, read = schemas.read(value)
        assert read == expected(without(json.loads(in_json or b""), named), schemas.descriptor(schema_id))
        found.append(tuple([name for name in named if name not in _unwritable(json_headers)]))
    return found


def _unwritable(headers: list[tuple[str, bytes]] | None) -> list[str]:
    names: list[str] = json.loads(dict(headers or []).get("cdcd.unwritable", b"[]"))
    return names


@pytest.mark.parametrize("prefix", TYPED)
def test_every_type_has_the_value_that_json_has(prefix):
    columns = [column(f"c{number}", kind) for number, (kind, _) in enumerate(TYPES)]
    sent = [SENT["types"][each.name] for each in columns]
    found = compare(columns, [sent, [None] * len(columns)], OWN, MODES[prefix])
    assert found == [(), ()]


@pytest.mark.parametrize("prefix", TYPED)
def test_rare_values_are_as_in_json_unless_they_are_arrays_of_arrays(prefix):
    columns = [column(name, kind) for name, (kind, _) in RARE.items()]
    cases = rare_cases()
    rows: list[list[str | None]] = [
        [SENT["rare"][str(number)] if each.name == name else None for each in columns]
        for number, name, _, _ in cases
    ]
    for lacking, (_, name, kind, value) in zip(
        compare(columns, rows, OWN, MODES[prefix]), cases, strict=True
    ):
        if lacking:
            assert lacking == (name,)
            assert value.startswith("{{"), (kind, value)


GEOMETRY, VECTOR, HALFVEC, SPARSE, GEOGRAPHY = range(20_000, 20_005)
EXTENSIONS = {
    oid: TypeDescription(oid, "public", name, "b", "U", 0, 0, -1)
    for oid, name in (
        (GEOMETRY, "geometry"),
        (GEOGRAPHY, "geography"),
        (VECTOR, "vector"),
        (HALFVEC, "halfvec"),
        (SPARSE, "sparsevec"),
    )
}
POINT = "0101000020E6100000000000000000F03F0000000000000040"


def test_types_of_extensions_have_the_values_that_json_has():
    columns = [
        Column(0, name, oid, -1)
        for name, oid in (
            ("shape", GEOMETRY),
            ("shapes", GEOGRAPHY),
            ("v", VECTOR),
            ("h", HALFVEC),
            ("s", SPARSE),
        )
    ]
    rows: list[list[str | None]] = [
        [POINT, POINT, "[1,0,-2.5]", "[0.5]", "{1:2.5,3:-1}/5"],
        [None] * 5,
        [POINT, POINT, "[0]", "[0]", "{}/5"],
    ]
    assert compare(columns, rows, EXTENSIONS, Modes()) == [(), (), ()]


@pytest.mark.skipif(
    not logical.__file__.endswith(".py"), reason="the tables of compiled modules are what they are"
)
def test_a_new_type_needs_a_schema_and_nothing_of_protobuf(monkeypatch):
    row = Extension("fraction", None, form="fraction")
    monkeypatch.setattr(logical, "EXTENSIONS", {**types.EXTENSIONS, "fraction": row})
    monkeypatch.setattr(converters, "CONVERTERS", {**converters.CONVERTERS, "fraction": lambda _: Fraction()})
    parts = {"type": "array", "items": primitive("int64", optional=False), "optional": True}
    monkeypatch.setattr(connect_schema, "SCHEMAS", {**connect_schema.SCHEMAS, "fraction": lambda _: parts})
    described_types = {
        FRACTION: TypeDescription(FRACTION, "ours", "fraction", "b", "U", 0, 0, -1),
        FRACTION + 1: TypeDescription(FRACTION + 1, "ours", "_fraction", "b", "A", FRACTION, 0, -1),
    }
    columns = [Column(0, "one", FRACTION, -1), Column(0, "many", FRACTION + 1, -1)]
    rows: list[list[str | None]] = [["1/2", "{1/2,NULL}"], [None, None], ["0/0", "{}"]]
    assert compare(columns, rows, described_types, Modes()) == [(), (), ()]
