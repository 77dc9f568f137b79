"""Converts values in binary form to the text that the server would have sent.

If the start options include `binary`, values of types that have a send function arrive in this form. They are
converted to the type's text form here, so that records do not depend on the form of transfer. The formats are
defined by the send functions in PostgreSQL's adt directory. Bytes that do not have the form raise ValueError.

`BinaryFields` reads the fields of a value one after the other. Types of extensions are hstore and cube (contrib/hstore,
contrib/cube).
"""

from decimal import ROUND_UP, Context
from fractions import Fraction
from math import inf, isinf, isnan, nextafter
from struct import Struct, pack, unpack
from typing import TYPE_CHECKING, Final

from cdcd.core.pauses import PAUSE_ITEMS, pause
from cdcd.core.protocol.peek import COMPILED

if TYPE_CHECKING:
    from mypy_extensions import i64
import re


class BinaryFields:
    """Reads one value field by field; the caller must call `end` after the last field."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        begin = self._at
        end = begin + size
        if size < 0 or end > len(self._data):
            raise ValueError("a field ends after the value")
        self._at = end
        return self._data[begin:end]

    def integer(self, size: int) -> int:
        """Return a signed integer of `size` bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def unsigned(self, size: int) -> int:
        """Return an unsigned integer of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def value(self) -> bytes | None:
        """Return the bytes after a length; None (NULL) for a length of -1."""
        size = self.integer(4)
        return None if size == -1 else self.take(size)

    def string(self) -> str:
        """Return wire text up to a zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ValueError("a string has no end")
        text = self.take(end - self._at).decode("latin-1")
        self._at += 1
        return text

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Raise ValueError if bytes remain."""
        if self._at != len(self._data):
            raise ValueError("bytes are left over")


_NUMERIC_HEAD: Final = Struct("!HhHH")
_NUMERIC_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_NUMERIC_NEGATIVE: Final = 0x4000
_NUMERIC_SHORT: Final = 4
"""Maximum number of base-10000 digits that fit into a machine integer."""

_DIGITS_MAX: Final = 17
"""Number of digits that suffice to restore any float8."""
_FLOAT4_POWERS: Final = (b"\x00\x00\x00", b"\x80\x00\x00")
"""Bytes after sign and exponent in a power of two: zeros, except for the exponent's last bit."""
_FLOAT4_WHOLE: Final = 2.0**24
_FLOAT4_TIES_MAX: Final = 1e20
_FLOAT8_WHOLE: Final = 2.0**53
_FLOAT8_TIES_MAX: Final = 1e41
"""Bounds between which a float can have few digits that lie in the middle between the float and the next one. Below
the bounds, the middle is not a whole number and has more digits than the float; above, it is not a multiple of a
large enough power of 5."""


def integer(data: bytes, size: int, *, signed: bool = True) -> int:
    if len(data) != size:
        raise ValueError(f"{size} bytes expected, not {len(data)}")
    if not COMPILED or not signed:
        return int.from_bytes(data, "big", signed=signed)
    number: i64 = data[0] - 256 if data[0] & 0x80 else data[0]
    at: i64
    for at in range(1, size):
        number = number * 256 + data[at]
    return number


def float4_text(data: bytes) -> str:
    """Return the text of float4out, with the shortest digits that restore the number (extra_float_digits above 0)."""
    value: float = unpack("!f", _exactly(data, 4))[0]
    for precision in range(9):
        shortest = f"{value:.{precision}e}"
        if "e" not in shortest or _is_float4(shortest, data):
            break
        if data[1:] in _FLOAT4_POWERS:
            # For a power of two the lower neighbour is nearer than the upper one, so digits that are rounded up may
            # suffice.
            shortest = f"{Context(precision + 1, ROUND_UP).create_decimal_from_float(value):e}"
            if _is_float4(shortest, data):
                break
    if _FLOAT4_WHOLE <= abs(value) < _FLOAT4_TIES_MAX:
        bits = integer(data, 4, signed=False)
        below, above = (unpack("!f", pack("!I", bits + step))[0] for step in (-1, 1))
        shortest = _without_tie(shortest, value, below, above)
    return _float_text(shortest, value, 6)


