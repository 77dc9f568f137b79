"""A few changes, reduced in the driver: what `reduction` does by a plan of Spark, for batches that are not worth one.

The rule: only what is plain is reduced here. A record of another form, a value that may not fit its column, a value
that was not sent, a truncate: `reduce_few` gives nothing then, and the batch goes the way that every batch can go. So
this module never decides what is wrong with a record. The values of columns come from JSON by the same rules
(`records.types`), of which it does the first step only: to the type in which the JSON is read.
"""

import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from cdcd.mirror.platform.sql import quoted, text
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.rule import Rule
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.types import element_of
from cdcd.mirror.targets.name_lists import NO_NAMES
from cdcd.mirror.targets.reduction import EVENT, KEEP, LOST, LSN, OP, Summary, prunable, rounded
from cdcd.mirror.targets.state import At, Place, State

RECORDS_MAX: Final = 200
"""Number of records of a table up to which they are reduced here. The statement that merges them has their values, and
Spark parses some thousand values in a tenth of a second."""

_WITH_ROW: Final = ("c", "u", "r")
_WIDTHS: Final[Mapping[type[DataType], int]] = {ShortType: 15, IntegerType: 31, LongType: 63}
"""Bits of the types of whole numbers, without the sign."""

_DECIMAL: Final = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")
# Spark takes a whole number first for an integer, so that -0 becomes 0; -0.0 stays what it is.
_NUMBER: Final = re.compile(r"(?!-0$)-?[0-9]{1,17}(\.[0-9]{1,17})?")
_INSTANT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MAX: Final = 2**53
"""Microseconds since 1970 up to which nothing about a time is special: the year 2255."""

Row = Mapping[str, Any]


class Raw(NamedTuple):
    """A record of a table's topic. `unchanged` is the header with the names of columns that were not sent."""

    partition: int
    offset: int
    value: bytes | None
    unchanged: str | None = None


class Change(NamedTuple):
    """The last change of a key. `row` has the key's columns at least, each as text; None stands for NULL."""

    op: str
    at: At
    row: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class FewChanges:
    """A reduced batch: one change for each key, and what `reduction.summary` says of it."""

    changes: list[Change]
    found: Summary


class _NotPlainError(Exception):
    """The batch has something that is not plain."""


def reduce_few(records: Iterable[Raw], form: Form, state: State, bound: At | None) -> FewChanges | None:
    """Reduce the records of one table. None: something in it is not plain.

    Args:
        form: of the table. All records must be in it.
        state: of the target. What it has already is left out.
        bound: as in `Reach`.
    """
    try:
        return _reduced(records, form, state, bound)
    except _NotPlainError:
        return None


def _reduced(records: Iterable[Raw], form: Form, state: State, bound: At | None) -> FewChanges:
    readers = {name: _reader(rule) for name, rule in form.rules.items()}
    sent = {column.name: column.sent_as for column in form.schema.columns}
    key = form.schema.key
    if not key or any(not _is_plain_key(form.rules[name]) for name in key):
        raise _NotPlainError
    last: dict[tuple[Any, ...], Change] = {}
    held: dict[int, int] = {}
    count, waiting, newest, committed = 0, 0, (0, 0), None
    for record in records:
        if record.value is None:
            continue
        op, at, ts_us, row, other = _change(record, form.schema)
        if not _is_new(state, record, op, at):
            continue
        if bound is not None and at > bound:
            held[record.partition] = min(held.get(record.partition, record.offset), record.offset)
            waiting += 1
            continue
        values = {name: read(row.get(sent[name])) for name, read in readers.items()}
        for name, read in readers.items():
            read(other.get(sent[name]))
        place = tuple([values[name] for name in key])
        if None in place:
            raise _NotPlainError
        count, newest = count + 1, max(newest, at)
        if ts_us is not None:
            committed = max(committed or ts_us, ts_us)
        if place not in last or last[place].at <= at:
            last[place] = Change(op, at, values)
    found = Summary(
        changes=count,
        keys=len(last),
        last=newest,
        held=held,
        waiting=waiting,
        truncated=None,
        partial=frozenset(),
        moves=False,
        key_range=_key_range(form.schema, last),
        hashes=frozenset(),
        unfit=0,
        commit_time=None if committed is None else _EPOCH + timedelta(microseconds=committed),
    )
    return FewChanges(list(last.values()), found)


