"""Legal values that the format cannot represent, such as NaN under `decimal_handling_mode: precise`.

The rule: such a value does not end the daemon and is not lost silently, because everybody who may write a row can
write such a value. The record has null in its place, as in Debezium. Readers of Debezium's records cannot
distinguish this null from NULL, so cdcd's record has the header `cdcd.unwritable` with the names of the columns, a
reported fact has table, column and LSN, and a metric counts the values. The value itself is never shown.

In a key, null would give several rows the same key, or is not allowed (Avro). So a key has a value that no row can
have, if there is one (`UnwritableError.nearest`); otherwise it has null, or in Avro the type's zero.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cdcd.core.errors import SourceError
from cdcd.core.facts import Observer
from cdcd.core.facts.rules import ValueUnwritable
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED, Delete, Insert, Relation, TupleData, Update, Value
from cdcd.core.records.encoder import HEADER_UNWRITABLE, Record

REPORT_S: Final = 60
"""Minimum of seconds between reports of the same column, because there may be many such rows."""


class UnwritableError(ValueError):
    """A legal value that the column's format cannot represent.

    Attributes:
        problem, hint: what kind of value it is, without showing it, and what an operator can do.
        nearest: text form of the value that replaces it in a key; empty if NULL does.
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
"""Why a text cannot be represented in any format: problem and hint."""


def undecodable_key(relation: Relation, column: int, lsn: int) -> SourceError:
    """Return the error for a row whose key cannot be decoded."""
    name = relation.columns[column].name
    return SourceError(
        f"A row of {relation.schema}.{relation.name} at {Lsn(lsn)} has a value of its key, in the column {name}, that "
        "is no text in the encoding of the database, or has no character in UTF-8.",
        hint="Correct the row and bring the table back, or give the records another key (key.columns) and start cdcd "
        "again. With tables.on_error: stop, leave the table out (tables.exclude) until its changes are behind the row.",
    )


Found = tuple[int, UnwritableError]
"""The index of a column, and why its value cannot be written."""


class UnwritableValues:
    """Counts and reports such values; `counts` is by (schema.table, column)."""

    def __init__(self, observe: Observer) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._observe = observe
        self._quiet: dict[tuple[str, str], tuple[int, int]] = {}
        """For each reported column: until when it is not reported again (µs since 1970), and how many values were
        not reported."""

    def note(self, table: str, column: str, lsn: int, error: UnwritableError, now_us: int) -> None:
        """Note that a value of the column cannot be represented."""
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
    """Return the rows of a message, the old one first."""
    if isinstance(message, Insert):
        return [message.new]
    if isinstance(message, Delete):
        return [message.old]
    return [message.new] if message.old is None else [message.old, message.new]


def stood_in(
    rows: Sequence[TupleData], found: Sequence[Sequence[Found]], key: Sequence[int]
) -> list[TupleData]:
    """Return the rows, the old one first, with replacements for the values that were found in each of them.

    A value that was not sent because it equals the old row's value cannot be represented either.

    Args:
        key: indexes of the key's columns.
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
    """Return the message with these rows, which are in the order of `rows_of`."""
    if isinstance(message, Insert):
        return replace(message, new=rows[0])
    if isinstance(message, Delete):
        return replace(message, old=rows[0])
    if message.old is None:
        return replace(message, new=rows[0])
    return replace(message, old=rows[0], new=rows[1])


def named(record: Record, names: Sequence[str]) -> Record:
    """Return the record with a header that names these columns."""
    topic, key, value, headers = record
    header = (HEADER_UNWRITABLE, json.dumps(list(names), ensure_ascii=False, separators=(",", ":")).encode())
    return topic, key, value, [*(headers or []), header]
