"""Writes Protobuf's encoding into a buffer: numbers, texts, and values that a Connect schema describes.

A field is its tag (number and wire type) and its value. A varint has seven bits per byte, the lowest first; a
negative number takes ten bytes, as in `int32` and `int64`. Text, bytes and messages are preceded by their length
(protobuf.dev, "Encoding"). Fields are in the order of their numbers, except columns whose number is not known. A
field that is missing is null.

`schemas.py` describes how a Connect schema becomes a field.
"""

import json
from struct import pack
from typing import TYPE_CHECKING, Any, Final

from librt.strings import BytesWriter

from cdcd.core.pauses import PAUSE_ITEMS, pause
from cdcd.core.records.avro.schemas import DECIMAL, is_string_map
from cdcd.core.records.avro.writing import (
    RANGES,
    AvroValueError,
    append_text,
    items_of,
    raw_bytes,
    real,
    truth,
    whole,
)
from cdcd.core.records.debezium_json.connect_schema import Schema

if TYPE_CHECKING:
    from mypy_extensions import i64

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
"""Wire types of fields."""

NUMBER: Final = "number"
"""Entry of a field's Connect schema that has the field's number; without it, the number is the position in the
struct, counted from 1."""

DATE: Final = "org.apache.kafka.connect.data.Date"
TIME: Final = "org.apache.kafka.connect.data.Time"
TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
LOGICAL: Final = (DECIMAL, DATE, TIME, TIMESTAMP)
"""Connect's logical types that become messages."""

ITEMS: Final = 1
"""Number of the field that has the elements of an array or the entries of a map."""
_KEY: Final = 1
_VALUE: Final = 2

_MILLIS: Final = 1000
_NANOS_PER_MILLI: Final = 1_000_000
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600

_GROUP_MAX: Final = 127
_SIGNED_GROUPS: Final = 9
"""Number of seven-bit groups before the last byte of a negative number."""


def write_varint(number: "i64", out: BytesWriter) -> None:
    """Append a whole number."""
    rest: i64 = number
    if rest < 0:
        groups: i64 = 0
        while groups < _SIGNED_GROUPS:
            out.append(int((rest & 127) | 128))
            rest >>= 7
            groups += 1
        out.append(1)
        return
    while rest > _GROUP_MAX:
        out.append(int((rest & 127) | 128))
        rest >>= 7
    out.append(int(rest))


def varint_size(number: "i64") -> "i64":
    """Return how many bytes `write_varint` appends for a number that is not negative."""
    size: i64 = 1
    rest: i64 = number >> 7
    while rest > 0:
        size += 1
        rest >>= 7
    return size


