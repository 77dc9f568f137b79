"""What differs between binary formats with schemas in a registry: this module is for Avro, `protobuf/form.py` for
Protobuf.

Everything else is shared: which records there are, which columns, which converters, and when schemas are registered
(`encoder.py`, `tables.py`, `converters.py`).
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.errors import TransientError
from cdcd.core.records.avro.arrays import ArrayValue, AvroElements, ElementCount
from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.schemas import adjusted_full_name, has_default, schema_text
from cdcd.core.records.avro.writing import (
    FIRST,
    SECOND,
    AvroValueError,
    encoded,
    optional,
    text,
    write_bytes,
    write_long,
    write_text,
    zero,
)
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse, is_uuid

if TYPE_CHECKING:
    from mypy_extensions import i64

AVRO: Final = "avro"
"""Name of the format in the configuration."""

_HEAD: Final = b"\x00"
_ID_BYTES: Final = 4
_GLUE_HEAD: Final = b"\x03\x00"
"""The version of Glue's header, and no compression (AWSSchemaRegistryConstants of AWS's serializers)."""
_UUID_BYTES: Final = 16


def head(schema_id: int) -> bytes:
    """Return the beginning of a record: Confluent's (zero, and the id of the schema), or Glue's if the id is a UUID."""
    if is_uuid(schema_id):
        return _GLUE_HEAD + schema_id.to_bytes(_UUID_BYTES, "big")
    return _HEAD + schema_id.to_bytes(_ID_BYTES, "big")


def subject_of(settings: EncoderSettings, topic: str, record: str, part: str) -> str:
    """Return the subject of a schema by Confluent's strategies; `record` is its full name, `part` is key or value."""
    topic = whole_topic(topic)
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


class AvroForm(BinaryForm):
    """Writes schemas, fields and records in Avro."""

    def __init__(self) -> None:
        BinaryForm.__init__(self, "Avro", AVRO)

    def put_number(self, number: "i64", out: BytesWriter) -> None:
        """See `BinaryForm`."""
        write_long(number, out)

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
        """See `BinaryForm`. The number of elements precedes them, and zero ends the array."""
        counted = ElementCount()
        array.give(counted)
        if counted.elements:
            write_long(counted.elements, out)
            array.give(AvroElements(array.element, out))
        out.append(0)

    def head(self, schema_id: int) -> bytes:
        """See `BinaryForm`."""
        return head(schema_id)

    def use(self, settings: EncoderSettings, topic: str, schema: Schema, part: str) -> SchemaUse:
        """See `BinaryForm`."""
        # A bare key of a primitive type has no name, and its subject follows the topic alone.
        name = adjusted_full_name(schema.get("name") or schema["type"])
        return SchemaUse(subject_of(settings, topic, name, part), schema_text(schema))

    def opening(self, schema: Schema) -> bytes | None:
        """See `BinaryForm`."""
        if not schema["optional"]:
            return None
        return bytes([FIRST if has_default(schema) else SECOND])

    def null(self, schema: Schema) -> bytes | None:
        """See `BinaryForm`."""
        if not schema["optional"]:
            return None
        return bytes([SECOND if has_default(schema) else FIRST])

    def zero(self, schema: Schema) -> bytes:
        """See `BinaryForm`."""
        return zero(schema)

    def placeholder(self, schema: Schema, json_text: bytes) -> bytes | None:
        """See `BinaryForm`."""
        if not schema["optional"]:
            return None
        try:
            return self.field(schema, json_text)
        except AvroValueError:
            return self.null(schema)

    def field(self, schema: Schema, json_text: bytes) -> bytes:
        """See `BinaryForm`."""
        return encoded(schema, json_text)

    def root(self, schema: Schema) -> bytes:
        """See `BinaryForm`."""
        return self.opening(schema) or b""

    def record(self, schema: Schema, json_text: bytes) -> bytes:
        """See `BinaryForm`."""
        return encoded(schema, json_text)

    def message_key(self, prefix: str) -> bytes:
        """See `BinaryForm`."""
        return optional(text(prefix))
