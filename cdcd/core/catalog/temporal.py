"""Converts dates and times: PostgreSQL's text (datestyle ISO, timezone UTC) to numbers and ISO 8601, and its numbers to
text.

The calendar is the proleptic Gregorian one, as in PostgreSQL and in Java's `java.time`, which Debezium uses. Years
1 to 9999 are converted by Python's `datetime`; other years, such as `0044-03-15 BC` and `10000-01-01`, by a regular
expression and day arithmetic, which is slower. 1 BC is the year 0, 2 BC the year -1.

Every function raises ValueError for text of another form.

The functions at the end of this module read the usual form, years 1 to 9999, into machine integers, and leave every
other form (infinities, BC, distant years) to the functions above.
"""

import re
from datetime import date, datetime
from typing import TYPE_CHECKING, Final

from cdcd.core.protocol.messages import POSTGRES_EPOCH_US

if TYPE_CHECKING:
    from mypy_extensions import i64
from typing import TYPE_CHECKING

from cdcd.core.catalog.wiretext import COLON, MINUS, POINT, SPACE, ZERO

if TYPE_CHECKING:
    from mypy_extensions import i64

DAY_US: Final = 86_400_000_000
MONTH_US: Final = 2_629_800_000_000

POSTGRES_EPOCH_DAYS: Final = POSTGRES_EPOCH_US // DAY_US

_GREATEST: Final = {32: 2**31 - 1, 64: 2**63 - 1}

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without time zone is what is measured with it
_EPOCH_ORDINAL: Final = 719_163
"""`date.toordinal()` of 1970-01-01."""

_TWO: Final = [f"{number:02}" for number in range(100)]

_ISO_DAYS: Final[dict[int, str]] = {}
"""Cache of written days by their number since 1970-01-01, because a stream has few different ones."""
_ISO_DAYS_MAX: Final = 4096

_YEARS_400_DAYS: Final = 146_097

_DAY: Final = r"(\d{4,7})-(\d\d)-(\d\d)"
_CLOCK: Final = r"([01]\d|2[0-4]):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?"
_DATE: Final = re.compile(rf"{_DAY}( BC)?", re.ASCII)
_TIMESTAMP: Final = re.compile(rf"{_DAY} {_CLOCK}(\+00)?( BC)?", re.ASCII)
_TIME: Final = re.compile(_CLOCK, re.ASCII)
_TIMETZ: Final = re.compile(rf"{_CLOCK}([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?", re.ASCII)
_INTERVAL: Final = re.compile(
    r"(?=.)(?:([+-]?\d+) years?)? ?(?:([+-]?\d+) mons?)? ?(?:([+-]?\d+) days?)? ?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?",
    re.ASCII,
)


def epoch_days(text: str) -> int:
    """Return a date as days since 1970-01-01."""
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        match = _DATE.fullmatch(text)
        if match is None:
            raise
        return _days(_year(match[1], match[4]), int(match[2]), int(match[3]))


def epoch_us(text: str) -> int:
    """Return a timestamp without time zone as microseconds since 1970-01-01 00:00."""
    try:
        since = datetime.fromisoformat(text) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    except (ValueError, TypeError):
        match = _TIMESTAMP.fullmatch(text)
        if match is None or match[8]:
            raise ValueError(f"{text!r} is not a timestamp") from None
        days = _days(_year(match[1], match[9]), int(match[2]), int(match[3]))
        return days * DAY_US + _clock_us(match[4], match[5], match[6], match[7])


