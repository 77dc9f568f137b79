"""Numbers, texts, bytes and whole values as a binary format has them; here Avro's. A converter writes by these."""

from typing import TYPE_CHECKING

from librt.strings import BytesWriter

from cdcd.core.records.avro.writing import encoded, write_bytes, write_long, write_text
from cdcd.core.records.debezium_json.connect_schema import Schema

if TYPE_CHECKING:
    from mypy_extensions import i64


class Primitives:
    """Appends values to a buffer, without what says that they are not null.

    Attributes:
        name: of the format, for errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def put_number(self, number: "i64", out: BytesWriter) -> None:
        """Append a whole number."""
        write_long(number, out)

    def put_text(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append `data[at:end]` as a text. UnicodeDecodeError (a ValueError): it is not UTF-8."""
        write_text(data, at, end, out)

    def put_bytes(self, data: bytes, out: BytesWriter) -> None:
        """Append bytes, or the UTF-8 of a text."""
        write_bytes(data, out)

    def encoded(self, schema: Schema, json_text: bytes) -> bytes:
        """A value that has this JSON. UnfitError: it is not of the form of its Connect schema."""
        return encoded(schema, json_text)
