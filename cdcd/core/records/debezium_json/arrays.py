"""Arrays in JSON, as a whole or element by element."""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.records.debezium_json import literals
from cdcd.core.records.debezium_json.converter import (
    AS_IS,
    Converter,
)
from cdcd.core.records.unwritable import UnwritableError

if TYPE_CHECKING:
    from mypy_extensions import i64


_OPENING: Final = 0x5B  # [

_CLOSING: Final = 0x5D  # ]

_COMMA: Final = 0x2C  # ,


class Array(Converter):
    """Converts arrays (`{1,2,NULL}`) with elements of any type.

    Attributes:
        element: the converter of elements.
        delimiter: the byte between elements.
    """

    def __init__(self, element: Converter, delimiter: str) -> None:
        self.element = element
        self.delimiter = ord(delimiter)
        self._flat = element.mode == AS_IS and delimiter == ","
        self._token = literals.array_token(delimiter)

    def json(self, text: str) -> str:
        if self._flat:
            return literals.flat_array_json(text)
        try:
            return literals.array_json(text, self._token, self.element.json)
        except UnwritableError as error:
            raise of_element(error) from None

    def wire(self, value: bytes) -> bytes:
        if len(value) <= literals.ARRAY_BYTES_MAX:
            return Converter.wire(self, value)
        out = BytesWriter()
        self.write(value, 0, len(value), out)
        return out.getvalue()

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at <= literals.ARRAY_BYTES_MAX:
            Converter.write(self, data, at, end, out)
        elif self._flat:
            literals.write_flat_array(data, at, end, out)
        else:
            try:
                literals.write_array(data, at, end, self.delimiter, _JsonArray(self.element, out))
            except UnwritableError as error:
                raise of_element(error) from None

    def binary(self, data: bytes) -> str:
        try:
            return literals.binary_array_json(data, self.element.binary)
        except UnwritableError as error:
            raise of_element(error) from None

    def wire_of_binary(self, data: bytes) -> bytes:
        if len(data) <= literals.ARRAY_BYTES_MAX:
            return Converter.wire_of_binary(self, data)
        out = BytesWriter()
        self.write_binary(data, 0, len(data), out)
        return out.getvalue()

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at <= literals.ARRAY_BYTES_MAX:
            Converter.write_binary(self, data, at, end, out)
            return
        try:
            literals.write_binary_array(data, at, end, _JsonArray(self.element, out))
        except UnwritableError as error:
            raise of_element(error) from None

    def unchanged(self, placeholder: str) -> str:
        return f"[{','.join(self.element.unchanged_element(placeholder))}]"


class _JsonArray(literals.ArraySink):
    """Writes the parts of an array as JSON."""

    def __init__(self, element: Converter, out: BytesWriter) -> None:
        self._element = element
        self._out = out

    def open(self) -> None:
        self._out.append(_OPENING)

    def close(self) -> None:
        self._out.append(_CLOSING)

    def between(self) -> None:
        self._out.append(_COMMA)

    def null(self) -> None:
        self._out.write(b"null")

    def value(self, data: bytes, at: "i64", end: "i64") -> None:
        self._element.write(data, at, end, self._out)

    def binary_value(self, data: bytes, at: "i64", end: "i64") -> None:
        self._element.write_binary(data, at, end, self._out)


def of_element(error: UnwritableError) -> UnwritableError:
    """Return an error that concerns the array as a whole, because a replacement for the element
    would not be an array.
    """
    return UnwritableError(f"an element of the array: {error.problem}", error.hint)
