"""Converters of values into Avro, one for each kind of column; the JSON converter and the Connect schema decide which.

Protobuf uses the same converters, with its own `BinaryForm`.

The rule: a value in Avro is the same value as under `format: json_schema`. `AnyValue` ensures this for every type,
because it converts the JSON of the value by the schema. The other converters are faster ones for common types, and
tests compare them with `AnyValue`. So a new type, or a new mode of a type, needs no converter here.
"""

from collections.abc import Mapping
from struct import pack
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_f64_be, read_i16_be, read_i32_be, read_i64_be, write_f64_le

from cdcd.core.catalog.hints import HINT
from cdcd.core.catalog.wiretext import MINUS, NINE, ZERO, checked, to_bytes
from cdcd.core.errors import ProtocolError
from cdcd.core.records.avro.arrays import ArrayValue, AvroConverter
from cdcd.core.records.avro.writing import AvroValueError
from cdcd.core.records.debezium_json.arrays import Array, of_element
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.converter import STRING, Converter
from cdcd.core.records.debezium_json.converters import Boolean, Bytea, Float, Integer
from cdcd.core.records.debezium_json.literals import (
    ARRAY_BYTES_MAX,
)
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, bytes_pieces_of_hex, gathered
from cdcd.core.records.debezium_json.strings import BACKSLASH, QUOTE
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.unwritable import UnwritableError

if TYPE_CHECKING:
    from mypy_extensions import i64

_TRUE: Final = 0x74  # t
_FALSE: Final = 0x66  # f

_DIGITS_MAX: Final = 18
"""Any number with at most this many decimal digits is below 2^63."""

_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1


Numbers = Mapping[str, int | None]
"""The attribute number of each column by its name; None if it is not known."""


