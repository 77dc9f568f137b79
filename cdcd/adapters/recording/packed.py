"""The contents of a block as bytes: a list of items, which one call in C writes.

An item is an event from `events.py`: bytes, or a tuple of values. Frequent events are tuples, because a tuple costs
nothing until its block is full. Then `marshal.dumps` writes all items in version 2 of its format, which has no
references between objects. This module reads the format itself, because `marshal` must not read untrusted bytes:

```
"[" or "(" number u32, so many values   list, tuple "s" number u32, the bytes               bytes "g" f64
float "i" i32                                 int of 32 bits "l" number i32, so many u16             another int, by
digits of 15 bits, the lowest first ```

The number of digits is negative if the int is negative.

All numbers are little-endian.
"""

import marshal
import struct
from struct import Struct
from typing import Any, Final

from cdcd.adapters.recording.errors import RecordingError

Item = bytes | tuple[Any, ...]
"""An encoded event, or the values of an event that is not encoded."""

_VERSION: Final = 2
_DEPTH_MAX: Final = 3
"""Maximum depth: the list of items, an item, and its frames."""

_LIST, _TUPLE, _STRING, _FLOAT, _SHORT, _LONG = b"[(sgil"

_COUNT: Final = Struct("<I")
_SIGNED: Final = Struct("<i")
_DOUBLE: Final = Struct("<d")
_DIGIT_BITS: Final = 15
_DIGITS_MAX: Final = 8
"""Maximum digits of a number, because numbers in a recording have at most 64 bits."""


def size_of(item: Item) -> int:
    """Return the bytes of the item's frames or of its encoded event. Other items are small and count 0."""
    if isinstance(item, bytes):
        return len(item)
    return sum(map(len, item[1])) if len(item) == 2 else 0


def pack(items: list[Item]) -> bytes:
    """Return the bytes of a block that contains these items."""
    return marshal.dumps(items, _VERSION)


def unpack(data: bytes) -> list[Item]:
    """Return the items of a block. RecordingError: the block contains other data."""
    try:
        items, end = _read(data, 0, _DEPTH_MAX)
    except (struct.error, IndexError):
        raise RecordingError("A recorded event ends too early.") from None
    if type(items) is not list or end != len(data) or not all(type(item) in {bytes, tuple} for item in items):
        raise RecordingError("A block holds no list of events.")
    return items


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and the offset of its end."""
    kind = data[at]
    at += 1
    if kind == _STRING:
        begin = at + 4
        end = begin + _COUNT.unpack_from(data, at)[0]
        if end > len(data):
            raise RecordingError("A recorded event ends too early.")
        return data[begin:end], end
    if kind == _FLOAT:
        return _DOUBLE.unpack_from(data, at)[0], at + 8
    if kind == _SHORT:
        return _SIGNED.unpack_from(data, at)[0], at + 4
    if kind == _LONG:
        return _read_long(data, at)
    if kind not in (_LIST, _TUPLE) or not depth:
        raise RecordingError("A recorded event is not of its form.")
    count = _COUNT.unpack_from(data, at)[0]
    at += 4
    values = []
    for _ in range(count):
        value, at = _read(data, at, depth - 1)
        values.append(value)
    return values if kind == _LIST else tuple(values), at


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    count = _SIGNED.unpack_from(data, at)[0]
    if abs(count) > _DIGITS_MAX:
        raise RecordingError("A number in a recording is too large.")
    digits = struct.unpack_from(f"<{abs(count)}H", data, at + 4)
    value = sum(digit << _DIGIT_BITS * place for place, digit in enumerate(digits))
    return value if count >= 0 else -value, at + 4 + 2 * abs(count)
