"""Converters of the logical types that only exist under some modes (`catalog/modes.py`); values are written as by
Debezium 3.7.

The rules for what is rare but legal:

- numeric as bytes (`precise`): the unscaled number, big-endian in two's complement, with the declared scale.
  Without a declared precision it is an object `{"scale","value"}`, zeros at the fraction's end left out. These
  forms have no NaN and no infinities: null stands for them, as in Debezium (`records/unwritable.py`). In a key,
  numbers beyond those that the column can have stand for them. A value that the server did not send is the
  placeholder's bytes.
- numeric as a double: the nearest one; "NaN", "Infinity" and "-Infinity" as in float8. A value that the server did
  not send is NaN, because a reader expects a number.
- timestamp in nanoseconds: 64 bits hold 1677-09-21 to 2262-04-11. Other timestamps become null, as in Debezium, and
  in a key the nearer end of this range. In microseconds, the range ends in the year 294247.
- infinite timestamps: as `infinite` in each converter's entry says. `connect`: 9223372036825200000 and
  -9223372036832400000; in micro- and nanoseconds the greatest and the least number of 64 bits; as text
  `+292278994-08-16T23:00:00Z` and `-292275055-05-16T23:00:00Z`. Infinite dates: `connect` 2146033979 and
  -2147472691, as text `+5877611-06-21Z` and `-5877611-06-22Z`. No real value is any of these.
- interval in microseconds: a month has 30.4375 days. What is beyond 64 bits, as the infinities, is the greatest or
  the least number.
- `24:00:00` stays so as text (`24:00:00Z`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from cdcd.core.catalog import money, temporal
from cdcd.core.catalog.binary import hstore_text, numeric_text
from cdcd.core.catalog.binary_text import (
    Reader,
    bytea_text,
    date_text,
    interval_text,
    money_text,
    time_text,
    timestamp_text,
)
from cdcd.core.catalog.logical import LogicalType
from cdcd.core.catalog.types import decimal_size
from cdcd.core.catalog.wiretext import wire
from cdcd.core.records.debezium_json import literals
from cdcd.core.records.debezium_json.converter import Converter, Number, base64_json
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.unwritable import UnwritableError

MAX_64: Final = 2**63 - 1
MIN_64: Final = -(2**63)

_INT_DIGITS_MAX: Final = 4000
"""Maximum number of digits that are passed to `int`, which refuses texts of more than 4300
(sys.set_int_max_str_digits)."""

_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_NO_SPECIAL: Final = (
    "it is NaN or an infinity, for which format.decimal_handling_mode: precise has no form",
    "Set format.decimal_handling_mode to string or double, which have one, or take the value out of the table.",
)
_TOO_PRECISE: Final = (
    "it has more digits behind the point than the column declares",
    "Set format.decimal_handling_mode to string, which has room for them.",
)
_BEYOND: Final = "e131072"
"""End of the text of a number that no numeric of PostgreSQL reaches."""
_IN_KEYS: Final[Mapping[str, str]] = {"NaN": "2", "Infinity": "1", "-Infinity": "-1"}
"""Numbers in place of these values in a key, in units beyond all numbers that the column can have."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The timestamps that 64 bits can hold in a unit: the texts of the first and of the last one, and the error for
    others.
    """

    first: str
    last: str
    problem: str
    hint: str


_NANOSECONDS: Final = Bounds(
    "1677-09-21 00:12:43.145225",
    "2262-04-11 23:47:16.854775",
    "it is before 1677-09-21 or after 2262-04-11, and 64 bits of nanoseconds do not hold it",
    "Set format.time_precision_mode to microseconds or isostring.",
)
_MICROSECONDS: Final = Bounds(
    "4714-11-24 00:00:00 BC",
    "294247-01-10 04:00:54.775806",
    "it is after the year 294246, and 64 bits of microseconds do not hold it",
    "Set format.time_precision_mode to isostring or connect.",
)


class TextReader(Converter):
    """Reads the binary form into the text, which is then converted."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def binary(self, data: bytes) -> str:
        return self.json(self._reader(data))


