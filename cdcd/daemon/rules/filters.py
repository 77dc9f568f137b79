"""Whether the filters of `filters.tables` fit the published tables, and whether each filters something.

A filter that matches no table is most often a name that was spelled wrong, and then the topic has all rows.
"""

from collections.abc import Collection, Iterator

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.protection import Protections
from cdcd.core.records.shaping.row_filters import TableFilters, check_filter
from cdcd.core.records.shaping.settings import TableFilter
from cdcd.daemon.rules.expressions import ExpressionFacts, check_expressions, look_at_expressions
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.terminal_text import number


async def look_at_filters(
    connection: Connection, oids: Collection[int], filters: tuple[TableFilter, ...], protections: Protections
) -> ExpressionFacts:
    """Hold the filters against the published tables with these oids. Raises TransientError and SourceError."""
    return await look_at_expressions(connection, oids, TableFilters(filters), protections, check_filter)


def check_filters(facts: ExpressionFacts, filters: int) -> Iterator[Finding]:
    """What `cdcd check` says of so many filters."""
    said = f"{number(filters, 'filter')} for {number(facts.tables, 'table')}"
    return check_expressions(
        facts, "filters", rule="filters.rule", unmatched="filters.unmatched", does="filters", said=said
    )
