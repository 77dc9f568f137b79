"""What differs between binary formats with schemas in a registry: this module is for Avro, `protobuf/form.py` for
Protobuf.

Everything else is shared: which records there are, which columns, which converters, and when schemas are registered
(`encoder.py`, `tables.py`, `converters.py`).
"""

from collections.abc import Mapping
from typing import Final

from cdcd.core.errors import TransientError
from cdcd.core.records.avro.converters import AvroConverter, Primitives, converter_of
from cdcd.core.records.avro.schemas import adjusted_full_name, has_default, schema_text
from cdcd.core.records.avro.writing import FIRST, SECOND, UnfitError, encoded, optional, text, zero
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.converter import Converter
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse

AVRO: Final = "avro"
"""Name of the format in the configuration."""

Numbers = Mapping[str, int | None]
"""The attribute number of each column by its name; None if it is not known."""

_HEAD: Final = b"\x00"
_ID_BYTES: Final = 4


def head(schema_id: int) -> bytes:
    """Return the beginning of a record in Confluent's wire format: zero, and the id of the schema."""
    return _HEAD + schema_id.to_bytes(_ID_BYTES, "big")


def subject_of(settings: EncoderSettings, topic: str, record: str, part: str) -> str:
    """Return the subject of a schema by Confluent's strategies; `record` is its full name, `part` is key or value."""
    return {
        "topic": f"{topic}-{part}",
        "record": record,
        "topic_record": f"{topic}-{record}",
    }[settings.subjects]


def known_id(settings: EncoderSettings, use: SchemaUse) -> int:
    """Return the id of a schema; TransientError if it has none yet."""
    schema_id = settings.schema_ids.get(use)
    if schema_id is None:
        # The labels of an enum may have changed while rows of its table were being encoded.
        raise TransientError(
            f"The schema of subject {use.subject} has changed, and is not registered yet.",
            hint="The next session has it registered before it makes records with it.",
        )
    return schema_id


class AvroForm(Primitives):
    """Writes schemas, fields and records in Avro.

    Attributes:
        format: name of the format in the configuration.
    """

    def __init__(self) -> None:
        Primitives.__init__(self, "Avro")
        self.format = AVRO

    def head(self, schema_id: int) -> bytes:
        """Return the beginning of a record with this schema."""
        return head(schema_id)

    def use(self, settings: EncoderSettings, topic: str, schema: Schema, part: str) -> SchemaUse:
        """Return a schema with its subject; `part` is key or value."""
        return SchemaUse(
            subject_of(settings, topic, adjusted_full_name(schema["name"]), part), schema_text(schema)
        )

    def of_key(self, schema: Schema, numbers: Numbers) -> Schema:
        """Return the Connect schema of keys in the form that this format needs."""
        return schema

    def of_value(self, schema: Schema, numbers: Numbers) -> Schema:
        """Return the Connect schema of values in the form that this format needs; its first fields are the rows."""
        return schema

    def converter(self, json: Converter, schema: Schema) -> AvroConverter:
        """Return the converter of a column."""
        return converter_of(json, schema, self)

    def opening(self, schema: Schema) -> bytes | None:
        """Return the bytes before a value that is not NULL; None if there are none, because the field is never NULL."""
        if not schema["optional"]:
            return None
        return bytes([FIRST if has_default(schema) else SECOND])

    def null(self, schema: Schema) -> bytes | None:
        """Return the bytes for NULL; None if the field cannot be null."""
        if not schema["optional"]:
            return None
        return bytes([SECOND if has_default(schema) else FIRST])

    def zero(self, schema: Schema) -> bytes:
        """Return the bytes in place of NULL in a column of the key, if that cannot be null."""
        return zero(schema)

    def placeholder(self, schema: Schema, json_text: bytes) -> bytes | None:
        """Return the bytes in place of a value that was not sent; None if the field cannot be null.

        They are those of null if JSON's placeholder is not a value of the column's type.
        """
        if not schema["optional"]:
            return None
        try:
            return self.field(schema, json_text)
        except UnfitError:
            return self.null(schema)

    def field(self, schema: Schema, json_text: bytes) -> bytes:
        """Return a field with this value, which may be null; UnfitError if the value does not match the schema."""
        return encoded(schema, json_text)

    def root(self, schema: Schema) -> bytes:
        """Return the bytes between the head of a value and its first field."""
        return self.opening(schema) or b""

    def record(self, schema: Schema, json_text: bytes) -> bytes:
        """Return a key or a value that has this JSON, without its head."""
        return encoded(schema, json_text)

    def message_key(self, prefix: str) -> bytes:
        """Return the key of a logical message, without its head."""
        return optional(text(prefix))
