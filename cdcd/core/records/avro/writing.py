"""Writes Avro's binary encoding into a buffer: numbers, texts, and values that a Connect schema describes.

A number is a zigzag varint. Text and bytes are preceded by their length. A record is its fields one after the
other; a union is the index of its branch and then the value (Avro 1.12, "Binary Encoding").
"""

import json
from base64 import b64decode
from binascii import Error
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from struct import pack
from typing import TYPE_CHECKING, Any, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.wiretext import checked
from cdcd.core.pauses import PAUSE_ITEMS, pause
from cdcd.core.records.avro.schemas import has_default, is_string_map
from cdcd.core.records.debezium_json.connect_schema import Schema

if TYPE_CHECKING:
    from mypy_extensions import i64

FIRST: Final = 0
SECOND: Final = 2
"""Index of the first and of the second branch of a union, as zigzag varints."""

BUFFER_BYTES_MAX: Final = 1 << 20
"""Size above which a buffer is replaced, so that one large record does not keep its memory."""

_LONG: Final = 16
"""Number of bytes from which on it is faster to slice a text and copy it at once."""

_ASCII_MAX: Final = 127
RANGES: Final[Mapping[str, int]] = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
"""Number of bits of Connect's integer types, without the sign."""


def write_long(number: "i64", out: BytesWriter) -> None:
    """Append an int or a long. No step exceeds 64 bits: the sign is the lowest bit of the first byte."""
    rest: i64 = number
    sign: i64 = 0
    if number < 0:
        rest = -(number + 1)
        sign = 1
    byte: i64 = ((rest & 63) << 1) | sign
    rest >>= 6
    while rest > 0:
        out.append(int(byte | 128))
        byte = rest & 127
        rest >>= 7
    out.append(int(byte))


