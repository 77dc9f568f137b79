"""Contents of a committed transaction: changes of rows, truncates and logical messages; and the values of columns as
Python's types.

The rule: a value keeps all information in its text. A type with a lossless counterpart in Python is converted to
that type; every other type stays PostgreSQL's text. So `json` stays text, because `json.loads` would round numbers.
A date or time that Python's type cannot hold (`infinity`, years before 1 and after 9999, 24:00) stays text too.

The sessions are pinned to UTC, ISO dates and hexadecimal bytea (`postgres/connection.py`).

A row is a mapping from the names of its columns to values (`changes.py`), in the order of the table's columns.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Final, Literal, TypeAlias, Union
from uuid import UUID

from cdcd.core.catalog.money import DIGITS_OF_C, rewrite_of
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.wiretext import wire
from cdcd.core.protocol.lsn import Lsn
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


Row: TypeAlias = Mapping[str, Value]
"""Values by the names of columns."""

ReplicaIdentity: TypeAlias = Literal["default", "full", "index", "nothing"]
"""Columns of an old row that PostgreSQL sends (`ALTER TABLE … REPLICA IDENTITY`)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A published column of a table.

    Attributes:
        name: the column's name.
        type: type as PostgreSQL writes it, such as `numeric(12,2)`; empty if the type was dropped since.
        type_oid: `pg_attribute.atttypid`.
        type_modifier: `pg_attribute.atttypmod`, -1 for none.
        is_key: True if the column is part of the replica identity. Under REPLICA IDENTITY FULL every column is part
            of it.
    """

    name: str
    type: str
    type_oid: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it was when the change was made.

    Attributes:
        oid: `pg_class.oid`, which distinguishes the table from earlier and later tables with the same name.
        schema, name: the table's names, unquoted.
        columns: the published columns in the table's order.
        key: names of the columns that identify a row: the replica identity; with REPLICA IDENTITY FULL and NOTHING
            the primary key, or else a unique key without NULLs; empty without a key.
        replica_identity: columns of an old row that PostgreSQL sends.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    replica_identity: ReplicaIdentity

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row.

    Attributes:
        table: the table.
        lsn: position of the change in the WAL. Rows of one statement may share an LSN.
        new: the row.
        unwritable: names of columns whose values are not text in the database's encoding, or have no character in
            UTF-8. The row has None in place of these values.
    """

    table: Table
    lsn: Lsn
    new: Row
    unwritable: tuple[str, ...] = ()

    @property
    def key(self) -> Row:
        """Values of the columns in `table.key`."""
        return _key(self.table, self.new)


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row.

    Attributes:
        table: the table.
        lsn: position of the change in the WAL.
        new: the row after the change. A large value that the update did not touch is `UNCHANGED`, unless `old` has
            it.
        old: the row before the change as PostgreSQL sends it: the whole row with REPLICA IDENTITY FULL; the columns
            of the replica identity if one of them changed; else None.
        unwritable: names of columns whose values are not text in the database's encoding, or have no character in
            UTF-8. Such a value is None in `new` or in `old`.
    """

    table: Table
    lsn: Lsn
    new: Row
    old: Row | None
    unwritable: tuple[str, ...] = ()

    @property
    def key(self) -> Row:
        """Values of the columns in `table.key` after the change."""
        return _key(self.table, self.new)


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row.

    Attributes:
        table: the table.
        lsn: position of the change in the WAL.
        old: the whole row with REPLICA IDENTITY FULL, else the columns of the replica identity.
        unwritable: names of columns whose values are not text in the database's encoding, or have no character in
            UTF-8. Such a value is None.
    """

    table: Table
    lsn: Lsn
    old: Row
    unwritable: tuple[str, ...] = ()

    @property
    def key(self) -> Row:
        """Values of the columns in `table.key`, as far as `old` contains them."""
        return _key(self.table, self.old)


@dataclass(frozen=True, slots=True)
class Truncate:
    """A TRUNCATE command.

    Attributes:
        tables: published tables that it emptied, including those that CASCADE reached.
        lsn: position of the change in the WAL.
        cascade: True if the command had CASCADE.
        restart_identity: True if the command had RESTART IDENTITY.
    """

    tables: tuple[Table, ...]
    lsn: Lsn
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A message that `pg_logical_emit_message` wrote.

    Attributes:
        lsn: end of the message in the WAL.
        prefix: the message's prefix.
        content: the message's bytes.
        transactional: False if the message belongs to no transaction; then the stream has it as a separate
            transaction.
    """

    lsn: Lsn
    prefix: str
    content: bytes
    transactional: bool


Change: TypeAlias = Insert | Update | Delete | Truncate | Message
"""An item of the iteration over a transaction."""


def _key(table: Table, row: Row) -> Row:
    return {name: row[name] for name in table.key if name in row}
