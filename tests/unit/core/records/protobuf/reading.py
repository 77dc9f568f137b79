"""Reads records in Protobuf with Google's runtime, and says what JSON has for the same values.

The schema's text is compiled by protoc. Nothing of `cdcd/core/records/protobuf` is used here.
"""

import tempfile
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from pathlib import Path
from struct import pack, unpack
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet
from google.type import date_pb2
from grpc_tools import protoc

from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse

DECIMAL = """
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""
"""`confluent/type/decimal.proto` of Confluent's schema registry, which knows the file."""


@cache
def compiled(text: str) -> Descriptor:
    """The first message of a schema."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "record.proto").write_text(text)
        (root / "confluent" / "type").mkdir(parents=True)
        (root / "confluent" / "type" / "decimal.proto").write_text(DECIMAL)
        known = Path(grpc_tools.__file__).parent / "_proto"
        types = Path(date_pb2.__file__).parents[2]
        arguments = [
            "protoc",
            *[f"-I{each}" for each in (root, known, types)],
            "--include_imports",
            f"--descriptor_set_out={root / 'out'}",
            "record.proto",
        ]
        assert protoc.main(arguments) == 0, f"protoc refuses the schema:\n{text}"
        files = descriptor_pb2.FileDescriptorSet.FromString((root / "out").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found = pool.FindFileByName("record.proto").message_types_by_name
    return next(iter(found.values()))


class Schemas:
    """A registry in memory: registers what an encoder lacks, and reads what it wrote.

    Args:
        in_order: fields come in the order of their numbers, which columns without a known number do not.
    """

    def __init__(self, in_order: bool = True) -> None:
        self._in_order = in_order
        self.ids = SchemaIds("http://registry")
        self.texts: dict[int, str] = {}
        self.uses: dict[int, SchemaUse] = {}

    def settings(self, **more: Any) -> EncoderSettings:
        more = {"key_format": "protobuf", "value_format": "protobuf", **more}
        return EncoderSettings("test", "golden", "db", schema_ids=self.ids, **more)

    def register(self, encoder: Encoder, oid: int) -> int:
        """Register the schemas that are lacking; how many those were."""
        uses = encoder.unregistered(oid)
        for use in uses:
            assert use.kind == "PROTOBUF"
            schema_id = len(self.texts) + 1
            self.ids.put(use, schema_id)
            self.texts[schema_id], self.uses[schema_id] = use.text, use
        return len(uses)

    def read(self, data: bytes) -> tuple[int, Any]:
        """The id of a record's schema, and its value as JSON has it."""
        schema_id, message = self.message(data)
        return schema_id, as_json(message)

    def descriptor(self, schema_id: int) -> Descriptor:
        """The message that a schema is of."""
        return compiled(self.texts[schema_id])

    def message(self, data: bytes) -> tuple[int, Any]:
        """The id of a record's schema, and the message."""
        assert data[0] == 0
        schema_id = int.from_bytes(data[1:5], "big")
        assert data[5] == 0, "the first message of the file"
        message = message_factory.GetMessageClass(compiled(self.texts[schema_id]))()
        message.ParseFromString(data[6:])
        assert len(UnknownFieldSet(message)) == 0, "each field is one of the schema"
        # What another program would write for the same values, byte for byte. The order of a map is nobody's rule.
        written = message.SerializeToString(deterministic=True)
        is_free = not self._in_order or "map<" in self.texts[schema_id]
        assert written == data[6:] or (is_free and sorted(written) == sorted(data[6:]))
        return schema_id, message


def as_json(message: Any) -> Any:
    """A message as `format: json` has its value. Fields are called as in Protobuf's JSON."""
    descriptor = message.DESCRIPTOR
    if descriptor.full_name in LOGICAL:
        return LOGICAL[descriptor.full_name](message)
    held = _held(descriptor)
    if held is None:
        return {field.json_name: _field(message, field) for field in descriptor.fields}
    values = getattr(message, held.name)
    if held.name == "elements":
        return [_element(each) for each in values]
    if hasattr(values, "items"):
        return {str(key): _value(each) for key, each in values.items()}
    return {each.key: _field(each, each.DESCRIPTOR.fields_by_name["value"]) for each in values}


def _held(descriptor: Descriptor) -> FieldDescriptor | None:
    """The field that holds the elements of an array or the entries of a map, if the message is one."""
    fields = list(descriptor.fields)
    if len(fields) == 1 and fields[0].is_repeated and fields[0].name in ("elements", "entries"):
        return fields[0]
    return None


def _element(each: Any) -> Any:
    if not hasattr(each, "DESCRIPTOR") or each.DESCRIPTOR.name != "Element":
        return _value(each)
    return _field(each, each.DESCRIPTOR.fields[0])


def _field(message: Any, field: FieldDescriptor) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(getattr(message, field.name))


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), value)
    return as_json(value) if hasattr(value, "DESCRIPTOR") else value


def _days(date: Any) -> int:
    """Days since 1970, by the formula for Julian days (Fliegel, Van Flandern), moved by cycles of 400 years."""
    cycles = (date.year + 9600) // 400
    year = date.year + 9600 - cycles * 400 + 4800
    shift = (date.month - 14) // 12 if date.month >= 14 else -((14 - date.month) // 12)
    julian = (
        1461 * (year + 4800 + shift) // 4
        + 367 * (date.month - 2 - 12 * shift) // 12
        - 3 * ((year + 4900 + shift) // 100) // 4
        + date.day
        - 32075
    )
    return int(julian - 2_440_588 + (cycles - 36) * 146_097)


LOGICAL: dict[str, Callable[[Any], Any]] = {
    "confluent.type.Decimal": lambda decimal: b64encode(decimal.value).decode(),
    "google.type.Date": _days,
    "google.type.TimeOfDay": lambda time: (
        (time.hours * 3600 + time.minutes * 60 + time.seconds) * 1000 + time.nanos // 1_000_000
    ),
    "google.protobuf.Timestamp": lambda at: at.seconds * 1000 + at.nanos // 1_000_000,
}
"""How JSON has Connect's logical types."""


def expected(value: Any, descriptor: Descriptor) -> Any:
    """A value of JSON, with what Protobuf has in another form: float4, fields that are not there, maps of numbers."""
    if value is None or descriptor.full_name in LOGICAL:
        return value
    held = _held(descriptor)
    if held is None:
        found = {field.json_name: field for field in descriptor.fields}
        assert set(value) <= set(found), "each field of JSON has one"
        return {name: _expected(value.get(name), field) for name, field in found.items()}
    if held.name == "elements":
        inner = held.message_type
        if inner is not None and inner.name == "Element":
            return [_expected(each, inner.fields[0]) for each in value]
        return [_expected(each, held) for each in value]
    pairs = value.items() if isinstance(value, dict) else value
    return {str(key): each for key, each in pairs}


def _expected(value: Any, field: FieldDescriptor) -> Any:
    if value is None:
        return None
    if field.message_type is not None:
        return expected(value, field.message_type)
    if field.type == field.TYPE_FLOAT and isinstance(value, int | float):
        return unpack("<f", pack("<f", value))[0]
    return value