def _integer(text: str) -> int:
    """Return the integer of a text of any length.

    The halves of a long text are converted separately, because the time of Python's own conversions grows with the
    square of the number of digits: seconds for the longest numeric.
    """
    if len(text) <= _INT_DIGITS_MAX:
        return int(text)
    if text[0] == "-":
        return -_integer(text[1:])
    half = len(text) // 2
    power: int = 10**half
    return _integer(text[:-half]) * power + _integer(text[-half:])


def unscaled(text: str, scale: int) -> bytes:
    """Return the digits of a number with `scale` decimal digits, as bytes like those of Java's BigInteger.toByteArray.

    Raises:
        ValueError: it is not a number.
        UnwritableError: the number has more decimal digits.
    """
    if not text[-1:].isdigit():
        raise ValueError(f"{text!r} is not a number")
    whole, _, fraction = text.partition(".")
    zeros = scale - len(fraction)
    digits = whole + fraction
    if zeros >= 0:
        digits += "0" * zeros
    elif digits[zeros:].strip("0"):
        raise UnwritableError(*_TOO_PRECISE)
    else:
        digits = digits[:zeros]
    # For a zero, nothing or only the sign may be left.
    return _twos_complement(_integer(digits) if digits[-1:].isdigit() else 0)


def _twos_complement(number: int) -> bytes:
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


class DecimalBytes(TextReader):
    """Converts numbers with a fixed scale and a maximum number of digits to bytes."""

    def __init__(self, precision: int, scale: int, reader: Reader = numeric_text) -> None:
        TextReader.__init__(self, reader)
        self._precision = precision
        self._scale = scale

    def json(self, text: str) -> str:
        if text in _NOT_FINITE:
            raise UnwritableError(*_NO_SPECIAL, f"{_IN_KEYS[text]}{_BEYOND}")
        if text.endswith(_BEYOND):
            number = int(text.removesuffix(_BEYOND)) * 10**self._precision
            return base64_json(_twos_complement(number))
        return base64_json(unscaled(text, self._scale))

    def unchanged(self, placeholder: str) -> str:
        return base64_json(placeholder.encode("utf-8"))


class DecimalVariable(TextReader):
    """Converts numbers to an object that has the scale of each value."""

    def __init__(self) -> None:
        TextReader.__init__(self, numeric_text)

    def json(self, text: str) -> str:
        if text in _NOT_FINITE:
            raise UnwritableError(*_NO_SPECIAL, f"{_IN_KEYS[text]}{_BEYOND}")
        if text.endswith(_BEYOND):
            return _variable(-int(_BEYOND[1:]), _twos_complement(int(text.removesuffix(_BEYOND))))
        whole, _, fraction = text.partition(".")
        fraction = fraction.rstrip("0")
        scale = len(fraction)
        return _variable(scale, unscaled(f"{whole}.{fraction}" if fraction else whole, scale))

    def unchanged(self, placeholder: str) -> str:
        return _variable(0, placeholder.encode("utf-8"))


def _variable(scale: int, value: bytes) -> str:
    return f'{{"scale":{scale},"value":{base64_json(value)}}}'


class DecimalDouble(TextReader):
    """Converts numbers to the nearest double."""

    def __init__(self, reader: Reader = numeric_text) -> None:
        TextReader.__init__(self, reader)

    def json(self, text: str) -> str:
        number = repr(float(text))
        return _SPECIAL_DOUBLES.get(number, number)

    def unchanged(self, placeholder: str) -> str:
        return '"NaN"'


_SPECIAL_DOUBLES: Final[Mapping[str, str]] = {
    "nan": '"NaN"',
    "inf": '"Infinity"',
    "-inf": '"-Infinity"',
}