def _is_float4(text: str, data: bytes) -> bool:
    try:
        return pack("!f", float(text)) == data
    except OverflowError:  # rounded up past the greatest one
        return False


def float8_text(data: bytes) -> str:
    value: float = unpack("!d", _exactly(data, 8))[0]
    shortest = repr(value)
    if 1e-4 <= abs(value) < 1e15:
        return shortest.removesuffix(".0")
    if _FLOAT8_WHOLE <= abs(value) < _FLOAT8_TIES_MAX:
        shortest = _without_tie(shortest, value, nextafter(value, -inf), nextafter(value, inf))
    return _float_text(shortest, value, 15)


def _without_tie(shortest: str, value: float, one: float, other: float) -> str:
    """Return the shortest digits that restore `value` without a tie between it and its neighbours `one` and `other`.

    PostgreSQL does not rely on a reader that rounds ties to even (STRICTLY_SHORTEST in src/common/ryu_common.h).
    """
    exact = Fraction(value)
    low, high = sorted([(exact + Fraction(one)) / 2, (exact + Fraction(other)) / 2])
    precision = 0
    while not low < Fraction(shortest) < high and precision < _DIGITS_MAX:
        shortest = f"{value:.{precision}e}"
        precision += 1
    return shortest


def _float_text(shortest: str, value: float, fixed_digits: int) -> str:
    """Return the digits in the layout of PostgreSQL's ryu: fixed from 1e-4 up to `fixed_digits`
    digits, else with `e`.
    """
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, _, exponent = shortest.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    power = int(exponent or "0") + len(whole) - 1
    digits = whole + fraction
    power -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    if not digits:
        return f"{sign}0"
    if not -4 <= power < fixed_digits:
        point = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{point}e{'-' if power < 0 else '+'}{abs(power):02}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    digits = digits.ljust(power + 1, "0")
    point = f".{digits[power + 1 :]}" if len(digits) > power + 1 else ""
    return f"{sign}{digits[: power + 1]}{point}"


def numeric_text(data: bytes) -> str:
    """Return the text of numeric_out from base-10000 digits (`weight` + 1 before the point) and a display scale."""
    if len(data) < _NUMERIC_HEAD.size:
        raise ValueError("a numeric is at least 8 bytes")
    number, weight, sign, scale = _NUMERIC_HEAD.unpack_from(data)
    if len(data) != _NUMERIC_HEAD.size + 2 * number:
        raise ValueError("a numeric's length does not fit its digits")
    if sign in _NUMERIC_SPECIAL:
        return _NUMERIC_SPECIAL[sign]
    if number <= _NUMERIC_SHORT and -1 <= weight < _NUMERIC_SHORT and sign in (0, _NUMERIC_NEGATIVE):
        return _short_numeric_text(data, number, weight, sign != 0, scale)
    digits: tuple[int, ...] = unpack(f"!{number}H", data[_NUMERIC_HEAD.size :])
    if sign not in (0, _NUMERIC_NEGATIVE) or any(digit > 9999 for digit in digits):
        raise ValueError("not a numeric")
    lead = max(0, -weight - 1)
    shown = "0000" * lead + "".join([f"{digit:04}" for digit in digits])
    point = 4 * max(0, weight + 1)
    shown = shown.ljust(point, "0")
    whole = shown[:point].lstrip("0") or "0"
    minus = "-" if sign else ""
    return f"{minus}{whole}.{shown[point:].ljust(scale, '0')[:scale]}" if scale else f"{minus}{whole}"


