"""Reads records in JSON with schemas in a registry: judges values by JSON Schema's rules, and reads Connect's schema as
Confluent's JsonSchemaConverter does. Nothing of `cdcd/core/records/json_registry` is used here.

Keywords that this module does not know are refused, so that each keyword of a schema is judged.
"""

import json
from collections.abc import Iterator
from typing import Any

from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse

ANNOTATIONS = {
    "title",
    "description",
    "default",
    "connect.type",
    "connect.index",
    "connect.version",
    "connect.parameters",
}
JUDGED = {"type", "oneOf", "properties", "items", "additionalProperties"}

KINDS: dict[str, Any] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class Schemas:
    """A registry in memory: registers what an encoder lacks, and reads what it wrote."""

    def __init__(self) -> None:
        self.ids = SchemaIds("http://registry")
        self.texts: dict[int, str] = {}
        self.uses: dict[int, SchemaUse] = {}

    def settings(self, **more: Any) -> EncoderSettings:
        more = {"key_format": "json_registry", "value_format": "json_registry", **more}
        return EncoderSettings("test", "golden", "db", schema_ids=self.ids, **more)

    def register(self, encoder: Encoder, oid: int) -> int:
        """Register the schemas that are lacking; how many those were."""
        uses = encoder.unregistered(oid)
        for use in uses:
            assert use.kind == "JSON"
            schema_id = len(self.texts) + 0xF0  # Their last byte is not UTF-8.
            self.ids.put(use, schema_id)
            self.texts[schema_id], self.uses[schema_id] = use.text, use
        return len(uses)

    def split(self, data: bytes) -> tuple[int, bytes]:
        """The id of a record's schema, and its JSON."""
        assert data[0] == 0
        schema_id = int.from_bytes(data[1:5], "big")
        assert schema_id in self.texts
        return schema_id, data[5:]

    def read(self, data: bytes) -> tuple[int, Any]:
        """The id of a record's schema, and its value."""
        schema_id, text = self.split(data)
        return schema_id, json.loads(text)

    def misfits(self, schema_id: int, value: Any) -> list[tuple[str, Any]]:
        """Path and value of everything that a schema does not allow."""
        return list(misfits(value, json.loads(self.texts[schema_id])))


def misfits(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of everything that a schema does not allow. A property that no schema describes counts."""
    assert schema.keys() <= ANNOTATIONS | JUDGED, schema.keys()
    if "oneOf" in schema:
        null, other = schema["oneOf"]
        assert null == {"type": "null"}
        if value is not None:
            yield from misfits(value, other, path)
        return
    if not KINDS[schema["type"]](value):
        yield path, value
        return
    if schema["type"] == "array":
        for each in value:
            yield from misfits(each, schema["items"], f"{path}[]")
    if schema["type"] == "object":
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, each in value.items():
            if name not in properties and others is None:
                yield f"{path}.{name}", each
                continue
            yield from misfits(each, properties.get(name, others), f"{path}.{name}")


_CONNECT = {"float32": "float", "float64": "double"}


def connect_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Connect's schema as JsonSchemaConverter reads it (JsonSchemaData.toConnectSchema)."""
    optional = "oneOf" in schema
    inner = schema["oneOf"][1] if optional else schema
    kind, connect = inner["type"], inner.get("connect.type")
    found: dict[str, Any]
    if kind == "object" and connect == "map":
        keys = {"type": "string", "optional": False}
        found = {"type": "map", "keys": keys, "values": connect_schema(inner["additionalProperties"])}
    elif kind == "object":
        fields = sorted(inner["properties"].items(), key=lambda each: int(each[1]["connect.index"]))
        found = {
            "type": "struct",
            "fields": [{**connect_schema(each), "field": name} for name, each in fields],
        }
    elif kind == "array":
        found = {"type": "array", "items": connect_schema(inner["items"])}
    else:
        found = {"type": _CONNECT.get(connect, connect) if connect else kind}
    found["optional"] = optional
    for theirs, ours in (
        ("title", "name"),
        ("connect.version", "version"),
        ("description", "doc"),
        ("connect.parameters", "parameters"),
        ("default", "default"),
    ):
        if theirs in inner:
            found[ours] = inner[theirs]
    return found
