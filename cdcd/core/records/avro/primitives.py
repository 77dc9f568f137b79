"""How Avro writes numbers, texts, bytes and whole values; other formats derive their own class.

Converters use these methods.
"""

from typing import TYPE_CHECKING

from librt.strings import BytesWriter

from cdcd.core.records.avro.writing import encoded, write_bytes, write_long, write_text
from cdcd.core.records.debezium_json.connect_schema import Schema

if TYPE_CHECKING:
    from mypy_extensions import i64


class Primitives:
    """Appends values that are not null to a buffer, without a union branch.

    Attributes:
        name: name of the format for errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def put_number(self, number: "i64", out: BytesWriter) -> None:
        """Append a whole number."""
        write_long(number, out)

    def put_text(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append `data[at:end]` as a text. UnicodeDecodeError (a ValueError) if it is not UTF-8."""
        write_text(data, at, end, out)

    def put_bytes(self, data: bytes, out: BytesWriter) -> None:
        """Append bytes, which may be a text in UTF-8."""
        write_bytes(data, out)

    def encoded(self, schema: Schema, json_text: bytes) -> bytes:
        """Return the encoded value that has this JSON. UnfitError if the JSON does not match the Connect schema."""
        return encoded(schema, json_text)
