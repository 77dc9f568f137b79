"""Reads records in Avro with fastavro, and says what JSON has for the same values."""

import io
import json
import math
from base64 import b64encode
from collections.abc import Iterable
from struct import pack, unpack
from typing import Any

import fastavro

from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse


class Schemas:
    """A registry in memory: registers what an encoder lacks, and reads what it wrote."""

    def __init__(self) -> None:
        self.ids = SchemaIds("http://registry")
        self.texts: dict[int, str] = {}
        self.uses: dict[int, SchemaUse] = {}
        self._parsed: dict[int, Any] = {}

    def settings(self, **more: Any) -> EncoderSettings:
        more = {"key_format": "avro", "value_format": "avro", **more}
        return EncoderSettings("test", "golden", "db", schema_ids=self.ids, **more)

    def register(self, encoder: Encoder, oid: int) -> int:
        """Register the schemas that are lacking; how many those were."""
        uses = encoder.unregistered(oid)
        for use in uses:
            schema_id = len(self.texts) + 1
            self.ids.put(use, schema_id)
            self.texts[schema_id], self.uses[schema_id] = use.text, use
        return len(uses)

    def read(self, data: bytes) -> tuple[int, Any]:
        """The id of a record's schema, and its value as JSON has it."""
        assert data[0] == 0
        schema_id = int.from_bytes(data[1:5], "big")
        if schema_id not in self._parsed:
            self._parsed[schema_id] = fastavro.parse_schema(json.loads(self.texts[schema_id]))
        parsed = self._parsed[schema_id]
        stream = io.BytesIO(data[5:])
        value = fastavro.schemaless_reader(stream, parsed, None)
        assert stream.read() == b"", "the record ends with its value"
        return schema_id, json_of(value)


MESSAGE_CONTENTS = [("bytes", "AP9p"), ("base64", "AP9p"), ("base64-url-safe", "AP9p"), ("hex", "00ff69")]
"""What a record has of a logical message with the content b"\\x00\\xffi", by `format.binary_handling_mode`."""


def without(record: Any, columns: Iterable[str]) -> Any:
    """An envelope of JSON with null for these columns."""
    for image in ("before", "after"):
        for column in columns if record.get(image) else ():
            record[image][column] = None
    return record


def json_of(value: Any) -> Any:
    """As JSON has a value that fastavro has read."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: json_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [json_of(each) for each in value]
    return value


def as_avro_would(value: Any, schema: Any) -> Any:
    """A value of JSON, with what Avro has in another form: names of fields, float4, and maps as lists of pairs."""
    named: dict[str, Any] = {}
    _collect(schema, named)
    return _as_avro_would(value, schema, named)


def _collect(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            named[f"{schema['namespace']}.{schema['name']}"] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], named)
        _collect(schema.get("items"), named)


def _as_avro_would(value: Any, schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        (schema,) = [branch for branch in schema if branch != "null"]
        return None if value is None else _as_avro_would(value, schema, named)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "float" and isinstance(value, int | float):
        return unpack("<f", pack("<f", value))[0]
    if kind == "record":
        # An object of JSON, or a pair of a map. `schema_id` is not in JSON if there is no schemas topic.
        values = list(value.values()) if isinstance(value, dict) else list(value)
        if schema["name"] == "Source":
            values += [None] * (len(schema["fields"]) - len(values))
        return {
            field["name"]: _as_avro_would(each, field["type"], named)
            for field, each in zip(schema["fields"], values, strict=True)
        }
    if kind == "array":
        return [_as_avro_would(each, schema["items"], named) for each in value]
    return value
