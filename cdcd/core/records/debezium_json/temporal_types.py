"""Converts dates, times and intervals; `converters.py` has the rules for infinities, BC and distant years.

Dates and times of the years 1 to 9999 in the usual form are written from machine integers (`writing.py`). Other
values (infinities, BC, distant years) are left to `catalog/temporal.py`, which handles all of them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be

from cdcd.core.catalog import binary, temporal
from cdcd.core.catalog.temporal import (
    DAY_BYTES,
    DAY_US,
    FRACTION_DIGITS,
    MARCH_0000_DAYS,
    TIMESTAMP_BYTES,
    UNUSUAL,
    read_days,
    read_timestamp,
)
from cdcd.core.catalog.wiretext import COLON, MINUS, POINT, ZERO
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.core.records.debezium_json.converter import Converter, Number
from cdcd.core.records.debezium_json.strings import QUOTE
from cdcd.core.records.debezium_json.writing import copy, write_digits, write_integer

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


TIME_DIGITS: Final = 6
"""Number of decimal digits of seconds for a time type without a declared precision."""

DATES_MAX: Final = 8192
"""Maximum number of dates whose result is kept, because tables have few different ones; they take about 1 MB."""

_FULL: Final = 29
"""Length of a timestamp with time zone that has a four-digit year and six decimal digits."""

_FAR_DAYS: Final = 2**31 - 1
"""PostgreSQL's dates end before this many days on either side of 2000; from there on they are infinite."""

_NEAR_US: Final = 2**61
"""Distance from 2000 in microseconds (73,000 years) from which on a sum may need more than 64 bits."""


