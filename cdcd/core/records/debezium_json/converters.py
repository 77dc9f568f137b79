"""What each PostgreSQL type looks like in JSON, and the converters that make it so.

A converter turns one value, in the text form that the server sends with our session settings (datestyle ISO,
intervalstyle postgres, timezone UTC, bytea_output hex, lc_monetary C, extra_float_digits 1 or more), into JSON, both as
wire text. Most types follow Debezium 3.x with `decimal.handling.mode=string` and `interval.handling.mode=string`, the
rest is written down here; what other modes make of some types is in `mode_types.py`, `structured_types.py` and
`geometric_types.py`. The rules for what is rare but legal:

- float4, float8: the server's shortest digits; whole numbers with `.0` so that a column is of one JSON type; NaN,
  Infinity and -Infinity as JSON strings, as Jackson quotes them; negative zero is `-0.0`. Debezium writes 1e+20 as
  1.0E20, which is the same number.
- numeric: its text in a string; NaN is "NAN", infinities "POSITIVE_INFINITY" and "NEGATIVE_INFINITY" (Debezium's
  SpecialValueDecimal). money: the amount in a string, `-1234.50`, as `::numeric` gives it under the database's default
  of lc_monetary.
- date: days since 1970-01-01, with BC and years past 9999 in the proleptic Gregorian calendar; infinity is -2147472692
  and -infinity -2147472691, Debezium's numbers (PostgreSQL's, wrapped round 32 bits): no real date has them.
- timestamp: microseconds since 1970-01-01, milliseconds where the declared precision is 3 or less; infinity
  9223372036825200000 and -infinity -9223372036832400000 (a thousandth of them in milliseconds).
- timestamptz: `2024-01-31T12:34:56.789000Z` with as many digits as the declared precision (6 without one);
  `+10000-01-01T…`, `-0043-03-15T…` (44 BC); "infinity", "-infinity".
- time: microseconds of the day, milliseconds where the precision is 3 or less; 24:00:00 is 86400000000.
  timetz: in UTC, `17:00:00Z`; 24:00:00+00 stays `24:00:00Z`, with another offset it goes round the clock.
- interval: `P1Y2M3DT4H5M6.78S`; PostgreSQL 17's infinities are "infinity" and "-infinity".
- bit, bit varying: of declared length 1 a boolean; else base64 of the bits as a little-endian number without its
  leading zero bytes. bytea: base64.
- point: `{"x","y","wkb","srid"}`; box, circle, line, lseg, path and polygon are their text (Debezium before 3.7 leaves
  them out).
- arrays: JSON arrays, one nesting for each dimension, NULL is null, lower bounds are dropped. A domain is as its base
  type, also inside an array. hstore: an object in a string; vector, halfvec: arrays of numbers; sparsevec:
  `{"dimensions","vector":[[index,value],…]}`; PostGIS's geometry and geography: `{"wkb","srid"}`.
- everything else, that is text, json, xml, enums, ranges, network addresses, and also composites and types nobody
  knows: the text as a JSON string. **Debezium leaves composites and unknown types out** unless told otherwise (and
  then gives base64): we do not lose a column in silence.

A value that is not of its type's form is a ValueError, which stage 4 turns into a ProtocolError.
"""

from collections.abc import Callable, Iterator, Mapping
from hashlib import md5
from itertools import chain
from typing import TYPE_CHECKING, Final
from uuid import UUID

from librt.strings import BytesWriter, read_f64_be, read_i16_be, read_i32_be, read_i64_be