def _change(record: Raw, schema: TableSchema) -> tuple[str, At, int | None, Row, Row]:
    """Op, place, time of the commit in microseconds, the row (before a delete, after any other change), and the other
    image of it.
    """
    assert record.value is not None
    # Python takes an object after a byte order mark too, and one in UTF-16. No daemon writes either.
    if record.unchanged is not None or not record.value.startswith(b'{"'):
        raise _NotPlainError
    try:
        envelope = json.loads(record.value, parse_float=_Number, parse_int=_integer)
        source, op = envelope["source"], envelope["op"]
        lsn, event, ts_us = source["commit_lsn"], source.get("event_serial_no"), source.get("ts_us")
        row, other = envelope.get("after"), envelope.get("before")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _NotPlainError from None
    if op == "d":
        row, other = other, row
    event = 0 if event is None else event
    numbers = ((lsn, 2**63), (event, 2**63), (0 if ts_us is None else ts_us, _TIME_MAX))
    whole = all(type(number) is int and 0 <= number < limit for number, limit in numbers)
    known = op == "d" or op in _WITH_ROW
    if not whole or not known or source.get("schema_id") != schema.schema_id or not isinstance(row, dict):
        raise _NotPlainError
    other = {} if other is None else other
    if not isinstance(other, dict):
        raise _NotPlainError
    return op, (lsn, event), ts_us, row, other


def _is_new(state: State, record: Raw, op: str, at: At) -> bool:
    """As `reduction.is_new`."""
    place: Place | None = state.partitions.get(record.partition)
    if place is not None:
        had = (*at, 0 if op == "d" else 1) <= (place.commit_lsn, place.event_no, place.half)
        if record.offset <= place.offset if op == "r" else had:
            return False
    return state.truncated is None or at > state.truncated


def _key_range(schema: TableSchema, last: Mapping[tuple[Any, ...], Change]) -> tuple[int, int] | None:
    if not last or not prunable(schema.column(schema.key[0]).spark):
        return None
    numbers = [int(place[0]) for place in last]
    return rounded(min(numbers), max(numbers))


# From JSON to the text of a value that surely becomes one of the column's type.


class _Number(str):
    """The text of a number that is not whole, or of -0, which Python takes for 0."""

    __slots__ = ()


def _integer(text_: str) -> "int | _Number":
    return _Number(text_) if text_ == "-0" else int(text_)


_Reader = Callable[[Any], str | None]


def _is_plain_key(rule: Rule) -> bool:
    return rule.convert is None and type(rule.wire) in {*_WIDTHS, StringType}


def _reader(rule: Rule) -> _Reader:
    """What reads values of a column. Raises _NotPlainError, as does what it gives."""
    bits = _WIDTHS.get(type(rule.wire))
    if bits is not None:
        limit = _TIME_MAX if rule.convert is not None and isinstance(rule.wire, LongType) else 2**bits
        if rule.convert is None or isinstance(rule.spark, (DateType, TimestampNTZType, LongType)):
            return lambda value: _whole(value, limit)
    elif isinstance(rule.wire, BooleanType) and rule.convert is None:
        return _boolean
    elif isinstance(rule.wire, (DoubleType, FloatType)) and rule.convert is None:
        return _double
    elif isinstance(rule.wire, BinaryType) and rule.convert is None:
        return _bytes
    elif isinstance(rule.wire, ArrayType):
        element = element_of(rule)
        read = _reader(element)
        return lambda value: _array(value, element.wire, read)
    elif isinstance(rule.wire, StringType):
        if isinstance(rule.spark, StringType):
            return _string
        if isinstance(rule.spark, DecimalType):
            digits, scale = rule.spark.precision - rule.spark.scale, rule.spark.scale
            return lambda value: _decimal(value, digits, scale)
        if isinstance(rule.spark, TimestampType):
            return _instant
    raise _NotPlainError


def _whole(value: Any, limit: int) -> str | None:
    if value is None:
        return None
    if type(value) is not int or not -limit <= value < limit:
        raise _NotPlainError
    return str(value)


