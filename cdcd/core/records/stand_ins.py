"""Finds the values of a row for which its format has no form, and writes the row without them (`unwritable.py`)."""

from collections.abc import Callable, Iterable
from typing import Final

from cdcd.core.facts import Observer
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Delete, Insert, TupleData, Update, Value
from cdcd.core.protocol.peek import lsn_of
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.debezium_json.changes import explain
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.unwritable import (
    UNDECODABLE,
    Found,
    UnwritableError,
    UnwritableValues,
    rows_of,
    stood_in,
    undecodable_key,
    with_rows,
)
from cdcd.core.table_names import table_text

Check = Callable[[TableFragments, int, Value], None]
"""`Schemas.check` of the format."""


class StandIns:
    """Finds and reports values without a form.

    Attributes:
        values: number of such values so far.
    """

    def __init__(self, observe: Observer, check: Check) -> None:
        self.values: Final = UnwritableValues(observe)
        self._check = check

    def frame(
        self, table: TableFragments, frame: bytes, in_stream: bool, cause: Exception
    ) -> tuple[bytes, list[Found]]:
        """Return the frame of a refused row with replacements for its values without a form, and these values.

        Raises:
            CdcdError: the row is malformed.
        """
        refusal = explain(frame, in_stream, table.relation, table.converters)
        if refusal is not None:
            raise refusal from cause
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, Insert | Update | Delete), "only row messages come here"
        rows = rows_of(message)
        found = [self.found(table, row, lsn_of(frame)) for row in rows]
        assert any(found), "a row was refused in which nothing is wrong"
        others = stood_in(rows, found, table.key_columns)
        written = frame[:XLOG_HEADER] + write_message(with_rows(message, others))
        return written, [one for each in found for one in each]

    def found(self, table: TableFragments, row: TupleData, lsn: int) -> list[Found]:
        """Return the values of a row for which the format has no form, without malformed values.

        Raises:
            SourceError: a text of the key cannot be decoded, so that nobody can tell which row this is.
        """
        found: list[Found] = []
        for column, value in enumerate(row):
            try:
                self._check(table, column, value)
            except UnwritableError as error:
                found.append((column, error))
            except UnicodeDecodeError:
                if column in table.key_columns:
                    raise undecodable_key(table.relation, column, lsn) from None
                found.append((column, UnwritableError(*UNDECODABLE)))
            except (ValueError, IndexError):
                continue
        return found

    def note(self, table: TableFragments, found: Iterable[Found], lsn: int, now_us: int) -> list[str]:
        """Count and report values of a row that has a record; the names of their fields, each once."""
        relation = table.relation
        names: list[str] = []
        for column, cause in found:
            name = relation.columns[column].name
            self.values.note(table_text(relation.schema, relation.name), name, lsn, cause, now_us)
            field = table.shown.columns[column].name
            if field not in names:
                names.append(field)
        return names
