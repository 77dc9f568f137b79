"""Values under modes (`cdcd/core/catalog/modes.py`) in Spark: the same types that the default modes give.

numeric as a double is DOUBLE, interval as a number BIGINT, and hstore as an object STRING, its JSON: these are read by
the rules of `types.py`. numeric as bytes is DECIMAL, up to 18 digits. With more, or without a declared
precision, no expression of Spark reads it: such a table is refused by name, as is a table with dates, times or
intervals as objects (`time_precision_mode: structured`).
"""

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
)

from cdcd.mirror.records.rule import Rule, try_cast

DIGITS_MAX: Final = 38
EXACT_DIGITS: Final = 18
"""Of numbers as bytes: more of them, Spark rounds where it multiplies."""
INFINITE_US: Final = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
"""Microseconds since 1970 that stand for the infinities in a TIMESTAMP."""
_LATEST_DAY: Final = 2147483647
_EARLIEST_DAY: Final = -2147483648
_MAX_64: Final = 2**63 - 1
_MIN_64: Final = -(2**63)

_DECIMAL_BYTES: Final = re.compile(r"decimal_bytes\((\d+),(-?\d+)\)")
_HEX_DIGITS: Final = 16
"""Of 64 bits."""


class UnreadableFormError(ValueError):
    """A mode writes values in a form that a mirror cannot read. Its arguments are what, and a hint."""


def _day(number: int) -> Column:
    return sf.date_from_unix_date(sf.lit(number))


def _date_connect(days: Column) -> Column:
    known = sf.when(days == 2146033979, sf.lit(_LATEST_DAY)).when(days == -2147472691, sf.lit(_EARLIEST_DAY))
    return sf.date_from_unix_date(known.otherwise(days))


def _date_iso(text: Column) -> Column:
    known = sf.when(text == "+5877611-06-21Z", _day(_LATEST_DAY))
    known = known.when(text == "-5877611-06-22Z", _day(_EARLIEST_DAY))
    return known.otherwise(try_cast(sf.regexp_replace(text, "Z$", ""), DateType()))


def _time_iso(text: Column) -> Column:
    def part(begin: int) -> Column:
        return try_cast(sf.substring(text, begin, 2), LongType())

    fraction = try_cast(sf.rpad(sf.regexp_extract(text, r"\.(\d+)", 1), 6, "0"), LongType())
    return ((part(1) * 60 + part(4)) * 60 + part(7)) * 1_000_000 + fraction


def _whole(number: Column, by: int) -> Column:
    """Integer division: `/` would go by way of a double."""
    return sf.call_function("div", number, sf.lit(by))


def _timestamp(micros: Column) -> Column:
    # The session's time zone is UTC (session.py): the cast moves nothing.
    return sf.timestamp_micros(micros).cast(TimestampNTZType())


def _micros(number: Column, infinite: tuple[int, int], otherwise: Column) -> Column:
    known = sf.when(number == infinite[0], sf.lit(INFINITE_US["infinity"]))
    return known.when(number == infinite[1], sf.lit(INFINITE_US["-infinity"])).otherwise(otherwise)


def micros_of_ms(millis: Column) -> Column:
    """NULL for years after 294246, which PostgreSQL has and Spark has not: multiplication would end the batch."""
    return sf.try_multiply(millis, sf.lit(1000))


def _timestamp_us(micros: Column) -> Column:
    return _timestamp(_micros(micros, (_MAX_64, _MIN_64), micros))


def _timestamp_ns(nanos: Column) -> Column:
    return _timestamp(_micros(nanos, (_MAX_64, _MIN_64), _whole(nanos, 1000)))


def _timestamp_connect(millis: Column) -> Column:
    infinite = (INFINITE_US["infinity"], INFINITE_US["-infinity"])
    return _timestamp(_micros(millis, infinite, micros_of_ms(millis)))


