"""Converters of values of one type into JSON; `converters.py` decides which type has which converter.

Values and JSON are wire text, or the same as bytes. A value that does not have the form of its type raises
ValueError, which stage 4 turns into a ProtocolError.
"""

from binascii import b2a_base64
from typing import TYPE_CHECKING, ClassVar, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.binary_text import Reader, WithoutReaderError
from cdcd.core.catalog.copytext import unescape
from cdcd.core.catalog.wiretext import wire
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES
from cdcd.core.records.debezium_json.strings import escaped, quote
from cdcd.core.records.debezium_json.writing import write_string

if TYPE_CHECKING:
    from mypy_extensions import i64

# The modes say what stage 4 does itself with a text in the usual case, because a function call costs as much as the
# rest of a column.
CONVERTED: Final = 0
"""`Converter.json` must be called to make the JSON."""
AS_IS: Final = 1
"""The text itself is the JSON."""
STRING: Final = 2
"""The text becomes a JSON string."""
DECIMAL: Final = 3
"""The text becomes a JSON string without an escape if it ends with a digit."""
QUOTED: Final = (STRING, DECIMAL)
"""The modes of values that usually need quotes, for which a record has slots."""
FLOAT: Final = 4
"""The text itself is the JSON if it has a decimal point."""
BOOLEAN: Final = 5
"""The text `t` becomes true, and `f` false."""
ASCII: Final = (AS_IS, DECIMAL, FLOAT, BOOLEAN)
"""The modes of types whose texts are always ASCII, so any other byte shows damage."""


class Converter:
    """Makes JSON from values of one type, as a column declares it. `mode` says whether `json` must be called."""

    mode: ClassVar[int] = CONVERTED

    binary_is_text: bool = False
    """True if the binary form is the text, and the mode is STRING."""

    def json(self, text: str) -> str:
        """Return the JSON of a value in text form; both are wire text."""
        raise NotImplementedError

    def wire(self, value: bytes) -> bytes:
        """Return the JSON of a text as the server sent it, both as bytes; stage 4 calls this."""
        return self.json(value.decode("latin-1")).encode("latin-1")

    def wire_parts(self, value: bytes) -> list[bytes]:
        """Return the same as `wire` in parts. A large value can be a part by itself, so that it is not copied."""
        return [self.wire(value)]

    def wire_of_copy(self, field: bytes) -> bytes:
        """Return the JSON of a COPY field that has escapes."""
        return self.wire(unescape(field))

    def binary(self, data: bytes) -> str:
        """Return the JSON of a value in binary form, which is the same as for its text."""
        raise WithoutReaderError("there is no reader for the binary form of this type")

    def wire_of_binary(self, data: bytes) -> bytes:
        """Return the JSON of a value in binary form as bytes."""
        return self.binary(data).encode("latin-1")

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append the JSON of the text `data[at:end]`; common types do this without making an object for the value."""
        out.write(self.wire(data[at:end]))

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append the JSON of the binary value `data[at:end]`."""
        out.write(self.wire_of_binary(data[at:end]))

    def unchanged(self, placeholder: str) -> str:
        """Return the JSON in place of a TOASTed value that the server did not send; it is never null."""
        return quote(wire(placeholder))

    def unchanged_element(self, placeholder: str) -> list[str]:
        """Return the elements of the array in place of an array that the server did not send."""
        return [self.unchanged(placeholder)]


class Text(Converter):
    """Converts types whose binary form is their text."""

    mode = STRING
    binary_is_text = True

    def json(self, text: str) -> str:
        return quote(text)

    def wire(self, value: bytes) -> bytes:
        return Converter.wire(self, value) if len(value) <= PIECE_BYTES else b"".join(self.wire_parts(value))

    def wire_parts(self, value: bytes) -> list[bytes]:
        return [b'"', escaped(value), b'"']

    def binary(self, data: bytes) -> str:
        return quote(data.decode("latin-1"))

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        write_string(data, at, end, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if self.binary_is_text:
            write_string(data, at, end, out)
        else:
            Converter.write_binary(self, data, at, end, out)


class Opaque(Text):
    """Converts types of which only the text is known: reg* types, types of extensions, types that the catalog does not
    know.
    """

    binary_is_text = False

    def binary(self, data: bytes) -> str:
        return Converter.binary(self, data)


class Readable(Text):
    """Converts types that stay text, and whose binary form can be read into this text: ranges, networks, geometry,
    composites.
    """

    binary_is_text = False

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def binary(self, data: bytes) -> str:
        return quote(self._reader(data))


class Number(Converter):
    """Converts types that become JSON numbers; in place of an array of them stand the bytes of the placeholder, signed
    as in Java.
    """

    def unchanged_element(self, placeholder: str) -> list[str]:
        return [str(byte - 256 if byte > 127 else byte) for byte in placeholder.encode("utf-8")]


def float_json(text: str) -> str:
    last = text[-1:]
    if not last.isdigit():
        if text in ("NaN", "Infinity", "-Infinity"):
            return f'"{text}"'
        raise ValueError(f"{text!r} is not a number")
    return text if "." in text or "e" in text else f"{text}.0"


def base64_json(data: bytes) -> str:
    return f'"{b2a_base64(data, newline=False).decode("ascii")}"'
