"""`format: json_schema`: the same records, each beside a schema that it is of."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.logical import LogicalType, extension_type, logical_type
from cdcd.core.catalog.modes import ADDED
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILT_IN, EXTENSIONS
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, Relation, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.debezium_json.connect_schema import (
    CLOSING,
    SCHEMAS,
    envelope_schema,
    opening,
    schema_of_key,
)
from cdcd.core.records.debezium_json.converters import CONVERTERS, converter_of
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.stream import RecordStream
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.debezium_json.test_golden_records import SETTINGS, encoded

STREAMS = value_streams()
WITH_SCHEMAS = replace(SETTINGS, key_format="json_schema", value_format="json_schema")

JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool, "int16": int, "int32": int, "int64": int, "float": (int, float), "double": (int, float),
    "string": str, "bytes": str, "array": list, "struct": dict, "map": list,
}  # fmt: skip


def problems(schema: dict[str, Any], value: Any, at: str = "") -> list[str]:
    """What of a value is not as the schema says, as Kafka Connect's JsonConverter reads it."""
    if value is None:
        return [] if schema["optional"] else [f"{at} is null"]
    kind = schema["type"]
    if kind in ("float", "double") and value in ("NaN", "Infinity", "-Infinity"):
        return []
    expected = isinstance(value, JSON_TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")
    if not expected:
        return [f"{at} is {value!r}, not {kind}"]
    if kind == "struct":
        fields = {field["field"]: field for field in schema["fields"]}
        found = [f"{at}.{name} is no field" for name in value.keys() - fields.keys()]
        for name, field in fields.items():
            found += problems(field, value.get(name), f"{at}.{name}")
        return found
    if kind == "array":
        return [each for item in value for each in problems(schema["items"], item, f"{at}[]")]
    return []


def parts(data: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Schema and payload of a key or value, as they stand."""
    if data is None:
        return None, None
    begin = data.index(b',"payload":')
    assert data.startswith(b'{"schema":')
    assert data.endswith(b"}")
    return data[len(b'{"schema":') : begin], data[begin + len(b',"payload":') : -1]


@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_the_payload_is_the_record_without_a_schema_and_is_of_its_schema(golden):
    plain, _ = encoded(golden)
    found, refused = encoded(golden, settings=WITH_SCHEMAS)
    assert refused == []
    assert len(found) == len(plain)
    for (topic, key, value, headers), (other, plain_key, plain_value, plain_headers) in zip(
        found, plain, strict=True
    ):
        assert topic == other
        assert len(headers or ()) == len(plain_headers or ())
        for data, bare in ((key, plain_key), (value, plain_value)):
            schema, payload = parts(data)
            assert payload == bare
            if schema is not None and payload is not None:
                assert problems(json.loads(schema), json.loads(payload)) == []


@pytest.mark.parametrize("golden", [golden for golden in STREAMS if golden.mode == "v1"], ids=str)
def test_rows_that_are_written_have_the_same_schemas(golden: Golden):
    assert encoded(golden, True, WITH_SCHEMAS) == encoded(golden, False, WITH_SCHEMAS)


@pytest.mark.parametrize(("key", "value"), [("json", "json_schema"), ("json_schema", "json")])
def test_keys_and_values_are_chosen_each(key, value):
    records, _ = encoded(STREAMS[0], settings=replace(SETTINGS, key_format=key, value_format=value))
    for _, found_key, found_value, _ in records:
        for name, data in ((key, found_key), (value, found_value)):
            assert data is None or data.startswith(b'{"schema":{') == (name == "json_schema")


OID = 16_384
RELATION = Relation(
    None,
    OID,
    "public",
    "t%s",
    "d",
    (Column(1, "id", 20, -1), Column(1, 'na"me', 25, -1), Column(0, "at", 1114, -1)),
)
ROW = (b"1", b"a", b"2024-01-31 12:34:56")
POSITION = SnapshotPosition(1, 2, "first", "last", "true")


def encoder(settings: EncoderSettings) -> RecordStream:
    made = record_stream(settings)
    made.define(RELATION, TableDescription(("id", 'na"me')), {})
    return made


def frame(message: Insert | Update | Delete) -> bytes:
    return write_frame(XLogData(5, 5, 0, write_message(message)))


def of_rows(settings: EncoderSettings) -> list[Record]:
    """Rows of a snapshot, and a truncate record."""
    out: list[Record] = []
    made = encoder(settings)
    lines = [b"\t".join(ROW) + b"\n", b"2\t%s\t\\N\n", b"3\t\t\\N\n"]
    encoded_rows = made.encode_rows(OID, lines, POSITION, 0, out, set())
    assert encoded_rows.keys == [key for _, key, _, _ in out]
    assert encoded_rows.bytes == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
    made.encode_end_of_rows(OID, (7, 8), 0, out)
    return out


def of_drafts(settings: EncoderSettings) -> list[Record]:
    """Rows that were drafted before their commit, and the same ones that were not."""
    made = encoder(settings)
    messages: list[Insert | Update | Delete] = [
        Insert(7, OID, ROW),
        Update(7, OID, "", None, ROW),
        Delete(7, OID, "K", (*ROW[:2], None)),
    ]
    frames = [frame(message) for message in messages]
    drafted = made.draft_all([*frames], {OID: (0, RELATION)})
    assert not any(isinstance(item, bytes) for item in drafted)
    finished: list[Record] = []
    made.begin(7, 100, 0, None)
    made.encode_all(drafted, True, 0, finished)
    straight: list[Record] = []
    made.begin(7, 100, 0, None)
    made.encode_all([*frames], True, 0, straight)
    assert finished == straight
    return finished


@pytest.mark.parametrize("way", [of_rows, of_drafts])
def test_rows_of_snapshots_and_of_drafts_have_it_too(way):
    plain = way(EncoderSettings("1", "p", "d"))
    found = way(EncoderSettings("1", "p", "d", key_format="json_schema", value_format="json_schema"))
    assert len(plain) == len(found) >= 4
    for (_, key, value, _), (_, plain_key, plain_value, _) in zip(found, plain, strict=True):
        for data, bare in ((key, plain_key), (value, plain_value)):
            schema, payload = parts(data)
            assert payload == bare
            if schema is not None and payload is not None:
                assert problems(json.loads(schema), json.loads(payload)) == []


def test_a_schema_that_is_wrong_is_found():
    schema = envelope_schema(RELATION, [0, 1], {}, "p.public.t")
    (row,) = [field for field in schema["fields"] if field["field"] == "after"]
    assert problems(row, {"id": None, 'na"me': 5, "other": 1}) == [
        ".other is no field",
        ".id is null",
        '.na"me is 5, not string',
    ]


def test_the_key_has_a_struct_of_its_own_whose_fields_are_never_null():
    schema = schema_of_key(RELATION, [0, 1], {}, "p.public.t")
    assert (schema["name"], schema["optional"]) == ("p.public.t.Key", False)
    assert [(field["field"], field["optional"]) for field in schema["fields"]] == [
        ("id", False),
        ('na"me', False),
    ]
    assert json.loads(opening(schema) + b"1" + CLOSING) == {"schema": schema, "payload": 1}


def test_every_logical_type_has_a_schema_and_its_placeholder_is_of_it():
    assert SCHEMAS.keys() == CONVERTERS.keys()
    kinds = [logical_type(row.oid, -1, {}) for row in BUILT_IN]
    kinds += [extension_type(name) for name in EXTENSIONS]
    kinds += [LogicalType("enum", labels=((1, "a"), (2, "b")))]
    kinds += [LogicalType(name, modifier=(10 << 16 | 2) + 4) for name in ADDED]
    for logical in [*kinds, *(LogicalType("array", element=kind) for kind in kinds)]:
        schema = SCHEMAS[logical.name](logical)
        # Types that are never TOASTed have a placeholder of no use, which is not of their type.
        if schema["type"] in ("string", "bytes") or schema.get("items", {}).get("type") == "string":
            placeholder = json.loads(converter_of(logical).unchanged("__unavailable"))
            assert problems(schema, placeholder) == []