def _timestamp_iso(text: Column) -> Column:
    known = sf.when(text == "+292278994-08-16T23:00:00Z", _timestamp(sf.lit(INFINITE_US["infinity"])))
    known = known.when(text == "-292275055-05-16T23:00:00Z", _timestamp(sf.lit(INFINITE_US["-infinity"])))
    return known.otherwise(try_cast(sf.regexp_replace(text, "Z$", ""), TimestampNTZType()))


def _base64_url(text: Column) -> Column:
    return sf.unbase64(sf.translate(text, "-_", "+/"))


def _decimal_bytes(precision: int, scale: int) -> Rule:
    """Of a number in two's complement, of at most 16 bytes."""
    digits = precision - scale if scale < 0 else max(precision, scale)
    if digits > EXACT_DIGITS:
        raise UnreadableFormError(*_TOO_LONG)
    spark = DecimalType(digits, max(0, scale))

    def convert(data: Column) -> Column:
        digits = sf.hex(data)
        sign = sf.when(sf.substring(digits, 1, 1) >= "8", sf.lit("F")).otherwise(sf.lit("0"))
        padded = sf.concat(sf.repeat(sign, 2 * _HEX_DIGITS), digits)
        high = sf.conv(sf.substring(padded, -2 * _HEX_DIGITS, _HEX_DIGITS), 16, -10).cast(DecimalType(20, 0))
        low = sf.conv(sf.substring(padded, -_HEX_DIGITS, _HEX_DIGITS), 16, 10).cast(DecimalType(20, 0))
        number = sf.try_add(sf.try_multiply(high, sf.lit(str(2**64)).cast(DecimalType(20, 0))), low)
        text = sf.lpad(sf.abs(number).cast(StringType()), DIGITS_MAX + 1, "0")
        if scale > 0:
            whole = sf.substring(text, 1, DIGITS_MAX + 1 - scale)
            text = sf.concat(whole, sf.lit("."), sf.substring(text, -scale, scale))
        elif scale < 0:
            text = sf.concat(text, sf.lit("0" * -scale))
        minus = sf.when(number < 0, sf.lit("-")).otherwise(sf.lit(""))
        return sf.when(sf.length(data) <= _HEX_DIGITS, try_cast(sf.concat(minus, text), spark))

    return Rule(BinaryType(), spark, convert)


_TOO_LONG: Final = (
    "numeric is written as bytes (format.decimal_handling_mode: precise) with more than 18 digits, which Spark lacks",
    "Set format.decimal_handling_mode to string or double in the daemon's configuration, or declare up to 18 digits.",
)

_OBJECT: Final = (
    "a date, time or interval is an object (format.time_precision_mode: structured), which the mirror does not read",
    "Set format.time_precision_mode to another value in the daemon's configuration, and read the tables again.",
)

_RULES: Final = {
    "bytes_base64_url": Rule(StringType(), BinaryType(), _base64_url),
    "bytes_hex": Rule(StringType(), BinaryType(), sf.unhex),
    "date_connect": Rule(IntegerType(), DateType(), _date_connect),
    "date_iso": Rule(StringType(), DateType(), _date_iso),
    "time_iso": Rule(StringType(), LongType(), _time_iso),
    "time_ns": Rule(LongType(), LongType(), lambda nanos: _whole(nanos, 1000)),
    "timestamp_connect": Rule(LongType(), TimestampNTZType(), _timestamp_connect),
    "timestamp_iso": Rule(StringType(), TimestampNTZType(), _timestamp_iso),
    "timestamp_ns": Rule(LongType(), TimestampNTZType(), _timestamp_ns),
    "timestamp_us": Rule(LongType(), TimestampNTZType(), _timestamp_us),
}


def mode_rule(form: str) -> Rule | None:
    """The rule of a form that only a mode gives; None: it is not such a form.

    Raises:
        UnreadableFormError: no expression of Spark reads it.
    """
    if form == "decimal_variable":
        raise UnreadableFormError(*_TOO_LONG)
    if form.endswith("_struct"):
        raise UnreadableFormError(*_OBJECT)
    declared = _DECIMAL_BYTES.fullmatch(form)
    if declared is not None:
        return _decimal_bytes(int(declared[1]), int(declared[2]))
    return _RULES.get(form)
