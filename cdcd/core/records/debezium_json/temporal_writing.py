"""Writes dates and times of the years 1 to 9999 in the usual form, from machine integers (`writing.py`).

Other values (infinities, BC, distant years) are left to `catalog/temporal.py`, which handles all of them.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.temporal import (
    DAY_BYTES,
    DAY_US,
    FRACTION_DIGITS,
    MARCH_0000_DAYS,
    TIMESTAMP_BYTES,
)
from cdcd.core.catalog.wiretext import COLON, MINUS, POINT, ZERO
from cdcd.core.records.debezium_json.strings import QUOTE
from cdcd.core.records.debezium_json.writing import copy, write_digits

if TYPE_CHECKING:
    from mypy_extensions import i64

_CYCLE_DAYS: Final = 146_097
"""Days in the 400 years after which the calendar repeats."""

_PLUS: Final = 0x2B  # +
_T: Final = 0x54  # T
_Z: Final = 0x5A  # Z
_ZONE_BYTES: Final = 3


def write_timestamp_text(data: bytes, at: "i64", end: "i64", digits: "i64", out: BytesWriter) -> bool:
    """Append `2024-01-31 12:34:56.789+00` in the form of `iso_timestamp`, in quotes; returns False if the text is not
    in this form.
    """
    size: i64 = end - at
    fraction: i64 = size - TIMESTAMP_BYTES - 1 - _ZONE_BYTES
    if fraction < -1 or not fraction or fraction > FRACTION_DIGITS or data[at + 4] != MINUS:
        return False
    if data[end - 3] != _PLUS or data[end - 2] != ZERO or data[end - 1] != ZERO:
        return False
    out.append(QUOTE)
    begin: i64 = len(out)
    copy(data, at, end - _ZONE_BYTES, out)
    out[begin + DAY_BYTES] = _T
    if fraction < 0:
        fraction = 0
        if digits > 0:
            out.append(POINT)
    while fraction < digits:
        out.append(ZERO)
        fraction += 1
    out.append(_Z)
    out.append(QUOTE)
    return True


def write_timestamp(micros: "i64", digits: "i64", out: BytesWriter) -> bool:
    """Append microseconds since 1970-01-01 in the form of `iso_timestamp_of`, in quotes; returns False if the year is
    outside 1 to 9999.
    """
    days: i64 = micros // DAY_US
    within: i64 = micros - days * DAY_US
    days += MARCH_0000_DAYS
    cycle: i64 = days // _CYCLE_DAYS
    days -= cycle * _CYCLE_DAYS
    year: i64 = (days - days // 1460 + days // 36_524 - days // 146_096) // 365
    days -= year * 365 + year // 4 - year // 100
    month: i64 = (5 * days + 2) // 153
    day: i64 = days - (153 * month + 2) // 5 + 1
    year += cycle * 400
    if month < 10:
        month += 3
    else:
        month -= 9
        year += 1
    if year < 1 or year > 9999:
        return False
    out.append(QUOTE)
    write_digits(year, 4, out)
    out.append(MINUS)
    write_digits(month, 2, out)
    out.append(MINUS)
    write_digits(day, 2, out)
    out.append(_T)
    seconds: i64 = within // 1_000_000
    write_digits(seconds // 3600, 2, out)
    out.append(COLON)
    write_digits(seconds // 60 % 60, 2, out)
    out.append(COLON)
    write_digits(seconds % 60, 2, out)
    if digits > 0:
        out.append(POINT)
        fraction: i64 = within - seconds * 1_000_000
        place: i64 = digits
        while place < FRACTION_DIGITS:
            fraction //= 10
            place += 1
        write_digits(fraction, digits, out)
    out.append(_Z)
    out.append(QUOTE)
    return True