class Date(Number):
    """Converts dates (`2024-01-31`, `0044-03-15 BC`)."""

    _INFINITE: ClassVar[dict[str, int]] = {"infinity": -2147472692, "-infinity": -2147472691}

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def json(self, text: str) -> str:
        return str(_named(self._INFINITE, text) if text[-1:] == "y" else temporal.epoch_days(text))

    def wire(self, value: bytes) -> bytes:
        json = self._known.get(value)
        if json is None:
            json = Number.wire(self, value)
            if len(self._known) >= DATES_MAX:
                self._known.clear()
            self._known[value] = json
        return json

    def binary(self, data: bytes) -> str:
        days = binary.integer(data, 4)
        infinite = temporal.infinity_of(days, 32)
        return str(days + temporal.POSTGRES_EPOCH_DAYS) if infinite is None else self.json(infinite)

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        days: i64 = read_days(data, at) if end - at == DAY_BYTES else UNUSUAL
        if days == UNUSUAL:
            Converter.write(self, data, at, end, out)
        else:
            write_integer(days, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        days: i64 = int(read_i32_be(data, at)) if end - at == 4 else UNUSUAL
        if -_FAR_DAYS < days < _FAR_DAYS:
            write_integer(days + temporal.POSTGRES_EPOCH_DAYS, out)
        else:
            Converter.write_binary(self, data, at, end, out)


def _named(numbers: Mapping[str, int], text: str) -> int:
    """Return the number for one of the infinities."""
    number = numbers.get(text)
    if number is None:
        raise ValueError(f"{text!r} is not a date or time")
    return number


class Time(Number):
    """Converts times (`17:00:00.25`); the modifier is the declared precision, as in the classes below."""

    def __init__(self, modifier: int) -> None:
        self._unit_us = 1000 if 0 <= modifier <= 3 else 1

    def json(self, text: str) -> str:
        return str(temporal.day_us(text) // self._unit_us)

    def binary(self, data: bytes) -> str:
        return str(binary.integer(data, 8) // self._unit_us)


class TimeTz(Converter):
    """Converts times with time zone (`17:00:00.25+02`)."""

    def json(self, text: str) -> str:
        return f'"{temporal.iso_time(text)}"'

    def binary(self, data: bytes) -> str:
        micros, west_s = binary.integer(data[:8], 8), binary.integer(data[8:], 4)
        return f'"{temporal.iso_time_of(micros, -west_s)}"'


class Timestamp(Number):
    """Converts timestamps (`2024-01-31 17:00:00.25`)."""

    _INFINITE_US: ClassVar[dict[str, int]] = {
        "infinity": 9_223_372_036_825_200_000,
        "-infinity": -9_223_372_036_832_400_000,
    }

    def __init__(self, modifier: int) -> None:
        self._unit_us = 1000 if 0 <= modifier <= 3 else 1

    def json(self, text: str) -> str:
        if text[-1:] == "y":
            return str(_named(self._INFINITE_US, text) // self._unit_us)
        micros = temporal.epoch_us(text)
        return str(micros if self._unit_us == 1 else micros // 1000)

    def binary(self, data: bytes) -> str:
        micros = binary.integer(data, 8)
        infinite = temporal.infinity_of(micros, 64)
        if infinite is not None:
            return self.json(infinite)
        return str((micros + POSTGRES_EPOCH_US) // self._unit_us)

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        micros: i64 = read_timestamp(data, at, end)
        if micros == UNUSUAL:
            Converter.write(self, data, at, end, out)
        else:
            write_integer(micros if self._unit_us == 1 else micros // 1000, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        micros: i64 = read_i64_be(data, at) if end - at == 8 else UNUSUAL
        if -_NEAR_US < micros < _NEAR_US:
            micros += POSTGRES_EPOCH_US
            write_integer(micros if self._unit_us == 1 else micros // 1000, out)
        else:
            Converter.write_binary(self, data, at, end, out)


class TimestampTz(Converter):
    """Converts timestamps with time zone (`2024-01-31 17:00:00.25+00`)."""

    def __init__(self, modifier: int) -> None:
        self._digits = modifier if modifier >= 0 else TIME_DIGITS

    def json(self, text: str) -> str:
        if text[-1:] == "y" and text in ("infinity", "-infinity"):
            return f'"{text}"'
        return f'"{temporal.iso_timestamp(text, self._digits)}"'

    def wire(self, value: bytes) -> bytes:
        if len(value) == _FULL and self._digits == TIME_DIGITS and value[-3:] == b"+00" and value[4] == MINUS:
            # This is the usual form, which `temporal.iso_timestamp` handles in the same way.
            return b'"%bT%bZ"' % (value[:10], value[11:26])
        return Converter.wire(self, value)

    def binary(self, data: bytes) -> str:
        micros = binary.integer(data, 8)
        infinite = temporal.infinity_of(micros, 64)
        if infinite is not None:
            return f'"{infinite}"'
        return f'"{temporal.iso_timestamp_of(micros + POSTGRES_EPOCH_US, self._digits)}"'

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        if not write_timestamp_text(data, at, end, self._digits, out):
            Converter.write(self, data, at, end, out)

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        micros: i64 = read_i64_be(data, at) if end - at == 8 else UNUSUAL
        if not (
            -_NEAR_US < micros < _NEAR_US and write_timestamp(micros + POSTGRES_EPOCH_US, self._digits, out)
        ):
            Converter.write_binary(self, data, at, end, out)


class IntervalString(Converter):
    """Converts interval under `interval: iso8601`."""

    def json(self, text: str) -> str:
        if text in ("infinity", "-infinity"):
            return f'"{text}"'
        return f'"{temporal.iso_interval(text)}"'

    def binary(self, data: bytes) -> str:
        micros, days = binary.integer(data[:8], 8), binary.integer(data[8:12], 4)
        months = binary.integer(data[12:], 4)
        infinite = temporal.infinity_of(micros, 64)
        if infinite is not None and infinite == temporal.infinity_of(days, 32) == temporal.infinity_of(
            months, 32
        ):
            return f'"{infinite}"'
        return f'"{temporal.iso_interval_of(months, days, micros)}"'
