"""JSON Schemas of records, in the form in which Confluent's JsonSchemaConverter registers them (JsonSchemaData).

The rule: a schema here describes the bytes that `format: json` writes. Titles, `connect.type`, `connect.version`,
`connect.parameters` and `connect.index` are Confluent's, so that JsonSchemaConverter reads Debezium's Connect schema
from them. There are these differences from JsonSchemaData, because its schema would not fit the bytes:

- A decimal under `decimal_handling_mode: precise` is a string in base64. JsonSchemaData calls it a number, also if it
  writes base64 (`decimal.format: BASE64`).
- A map whose keys are not texts (`sparsevec`) is an array of pairs, as Connect's JsonConverter writes it.
"""

import json
from typing import Any, Final

from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.form import head, subject_of
from cdcd.core.records.avro.schemas import is_string_map
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse

JSON_REGISTRY: Final = "json_registry"
"""Name of the format in the configuration."""

KIND: Final = "JSON"
"""The registry's `schemaType`."""

_TYPES: Final = {
    "int8": ("integer", "int8"),
    "int16": ("integer", "int16"),
    "int32": ("integer", "int32"),
    "int64": ("integer", "int64"),
    "float": ("number", "float32"),
    "double": ("number", "float64"),
    "boolean": ("boolean", None),
    "string": ("string", None),
    "bytes": ("string", "bytes"),
}
"""JSON Schema's type and `connect.type` of each primitive type of Connect."""


def json_schema(schema: Schema, index: int | None = None) -> dict[str, Any]:
    """Return the JSON Schema for a Connect schema.

    Args:
        index: position of the field in its struct, counted from 0; None for a schema that is not a field's.
    """
    found = _required(schema)
    if schema.get("name") is not None:
        found["title"] = schema["name"]
    for ours, theirs in (
        ("version", "connect.version"),
        ("doc", "description"),
        ("parameters", "connect.parameters"),
        ("default", "default"),
    ):
        if schema.get(ours) is not None:
            found[theirs] = schema[ours]
    if schema["optional"]:
        found = {"oneOf": [{"type": "null"}, found]}
    if index is not None:
        found["connect.index"] = index
    return found


def _required(schema: Schema) -> dict[str, Any]:
    """Return the JSON Schema of values that are not null, without the names of the Connect schema."""
    kind = schema["type"]
    if kind == "struct":
        fields = schema["fields"]
        properties = {field["field"]: json_schema(field, place) for place, field in enumerate(fields)}
        return {"type": "object", "properties": properties}
    if kind == "array":
        return {"type": "array", "items": json_schema(schema["items"])}
    if kind == "map":
        if is_string_map(schema):
            values = json_schema(schema["values"])
            return {"type": "object", "connect.type": "map", "additionalProperties": values}
        pair = {"type": "array", "items": json_schema(schema["values"])}
        return {"type": "array", "items": pair}
    json_type, connect_type = _TYPES[kind]
    return {"type": json_type} | ({} if connect_type is None else {"connect.type": connect_type})


class JsonForm(BinaryForm):
    """Writes schemas, and puts the ids of schemas before JSON."""

    def __init__(self) -> None:
        BinaryForm.__init__(self, "JSON with a registry", JSON_REGISTRY)

    def head(self, schema_id: int) -> bytes:
        """See `BinaryForm`."""
        return head(schema_id)

    def use(self, settings: EncoderSettings, topic: str, schema: Schema, part: str) -> SchemaUse:
        """See `BinaryForm`."""
        text = json.dumps(json_schema(schema), ensure_ascii=False, separators=(",", ":"))
        return SchemaUse(subject_of(settings, topic, schema.get("name") or schema["type"], part), text, KIND)

    def record(self, schema: Schema, json_text: bytes) -> bytes:
        """See `BinaryForm`."""
        return json_text