class MoneyBytes(DecimalBytes):
    """Converts money to bytes, with as many decimal digits as the database's default of lc_monetary has."""

    def __init__(self, digits: int) -> None:
        DecimalBytes.__init__(self, money.PRECISION, digits, money_text)
        self._digits = digits

    def json(self, text: str) -> str:
        return DecimalBytes.json(self, money.amount(text, self._digits))


class MoneyDouble(DecimalDouble):
    """Converts money to a double."""

    def __init__(self, digits: int) -> None:
        DecimalDouble.__init__(self, money_text)
        self._digits = digits

    def json(self, text: str) -> str:
        return DecimalDouble.json(self, money.amount(text, self._digits))


class ReadNumber(Number):
    """Reads the binary form into the text, which is then converted to a JSON number."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def json(self, text: str) -> str:
        return str(self.number(text))

    def number(self, text: str) -> int:
        """Return the number for the text."""
        raise NotImplementedError

    def binary(self, data: bytes) -> str:
        return self.json(self._reader(data))


class DateConnect(ReadNumber):
    """Converts dates to days since 1970, with the infinities of Debezium 3.7."""

    _INFINITE: ClassVar[dict[str, int]] = {"infinity": 2146033979, "-infinity": -2147472691}

    def __init__(self) -> None:
        ReadNumber.__init__(self, date_text)

    def number(self, text: str) -> int:
        infinite = self._INFINITE.get(text)
        return temporal.epoch_days(text) if infinite is None else infinite


class TimeIn(ReadNumber):
    """Converts a time of the day to microseconds times `times`, divided by `by`."""

    def __init__(self, times: int = 1, by: int = 1) -> None:
        ReadNumber.__init__(self, time_text)
        self._times = times
        self._by = by

    def number(self, text: str) -> int:
        return temporal.day_us(text) * self._times // self._by


class TimestampIn(ReadNumber):
    """Converts timestamps to microseconds since 1970 times `times`, divided by `by`; `infinite` has
    the two infinities.
    """

    def __init__(
        self, infinite: tuple[int, int], times: int = 1, by: int = 1, bounds: Bounds = _MICROSECONDS
    ) -> None:
        ReadNumber.__init__(self, timestamp_text)
        self._infinite = {"infinity": infinite[0], "-infinity": infinite[1]}
        self._times = times
        self._by = by
        self._bounds = bounds

    def number(self, text: str) -> int:
        infinite = self._infinite.get(text)
        if infinite is not None:
            return infinite
        number = temporal.epoch_us(text) * self._times // self._by
        if not MIN_64 < number < MAX_64:
            bounds = self._bounds
            raise UnwritableError(bounds.problem, bounds.hint, bounds.first if number < 0 else bounds.last)
        return number


class DateIso(TextReader):
    """Converts dates to texts such as `2024-01-31Z`."""

    _INFINITE: ClassVar[dict[str, str]] = {"infinity": "+5877611-06-21Z", "-infinity": "-5877611-06-22Z"}

    def __init__(self) -> None:
        TextReader.__init__(self, date_text)

    def json(self, text: str) -> str:
        infinite = self._INFINITE.get(text)
        return f'"{temporal.iso_date(text) if infinite is None else infinite}"'


class TimeIso(TextReader):
    """Converts times to texts such as `12:34:56.789Z`."""

    def __init__(self) -> None:
        TextReader.__init__(self, time_text)

    def json(self, text: str) -> str:
        return f'"{temporal.iso_time(f"{text}+00")}"'


class TimestampIso(TextReader):
    """Converts timestamps to texts such as `2024-01-31T12:34:56.789Z`, without zeros at the end of the fraction."""

    _INFINITE: ClassVar[dict[str, str]] = {
        "infinity": "+292278994-08-16T23:00:00Z",
        "-infinity": "-292275055-05-16T23:00:00Z",
    }

    def __init__(self) -> None:
        TextReader.__init__(self, timestamp_text)

    def json(self, text: str) -> str:
        infinite = self._INFINITE.get(text)
        if infinite is not None:
            return f'"{infinite}"'
        in_utc = f"{text[:-3]}+00 BC" if text.endswith(" BC") else f"{text}+00"
        return f'"{temporal.iso_timestamp(in_utc, 0)}"'


class IntervalMicros(ReadNumber):
    """Converts intervals to microseconds."""

    _INFINITE: ClassVar[dict[str, int]] = {"infinity": MAX_64, "-infinity": MIN_64}

    def __init__(self) -> None:
        ReadNumber.__init__(self, interval_text)

    def number(self, text: str) -> int:
        infinite = self._INFINITE.get(text)
        if infinite is not None:
            return infinite
        return max(MIN_64, min(MAX_64, temporal.interval_us(text)))


class BytesText(TextReader):
    """Converts bytea to a text, which `write` makes of its bytes."""

    def __init__(self, write: Callable[[bytes], str]) -> None:
        TextReader.__init__(self, bytea_text)
        self._write = write

    def json(self, text: str) -> str:
        if text[:2] != "\\x":
            raise ValueError("a bytea that is not in bytea_output hex")
        return self._write(bytes.fromhex(text[2:]))

    def unchanged(self, placeholder: str) -> str:
        return self._write(placeholder.encode("utf-8"))


class BytesHex(BytesText):
    """Converts bytea to hexadecimal digits (`ff00`); the placeholder for a value that was not sent stays as it is, as
    in Debezium.
    """

    def __init__(self) -> None:
        BytesText.__init__(self, lambda data: f'"{data.hex()}"')

    def unchanged(self, placeholder: str) -> str:
        return quote(wire(placeholder))


def _base64_url(data: bytes) -> str:
    return base64_json(data).replace("+", "-").replace("/", "_")


class HstoreMap(TextReader):
    """Converts hstore to an object."""

    def __init__(self) -> None:
        TextReader.__init__(self, hstore_text)

    def json(self, text: str) -> str:
        return literals.hstore_json(text)

    def unchanged(self, placeholder: str) -> str:
        name = quote(wire(placeholder))
        return f"{{{name}:{name}}}"


def _decimal_bytes(logical: LogicalType) -> Converter:
    size = decimal_size(logical.modifier)
    assert size is not None, "one without a declared precision is decimal_variable"
    return DecimalBytes(size[0], size[1])


def _always(converter: Converter) -> Callable[[LogicalType], Converter]:
    return lambda _: converter


MODE_CONVERTERS: Final[Mapping[str, Callable[[LogicalType], Converter]]] = {
    "bytes_base64": _always(BytesText(base64_json)),
    "bytes_base64_url": _always(BytesText(_base64_url)),
    "bytes_hex": _always(BytesHex()),
    "date_connect": _always(DateConnect()),
    "date_iso": _always(DateIso()),
    "decimal_bytes": _decimal_bytes,
    "decimal_double": _always(DecimalDouble()),
    "decimal_variable": _always(DecimalVariable()),
    "hstore_map": _always(HstoreMap()),
    "interval_micros": _always(IntervalMicros()),
    "money_bytes": lambda logical: MoneyBytes(logical.modifier),
    "money_double": lambda logical: MoneyDouble(logical.modifier),
    "time_connect": _always(TimeIn(by=1000)),
    "time_iso": _always(TimeIso()),
    "time_micros": _always(TimeIn()),
    "time_nanos": _always(TimeIn(times=1000)),
    "timestamp_connect": _always(
        TimestampIn((9_223_372_036_825_200_000, -9_223_372_036_832_400_000), by=1000)
    ),
    "timestamp_iso": _always(TimestampIso()),
    "timestamp_micros": _always(TimestampIn((MAX_64, MIN_64))),
    "timestamp_nanos": _always(TimestampIn((MAX_64, MIN_64), times=1000, bounds=_NANOSECONDS)),
}
"""The converter of each logical type that exists only under some modes."""
