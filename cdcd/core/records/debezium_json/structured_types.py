"""Converts dates, times and intervals to the objects of Debezium 3.7, under `time_precision: structured`
(`catalog/modes.py`).

Each part of a value has a field, so that every date and time of PostgreSQL has a form. The rules for what is rare but
legal:

- Years are those of the proleptic Gregorian calendar, as numbers: 44 BC is -43.
- The infinities of dates and timestamps have null in all fields but `specialValue`, which is POSITIVE_INFINITY or
  NEGATIVE_INFINITY, and `precision`.
- A time of 24:00:00 has the hour 24. Debezium writes null for it if the time has no time zone.
- A timestamp with time zone is in UTC, with the zone `Z`. A time with time zone keeps its zone, in `offsetSeconds`.
- The fields of an interval have the sign of their part of it. Infinite intervals, and those of more hours than 32 bits
  hold, have no form: null stands for them (`records/unwritable.py`). Debezium writes an interval of zeros.
- `precision` is the declared one, or 6.

In place of a value that the server did not send, all fields are null. Only arrays of these types can be TOASTed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cdcd.core.catalog import temporal
from cdcd.core.catalog.binary_text import (
    Reader,
    date_text,
    interval_text,
    time_text,
    timestamp_text,
    timestamptz_text,
    timetz_text,
)
from cdcd.core.catalog.logical import LogicalType
from cdcd.core.records.debezium_json.mode_types import TextReader
from cdcd.core.records.unwritable import UnwritableError

_SPECIAL: Final[Mapping[str, str]] = {"infinity": "POSITIVE_INFINITY", "-infinity": "NEGATIVE_INFINITY"}
_PRECISION: Final = 6
"""Digits of the seconds that PostgreSQL keeps, for types without a declared precision."""

_DAY: Final = ("year", "month", "day")
_CLOCK: Final = ("hour", "minute", "second", "nanos")
_DURATION: Final = ("years", "months", "days", "hours", "minutes", "seconds", "nanos")

_HALF: Final = 0xFFFF
_HOURS_MAX: Final = 2**31 - 1
_NO_FORM: Final = (
    "it is an infinite interval, or has more hours than 32 bits hold, which time_precision_mode: structured lacks",
    "Set format.time_precision_mode to another value and format.interval_handling_mode to string, or correct the row.",
)
_LONGEST: Final = f"178956970 years 7 mons 2147483647 days {_HOURS_MAX}:59:59.999999"
_SHORTEST: Final = f"-178956970 years -7 mons -2147483648 days -{_HOURS_MAX}:59:59.999999"
"""Intervals that replace those without a form in a key."""


class Structured(TextReader):
    """Converts values whose parts are numbers to an object.

    Args:
        fields: returns the numbers of a text.
        names: names of their fields.
        then: names of further fields, with their JSON for a finite value; they are null for an infinity.
        last: name and JSON of the last field; empty: there is none.
        has_special: whether the object has the field `specialValue`, before the last field.
    """

    def __init__(
        self,
        reader: Reader,
        fields: Callable[[str], Sequence[int]],
        names: Sequence[str],
        then: Mapping[str, str],
        last: str,
        *,
        has_special: bool,
    ) -> None:
        TextReader.__init__(self, reader)
        self._fields = fields
        self._heads = [f'{"," if place else "{"}"{name}":' for place, name in enumerate(names)]
        special = [',"specialValue":'] if has_special else []
        self._tail = "".join([*[f',"{name}":{json}' for name, json in then.items()], *special])
        self._tail += f"null{last}}}" if has_special else f"{last}}}"
        nulls = "".join([f"{head}null" for head in self._heads])
        nulls += "".join([f',"{name}":null' for name in then])
        self._infinite = {
            text: f'{nulls},"specialValue":"{value}"{last}}}' for text, value in _SPECIAL.items()
        }
        self._empty = nulls + (f',"specialValue":null{last}}}' if has_special else f"{last}}}")
        self._has_special = has_special

    def json(self, text: str) -> str:
        if self._has_special and text in self._infinite:
            return self._infinite[text]
        numbers = self._fields(text)
        parts = [f"{head}{number}" for head, number in zip(self._heads, numbers, strict=True)]
        return "".join(parts) + self._tail

    def unchanged(self, placeholder: str) -> str:
        return self._empty


class StructuredInterval(Structured):
    """Converts intervals."""

    def __init__(self, modifier: int) -> None:
        # intervaltypmodin in timestamp.c: the precision is in the lower half, with all bits if none was declared.
        last = _precision(-1 if modifier < 0 or modifier & _HALF == _HALF else modifier & _HALF)
        Structured.__init__(
            self, interval_text, temporal.interval_fields, _DURATION, {}, last, has_special=False
        )

    def json(self, text: str) -> str:
        if text in _SPECIAL:
            raise UnwritableError(*_NO_FORM, _LONGEST if text == "infinity" else _SHORTEST)
        hours = temporal.interval_fields(text)[3]
        if abs(hours) > _HOURS_MAX:
            raise UnwritableError(*_NO_FORM, _LONGEST if hours > 0 else _SHORTEST)
        return Structured.json(self, text)


def _precision(modifier: int) -> str:
    return f',"precision":{modifier if modifier >= 0 else _PRECISION}'


def _date(_: LogicalType) -> Structured:
    return Structured(date_text, temporal.date_fields, _DAY, {}, "", has_special=True)


def _time(logical: LogicalType) -> Structured:
    last = _precision(logical.modifier)
    return Structured(time_text, temporal.time_fields, _CLOCK, {}, last, has_special=False)


def _timetz(logical: LogicalType) -> Structured:
    names, last = (*_CLOCK, "offsetSeconds"), _precision(logical.modifier)
    return Structured(timetz_text, temporal.timetz_fields, names, {}, last, has_special=False)


def _timestamp(logical: LogicalType) -> Structured:
    names, last = (*_DAY, *_CLOCK), _precision(logical.modifier)
    return Structured(timestamp_text, _of_timestamp, names, {}, last, has_special=True)


def _timestamptz(logical: LogicalType) -> Structured:
    names, last = (*_DAY, *_CLOCK), _precision(logical.modifier)
    then = {"offsetSeconds": "0", "zoneId": '"Z"'}
    return Structured(timestamptz_text, _of_timestamptz, names, then, last, has_special=True)


def _of_timestamp(text: str) -> tuple[int, ...]:
    return temporal.timestamp_fields(text, has_zone=False)


def _of_timestamptz(text: str) -> tuple[int, ...]:
    return temporal.timestamp_fields(text, has_zone=True)


def _interval(logical: LogicalType) -> Structured:
    return StructuredInterval(logical.modifier)


STRUCTURED_CONVERTERS: Final[Mapping[str, Callable[[LogicalType], Structured]]] = {
    "date_struct": _date,
    "interval_struct": _interval,
    "time_struct": _time,
    "timestamp_struct": _timestamp,
    "timestamptz_struct": _timestamptz,
    "timetz_struct": _timetz,
}
"""The converter of each logical type that exists only under `time_precision: structured`."""
