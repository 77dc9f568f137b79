"""The parts in which Protobuf differs from Avro, as a binary format with schemas in a registry (`avro/form.py`)."""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.records.avro.arrays import ArrayValue, AvroConverter, OneDimension
from cdcd.core.records.avro.converters import AnyValue, BinaryForm, Numbers, converter_of
from cdcd.core.records.avro.form import head, subject_of
from cdcd.core.records.avro.writing import BUFFER_BYTES_MAX, AvroValueError
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.converter import Converter
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.protobuf.schemas import adjusted_full_name, schema_text, with_numbers
from cdcd.core.records.protobuf.writing import (
    ITEMS,
    LENGTH,
    LOGICAL,
    NUMBER,
    encoded,
    message,
    tag,
    text_field,
    wire_of,
    write_bytes,
    write_text,
    write_varint,
)
from cdcd.core.records.schema_registrations import SchemaUse

if TYPE_CHECKING:
    from mypy_extensions import i64

PROTOBUF: Final = "protobuf"
"""Name of the format in the configuration."""

_NULL: Final = b"null"

_KIND: Final = "PROTOBUF"

_FIRST_MESSAGE: Final = b"\x00"
"""Confluent's list of message indexes for the first message of a file, which the list `[0]` is shortened to."""

_ROWS: Final = 2
"""Number of an envelope's fields that are rows: `before` and `after`."""

PREFIX: Final = 1
"""Number of the field with a logical message's prefix, in its key and in its value."""


_ELEMENT: Final = tag(ITEMS, LENGTH)


class _Elements(OneDimension):
    """Writes elements, each as a message, which lacks its field if the element is NULL."""

    def __init__(self, array: ArrayValue) -> None:
        OneDimension.__init__(self)
        self._element = array.element
        self._field = tag(ITEMS, wire_of(array.schema))
        self._one = BytesWriter()
        self._all = BytesWriter()

    def taken(self) -> bytes:
        """Return the messages, and release the buffer."""
        made = self._all.getvalue()
        self._all = BytesWriter()
        return made

    def null(self) -> None:
        self._all.write(_ELEMENT)
        self._all.append(0)

    def value(self, data: bytes, at: "i64", end: "i64") -> None:
        self._element.write(data, at, end, self._one)
        self._put()

    def binary_value(self, data: bytes, at: "i64", end: "i64") -> None:
        self._element.write_binary(data, at, end, self._one)
        self._put()

    def _put(self) -> None:
        value = self._one.getvalue()
        if len(value) > BUFFER_BYTES_MAX:
            # Two buffers and the value would be three copies of a large element.
            self._one = BytesWriter()
        self._one.truncate(0)
        self._all.write(_ELEMENT)
        write_varint(len(self._field) + len(value), self._all)
        self._all.write(self._field)
        self._all.write(value)


class ProtobufForm(BinaryForm):
    """Writes schemas, fields and records in Protobuf."""

    def __init__(self) -> None:
        BinaryForm.__init__(self, "Protobuf", PROTOBUF)

    def put_number(self, number: "i64", out: BytesWriter) -> None:
        """See `BinaryForm`."""
        write_varint(number, out)

    def put_text(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """See `BinaryForm`."""
        write_text(data, at, end, out)

    def put_bytes(self, data: bytes, out: BytesWriter) -> None:
        """See `BinaryForm`."""
        write_bytes(data, out)

    def encoded(self, schema: Schema, json_text: bytes) -> bytes:
        """See `BinaryForm`."""
        return encoded(schema, json_text)

    def put_array(self, array: ArrayValue, out: BytesWriter) -> None:
        """See `BinaryForm`. The length of the elements precedes them."""
        elements = _Elements(array)
        array.give(elements)
        write_bytes(elements.taken(), out)

    def head(self, schema_id: int) -> bytes:
        """See `BinaryForm`. After the id comes the index of the record's message in the .proto file."""
        return head(schema_id) + _FIRST_MESSAGE

    def use(self, settings: EncoderSettings, topic: str, schema: Schema, part: str) -> SchemaUse:
        """See `BinaryForm`."""
        subject = subject_of(settings, topic, adjusted_full_name(schema["name"]), part)
        return SchemaUse(subject, schema_text(schema), _KIND)

    def of_key(self, schema: Schema, numbers: Numbers) -> Schema:
        """See `BinaryForm`."""
        return with_numbers(schema, numbers)

    def of_value(self, schema: Schema, numbers: Numbers) -> Schema:
        """See `BinaryForm`."""
        rows = [with_numbers(field, numbers) for field in schema["fields"][:_ROWS]]
        return {**schema, "fields": [*rows, *schema["fields"][_ROWS:]]}

    def converter(self, json: Converter, schema: Schema) -> AvroConverter:
        """See `BinaryForm`. Connect's logical types are messages in Protobuf."""
        if schema.get("name") in LOGICAL:
            return AnyValue(json, schema, self)
        return converter_of(json, schema, self)

    def opening(self, schema: Schema) -> bytes | None:
        """See `BinaryForm`."""
        return tag(schema[NUMBER], wire_of(schema))

    def null(self, schema: Schema) -> bytes | None:
        """See `BinaryForm`. A field that is missing is null."""
        return b""

    def zero(self, schema: Schema) -> bytes:
        """See `BinaryForm`. Every column can be null."""
        return b""

    def placeholder(self, schema: Schema, json_text: bytes) -> bytes | None:
        """See `BinaryForm`."""
        try:
            return self.field(schema, json_text)
        except AvroValueError:
            return b""

    def field(self, schema: Schema, json_text: bytes) -> bytes:
        """See `BinaryForm`. A field that is null is left out."""
        return (
            b"" if json_text == _NULL else tag(schema[NUMBER], wire_of(schema)) + encoded(schema, json_text)
        )

    def root(self, schema: Schema) -> bytes:
        """See `BinaryForm`."""
        return b""

    def record(self, schema: Schema, json_text: bytes) -> bytes:
        """See `BinaryForm`."""
        return message(schema, json_text)

    def message_key(self, prefix: str) -> bytes:
        """See `BinaryForm`."""
        return text_field(PREFIX, prefix)
