"""Routes of every table: which topics the records of a change go to, told from the rows themselves."""

from typing import Final

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.records.shaping.settings import ASSUMED, Route, TableRoutes
from tests.sim.catalog import SCHEMA, Definition, Row
from tests.sim.wal import Change

COLUMN: Final = "n"
"""Of no key, so that only REPLICA IDENTITY FULL tells its old value."""

BOUNDS: Final = {"-low": 30, "-middle": 60}
"""By what the topic has behind the name of the table's own one: rows with less than that, each but those before."""

_TABLES: Final = f"{SCHEMA}.*"
_TEXTS: Final = {suffix: f"row.{COLUMN} < {bound}" for suffix, bound in BOUNDS.items()}
_TEMPLATE: Final = "{prefix}.{schema}.{table}"

TOPICS: Final = (RoutedTopics(_TABLES, tuple(_TEMPLATE + suffix for suffix in BOUNDS)),)

ROUTES: Final = (
    TableRoutes(
        _TABLES,
        tuple(Route(text, parse_expression(text), _TEMPLATE + suffix) for suffix, text in _TEXTS.items()),
        old_row=ASSUMED,
    ),
)

ALL: Final = ("", *BOUNDS)
"""What the topics of a table have behind the name of its own one."""

UNKNOWN: Final = ("-low", "", "-middle")
"""Where a row may be of which the value is not known, in the order in which cdcd says so."""


def route(table: Definition, row: Row) -> str:
    """Which topic a row is in, by what it has behind the name of the own one."""
    value = table.value(row, table.column(COLUMN))
    if value is None:
        return ""
    return next((suffix for suffix, bound in BOUNDS.items() if int(value) < bound), "")


def parts_of(change: Change, what: str) -> list[tuple[str, str]]:
    """The ops of the records of a row's event, without tombstones, each with its topic as `route` has it.

    Args:
        what: I, U, D or "": what a filter makes of the event.
    """
    table = change.definition
    assert table is not None
    if not what:
        return []
    if what == "I":
        return [("c", route(table, change.row))]
    old = change.old if change.what == "U" else change.row
    went = (route(table, old),) if table.identity == "f" else UNKNOWN
    if what == "D":
        return [("d", each) for each in went]
    goes = route(table, change.row)
    gone = [("d", each) for each in went if each != goes]
    if goes not in went:
        return [*gone, ("c", goes)]
    return [*gone, ("d", goes), ("c", goes)] if change.moves else [*gone, ("u", goes)]
