"""A rule protects one column of every table, and each record is judged by its values, without names.

Each value of a column that can be renamed contains the column's number (`x<attnum>-<event>`). Guarantee G15: after the
rule has matched a column once, the column is sealed in every later record of every session, whatever the names of the
column and of its table are.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import HASH, ColumnRule, Protections
from tests.sim.catalog import EVENT, SCHEMA, SECRET, Definition
from tests.sim.database import Database
from tests.sim.expected import PromiseBrokenError, Record

SEALED: Final = b"sealed-"

RULES: Final = (
    ColumnRule(
        parse_column_pattern(f"{SCHEMA}.*.{SECRET}", "columns.hash"), HASH, seal=lambda value: SEALED + value
    ),
)

DIGESTS: Final = Protections(RULES).digests

_VALUE: Final = re.compile(rf"({SEALED.decode()})?x(\d+)-\d+")


class ProtectedSeen:
    """The columns that the rule must protect, as derived from the records and checkpoints that became visible."""

    def __init__(self, database: Database) -> None:
        self.sealed = 0
        """Number of values that were sealed in a column whose name the rule does not match."""
        self._database = database
        self._bound: dict[int, set[int]] = {}

    def bound(self, tables: Iterable[Definition]) -> None:
        """Note that a start which has read these tables from the catalog has written a checkpoint."""
        for table in tables:
            for column in table.columns:
                if column.name == SECRET:
                    self._bound.setdefault(table.oid, set()).add(column.attnum)

    def slot_dropped(self) -> None:
        """Forget all columns, because the pipeline begins again with a new slot."""
        self._bound.clear()

    def revealed(self, record: Record) -> Record:
        """Judge a record, and return it with clear values in place of the sealed ones."""
        topic, key, value, headers = record
        if value is None:
            return record
        fields: dict[str, Any] = json.loads(value)
        for row in (fields.get("before"), fields.get("after")):
            if row is not None and row.get(EVENT) is not None:
                self._judge(self._database.oids[int(row[EVENT])], row)
        return topic, key, re.sub(rb'"%b([^"]*)"' % SEALED, rb'"\1"', value), headers

    def _judge(self, oid: int, row: dict[str, Any]) -> None:
        bound = self._bound.setdefault(oid, set())
        for name, value in row.items():
            found = _VALUE.fullmatch(value) if isinstance(value, str) else None
            if found is None:
                continue
            attnum, is_sealed = int(found[2]), found[1] is not None
            if name == SECRET:
                bound.add(attnum)
            if attnum in bound and not is_sealed:
                raise PromiseBrokenError(
                    f"G15: column {attnum} of the table {oid} came in clear as {name}: {row}"
                )
            if is_sealed and attnum not in self._database.secret.get(oid, ()):
                raise PromiseBrokenError(
                    f"column {attnum} of the table {oid} is sealed, and no rule matched it: {row}"
                )
            self.sealed += is_sealed and name != SECRET
