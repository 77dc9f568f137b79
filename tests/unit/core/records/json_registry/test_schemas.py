"""JSON Schemas of records: Confluent's converter reads Debezium's Connect schemas from them."""

import json
from typing import Any

import pytest

from cdcd.core.catalog.logical import LogicalType
from cdcd.core.records.avro.schemas import is_string_map
from cdcd.core.records.debezium_json.connect_schema import SCHEMAS, Schema, primitive, schema_of, struct
from cdcd.core.records.debezium_json.event_schemas import (
    HEARTBEAT_VALUE,
    MESSAGE_KEY,
    TRANSACTION_VALUE,
    message_value,
)
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.json_registry.schemas import JsonForm, json_schema
from tests.unit.core.records.json_registry.reading import connect_schema, misfits


def of_type(name: str) -> LogicalType:
    element = LogicalType("int32", None) if name == "array" else None
    modifier = 655366 if name == "decimal_bytes" else 3
    return LogicalType(name, None, modifier=modifier, element=element)


def has_pairs(schema: Schema) -> bool:
    """Whether a map with other keys than texts is somewhere in a schema."""
    if schema["type"] == "map":
        return not is_string_map(schema)
    return any(has_pairs(each) for each in schema.get("fields", []))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_connect_schema_of_each_type_is_read_from_its_json_schema(name: str):
    schema = schema_of(of_type(name))
    if has_pairs(schema):
        assert name == "sparsevec"
        return
    assert connect_schema(json_schema(schema)) == schema
    assert connect_schema(json_schema({**schema, "optional": False})) == {**schema, "optional": False}


@pytest.mark.parametrize(
    "schema", [MESSAGE_KEY, message_value(primitive("bytes")), TRANSACTION_VALUE, HEARTBEAT_VALUE]
)
def test_so_are_those_of_records_that_are_no_rows(schema: Schema):
    assert connect_schema(json_schema(schema)) == schema


def test_a_map_with_other_keys_than_texts_is_an_array_of_pairs_as_its_value_is():
    schema = json_schema(schema_of(of_type("sparsevec")))
    assert list(misfits({"dimensions": 5, "vector": [[1, 0.5], [3, 2]]}, schema)) == []
    assert list(misfits({"dimensions": 5, "vector": {"1": 0.5}}, schema)) == [(".vector", {"1": 0.5})]


def test_a_schema_has_the_form_that_confluents_converter_registers():
    row = struct(
        {
            "id": primitive("int32", optional=False),
            "at": primitive("int64", name="io.debezium.time.Timestamp"),
        },
        "shop.public.t.Value",
    )
    fields = {"after": row, "op": primitive("string", optional=False)}
    assert json_schema(struct(fields, "shop.public.t.Envelope", optional=False, version=2)) == {
        "type": "object",
        "title": "shop.public.t.Envelope",
        "connect.version": 2,
        "properties": {
            "after": {
                "oneOf": [
                    {"type": "null"},
                    {
                        "type": "object",
                        "title": "shop.public.t.Value",
                        "properties": {
                            "id": {"type": "integer", "connect.type": "int32", "connect.index": 0},
                            "at": {
                                "oneOf": [
                                    {"type": "null"},
                                    {
                                        "type": "integer",
                                        "connect.type": "int64",
                                        "title": "io.debezium.time.Timestamp",
                                        "connect.version": 1,
                                    },
                                ],
                                "connect.index": 1,
                            },
                        },
                    },
                ],
                "connect.index": 0,
            },
            "op": {"type": "string", "connect.index": 1},
        },
    }


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [("topic", "shop.t-value"), ("record", "shop.t.Value"), ("topic_record", "shop.t-shop.t.Value")],
)
def test_subjects_are_named_as_those_of_avro(subjects: str, expected: str):
    # A flattened row without added fields is optional, so that its title is in a branch of the schema.
    use = JsonForm().use(
        EncoderSettings("1", "shop", "d", subjects=subjects), "shop.t", struct({}, "shop.t.Value"), "value"
    )
    assert (use.subject, use.kind) == (expected, "JSON")


HOSTILE = [
    "$ref",
    "oneOf",
    "type",
    "connect.index",
    '"},"x":{',
    "\\",
    "",
    "a\u2028b",
    "\x00\x1f",
    "ключ",
    "__proto__",
    "%s%d",
]


def test_names_of_columns_cannot_change_the_schema():
    fields = {name: primitive("string", doc=name, name=name or None) for name in HOSTILE}
    schema = struct(fields, 'topic".Value', optional=False)
    use = JsonForm().use(EncoderSettings("1", "shop", "d"), "topic", schema, "value")
    found: dict[str, Any] = json.loads(use.text)
    assert list(found["properties"]) == HOSTILE
    assert found.keys() == {"type", "properties", "title"}
    assert connect_schema(found) == schema
    assert list(misfits(dict.fromkeys(HOSTILE, "x"), found)) == []
