"""What differs between binary formats with schemas in a registry. Here as Avro has it, in `protobuf/form.py` the other.

Everything else is the same for both: which records there are, which columns, which converters, when schemas are
registered (`encoder.py`, `tables.py`, `converters.py`).
"""

from collections.abc import Mapping
from typing import Final

from cdcd.core.errors import TransientError
from cdcd.core.records.avro.converters import AvroConverter, converter_of
from cdcd.core.records.avro.primitives import Primitives
from cdcd.core.records.avro.schemas import adjusted_full_name, has_default, schema_text
from cdcd.core.records.avro.writing import FIRST, SECOND, UnfitError, encoded, optional, text, zero
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.converter import Converter
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse

AVRO: Final = "avro"
"""The format whose records these are."""

Numbers = Mapping[str, int | None]
"""The attribute number of each column by its name; None: it is not known."""

_HEAD: Final = b"\x00"
_ID_BYTES: Final = 4


def head(schema_id: int) -> bytes:
    """What a record begins with in Confluent's wire format: zero, and the id of the schema."""
    return _HEAD + schema_id.to_bytes(_ID_BYTES, "big")


def subject_of(settings: EncoderSettings, topic: str, record: str, part: str) -> str:
    """The subject of a schema, by Confluent's strategies. `record` is its full name, `part` is key or value."""
    return {
        "topic": f"{topic}-{part}",
        "record": record,
        "topic_record": f"{topic}-{record}",
    }[settings.subjects]


def known_id(settings: EncoderSettings, use: SchemaUse) -> int:
    """The id of a schema. TransientError: it has none yet."""
    schema_id = settings.schema_ids.get(use)
    if schema_id is None:
        # The labels of an enum may have changed while rows of its table were on their way.
        raise TransientError(
            f"The schema of subject {use.subject} has changed, and is not registered yet.",
            hint="The next session has it registered before it makes records with it.",
        )
    return schema_id


class AvroForm(Primitives):
    """Avro.

    Attributes:
        format: its name in the configuration.
    """

    def __init__(self) -> None:
        Primitives.__init__(self, "Avro")
        self.format = AVRO

    def head(self, schema_id: int) -> bytes:
        """What a record begins with."""
        return head(schema_id)

    def use(self, settings: EncoderSettings, topic: str, schema: Schema, part: str) -> SchemaUse:
        """A schema under its subject. `part` is key or value."""
        return SchemaUse(
            subject_of(settings, topic, adjusted_full_name(schema["name"]), part), schema_text(schema)
        )

    def of_key(self, schema: Schema, numbers: Numbers) -> Schema:
        """The Connect schema of keys, as this format needs it."""
        return schema

    def of_value(self, schema: Schema, numbers: Numbers) -> Schema:
        """The same of values, whose first fields are the rows."""
        return schema

    def converter(self, json: Converter, schema: Schema) -> AvroConverter:
        """The converter of a column."""
        return converter_of(json, schema, self)

    def opening(self, schema: Schema) -> bytes | None:
        """What stands before a value of a field that is not NULL; None: nothing, because it is never NULL."""
        if not schema["optional"]:
            return None
        return bytes([FIRST if has_default(schema) else SECOND])

    def null(self, schema: Schema) -> bytes | None:
        """What stands for NULL; None: the field has no null."""
        if not schema["optional"]:
            return None
        return bytes([SECOND if has_default(schema) else FIRST])

    def zero(self, schema: Schema) -> bytes:
        """What stands for NULL in a column of the key that has no null."""
        return zero(schema)

    def placeholder(self, schema: Schema, json_text: bytes) -> bytes | None:
        """What stands for a value of a column that was not sent; None: the field has no null.

        It is null, if the placeholder of JSON is not of the column's type.
        """
        if not schema["optional"]:
            return None
        try:
            return self.field(schema, json_text)
        except UnfitError:
            return self.null(schema)

    def field(self, schema: Schema, json_text: bytes) -> bytes:
        """A field of this value, which may be null. UnfitError: the value is not of the schema's form."""
        return encoded(schema, json_text)

    def root(self, schema: Schema) -> bytes:
        """What stands between the head of a value and its first field."""
        return self.opening(schema) or b""

    def record(self, schema: Schema, json_text: bytes) -> bytes:
        """A key or a value that has this JSON, without its head."""
        return encoded(schema, json_text)

    def message_key(self, prefix: str) -> bytes:
        """The key of a logical message, without its head."""
        return optional(text(prefix))
