"""Legal values for which the format has no form, such as NaN under `decimal_handling_mode: precise`.

The rule: such a value neither ends the daemon nor is lost in silence, because whoever may write a row can write one.
Null stands for it, as in Debezium. Debezium's readers cannot tell this null from NULL, so here the header
`cdcd.unwritable` names the columns, an event names table, column and LSN, and a metric counts the values. Nothing shows
the value.

In a column of the key, null would make one key of several rows, or is not allowed (Avro). There a value that no row can
have stands for it, where there is one (`UnwritableError.nearest`); else null, or in Avro the type's zero.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cdcd.core.errors import SourceError
from cdcd.core.facts import Observer, ValueUnwritable
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED, Delete, Insert, Relation, TupleData, Update, Value
from cdcd.core.records.encoder import HEADER_UNWRITABLE, Record

REPORT_S: Final = 60
"""Seconds for which one report of a column's unwritable values stands. Whoever writes rows may write many."""


class UnwritableError(ValueError):
    """A legal value for which the column has no form.

    Attributes:
        problem, hint: what the value is, without showing it, and what an operator can do.
        nearest: the text form of what stands for the value in a column of the key; empty: NULL does.
    """

    def __init__(self, problem: str, hint: str, nearest: str = "") -> None:
        ValueError.__init__(self, problem, hint)
        self.problem = problem
        self.hint = hint
        self.nearest = nearest


UNDECODABLE: Final = (
    "its bytes are no text in the encoding of the database, or have no character in UTF-8",
    "Correct the value in the table. A database in SQL_ASCII takes any bytes; dump and restore it into UTF8.",
)
"""Why a text has no form in any format: problem and hint."""


def undecodable_key(relation: Relation, column: int, lsn: int) -> SourceError:
    """The refusal of a row whose key cannot be decoded."""
    name = relation.columns[column].name
    return SourceError(
        f"A row of {relation.schema}.{relation.name} at {Lsn(lsn)} has a value of its key, in the column {name}, that "
        "is no text in the encoding of the database, or has no character in UTF-8.",
        hint="Nothing past it was confirmed. Leave the table out (tables.exclude), or give its records another key "
        "(key.columns), and start cdcd again. Then correct the row, and read the table again.",
    )


Found = tuple[int, UnwritableError]
"""The number of a column, and why its value cannot be written."""


class UnwritableValues:
    """Counts and reports them. `counts` is by (schema.table, column)."""

    def __init__(self, observe: Observer) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._observe = observe
        self._quiet: dict[tuple[str, str], tuple[int, int]] = {}
        """Of a column that was reported: until when it is not reported again (µs since 1970), and what was left out."""

    def note(self, table: str, column: str, lsn: int, error: UnwritableError, now_us: int) -> None:
        """A value of the column has no form."""
        place = (table, column)
        self.counts[place] = self.counts.get(place, 0) + 1
        until, left_out = self._quiet.get(place, (0, 0))
        if now_us < until:
            self._quiet[place] = (until, left_out + 1)
            return
        self._quiet[place] = (now_us + REPORT_S * 1_000_000, 0)
        self._observe(
            ValueUnwritable(
                table=table,
                column=column,
                lsn=str(Lsn(lsn)),
                reason=error.problem,
                left_out=left_out,
                hint=error.hint,
            )
        )


def rows_of(message: Insert | Update | Delete) -> list[TupleData]:
    """The rows of a message: the old one first."""
    if isinstance(message, Insert):
        return [message.new]
    if isinstance(message, Delete):
        return [message.old]
    return [message.new] if message.old is None else [message.old, message.new]


def stood_in(
    rows: Sequence[TupleData], found: Sequence[Sequence[Found]], key: Sequence[int]
) -> list[TupleData]:
    """The rows, the old one first, with what stands for the values that were found in each of them.

    A value that was not sent, because it is the one of the old row, has no form either.

    Args:
        key: the columns of the key.
    """
    made: list[TupleData] = []
    before: list[Found] = []
    for row, each in zip(rows, found, strict=True):
        values: list[Value] = list(row)
        for column, error in (*each, *[one for one in before if values[one[0]] is UNCHANGED]):
            values[column] = error.nearest.encode() if error.nearest and column in key else None
        made.append(tuple(values))
        before = list(each)
    return made


def with_rows(message: Insert | Update | Delete, rows: Sequence[TupleData]) -> Insert | Update | Delete:
    """The message with other rows, in the order of `rows_of`."""
    if isinstance(message, Insert):
        return replace(message, new=rows[0])
    if isinstance(message, Delete):
        return replace(message, old=rows[0])
    if message.old is None:
        return replace(message, new=rows[0])
    return replace(message, old=rows[0], new=rows[1])


def named(record: Record, names: Sequence[str]) -> Record:
    """The record with the header that names the columns."""
    topic, key, value, headers = record
    header = (HEADER_UNWRITABLE, json.dumps(list(names), ensure_ascii=False, separators=(",", ":")).encode())
    return topic, key, value, [*(headers or []), header]