def day_us(text: str) -> int:
    """Return a time without time zone as microseconds since midnight; 24:00:00 is valid."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time")
    return _clock_us(match[1], match[2], match[3], match[4])


def iso_timestamp(text: str, digits: int) -> str:
    """Return a timestamp with time zone in UTC as `2024-01-31T12:34:56.789000Z`, with at least `digits` fraction
    digits.

    The form is java.time's: years below 0 and above 9999 have a sign (`+10000-01-01T00:00:00Z`).
    """
    size = len(text)
    if text.endswith("+00") and 22 <= size <= 29 and text[4] == "-":
        if size == 29 and digits == 6:
            return f"{text[:10]}T{text[11:26]}Z"
        fraction = text[20 : size - 3].ljust(digits, "0")
        return f"{text[:10]}T{text[11:19]}.{fraction}Z" if fraction else f"{text[:10]}T{text[11:19]}Z"
    match = _TIMESTAMP.fullmatch(text)
    if match is None or not match[8]:
        raise ValueError(f"{text!r} is not a timestamp in UTC")
    fraction = (match[7] or "").ljust(digits, "0")
    clock = f"{match[4]}:{match[5]}:{match[6]}" + (f".{fraction}" if fraction else "")
    return f"{_iso_year(_year(match[1], match[9]))}-{match[2]}-{match[3]}T{clock}Z"


def iso_timestamp_of(micros: int, digits: int) -> str:
    """Return the text of `iso_timestamp` for microseconds since 1970-01-01 UTC."""
    days, within = divmod(micros, DAY_US)
    day = _ISO_DAYS.get(days)
    if day is None:
        year, month, of_month = _civil(days)
        day = f"{_iso_year(year)}-{month:02}-{of_month:02}"
        if len(_ISO_DAYS) >= _ISO_DAYS_MAX:
            _ISO_DAYS.clear()
        _ISO_DAYS[days] = day
    clock, fraction = _clock_text(within)
    if digits < 6:
        fraction = fraction[:digits]
    return f"{day}T{clock}.{fraction}Z" if fraction else f"{day}T{clock}Z"


def iso_time(text: str) -> str:
    """Return a time with time zone as `10:34:56.789Z`, converted to UTC modulo a day.

    24:00:00 in UTC stays `24:00:00Z`; in other zones it becomes the corresponding time in UTC.
    """
    match = _TIMETZ.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time with time zone")
    east_s = _east_s(match[5], match[6], match[7], match[8])
    return iso_time_of(_clock_us(match[1], match[2], match[3], match[4]), east_s)


def iso_time_of(micros: int, east_s: int) -> str:
    """Return the text of `iso_time` for microseconds since midnight, in a zone `east_s` seconds east of UTC."""
    if micros != DAY_US or east_s:
        micros = (micros - east_s * 1_000_000) % DAY_US
    clock, fraction = _clock_text(micros)
    fraction = fraction.rstrip("0")
    return f"{clock}.{fraction}Z" if fraction else f"{clock}Z"


def iso_date(text: str) -> str:
    """Return a date as `2024-01-31Z`, with far years as in `iso_timestamp`."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    return f"{_iso_year(_year(match[1], match[4]))}-{match[2]}-{match[3]}Z"


def iso_interval(text: str) -> str:
    """Return an interval (intervalstyle postgres) in ISO 8601 as Debezium writes it: `P1Y2M3DT4H5M6.78S`.

    All fields are present, also zeros; each has its own sign: `-1 years +2 days` is `P-1Y0M2DT0H0M0S`.
    """
    return _interval(*_interval_parts(text))


def interval_us(text: str) -> int:
    """Return an interval as microseconds, with months of 30.4375 days, which is a twelfth of 365.25."""
    years, months, days, micros = _interval_parts(text)
    return (years * 12 + months) * MONTH_US + days * DAY_US + micros


def _interval_parts(text: str) -> tuple[int, int, int, int]:
    """Return years, months, days, microseconds."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an interval")
    years, months, days = [int(match[group] or "0") for group in (1, 2, 3)]
    sign = -1 if match[4] == "-" else 1
    seconds = int(match[7] or "0") * 1_000_000 + int((match[8] or "").ljust(6, "0"))
    clock = int(match[5] or "0") * 3_600_000_000 + int(match[6] or "0") * 60_000_000 + seconds
    return years, months, days, sign * clock


def date_fields(text: str) -> tuple[int, int, int]:
    """Return year, month and day of a date."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    return _day_fields(match[1], match[4], match[2], match[3])