def write_text(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    """Append `data[at:end]` as a string. UnicodeDecodeError (a ValueError) if it is not UTF-8."""
    write_long(end - at, out)
    append_text(data, at, end, out)


def append_text(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    """Append `data[at:end]` without its length. UnicodeDecodeError (a ValueError) if it is not UTF-8."""
    begin: i64 = at
    if end - at > BUFFER_BYTES_MAX:
        _append_large(data, at, end, out)
        return
    if end - at >= _LONG:
        out.write(checked(data[at:end]))
        return
    bits: i64 = 0
    while at < end:
        byte: i64 = data[at]
        bits |= byte
        out.append(int(byte))
        at += 1
    if bits > _ASCII_MAX:
        checked(data[begin:end])


def _append_large(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    decoder = getincrementaldecoder("utf-8")()
    while at < end:
        after: i64 = min(at + BUFFER_BYTES_MAX, end)
        piece = data[at:after]
        decoder.decode(piece, after == end)
        out.write(piece)
        pause()
        at = after


def append_slice(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    """Append `data[at:end]`, a large slice in pieces, so that there is no third copy of it."""
    while end - at > BUFFER_BYTES_MAX:
        out.write(data[at : at + BUFFER_BYTES_MAX])
        pause()
        at += BUFFER_BYTES_MAX
    out.write(data[at:end])


def write_bytes(data: bytes, out: BytesWriter) -> None:
    """Append bytes, which may be a text in UTF-8."""
    write_long(len(data), out)
    out.write(data)


def text(value: str) -> bytes:
    """Return a text in Avro's encoding."""
    out = BytesWriter()
    write_bytes(value.encode("utf-8"), out)
    return out.getvalue()


def number(value: int) -> bytes:
    """Return a number in Avro's encoding."""
    out = BytesWriter()
    write_long(value, out)
    return out.getvalue()


def optional(value: bytes | None) -> bytes:
    """Return an encoded value of a union whose first branch is null; None stands for null."""
    return b"\x00" if value is None else b"\x02" + value


class AvroValueError(ValueError):
    """A value does not match its Connect schema. The text of the error names what was expected."""


def write_value(schema: Schema, value: Any, out: BytesWriter) -> None:
    """Append a value that is given as Connect's JsonConverter has it in JSON.

    Raises:
        UnfitError: the value does not match the schema.
    """
    if schema["optional"]:
        null_first = not has_default(schema)
        if value is None:
            out.append(FIRST if null_first else SECOND)
            return
        out.append(SECOND if null_first else FIRST)
    _write_base(schema, value, out)


def _write_base(schema: Schema, value: Any, out: BytesWriter) -> None:
    kind = schema["type"]
    if kind == "string":
        if not isinstance(value, str):
            raise AvroValueError("a text")
        write_bytes(value.encode("utf-8"), out)
    elif kind in RANGES:
        write_long(whole(kind, value), out)
    elif kind in ("float", "double"):
        out.write(pack("<f" if kind == "float" else "<d", real(value)))
    elif kind == "boolean":
        out.append(1 if truth(value) else 0)
    elif kind == "bytes":
        write_bytes(raw_bytes(value), out)
    else:
        _write_compound(schema, value, out)


def whole(kind: str, value: Any) -> int:
    """Return the value as a whole number of a Connect type.

    UnfitError if it is not a whole number, or is out of the type's range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value >> RANGES[kind] <= 0:
        raise AvroValueError(f"an integer ({kind})")
    return value


def truth(value: Any) -> bool:
    """Return the value as a boolean; UnfitError if it is not one."""
    if not isinstance(value, bool):
        raise AvroValueError("a boolean")
    return value


def real(value: Any) -> float:
    """Return the value as a floating-point number, which may be NaN or infinite; UnfitError if it is not a number."""
    if isinstance(value, bool) or not (
        isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
    ):
        raise AvroValueError("a number")
    return float(value)


def raw_bytes(value: Any) -> bytes:
    """Return the bytes of a base64 text; UnfitError if the value is not one."""
    if not isinstance(value, str):
        raise AvroValueError("bytes in base64")
    try:
        return b64decode(value, validate=True)
    except Error:
        raise AvroValueError("bytes in base64") from None


def _write_compound(schema: Schema, value: Any, out: BytesWriter) -> None:
    kind = schema["type"]
    if kind == "struct":
        if not isinstance(value, dict):
            raise AvroValueError("an object")
        for field in schema["fields"]:
            write_value(field, value.get(field["field"]), out)
    elif kind == "array":
        _write_items([schema["items"]], [[item] for item in items_of(value)], out)
    elif is_string_map(schema):
        if not isinstance(value, dict):
            raise AvroValueError("an object")
        _write_items([schema["keys"], schema["values"]], [list(pair) for pair in value.items()], out)
    else:
        _write_items([schema["keys"], schema["values"]], [items_of(pair) for pair in items_of(value)], out)


def items_of(value: Any) -> list[Any]:
    """Return the value as the items of an array; UnfitError if it is not an array."""
    if not isinstance(value, list):
        raise AvroValueError("an array")
    return value


def _write_items(schemas: Sequence[Schema], items: list[list[Any]], out: BytesWriter) -> None:
    """Append a block of items, each of which has one part per schema, and the end of the blocks."""
    if items:
        write_long(len(items), out)
        for number, item in enumerate(items):
            if number % PAUSE_ITEMS == 0:
                pause()
            for schema, part in zip(schemas, item, strict=True):
                write_value(schema, part, out)
    out.append(0)


def zero(schema: Schema) -> bytes:
    """Return the encoded zero of a schema that is not optional: 0, false, an empty text, a record
    of zeros and nulls.
    """
    kind = schema["type"]
    if kind == "struct":
        fields = schema["fields"]
        return b"".join([encoded(field, b"null") if field["optional"] else zero(field) for field in fields])
    return bytes({"float": 4, "double": 8}.get(kind, 1))


def encoded(schema: Schema, json_text: bytes) -> bytes:
    """Return the Avro encoding of the value that has this JSON; UnfitError if it does not match the schema."""
    out = BytesWriter()
    write_value(schema, json.loads(json_text), out)
    return out.getvalue()
