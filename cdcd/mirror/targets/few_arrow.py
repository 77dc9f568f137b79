"""A few changes brought into the rows of a table in the driver: what a MERGE does (`merge`), for tables of some
kilobytes, which are not worth a plan of Spark.

The rule: as in `few`, only what is plain is done here. Where a value has no counterpart in Python, or the rows are not
what a mirror's are, `brought_in` gives nothing, and a MERGE decides. A row that no change is about is never made again
from values of Python: it stays the row that was read.
"""

import base64
import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DoubleType, FloatType, StringType

from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.rule import Rule
from cdcd.mirror.records.types import element_of
from cdcd.mirror.targets.batch_arrow import is_plain
from cdcd.mirror.targets.few import Change, FewChanges
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.reduction import EVENT, LSN

Convert = Callable[[Any], Any]


class _NotPlainError(Exception):
    """A value, or the table, has something that is not plain."""


def brought_in(rows: pa.Table, few: FewChanges, form: Form) -> pa.Table | None:
    """The rows of a mirror after the changes. None: something is not plain.

    Args:
        rows: all of the mirror, which neither has buckets nor marks deletes.
        form: of the mirror and of the changes.
    """
    if not is_plain(rows, form.schema):
        return None
    try:
        return _brought_in(rows, few.changes, form)
    # ArrowInvalid (a ValueError), ArrowTypeError (a TypeError): a value does not fit the type of its column.
    except (_NotPlainError, ValueError, TypeError, OverflowError):
        return None


def _brought_in(rows: pa.Table, changes: list[Change], form: Form) -> pa.Table:
    converts = {name: _column(rule) for name, rule in form.rules.items()}
    key = form.schema.key
    keys = list(zip(*[rows[name].to_pylist() for name in key], strict=True))
    places = dict(zip(keys, zip(rows[LSN].to_pylist(), rows[EVENT].to_pylist(), strict=True), strict=True))
    if len(places) < len(keys):
        raise _NotPlainError
    gone: set[tuple[Any, ...]] = set()
    put: list[Change] = []
    for change in changes:
        place = tuple([converts[name](change.row[name]) for name in key])
        had = places.get(place)
        # A row changes only if the change is later than its own, as in `merge.merge`.
        if had is not None and had >= change.at:
            continue
        gone.add(place)
        if change.op != "d":
            put.append(change)
    stay = rows.filter(pa.array([place not in gone for place in keys], pa.bool_()))
    values: dict[str, list[Any]] = {
        name: [convert(change.row[name]) for change in put] for name, convert in converts.items()
    }
    values |= {LSN: [change.at[0] for change in put], EVENT: [change.at[1] for change in put]}
    values[UNKNOWN] = [None] * len(put)
    new = [_array(values[field.name], field.type) for field in rows.schema]
    return pa.concat_tables([stay, pa.table(new, schema=rows.schema)])


def _column(rule: Rule) -> Convert:
    """From the text of a value (`few.Change`) to the value that Arrow takes for the column."""
    convert = _value(rule)
    is_text = isinstance(rule.wire, (StringType, BinaryType))
    return lambda text: None if text is None else convert(text if is_text else _json(text))


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _value(rule: Rule) -> Convert:
    """From the JSON of a value, which is not null, to the value."""
    if isinstance(rule.wire, ArrayType):
        convert = _value(element_of(rule))
        return lambda values: [None if value is None else convert(value) for value in values]
    if rule.convert is None:
        return _WIRES.get(type(rule.wire), _same)
    if rule.plain is None:
        raise _NotPlainError
    return rule.plain


def _same(value: Any) -> Any:
    return value


def _single(number: int | Decimal) -> float:
    """The number as a FLOAT has it. It does not matter whether it becomes a DOUBLE on the way there, but where that
    DOUBLE lies in the middle between two FLOATs, and is not the number itself.
    """
    double = float(number)
    below, above = [_rounded(math.nextafter(double, towards)) for towards in (-math.inf, math.inf)]
    if below != above and Decimal(double) != number:
        raise _NotPlainError
    return _rounded(double)


def _rounded(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


_WIRES: Final[dict[type, Convert]] = {
    BinaryType: lambda text: base64.b64decode(text, validate=True),
    DoubleType: float,
    FloatType: _single,
}


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    return pa.array(values, _numbers(type_)).cast(type_)


def _numbers(type_: pa.DataType) -> pa.DataType:
    """The type with whole numbers in place of dates and times. Those of Python end with the year 9999."""
    if pa.types.is_list(type_):
        return pa.list_(_numbers(type_.value_type))
    if pa.types.is_date32(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_
