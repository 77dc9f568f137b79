"""Dates and times in text of the usual form, years 1 to 9999, read into machine integers.

What is not of that form (infinities, BC, far years) is left to `temporal.py`, which knows all of them.
"""

from typing import TYPE_CHECKING, Final

from cdcd.core.catalog.wiretext import COLON, MINUS, POINT, SPACE, ZERO

if TYPE_CHECKING:
    from mypy_extensions import i64

UNUSUAL: Final = -(2**63)
"""Stands for a number that was not read, and is none of a date or time."""

DAY_BYTES: Final = 10
CLOCK_BYTES: Final = 8
TIMESTAMP_BYTES: Final = DAY_BYTES + 1 + CLOCK_BYTES
FRACTION_DIGITS: Final = 6

DAY_US: Final = 86_400_000_000
MARCH_0000_DAYS: Final = 719_468
"""From 1 March of the year 0, after whose Februaries leap days come last, to 1970-01-01."""

_MONTH_DAYS: Final = bytes([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


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
    return year * 365 + year // 4 - year // 100 + year // 400 + days - MARCH_0000_DAYS


def read_timestamp(data: bytes, at: "i64", end: "i64") -> "i64":
    """`2024-01-31 12:34:56.789` as microseconds since 1970-01-01 00:00; UNUSUAL if it is not of that form."""
    fraction: i64 = end - at - TIMESTAMP_BYTES - 1
    if fraction != -1 and not (1 <= fraction <= FRACTION_DIGITS and data[at + TIMESTAMP_BYTES] == POINT):
        return UNUSUAL
    days: i64 = read_days(data, at)
    hours: i64 = _number(data, at + 11, 2)
    minutes: i64 = _number(data, at + 14, 2)
    seconds: i64 = _number(data, at + 17, 2)
    if days == UNUSUAL or not 0 <= hours <= 23 or not 0 <= minutes <= 59 or not 0 <= seconds <= 59:
        return UNUSUAL
    if data[at + DAY_BYTES] != SPACE or data[at + 13] != COLON or data[at + 16] != COLON:
        return UNUSUAL
    micros: i64 = 0
    if fraction > 0:
        micros = _number(data, end - fraction, fraction)
        if micros < 0:
            return UNUSUAL
        while fraction < FRACTION_DIGITS:
            micros *= 10
            fraction += 1
    return days * DAY_US + (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + micros


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
