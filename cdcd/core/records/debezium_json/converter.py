"""The converter of a type: one value in, its JSON out. `converters.py` says which type has which.

Both are wire text, or the same as bytes. A value that is not of its type's form is a ValueError, which stage 4 turns
into a ProtocolError.
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

# What stage 4 does itself with a text in the usual case, since a call costs it as much as a column: the mode.
CONVERTED: Final = 0
"""`Converter.json` makes the JSON."""
AS_IS: Final = 1
"""The text is the JSON."""
STRING: Final = 2
"""The text becomes a JSON string."""
DECIMAL: Final = 3
"""The text becomes a JSON string without a look inside, if it ends with a digit."""
QUOTED: Final = (STRING, DECIMAL)
"""The modes of what usually stands between quotes, for which a record has places of their own."""
FLOAT: Final = 4
"""The text is the JSON, if it has a decimal point."""
BOOLEAN: Final = 5
"""`t` is true."""
ASCII: Final = (AS_IS, DECIMAL, FLOAT, BOOLEAN)
"""The modes of types whose texts are ASCII always: another byte was damaged on the way."""


class Converter:
    """JSON for values of one type, as a column declares it. `mode` says whether `json` need be called at all."""

    mode: ClassVar[int] = CONVERTED

    binary_is_text: bool = False
    """The binary form is the text, and the mode is STRING."""

    def json(self, text: str) -> str:
        """The JSON of a value in text form, both wire text."""
        raise NotImplementedError

    def wire(self, value: bytes) -> bytes:
        """As `json`, for text as the server sent it: what stage 4 calls."""
        return self.json(value.decode("latin-1")).encode("latin-1")

    def wire_parts(self, value: bytes) -> list[bytes]:
        """As `wire`, in parts. A large value can be a part of its own, so that the value is not copied."""
        return [self.wire(value)]

    def wire_of_copy(self, field: bytes) -> bytes:
        """As `wire`, for a field of COPY that has escapes."""
        return self.wire(unescape(field))

    def binary(self, data: bytes) -> str:
        """The same JSON for the same value in binary form."""
        raise WithoutReaderError("there is no reader for the binary form of this type")

    def wire_of_binary(self, data: bytes) -> bytes:
        """As `binary`, with bytes as the result."""
        return self.binary(data).encode("latin-1")

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append what `wire` makes of `data[at:end]`; types that are usual do it without an object for the value."""
        out.write(self.wire(data[at:end]))

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """The same for `binary`."""
        out.write(self.wire_of_binary(data[at:end]))

    def unchanged(self, placeholder: str) -> str:
        """The JSON that stands for a TOASTed value which the server did not send; never null."""
        return quote(wire(placeholder))

    def unchanged_element(self, placeholder: str) -> list[str]:
        """The elements of the array that stands for an array which the server did not send."""
        return [self.unchanged(placeholder)]


class Text(Converter):
    """Types whose binary form is their text."""

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
    """Types of which we know the text only: reg* types, extensions' own ones, those that the catalog does not know."""

    binary_is_text = False

    def binary(self, data: bytes) -> str:
        return Converter.binary(self, data)


class Readable(Text):
    """Types that are their text, whose binary form is read into that text: ranges, networks, geometry, composites."""

    binary_is_text = False

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def binary(self, data: bytes) -> str:
        return quote(self._reader(data))


class Number(Converter):
    """Types that are JSON numbers; an array of them is stood for by the placeholder's bytes, as in Java signed."""

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