from cdcd.core.catalog import binary, money
from cdcd.core.catalog.binary_text import Reader, plain
from cdcd.core.catalog.logical import LogicalType
from cdcd.core.catalog.modes import DEFAULTS, Modes, logical_type_under
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import GEOMETRIC
from cdcd.core.catalog.wiretext import EXPONENT, NINE, POINT, ZERO
from cdcd.core.pauses import pause
from cdcd.core.records.debezium_json.arrays import Array
from cdcd.core.records.debezium_json.converter import (
    AS_IS,
    BOOLEAN,
    DECIMAL,
    FLOAT,
    Converter,
    Number,
    Opaque,
    Readable,
    Text,
    base64_json,
    float_json,
)
from cdcd.core.records.debezium_json.extension_types import Geometry, Hstore, SparseVector, Vector
from cdcd.core.records.debezium_json.geometric_types import GEOMETRIC_CONVERTERS, point_json
from cdcd.core.records.debezium_json.mode_types import MODE_CONVERTERS
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, base64_pieces, base64_pieces_of_hex, gathered
from cdcd.core.records.debezium_json.strings import QUOTE, quote
from cdcd.core.records.debezium_json.structured_types import STRUCTURED_CONVERTERS
from cdcd.core.records.debezium_json.temporal_types import (
    Date,
    IntervalString,
    Time,
    Timestamp,
    TimestampTz,
    TimeTz,
)
from cdcd.core.records.debezium_json.writing import (
    copy,
    write_decimal,
    write_double,
    write_integer,
    write_string,
    write_uuid,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

_TRUE: Final = 0x74  # t
_FALSE: Final = 0x66  # f


class Jsonb(Text):
    """Converts jsonb, whose binary form has a version before the text."""

    binary_is_text = False

    def binary(self, data: bytes) -> str:
        if data[:1] != b"\x01":
            raise ValueError("a jsonb version other than 1")
        return quote(data[1:].decode("latin-1"))

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if at == end or data[at] != 1:
            raise ValueError("a jsonb version other than 1")
        write_string(data, at + 1, end, out)


class Integer(Number):
    """Converts int2, int4, int8 and oid."""

    mode = AS_IS

    def __init__(self, size: int, signed: bool = True) -> None:
        self._size = size
        self._with_sign = signed

    def json(self, text: str) -> str:
        return text

    def binary(self, data: bytes) -> str:
        return str(binary.integer(data, self._size, signed=self._with_sign))

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        copy(data, at, end, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        size = self._size
        if end - at != size or not self._with_sign:
            Converter.write_binary(self, data, at, end, out)
        elif size == 4:
            write_integer(int(read_i32_be(data, at)), out)
        elif size == 8:
            write_integer(read_i64_be(data, at), out)
        else:
            write_integer(int(read_i16_be(data, at)), out)


class Boolean(Converter):
    """Converts boolean, whose texts are `t` and `f`."""

    mode = BOOLEAN

    def json(self, text: str) -> str:
        if text == "t":
            return "true"
        if text == "f":
            return "false"
        raise ValueError(f"{text!r} is not a boolean")

    def binary(self, data: bytes) -> str:
        return "true" if binary.integer(data, 1) else "false"

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at == 1 and data[at] == _TRUE:
            out.write(b"true")
        elif end - at == 1 and data[at] == _FALSE:
            out.write(b"false")
        else:
            Converter.write(self, data, at, end, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at == 1:
            out.write(b"true" if data[at] else b"false")
        else:
            Converter.write_binary(self, data, at, end, out)


class Float(Number):
    """Converts float4 and float8, depending on the size in bytes."""

    mode = FLOAT

    def __init__(self, size: int) -> None:
        self._size = size

    def json(self, text: str) -> str:
        return float_json(text)

    def binary(self, data: bytes) -> str:
        return float_json(binary.float4_text(data) if self._size == 4 else binary.float8_text(data))

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        whole = True
        place: i64 = at
        while place < end:
            byte = data[place]
            if byte == POINT:
                copy(data, at, end, out)
                return
            whole = whole and byte != EXPONENT
            place += 1
        if whole and end > at and ZERO <= data[end - 1] <= NINE:
            copy(data, at, end, out)
            out.write(b".0")
        else:
            Converter.write(self, data, at, end, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if self._size != 8 or end - at != 8 or not write_double(read_f64_be(data, at), out):
            Converter.write_binary(self, data, at, end, out)

    def unchanged_element(self, placeholder: str) -> list[str]:
        return [f"{byte}.0" for byte in Number.unchanged_element(self, placeholder)]


_DECIMAL_SPECIAL: Final[Mapping[str, str]] = {
    "NaN": '"NAN"',
    "Infinity": '"POSITIVE_INFINITY"',
    "-Infinity": '"NEGATIVE_INFINITY"',
}


class DecimalString(Converter):
    """Converts numeric under `decimal: string`."""

    mode = DECIMAL

    def json(self, text: str) -> str:
        if text[-1:].isdigit():
            return f'"{text}"'
        special = _DECIMAL_SPECIAL.get(text)
        if special is None:
            raise ValueError(f"{text!r} is not a number")
        return special

    def binary(self, data: bytes) -> str:
        return self.json(binary.numeric_text(data))

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end > at and data[end - 1] <= NINE:
            out.append(QUOTE)
            copy(data, at, end, out)
            out.append(QUOTE)
        else:
            Converter.write(self, data, at, end, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if not write_decimal(data, at, end, out):
            Converter.write_binary(self, data, at, end, out)


class Money(Converter):
    """Converts money (`-$1,234.50` in lc_monetary C), with as many decimal digits as the database's default of
    lc_monetary has.
    """

    def __init__(self, digits: int) -> None:
        self._digits = digits

    def json(self, text: str) -> str:
        return f'"{money.amount(text, self._digits)}"'

    def binary(self, data: bytes) -> str:
        return f'"{money.amount_of(binary.integer(data, 8), self._digits)}"'


class WithMoney(Converter):
    """Converts composites and ranges that have money in them."""

    def __init__(self, rewrite: money.Rewrite, reader: Reader | None) -> None:
        self._rewrite = rewrite
        self._reader = reader

    def json(self, text: str) -> str:
        return quote(self._rewrite(text))

    def binary(self, data: bytes) -> str:
        return Converter.binary(self, data) if self._reader is None else self.json(self._reader(data))


_COPIED_HEX: Final = b"\\\\x"
"""First characters of a bytea in COPY."""


def _quoted(pieces: Iterator[bytes]) -> bytes:
    """Return the pieces joined, between quotes."""
    return gathered(chain((b'"',), pieces, (b'"',)))


class Bytea(Converter):
    r"""Converts bytea (`\xff00` under bytea_output hex)."""

    def json(self, text: str) -> str:
        if text[:2] != "\\x":
            raise ValueError("a bytea that is not in bytea_output hex")
        return base64_json(bytes.fromhex(text[2:]))

    def wire(self, value: bytes) -> bytes:
        if len(value) <= PIECE_BYTES:
            return Converter.wire(self, value)
        return _quoted(base64_pieces_of_hex(value, 0, len(value)))

    def wire_of_copy(self, field: bytes) -> bytes:
        if len(field) <= PIECE_BYTES or not field.startswith(_COPIED_HEX):
            return Converter.wire_of_copy(self, field)
        # In the hexadecimal form of a bytea, only the first backslash is escaped.
        return _quoted(base64_pieces_of_hex(field, 1, len(field)))

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at <= PIECE_BYTES:
            Converter.write(self, data, at, end, out)
            return
        out.append(QUOTE)
        for piece in base64_pieces_of_hex(data, int(at), int(end)):
            out.write(piece)
        out.append(QUOTE)

    def binary(self, data: bytes) -> str:
        return base64_json(data)

    def wire_of_binary(self, data: bytes) -> bytes:
        if len(data) <= PIECE_BYTES:
            return Converter.wire_of_binary(self, data)
        return _quoted(base64_pieces(data, 0, len(data)))

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at <= PIECE_BYTES:
            Converter.write_binary(self, data, at, end, out)
            return
        out.append(QUOTE)
        for piece in base64_pieces(data, int(at), int(end)):
            out.write(piece)
        out.append(QUOTE)

    def unchanged(self, placeholder: str) -> str:
        return base64_json(placeholder.encode("utf-8"))


_PIECE_BITS: Final = 1 << 16
"""Number of bits that are converted at a time; a multiple of 8."""


class Bits(Converter):
    """Converts bit and bit varying; the modifier is the declared length."""

    def __init__(self, modifier: int) -> None:
        self._single = modifier == 1

    def json(self, text: str) -> str:
        if self._single and text:
            return "true" if int(text, 2) else "false"
        pieces: list[bytes] = []
        for end in range(len(text), 0, -_PIECE_BITS):
            bits = text[max(0, end - _PIECE_BITS) : end]
            pieces.append(int(bits, 2).to_bytes((len(bits) + 7) // 8, "little"))
            pause()
        return base64_json(b"".join(pieces).rstrip(b"\0"))

    def binary(self, data: bytes) -> str:
        return self.json(binary.bits_text(data))

    def unchanged(self, placeholder: str) -> str:
        return base64_json(placeholder.encode("utf-8"))


class PointConverter(Converter):
    """Converts point (`(1,2.5)`)."""

    def json(self, text: str) -> str:
        return point_json(text)

    def binary(self, data: bytes) -> str:
        return self.json(binary.point_text(data))


class Uuid(Text):
    """Converts uuid, whose binary form is not its text."""

    binary_is_text = False

    def binary(self, data: bytes) -> str:
        return f'"{binary.uuid_text(data)}"'

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if end - at == 16:
            write_uuid(data, at, out)
        else:
            Converter.write_binary(self, data, at, end, out)

    def unchanged_element(self, placeholder: str) -> list[str]:
        """Return the result of Java's UUID.nameUUIDFromBytes for the placeholder."""
        digest = md5(placeholder.encode("utf-8"), usedforsecurity=False).digest()
        return [f'"{UUID(bytes=digest, version=3)}"']


_TEXT: Final = Text()
_OPAQUE: Final = Opaque()


def _text(logical: LogicalType) -> Converter:
    if logical.rewrite is not None:
        return WithMoney(logical.rewrite, logical.read)
    if logical.read is None:
        return _OPAQUE
    return _TEXT if logical.read is plain else Readable(logical.read)


def _array(logical: LogicalType) -> Converter:
    assert logical.element is not None, "an array has elements"
    return Array(converter_of(logical.element), logical.delimiter)


def _always(converter: Converter) -> Callable[[LogicalType], Converter]:
    return lambda _: converter


CONVERTERS: Final[Mapping[str, Callable[[LogicalType], Converter]]] = {
    "array": _array,
    "bits": lambda logical: Bits(logical.modifier),
    "boolean": _always(Boolean()),
    "bytes": _always(Bytea()),
    "date": _always(Date()),
    "decimal": _always(DecimalString()),
    "enum": _text,
    "float32": _always(Float(4)),
    "float64": _always(Float(8)),
    **dict.fromkeys(GEOMETRIC, _text),
    "geography": _always(Geometry()),
    "geometry": _always(Geometry()),
    "halfvec": _always(Vector()),
    "hstore": _always(Hstore()),
    "int16": _always(Integer(2)),
    "int32": _always(Integer(4)),
    "int64": _always(Integer(8)),
    "interval": _always(IntervalString()),
    "json": _text,
    "jsonb": _always(Jsonb()),
    "ltree": _text,
    "money": lambda logical: Money(logical.modifier),
    "oid": _always(Integer(4, signed=False)),
    "point": _always(PointConverter()),
    "sparsevec": _always(SparseVector()),
    "text": _text,
    "time": lambda logical: Time(logical.modifier),
    "timestamp": lambda logical: Timestamp(logical.modifier),
    "timestamptz": lambda logical: TimestampTz(logical.modifier),
    "timetz": _always(TimeTz()),
    "tsvector": _text,
    "uuid": _always(Uuid()),
    "vector": _always(Vector()),
    "xml": _text,
    **GEOMETRIC_CONVERTERS,
    **MODE_CONVERTERS,
    **STRUCTURED_CONVERTERS,
}
"""The converter of each logical type (`catalog/types.py`)."""


def converter_of(logical: LogicalType) -> Converter:
    """Return the converter of a logical type."""
    return CONVERTERS[logical.name](logical)


def converter_for(
    oid: int, modifier: int, types: Mapping[int, TypeDescription], modes: Modes = DEFAULTS
) -> Converter:
    """Return the converter of a column's type under these modes. SourceError if types are nested endlessly."""
    return converter_of(logical_type_under(modes, oid, modifier, types))