def _boolean(value: Any) -> str | None:
    if value is None:
        return None
    if type(value) is not bool:
        raise _NotPlainError
    return str(value).lower()


def _double(value: Any) -> str | None:
    if value is None:
        return None
    plain = type(value) is int or type(value) is _Number
    if not plain or not _NUMBER.fullmatch(str(value)):
        raise _NotPlainError
    return str(value)


def _bytes(value: Any) -> str | None:
    if value is None:
        return None
    try:
        decoded = binascii.a2b_base64(value.encode("ascii"), strict_mode=True)
    except (AttributeError, ValueError):
        raise _NotPlainError from None
    if binascii.b2a_base64(decoded, newline=False).decode("ascii") != value:
        raise _NotPlainError
    return str(value)


def _array(value: Any, wire: DataType, read: _Reader) -> str | None:
    """The text of an array is its JSON."""
    if value is None:
        return None
    if type(value) is not list:
        raise _NotPlainError
    return f"[{','.join([_json(read(each), wire) for each in value])}]"


def _json(value: str | None, wire: DataType) -> str:
    """The JSON of a value of a wire type, which a reader has read."""
    if value is None:
        return "null"
    return json.dumps(value) if isinstance(wire, (StringType, BinaryType)) else value


def _string(value: Any) -> str | None:
    if value is None:
        return None
    # Half of a pair of surrogates is no text.
    if type(value) is not str or "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise _NotPlainError
    return value


def _decimal(value: Any, digits: int, scale: int) -> str | None:
    if value is None:
        return None
    found = _DECIMAL.fullmatch(value) if type(value) is str else None
    if found is None or len(found[1].lstrip("0")) > digits or len(found[2] or "") > scale:
        raise _NotPlainError
    return str(value)


def _instant(value: Any) -> str | None:
    if value is None:
        return None
    if type(value) is not str or not _INSTANT.fullmatch(value):
        raise _NotPlainError
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise _NotPlainError from None
    return value


def frame(spark: SparkSession, few: FewChanges, form: Form) -> DataFrame:
    """The changes as a reduced batch (`reduction.reduced`), as far as a merge needs it. No job of Spark makes it."""
    names = [column.name for column in form.schema.columns]
    wires = {name: rule.wire for name, rule in form.rules.items()}
    rows = [
        [change.op, *map(str, change.at), *[_given(change.row[name], wires[name]) for name in names]]
        for change in few.changes
    ]
    listed = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    parts = [f"c{number}" for number in range(len(names) + 3)]
    columns = [
        f"c0 AS {OP}", f"CAST(c1 AS BIGINT) AS {LSN}", f"CAST(c2 AS BIGINT) AS {EVENT}",
        f"{NO_NAMES} AS {KEEP}", f"{NO_NAMES} AS {LOST}",
    ]  # fmt: skip
    columns += [
        f"{_of_type(part, wires[name])} AS {quoted(name)}"
        for part, name in zip(parts[3:], names, strict=True)
    ]
    found = spark.sql(f"SELECT {', '.join(columns)} FROM VALUES {listed} AS v({', '.join(parts)})")
    converted = {
        name: rule.value(sf.col(quoted(name)))
        for name, rule in form.rules.items()
        if rule.convert is not None
    }
    return found.withColumns(converted) if converted else found


_IN_JSON: Final = (ArrayType, BinaryType, FloatType)
"""Wire types whose values Spark reads as JSON here too. A cast makes no array of a text, and other bytes of it than
JSON has. And so a FLOAT is rounded in the same way.
"""


def _given(value: str | None, wire: DataType) -> str | None:
    """What the statement has of a value. Of some wire types it is an array of one element, in JSON."""
    return value if value is None or not isinstance(wire, _IN_JSON) else f"[{_json(value, wire)}]"


def _of_type(part: str, wire: DataType) -> str:
    """The expression that makes a value of the wire type of it."""
    name = wire.simpleString()
    if isinstance(wire, _IN_JSON):
        return f"get(from_json({part}, 'array<{name}>'), 0)"
    return f"CAST({part} AS {name})"


def _literal(value: str | None) -> str:
    return "CAST(NULL AS STRING)" if value is None else f"'{text(value)}'"