def _short_numeric_text(data: bytes, number: int, weight: int, negative: bool, scale: int) -> str:
    """Return the text of a numeric with few digits, as almost all have."""
    total: i64 = 0
    at: i64 = _NUMERIC_HEAD.size
    end: i64 = len(data)
    while at < end:
        digit: i64 = data[at] * 256 + data[at + 1]
        if digit > 9999:
            raise ValueError("not a numeric")
        total = total * 10_000 + digit
        at += 2
    digits = str(total)
    fraction = 4 * (number - weight - 1)
    if fraction <= 0:
        # A zero has no digits.
        whole = digits + "0" * -fraction if total else "0"
        shown = ""
    else:
        digits = digits.rjust(fraction + 1, "0")
        whole, shown = digits[:-fraction], digits[-fraction:]
    minus = "-" if negative else ""
    if scale != len(shown):
        shown = shown.ljust(scale, "0")[:scale]
    return f"{minus}{whole}.{shown}" if scale else f"{minus}{whole}"


def bits_text(data: bytes) -> str:
    size = integer(data[:4], 4)
    if size < 0 or len(data) != 4 + (size + 7) // 8:
        raise ValueError("a bit string's length does not fit its bits")
    # A string for each byte would need 60 times the memory of the bits.
    whole = f"{int.from_bytes(data[4:], 'big'):b}".zfill(8 * (len(data) - 4))
    return whole[:size]


def point_text(data: bytes) -> str:
    _exactly(data, 16)
    return f"({float8_text(data[:8])},{float8_text(data[8:])})"


def uuid_text(data: bytes) -> str:
    digits = _exactly(data, 16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def read_array(data: bytes) -> tuple[list[int], list[int], list[bytes | None]]:
    """Return lengths and lower bounds of the dimensions, and the elements in row-major order (array_send)."""
    fields = BinaryFields(data)
    dimensions, _has_null, _element_oid = fields.integer(4), fields.integer(4), fields.unsigned(4)
    lengths: list[int] = []
    bounds: list[int] = []
    total = 1 if dimensions > 0 else 0
    for _ in range(dimensions):
        lengths.append(fields.integer(4))
        bounds.append(fields.integer(4))
        total *= lengths[-1]
    if total < 0 or 4 * total > len(data):
        raise ValueError("an array's dimensions do not fit its elements")
    elements: list[bytes | None] = []
    for number in range(total):
        if number % PAUSE_ITEMS == 0:
            pause()
        elements.append(fields.value())
    fields.end()
    return lengths, bounds, elements


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"{size} bytes expected, not {len(data)}")
    return data


_ESCAPED: Final = re.compile(r'(["\\])')


def hstore_text(data: bytes) -> str:
    """Return the text of hstore_out: `"a"=>"1", "b"=>NULL`."""
    fields = BinaryFields(data)
    pairs: list[str] = []
    for number in range(fields.integer(4)):
        if number % PAUSE_ITEMS == 0:
            pause()
        key, value = fields.value(), fields.value()
        if key is None:
            raise ValueError("a key of an hstore is NULL")
        pairs.append(f"{_hstore_quoted(key)}=>{'NULL' if value is None else _hstore_quoted(value)}")
    fields.end()
    return ", ".join(pairs)


def _hstore_quoted(data: bytes) -> str:
    escaped = _ESCAPED.sub(r"\\\1", data.decode("latin-1"))
    return f'"{escaped}"'


def cube_text(data: bytes) -> str:
    """Return the text of cube_out: `(1, 2),(3, 4)`; a cube that is a point has its coordinates once (contrib/cube)."""
    fields = BinaryFields(data)
    header = fields.unsigned(4)
    is_point, dimensions = bool(header >> 31), header & 0x7FFFFFFF
    count = dimensions if is_point else 2 * dimensions
    if 8 * count > len(data):
        raise ValueError("a cube's dimensions do not fit its coordinates")
    numbers = [float8_text(fields.take(8)) for _ in range(count)]
    fields.end()
    lower, upper = numbers[:dimensions], numbers[dimensions:]
    text = f"({', '.join(lower)})"
    if is_point or all(float(one) == float(other) for one, other in zip(lower, upper, strict=True)):
        return text
    return f"{text},({', '.join(upper)})"