def write_text(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    """Append `data[at:end]` as a string. UnicodeDecodeError (a ValueError) if it is not UTF-8."""
    write_varint(end - at, out)
    append_text(data, at, end, out)


def write_bytes(data: bytes, out: BytesWriter) -> None:
    """Append bytes, the UTF-8 of a text, or a message."""
    write_varint(len(data), out)
    out.write(data)


def tag(number: int, wire: int) -> bytes:
    """Return the beginning of a field."""
    out = BytesWriter()
    write_varint(number << 3 | wire, out)
    return out.getvalue()


def text_field(number: int, value: str) -> bytes:
    """Return a field whose value is a text."""
    out = BytesWriter()
    out.write(tag(number, LENGTH))
    write_bytes(value.encode("utf-8"), out)
    return out.getvalue()


def number_field(number: int, value: int) -> bytes:
    """Return a field whose value is a whole number."""
    out = BytesWriter()
    out.write(tag(number, VARINT))
    write_varint(value, out)
    return out.getvalue()


def wire_of(schema: Schema) -> int:
    """Return the wire type of a field with this schema."""
    if schema.get("name") in LOGICAL:
        return LENGTH
    kind = schema["type"]
    if kind in RANGES or kind == "boolean":
        return VARINT
    return {"double": FIXED64, "float": FIXED32}.get(kind, LENGTH)


def is_scalar(schema: Schema) -> bool:
    """Return whether values are not messages, so that a field without `optional` is left out if it is zero."""
    return schema["type"] in {*RANGES, "boolean", "float", "double", "string", "bytes"} and (
        schema.get("name") not in LOGICAL
    )


def number_of(field: Schema, place: int) -> int:
    """Return the number of a field; `place` is its position in the struct, counted from 0."""
    number: int = field.get(NUMBER, place + 1)
    return number


def encoded(schema: Schema, json_text: bytes) -> bytes:
    """Return the part of a field after its tag, for the value that has this JSON.

    Raises:
        UnfitError: the value does not match the schema, or is null.
    """
    out = BytesWriter()
    write_value(schema, json.loads(json_text), out)
    return out.getvalue()


def message(schema: Schema, json_text: bytes) -> bytes:
    """Return a message that is a record by itself, without its length; UnfitError as in `encoded`."""
    out = BytesWriter()
    _write_message(schema, json.loads(json_text), out)
    return out.getvalue()


def write_value(schema: Schema, value: Any, out: BytesWriter) -> None:
    """Append a value that is given as Connect's JsonConverter has it in JSON, without its tag.

    Raises:
        UnfitError: the value does not match the schema.
    """
    kind = schema["type"]
    if schema.get("name") in LOGICAL:
        part = BytesWriter()
        _write_logical(schema, value, part)
        write_bytes(part.getvalue(), out)
    elif kind == "string":
        if not isinstance(value, str):
            raise AvroValueError("a text")
        write_bytes(value.encode("utf-8"), out)
    elif kind in RANGES:
        write_varint(whole(kind, value), out)
    elif kind in ("float", "double"):
        out.write(pack("<f" if kind == "float" else "<d", real(value)))
    elif kind == "boolean":
        out.append(1 if truth(value) else 0)
    elif kind == "bytes":
        write_bytes(raw_bytes(value), out)
    else:
        part = BytesWriter()
        _write_message(schema, value, part)
        write_bytes(part.getvalue(), out)


def _write_message(schema: Schema, value: Any, out: BytesWriter) -> None:
    kind = schema["type"]
    if kind == "struct":
        if not isinstance(value, dict):
            raise AvroValueError("an object")
        for place, field in enumerate(schema["fields"]):
            _write_field(field, number_of(field, place), value.get(field["field"]), out)
    elif kind == "array":
        _write_items(schema["items"], items_of(value), out)
    elif is_string_map(schema):
        if not isinstance(value, dict):
            raise AvroValueError("an object")
        _write_entries(schema, [list(pair) for pair in value.items()], out)
    else:
        _write_entries(schema, [items_of(pair) for pair in items_of(value)], out)


def _write_field(schema: Schema, number: int, value: Any, out: BytesWriter) -> None:
    """Append a field, unless it is null, or is a zero that cannot be null."""
    if value is None and schema["optional"]:
        return
    part = BytesWriter()
    write_value(schema, value, part)
    data = part.getvalue()
    if schema["optional"] or not is_scalar(schema) or data.strip(b"\0"):
        out.write(tag(number, wire_of(schema)))
        out.write(data)


def _write_items(schema: Schema, items: list[Any], out: BytesWriter) -> None:
    """Append the elements of an array: packed numbers, or messages, which lack their value if the element is null."""
    if schema["optional"]:
        for item in items:
            part = BytesWriter()
            _write_field(schema, ITEMS, item, part)
            out.write(tag(ITEMS, LENGTH))
            write_bytes(part.getvalue(), out)
    elif wire_of(schema) == LENGTH:
        for item in items:
            out.write(tag(ITEMS, LENGTH))
            write_value(schema, item, out)
    elif items:
        packed = BytesWriter()
        for item in items:
            write_value(schema, item, packed)
        out.write(tag(ITEMS, LENGTH))
        write_bytes(packed.getvalue(), out)


def _write_entries(schema: Schema, pairs: list[list[Any]], out: BytesWriter) -> None:
    for place, (key, value) in enumerate(pairs):
        if place % PAUSE_ITEMS == 0:
            pause()
        part = BytesWriter()
        for number, each, found in ((_KEY, schema["keys"], key), (_VALUE, schema["values"], value)):
            if found is None and each["optional"]:
                continue
            part.write(tag(number, wire_of(each)))
            write_value(each, found, part)
        out.write(tag(ITEMS, LENGTH))
        write_bytes(part.getvalue(), out)


def _write_logical(schema: Schema, value: Any, out: BytesWriter) -> None:
    """Append the message for one of Connect's logical types."""
    name = schema["name"]
    if name == DECIMAL:
        parameters = schema.get("parameters", {})
        digits = raw_bytes(value)
        if digits:
            out.write(tag(1, LENGTH))
            write_bytes(digits, out)
        _write_number(2, int(parameters.get("connect.decimal.precision", 0)), out)
        _write_number(3, int(parameters.get("scale", 0)), out)
    elif name == DATE:
        for number, part in enumerate(civil(whole("int32", value)), start=1):
            _write_number(number, part, out)
    elif name == TIME:
        seconds, millis = divmod(whole("int32", value), _MILLIS)
        _write_number(1, seconds // _HOUR_S, out)
        _write_number(2, seconds // _MINUTE_S % _MINUTE_S, out)
        _write_number(3, seconds % _MINUTE_S, out)
        _write_number(4, millis * _NANOS_PER_MILLI, out)
    else:
        seconds, millis = divmod(whole("int64", value), _MILLIS)
        _write_number(1, seconds, out)
        _write_number(2, millis * _NANOS_PER_MILLI, out)


def _write_number(number: int, value: int, out: BytesWriter) -> None:
    if value:
        out.write(number_field(number, value))


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970, in the Gregorian calendar, where year 0 precedes year
    1.

    Python's dates only have the years 1 to 9999, so this is Howard Hinnant's `civil_from_days`.
    """
    shifted = days + 719_468
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_place = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_place + 2) // 5 + 1
    month = month_place + 3 if month_place < 10 else month_place - 9
    return year_of_era + era * 400 + (month <= 2), month, day
