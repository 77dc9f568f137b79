"""Values of columns: conversion of PostgreSQL's text to Python's types.

The rule: a value keeps all information in its text. A type with a lossless counterpart in Python is converted to
that type; every other type stays PostgreSQL's text. So `json` stays text, because `json.loads` would round numbers.
A date or time that Python's type cannot hold (`infinity`, years before 1 and after 9999, 24:00) stays text too.

The sessions are pinned to UTC, ISO dates and hexadecimal bytea (`postgres/connection.py`).
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Final, Union
from uuid import UUID

from cdcd.core.catalog.money import DIGITS_OF_C, rewrite_of
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.wiretext import wire
from cdcd.core.protocol.messages import Unchanged
from cdcd.core.records.debezium_json.literals import array_json, array_token
from cdcd.core.records.debezium_json.strings import quote

Value = Union[  # noqa: UP007  it names itself, and a string takes part in no other form
    bool, int, float, Decimal, str, bytes, date, time, datetime, UUID, list["Value"], Unchanged, None
]
"""The value of a column. None is NULL, and `UNCHANGED` a value that PostgreSQL did not send."""

ValueReader = Callable[[str], Value]
"""Converts the text of a value. ValueError, ArithmeticError: the text does not have its type's form."""

_NESTING_MAX: Final = 64
"""Maximum depth of domains over arrays over domains and so on. PostgreSQL itself allows no cycle of them."""


def reader_for(
    oid: int,
    types: Mapping[int, TypeDescription],
    depth: int = 0,
    money_digits: int = DIGITS_OF_C,
) -> ValueReader:
    """Return the reader of a type's values. An unknown type, which was dropped since, stays text.

    Args:
        money_digits: number of decimal digits of money. Amounts are texts in the form of lc_monetary C.
    """
    description = types.get(oid)
    if description is None or depth > _NESTING_MAX:
        return str
    if description.base_oid:
        return reader_for(description.base_oid, types, depth + 1, money_digits)
    if description.is_array:
        element = types.get(description.element_oid)
        delimiter = element.delimiter if element is not None else description.delimiter
        read = reader_for(description.element_oid, types, depth + 1, money_digits)
        return partial(_array, token=array_token(delimiter), read=read)
    return _READERS.get(oid) or rewrite_of(oid, types, money_digits) or str


def _array(text: str, *, token: re.Pattern[str], read: ValueReader) -> Value:
    found = json.loads(array_json(wire(text), token, quote).encode("latin-1"))
    return _elements(found, read)


def _elements(found: "list[object]", read: ValueReader) -> Value:
    """Return the elements of one dimension; with several dimensions, lists of lists."""
    values: list[Value] = []
    for each in found:
        if isinstance(each, list):
            values.append(_elements(each, read))
        else:
            values.append(read(each) if isinstance(each, str) else None)
    return values


def _bool(text: str) -> Value:
    if text not in ("t", "f"):
        raise ValueError("not t or f")
    return text == "t"


def _bytea(text: str) -> Value:
    if not text.startswith("\\x"):
        raise ValueError("bytea does not begin with \\x")
    return bytes.fromhex(text[2:])


def _date(text: str) -> Value:
    try:
        # Years with five digits would be misread.
        return date.fromisoformat(text) if len(text) == len("2000-01-01") else text
    except ValueError:
        return text


def _time(text: str) -> Value:
    try:
        return time.fromisoformat(text)
    except ValueError:
        return text


def _timestamp(text: str) -> Value:
    try:
        return datetime.fromisoformat(text) if text[10:11] == " " else text
    except ValueError:
        return text


_READERS: Final[Mapping[int, ValueReader]] = {
    16: _bool,
    17: _bytea,
    20: int,
    21: int,
    23: int,
    26: int,  # oid
    700: float,
    701: float,
    1082: _date,
    1083: _time,
    1114: _timestamp,
    1184: _timestamp,  # timestamptz: with +00, which makes it aware
    1266: _time,  # timetz
    1700: Decimal,
    2950: UUID,
}
