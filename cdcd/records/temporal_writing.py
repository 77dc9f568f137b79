"""Dates and times of the usual form, years 1 to 9999, read and written on machine integers (`writing.py`).

What is not of that form (infinities, BC, far years) is left to `temporal.py`, which knows all of them.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.records.wiretext import QUOTE
from cdcd.records.writing import MINUS, POINT, ZERO, copy, write_digits

if TYPE_CHECKING:
    from mypy_extensions import i64

UNUSUAL: Final = -(2**63)
"""Stands for a number that was not read, and is none of a date or time."""

DAY_BYTES: Final = 10
_CLOCK_BYTES: Final = 8
_TIMESTAMP_BYTES: Final = DAY_BYTES + 1 + _CLOCK_BYTES

_DAY_US: Final = 86_400_000_000
_MONTH_DAYS: Final = bytes([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_CYCLE_DAYS: Final = 146_097
"""Of the 400 years after which the calendar repeats."""
_MARCH_0000_DAYS: Final = 719_468
"""From 1 March of the year 0, after whose Februaries leap days come last, to 1970-01-01."""

_COLON: Final = 0x3A  # :
_SPACE: Final = 0x20  # space
_PLUS: Final = 0x2B  # +
_T: Final = 0x54  # T
_Z: Final = 0x5A  # Z
_FRACTION_DIGITS: Final = 6
_ZONE_BYTES: Final = 3


def read_days(data: bytes, at: "i64") -> "i64":
    """`2024-01-31` at `data[at]` as days since 1970-01-01; UNUSUAL if that is not what stands there."""
    year: i64 = _number(data, at, 4)
    month: i64 = _number(data, at + 5, 2)
    day: i64 = _number(data, at + 8, 2)
    if year < 1 or data[at + 4] != MINUS or data[at + 7] != MINUS or not 1 <= month <= 12:
        return UNUSUAL
    if day < 1 or day > _MONTH_DAYS[month - 1]:
        return UNUSUAL
    if month == 2 and day == 29 and (year % 4 or (not year % 100 and year % 400)):
        return UNUSUAL
    if month > 2:
        month -= 3
    else:
        month += 9
        year -= 1
    # Months have 30.6 days from March on, if February is the last.
    days: i64 = (153 * month + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + days - _MARCH_0000_DAYS


def read_timestamp(data: bytes, at: "i64", end: "i64") -> "i64":
    """`2024-01-31 12:34:56.789` as microseconds since 1970-01-01 00:00; UNUSUAL if it is not of that form."""
    fraction: i64 = end - at - _TIMESTAMP_BYTES - 1
    if fraction != -1 and not (1 <= fraction <= _FRACTION_DIGITS and data[at + _TIMESTAMP_BYTES] == POINT):
        return UNUSUAL
    days: i64 = read_days(data, at)
    hours: i64 = _number(data, at + 11, 2)
    minutes: i64 = _number(data, at + 14, 2)
    seconds: i64 = _number(data, at + 17, 2)
    if days == UNUSUAL or not 0 <= hours <= 23 or not 0 <= minutes <= 59 or not 0 <= seconds <= 59:
        return UNUSUAL
    if data[at + DAY_BYTES] != _SPACE or data[at + 13] != _COLON or data[at + 16] != _COLON:
        return UNUSUAL
    micros: i64 = 0
    if fraction > 0:
        micros = _number(data, end - fraction, fraction)
        if micros < 0:
            return UNUSUAL
        while fraction < _FRACTION_DIGITS:
            micros *= 10
            fraction += 1
    return days * _DAY_US + (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + micros


def _number(data: bytes, at: "i64", digits: "i64") -> "i64":
    """So many decimal digits; -1 if something else is among them."""
    number: i64 = 0
    end: i64 = at + digits
    while at < end:
        digit: i64 = data[at] - ZERO
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
        at += 1
    return number


def write_timestamp_text(data: bytes, at: "i64", end: "i64", digits: "i64", out: BytesWriter) -> bool:
    """Append `2024-01-31 12:34:56.789+00` as `iso_timestamp` has it, in quotes. False: it is not of that form."""
    size: i64 = end - at
    fraction: i64 = size - _TIMESTAMP_BYTES - 1 - _ZONE_BYTES
    if fraction < -1 or not fraction or fraction > _FRACTION_DIGITS or data[at + 4] != MINUS:
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
    """Append microseconds since 1970-01-01 as `iso_timestamp_of` has it, in quotes. False: the year is a far one."""
    days: i64 = micros // _DAY_US
    within: i64 = micros - days * _DAY_US
    days += _MARCH_0000_DAYS
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
    out.append(_COLON)
    write_digits(seconds // 60 % 60, 2, out)
    out.append(_COLON)
    write_digits(seconds % 60, 2, out)
    if digits > 0:
        out.append(POINT)
        fraction: i64 = within - seconds * 1_000_000
        place: i64 = digits
        while place < _FRACTION_DIGITS:
            fraction //= 10
            place += 1
        write_digits(fraction, digits, out)
    out.append(_Z)
    out.append(QUOTE)
    return True