def time_fields(text: str) -> tuple[int, int, int, int]:
    """Return hour, minute, second and nanoseconds of a time without time zone."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time")
    return _clock_fields(match[1], match[2], match[3], match[4])


def timetz_fields(text: str) -> tuple[int, int, int, int, int]:
    """Return hour, minute, second and nanoseconds of a time with time zone, and the zone in seconds east of UTC."""
    match = _TIMETZ.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time with time zone")
    clock = _clock_fields(match[1], match[2], match[3], match[4])
    return (*clock, _east_s(match[5], match[6], match[7], match[8]))


def timestamp_fields(text: str, *, has_zone: bool) -> tuple[int, int, int, int, int, int, int]:
    """Return year, month, day, hour, minute, second and nanoseconds of a timestamp; with time zone, it is in UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None or bool(match[8]) != has_zone:
        raise ValueError(f"{text!r} is not a timestamp")
    day = _day_fields(match[1], match[9], match[2], match[3])
    return (*day, *_clock_fields(match[4], match[5], match[6], match[7]))


def interval_fields(text: str) -> tuple[int, int, int, int, int, int, int]:
    """Return years, months, days, hours, minutes, seconds and nanoseconds of an interval."""
    years, months, days, micros = _interval_parts(text)
    sign = -1 if micros < 0 else 1
    minutes, within = divmod(abs(micros), 60_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds, fraction = divmod(within, 1_000_000)
    return years, months, days, sign * hours, sign * minutes, sign * seconds, sign * fraction * 1000


def _day_fields(digits: str, bc: str | None, month: str, day: str) -> tuple[int, int, int]:
    year = _year(digits, bc)
    # A day that the calendar lacks is a ValueError.
    _days(year, int(month), int(day))
    return year, int(month), int(day)


def _clock_fields(hours: str, minutes: str, seconds: str, fraction: str | None) -> tuple[int, int, int, int]:
    return int(hours), int(minutes), int(seconds), int((fraction or "").ljust(9, "0"))


def _east_s(sign: str, hours: str, minutes: str | None, seconds: str | None) -> int:
    """Return the seconds by which a zone is east of UTC."""
    east = int(hours) * 3600 + int(minutes or "0") * 60 + int(seconds or "0")
    return -east if sign == "-" else east


def iso_interval_of(months: int, days: int, micros: int) -> str:
    """Return the text of `iso_interval` for an interval's three parts, as the server stores them (interval_out in
    timestamp.c).
    """
    sign = -1 if months < 0 else 1
    years, months = divmod(abs(months), 12)
    return _interval(sign * years, sign * months, days, micros)


def date_text_of(days: int) -> str:
    """Return the text of a date stored as days since 2000 (date_out in date.c): `0044-03-15 BC`, `infinity`."""
    infinite = infinity_of(days, 32)
    if infinite is not None:
        return infinite
    day, era = _day_text(days + POSTGRES_EPOCH_DAYS)
    return day + era


def clock_text_of(micros: int) -> str:
    """Return the text of microseconds since midnight, without trailing zeros."""
    clock, fraction = _clock_text(micros)
    fraction = fraction.rstrip("0")
    return f"{clock}.{fraction}" if fraction else clock


def zone_text_of(east_s: int) -> str:
    """Return the text of a zone `east_s` seconds east of UTC (EncodeTimezone in datetime.c): `+02`, `-05:30`."""
    minutes, seconds = divmod(abs(east_s), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{'-' if east_s < 0 else '+'}{hours:02}"
    if minutes or seconds:
        text += f":{minutes:02}"
    return f"{text}:{seconds:02}" if seconds else text


def timestamp_text_of(micros: int, zone: str) -> str:
    """Return the text of a timestamp stored as microseconds since 2000; `zone` follows the time of day."""
    infinite = infinity_of(micros, 64)
    if infinite is not None:
        return infinite
    days, within = divmod(micros, DAY_US)
    day, era = _day_text(days + POSTGRES_EPOCH_DAYS)
    return f"{day} {clock_text_of(within)}{zone}{era}"


def interval_text_of(months: int, days: int, micros: int) -> str:
    """Return the text of an interval in intervalstyle postgres (EncodeInterval in datetime.c): `1 year -2 mons
    +03:00:00`.
    """
    infinite = infinity_of(micros, 64)
    if infinite is not None and infinite == infinity_of(days, 32) == infinity_of(months, 32):
        return infinite
    sign = -1 if months < 0 else 1
    years, months = divmod(abs(months), 12)
    parts: list[str] = []
    before = 0
    for number, unit in ((sign * years, "year"), (sign * months, "mon"), (days, "day")):
        if number:
            plus = "+" if before < 0 < number else ""
            parts.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
            before = number
    if micros or not parts:
        hours, within = divmod(abs(micros), 3_600_000_000)
        plus = "-" if micros < 0 else "+" if before < 0 else ""
        parts.append(f"{plus}{hours:02}{clock_text_of(within)[2:]}")
    return " ".join(parts)


def infinity_of(number: int, bits: int) -> str | None:
    """Return the text of an infinity, which is the greatest or least number of a type; None for other numbers."""
    greatest = _GREATEST[bits]
    if -greatest <= number < greatest:
        return None
    return "infinity" if number == greatest else "-infinity"


def _day_text(days: int) -> tuple[str, str]:
    """Return the day `days` days after 1970-01-01 as `2024-01-31`, and its era."""
    year, month, day = _civil(days)
    return (
        f"{year:04}" if year > 0 else f"{1 - year:04}"
    ) + f"-{month:02}-{day:02}", "" if year > 0 else " BC"


def _interval(years: int, months: int, days: int, micros: int) -> str:
    sign = -1 if micros < 0 else 1
    minutes, within = divmod(abs(micros), 60_000_000)
    hours, minutes = divmod(minutes, 60)
    whole, fraction = divmod(within, 1_000_000)
    seconds = f"{whole}.{fraction:06}".rstrip("0") if fraction else f"{whole}"
    minus = "-" if sign < 0 and within else ""
    return f"P{years}Y{months}M{days}DT{sign * hours}H{sign * minutes}M{minus}{seconds}S"


def _clock_us(hours: str, minutes: str, seconds: str, fraction: str | None) -> int:
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * 1_000_000 + (int(fraction.ljust(6, "0")) if fraction else 0)


def _clock_text(micros: int) -> tuple[str, str]:
    """Return microseconds since midnight as `HH:MM:SS` and six digits."""
    rest: i64 = micros
    fraction: i64 = rest % 1_000_000
    rest = rest // 1_000_000
    second: i64 = rest % 60
    rest = rest // 60
    minute: i64 = rest % 60
    hour: i64 = rest // 60
    within = f"{_TWO[fraction // 10_000]}{_TWO[fraction // 100 % 100]}{_TWO[fraction % 100]}"
    # 24:00:00 is valid.
    return f"{_TWO[hour]}:{_TWO[minute]}:{_TWO[second]}", within


def _year(digits: str, bc: str | None) -> int:
    return 1 - int(digits) if bc else int(digits)


def _iso_year(year: int) -> str:
    if year < 0:
        return f"-{-year:04}"
    return f"{year:04}" if year <= 9999 else f"+{year}"


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01, in any year: the calendar repeats every 400 years."""
    cycles = (year - 1) // 400
    return date(year - cycles * 400, month, day).toordinal() - _EPOCH_ORDINAL + cycles * _YEARS_400_DAYS


def _civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of the day `days` days after 1970-01-01."""
    cycles, within = divmod(days + _EPOCH_ORDINAL - 1, _YEARS_400_DAYS)
    day = date.fromordinal(within + 1)
    return day.year + cycles * 400, day.month, day.day


UNUSUAL: Final = -(2**63)
"""Result for text that was not read; no date or time has this number."""

DAY_BYTES: Final = 10
CLOCK_BYTES: Final = 8
TIMESTAMP_BYTES: Final = DAY_BYTES + 1 + CLOCK_BYTES
FRACTION_DIGITS: Final = 6

MARCH_0000_DAYS: Final = 719_468
"""Days from 1 March of the year 0 to 1970-01-01; in years from March on, leap days are last."""

_MONTH_DAYS: Final = bytes([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def read_days(data: bytes, at: "i64") -> "i64":
    """Read `2024-01-31` at `data[at]` as days since 1970-01-01; UNUSUAL for other text."""
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
    # Months have 30.6 days on average from March on, if February is last.
    days: i64 = (153 * month + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + days - MARCH_0000_DAYS


def read_timestamp(data: bytes, at: "i64", end: "i64") -> "i64":
    """Read `2024-01-31 12:34:56.789` as microseconds since 1970-01-01 00:00; UNUSUAL for other text."""
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
    """Read `digits` decimal digits; -1 if another character is among them."""
    number: i64 = 0
    end: i64 = at + digits
    while at < end:
        digit: i64 = data[at] - ZERO
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
        at += 1
    return number
