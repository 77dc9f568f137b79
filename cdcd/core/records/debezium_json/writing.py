"""Writes JSON into a buffer byte by byte; compiled converters use this.

mypyc compiles these loops to machine code on machine integers, which makes no object for what is written
(`librt.strings`), so writing a value costs less than slicing it out of the frame. An interpreter would need as long
for each byte as for a whole value, so uncompiled code does not use this module (`peek.COMPILED`).
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i16_be

from cdcd.core.catalog.wiretext import MINUS, POINT, ZERO
from cdcd.core.pauses import pause
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES
from cdcd.core.records.debezium_json.strings import BACKSLASH, QUOTE, escaped, quote

if TYPE_CHECKING:
    from mypy_extensions import i64, u8

_LEAST: Final = -(2**63)

_LONG: Final = 16
"""Number of bytes from which on it is faster to slice a value and copy it at once."""

_DIGITS_MAX: Final = 19
_ZEROS: Final = [b"0" * digits for digits in range(_DIGITS_MAX + 1)]

_HEX: Final = b"0123456789abcdef"

_DECIMALS_MAX: Final = 6
_SMALLEST: Final = 1e-4
_GREATEST: Final = 1e9
"""Range of float8 values that are written without an exponent. In this range, the digits before the decimal point and
six decimals are together at most 15 digits."""

_NUMERIC_HEAD: Final = 8
_NUMERIC_NEGATIVE: Final = 0x4000
_GROUP_DIGITS: Final = 4
_GROUP_MAX: Final = 9999

_ESCAPES: Final = [quote(chr(byte)).encode("latin-1")[1:-1] for byte in range(256)]
"""The text of each byte between the quotes of a JSON string."""


def copy(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    """Append `data[at:end]`; both bounds must be within `data`."""
    if end - at >= _LONG:
        out.write(data[at:end])
        return
    while at < end:
        out.append(data[at])
        at += 1


def write_string(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    """Append `data[at:end]` as a JSON string, escaped as by `quote`."""
    out.append(QUOTE)
    if end - at >= _LONG:
        while end - at > PIECE_BYTES:
            out.write(escaped(data[at : at + PIECE_BYTES]))
            pause()
            at += PIECE_BYTES
        out.write(escaped(data[at:end]))
    else:
        while at < end:
            byte: u8 = data[at]
            if byte < 0x20 or byte in (QUOTE, BACKSLASH):
                out.write(_ESCAPES[byte])
            else:
                out.append(byte)
            at += 1
    out.append(QUOTE)


def write_integer(number: "i64", out: BytesWriter) -> None:
    """Append the decimal digits of `number`."""
    if number < 0:
        if number == _LEAST:
            out.write(b"-9223372036854775808")
            return
        out.append(MINUS)
        number = -number
    digits: i64 = 1
    rest: i64 = number
    while rest >= 10:
        rest //= 10
        digits += 1
    write_digits(number, digits, out)


def write_digits(number: "i64", digits: "i64", out: BytesWriter) -> None:
    """Append the last `digits` decimal digits (at most 19) of `number`, which must not be negative."""
    out.write(_ZEROS[digits])
    at: i64 = len(out) - 1
    first: i64 = at - digits + 1
    while at >= first:
        rest: i64 = number // 10
        out[at] = int(ZERO + number - rest * 10)
        number = rest
        at -= 1


def write_double(value: float, out: BytesWriter) -> bool:
    """Append a float8 with the fewest digits that give the same value; returns False if it may have more than six
    decimals.

    Two different decimal numbers of up to 15 digits are never the same float8. So a number that gives `value` again
    is the shortest one, and dividing two exact whole numbers gives the nearest float8.
    """
    size = -value if value < 0.0 else value
    if not _SMALLEST <= size < _GREATEST:
        return False
    power = 1.0
    decimals: i64 = 0
    while decimals <= _DECIMALS_MAX:
        number: i64 = int(size * power + 0.5)
        if float(int(number)) / power == size:
            break
        power *= 10.0
        decimals += 1
    else:
        return False
    if value < 0.0:
        out.append(MINUS)
    scale: i64 = int(power)
    whole: i64 = number // scale
    write_integer(whole, out)
    out.append(POINT)
    if decimals == 0:
        out.append(ZERO)
    else:
        write_digits(number - whole * scale, decimals, out)
    return True


def write_decimal(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> bool:
    """Append a numeric in binary form (`binary.numeric_text`) as a JSON string; returns False if it
    is NaN or infinite.
    """
    if end - at < _NUMERIC_HEAD:
        return False
    groups: i64 = int(read_i16_be(data, at))
    weight: i64 = int(read_i16_be(data, at + 2))
    sign: i64 = int(read_i16_be(data, at + 4))
    scale: i64 = int(read_i16_be(data, at + 6))
    first: i64 = at + _NUMERIC_HEAD
    if groups < 0 or end != first + 2 * groups or (sign and sign != _NUMERIC_NEGATIVE) or scale < 0:
        return False
    group: i64 = 0
    while group < groups:
        if _group(data, first, groups, group) > _GROUP_MAX:
            return False
        group += 1
    out.append(QUOTE)
    if sign:
        out.append(MINUS)
    begun = False
    group = 0
    while group <= weight:
        digits: i64 = _group(data, first, groups, group)
        if begun:
            write_digits(digits, _GROUP_DIGITS, out)
        elif digits:
            write_integer(digits, out)
            begun = True
        group += 1
    if not begun:
        out.append(ZERO)
    if scale:
        out.append(POINT)
    group = weight + 1
    while scale > 0:
        digits = _group(data, first, groups, group)
        if scale < _GROUP_DIGITS:
            left: i64 = scale
            while left < _GROUP_DIGITS:
                digits //= 10
                left += 1
        write_digits(digits, min(scale, _GROUP_DIGITS), out)
        scale -= _GROUP_DIGITS
        group += 1
    out.append(QUOTE)
    return True


def _group(data: bytes, first: "i64", groups: "i64", group: "i64") -> "i64":
    """Return four decimal digits of a numeric, which are zeros if they are not stored."""
    if group < 0 or group >= groups:
        return 0
    at: i64 = first + 2 * group
    return data[at] * 256 + data[at + 1]


def write_uuid(data: bytes, at: "i64", out: BytesWriter) -> None:
    """Append the 16 bytes at `data[at]` as a UUID in a JSON string."""
    out.append(QUOTE)
    place: i64
    for place in range(16):
        if place in (4, 6, 8, 10):
            out.append(MINUS)
        byte = data[at + place]
        out.append(_HEX[byte >> 4])
        out.append(_HEX[byte & 15])
    out.append(QUOTE)
