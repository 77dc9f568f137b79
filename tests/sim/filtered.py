"""A filter of every table: which rows a consumer must have, told from the rows themselves."""

from typing import Final

from cdcd.config.expressions import parse_expression
from cdcd.core.records.shaping.settings import ASSUMED, TableFilter
from tests.sim.catalog import SCHEMA, Definition, Row
from tests.sim.wal import Change

COLUMN: Final = "n"
"""Of no key, so that only REPLICA IDENTITY FULL tells its old value."""

BOUND: Final = 50
"""About half of the rows match."""

_TEXT: Final = f"row.{COLUMN} < {BOUND}"

FILTERS: Final = (TableFilter(f"{SCHEMA}.*", _TEXT, parse_expression(_TEXT), old_row=ASSUMED),)


def matches(table: Definition, row: Row) -> bool:
    """Whether a consumer must have the row."""
    value = table.value(row, table.column(COLUMN))
    return value is not None and int(value) < BOUND


def tag_of(change: Change) -> str:
    """What an event of a row is for consumers: I, U, D, or "" for nothing."""
    table = change.definition
    assert table is not None
    what = change.what
    if what == "I":
        return "I" if matches(table, change.row) else ""
    # Without the old row, it is taken for one that the topic has.
    old = change.old if what == "U" else change.row
    was = table.identity != "f" or matches(table, old)
    remains = what == "U" and matches(table, change.row)
    return {(True, True): "U", (True, False): "D", (False, True): "I", (False, False): ""}[was, remains]