class BinaryForm:
    """Writes schemas, fields and records of a binary format: `AvroForm` or `ProtobufForm`.

    Values are not null, and have no union branch, in the methods that begin with `put`, and in `encoded`.

    Attributes:
        name: name of the format for errors.
        format: name of the format in the configuration.
    """

    def __init__(self, name: str, format_name: str) -> None:
        self.name = name
        self.format = format_name

    def put_number(self, number: "i64", out: BytesWriter) -> None:
        """Append a whole number."""
        raise NotImplementedError

    def put_text(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append `data[at:end]` as a text. UnicodeDecodeError (a ValueError) if it is not UTF-8."""
        raise NotImplementedError

    def put_bytes(self, data: bytes, out: BytesWriter) -> None:
        """Append bytes, which may be a text in UTF-8."""
        raise NotImplementedError

    def encoded(self, schema: Schema, json_text: bytes) -> bytes:
        """Return the encoded value that has this JSON. UnfitError if the JSON does not match the Connect schema."""
        raise NotImplementedError

    def put_array(self, array: "ArrayValue", out: BytesWriter) -> None:
        """Append an array with one dimension. UnfitError if there are more."""
        raise NotImplementedError

    def head(self, schema_id: int) -> bytes:
        """Return the beginning of a record with this schema."""
        raise NotImplementedError

    def use(self, settings: EncoderSettings, topic: str, schema: Schema, part: str) -> SchemaUse:
        """Return a schema with its subject; `part` is key or value."""
        raise NotImplementedError

    def of_key(self, schema: Schema, numbers: Numbers) -> Schema:
        """Return the Connect schema of keys in the form that this format needs."""
        return schema

    def of_value(self, schema: Schema, numbers: Numbers) -> Schema:
        """Return the Connect schema of values in the form that this format needs; its first fields are the rows."""
        return schema

    def converter(self, json: Converter, schema: Schema) -> "AvroConverter":
        """Return the converter of a column."""
        return converter_of(json, schema, self)

    def opening(self, schema: Schema) -> bytes | None:
        """Return the bytes before a value that is not NULL; None if there are none, because the field is never NULL."""
        raise NotImplementedError

    def null(self, schema: Schema) -> bytes | None:
        """Return the bytes for NULL; None if the field cannot be null."""
        raise NotImplementedError

    def zero(self, schema: Schema) -> bytes:
        """Return the bytes in place of NULL in a column of the key, if that cannot be null."""
        raise NotImplementedError

    def placeholder(self, schema: Schema, json_text: bytes) -> bytes | None:
        """Return the bytes in place of a value that was not sent; None if the field cannot be null.

        They are those of null if JSON's placeholder is not a value of the column's type.
        """
        raise NotImplementedError

    def field(self, schema: Schema, json_text: bytes) -> bytes:
        """Return a field with this value, which may be null; UnfitError if the value does not match the schema."""
        raise NotImplementedError

    def root(self, schema: Schema) -> bytes:
        """Return the bytes between the head of a value and its first field."""
        raise NotImplementedError

    def record(self, schema: Schema, json_text: bytes) -> bytes:
        """Return a key or a value that has this JSON, without its head."""
        raise NotImplementedError

    def message_key(self, prefix: str) -> bytes:
        """Return the key of a logical message, without its head."""
        raise NotImplementedError


class AnyValue(AvroConverter):
    """Converts values of any type, by their JSON and their Connect schema."""

    def __init__(self, json: Converter, schema: Schema, to: BinaryForm) -> None:
        self._json = json
        self._schema: Schema = {**schema, "optional": False}
        self._to = to

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        self.append_json(checked(self._json.wire(data[at:end])), out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        self.append_json(to_bytes(self._json.binary(data[at:end])), out)

    def append_json(self, json_text: bytes, out: BytesWriter) -> None:
        """Append the value that has this JSON."""
        try:
            out.write(self._to.encoded(self._schema, json_text))
        except AvroValueError as error:
            raise _unfit(self._to.name, error) from None


def _unfit(name: str, error: AvroValueError) -> UnwritableError:
    return UnwritableError(
        f"it is of another form than the column's {name} schema, which has {error}",
        f"An array with several dimensions, or an empty bit string, has no place in {name}. Set "
        "format.value: json, which has one, or leave the column out (columns.exclude).",
    )


class ArrayItems(AnyValue):
    """Converts arrays. A large array is converted element by element, because the JSON of all of its elements would
    need some 100 bytes of memory for each of them.
    """

    def __init__(self, json: Array, schema: Schema, to: BinaryForm) -> None:
        AnyValue.__init__(self, json, schema, to)
        items: Schema = schema["items"]
        self._array = ArrayValue(json.delimiter, to.converter(json.element, items), items)

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at <= ARRAY_BYTES_MAX:
            AnyValue.write(self, data, at, end, out)
        else:
            self._put(data, at, end, False, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at <= ARRAY_BYTES_MAX:
            AnyValue.write_binary(self, data, at, end, out)
        else:
            self._put(data, at, end, True, out)

    def _put(self, data: bytes, at: "i64", end: "i64", is_binary: bool, out: BytesWriter) -> None:
        self._array.set(data, at, end, is_binary)
        try:
            self._to.put_array(self._array, out)
        except AvroValueError as error:
            raise _unfit(self._to.name, error) from None
        except UnwritableError as unwritable:
            raise of_element(unwritable) from None
        finally:
            self._array.set(b"", 0, 0, False)


class ByJson(AvroConverter):
    """Faster than `AnyValue`: the JSON converter writes into a buffer, from which the value is converted."""

    def __init__(self, json: Converter, to: BinaryForm) -> None:
        self._json = json
        self._to = to
        self._part = BytesWriter()

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        self._part.truncate(0)
        self._json.write(data, at, end, self._part)
        self.append(self._part, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        self._part.truncate(0)
        self._json.write_binary(data, at, end, self._part)
        self.append(self._part, out)

    def append(self, part: BytesWriter, out: BytesWriter) -> None:
        """Append the value whose JSON is in `part`."""
        raise NotImplementedError


class Digits(ByJson):
    """Converts values that are whole numbers in JSON."""

    def append(self, part: BytesWriter, out: BytesWriter) -> None:
        end: i64 = len(part)
        at: i64 = 1 if end > 0 and part[0] == MINUS else 0
        if end - at > _DIGITS_MAX or end == at:
            self._to.put_number(_whole(part.getvalue()), out)
            return
        number: i64 = 0
        place: i64 = at
        while place < end:
            byte = int(part[place])
            if not ZERO <= byte <= NINE:
                raise _no_number()
            number = number * 10 + byte - ZERO
            place += 1
        self._to.put_number(-number if at else number, out)


def _whole(text: bytes) -> int:
    """Parse a whole number of any length."""
    digits = text.removeprefix(b"-")
    if not digits.isdigit():
        raise _no_number()
    if not _LEAST <= int(text) <= _GREATEST:
        raise UnwritableError(
            "64 bits do not hold its number",
            "Set format.time_precision_mode to isostring or connect, which hold every timestamp.",
        )
    return int(text)


def _no_number() -> ProtocolError:
    # The error is made here and not by `explain`, because the JSON converter accepts any text as a number.
    return ProtocolError(
        "A row has a value that is not a whole number, in a column of whole numbers.", hint=HINT
    )


class Quoted(ByJson):
    """Converts values that are strings in JSON."""

    def __init__(self, json: Converter, schema: Schema, to: BinaryForm) -> None:
        ByJson.__init__(self, json, to)
        self._any = AnyValue(json, schema, to)

    def append(self, part: BytesWriter, out: BytesWriter) -> None:
        text = part.getvalue()
        if len(text) < 2 or text[0] != QUOTE or BACKSLASH in text:
            self._any.append_json(checked(text), out)
        else:
            self._to.put_bytes(checked(text[1:-1]), out)


class PlainText(AvroConverter):
    """Converts texts that stay as the server sends them."""

    def __init__(self, json: Converter, schema: Schema, to: BinaryForm) -> None:
        self._to = to
        self._binary = Quoted(json, schema, to)
        self._binary_is_text = json.binary_is_text

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        self._to.put_text(data, at, end, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if self._binary_is_text:
            self._to.put_text(data, at, end, out)
        else:
            self._binary.write_binary(data, at, end, out)


class WholeNumber(AvroConverter):
    """Converts int2, int4, int8 and oid.

    `size` is the number of bytes that the Avro type has in binary form; a value of oid has fewer.
    """

    def __init__(self, json: Converter, size: int, to: BinaryForm) -> None:
        self._to = to
        self._by_json = Digits(json, to)
        self._size = size

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        negative = end > at and data[at] == MINUS
        place: i64 = at + 1 if negative else at
        if end - place > _DIGITS_MAX or end <= place:
            self._by_json.write(data, at, end, out)
            return
        number: i64 = 0
        while place < end:
            byte: i64 = data[place]
            if not ZERO <= byte <= NINE:
                raise _no_number()
            number = number * 10 + byte - ZERO
            place += 1
        self._to.put_number(-number if negative else number, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        size = self._size
        if end - at != size:
            self._by_json.write_binary(data, at, end, out)
        elif size == 4:
            number: i64 = int(read_i32_be(data, at))
            self._to.put_number(number, out)
        elif size == 8:
            self._to.put_number(read_i64_be(data, at), out)
        else:
            short: i64 = int(read_i16_be(data, at))
            self._to.put_number(short, out)


class Truth(AvroConverter):
    """Converts boolean."""

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at != 1 or data[at] not in (_TRUE, _FALSE):
            raise ValueError("not a boolean")
        out.append(1 if data[at] == _TRUE else 0)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at != 1:
            raise ValueError("not a boolean")
        out.append(1 if data[at] else 0)


class Double(AvroConverter):
    """Converts float8."""

    def __init__(self, json: Converter) -> None:
        self._json = json

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        value = data[at:end]
        if end == at or not ZERO <= data[end - 1] <= NINE:
            # NaN and infinities. What is none of them is refused.
            self._json.wire(value)
        write_f64_le(out, float(value))

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at != 8:
            self._json.binary(data[at:end])
        write_f64_le(out, read_f64_be(data, at))


class Single(AvroConverter):
    """Converts float4."""

    def __init__(self, json: Converter) -> None:
        self._json = json

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        value = data[at:end]
        self._json.wire(value)
        out.write(pack("<f", float(value)))

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        self._json.binary(data[at:end])
        out.write(data[at:end][::-1])


class RawBytes(AvroConverter):
    """Converts bytea."""

    def __init__(self, to: BinaryForm) -> None:
        self._to = to

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at > PIECE_BYTES:
            self._to.put_bytes(gathered(bytes_pieces_of_hex(data, int(at), int(end))), out)
            return
        text = data[at:end]
        if text[:2] != b"\\x":
            raise ValueError("a bytea that is not in bytea_output hex")
        self._to.put_bytes(bytes.fromhex(text[2:].decode("ascii")), out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        self._to.put_bytes(data[at:end], out)


_INTEGERS: Final = ("int16", "int32", "int64")
_SIZES: Final = {"int16": 2, "int32": 4, "int64": 8}


def converter_of(json: Converter, schema: Schema, to: BinaryForm) -> AvroConverter:
    """Return the converter of a column.

    Args:
        schema: the column's Connect schema; whether it is optional makes no difference.
    """
    kind = schema["type"]
    exact = type(json)
    if exact is Integer and kind in _INTEGERS:
        return WholeNumber(json, _SIZES[kind], to)
    if exact is Boolean and kind == "boolean":
        return Truth()
    if exact is Float and kind == "double":
        return Double(json)
    if exact is Float and kind == "float":
        return Single(json)
    if exact is Bytea and kind == "bytes":
        return RawBytes(to)
    if isinstance(json, Array) and kind == "array":
        return ArrayItems(json, schema, to)
    if kind == "string":
        return PlainText(json, schema, to) if json.mode == STRING else Quoted(json, schema, to)
    if kind in _INTEGERS:
        return Digits(json, to)
    return AnyValue(json, schema, to)
