"""Whether the filters of `filters.tables` fit the published tables, and whether each filters something.

`cdcd check` and every start of a session look. A filter that matches no table is most often a name that was spelled
wrong, and then the topic has all rows.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdcd.checks.described import described_tables
from cdcd.checks.finding import Finding, of_error
from cdcd.errors import ConfigError
from cdcd.postgres.connection import Connection
from cdcd.rows.protection import Protections
from cdcd.shaping.row_filters import TableFilters, check_filter
from cdcd.shaping.settings import TableFilter
from cdcd.telemetry.terminal_text import number


@dataclass(frozen=True, slots=True)
class FilterFacts:
    """How the filters meet the tables.

    Attributes:
        refused: why a filter does not fit a table, at most one error for each table.
        unmatched: the patterns that match no published table.
        tables: how many tables have a filter.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]
    tables: int


async def look_at_filters(
    connection: Connection,
    oids: Collection[int],
    filters: tuple[TableFilter, ...],
    protections: Protections,
) -> FilterFacts:
    """Hold the filters against the published tables with these oids. Raises TransientError and SourceError."""
    tables_now = await described_tables(connection, oids)
    relations = tables_now.relations
    chosen = TableFilters(filters)
    refused: list[ConfigError] = []
    tables = 0
    for relation in relations:
        try:
            found = chosen.of_table(relation)
            if found:
                tables += 1
                description = tables_now.descriptions[relation.oid]
                check_filter(relation, found, tables_now.types, protections, description)
        except ConfigError as error:
            refused.append(error)
    return FilterFacts(tuple(refused), tuple(chosen.unmatched(relations)), tables)


def check_filters(facts: FilterFacts, filters: int) -> Iterator[Finding]:
    """What `cdcd check` says of so many filters."""
    for error in facts.refused:
        yield of_error("filters.rule", "filters", error)
    for pattern in facts.unmatched:
        yield Finding(
            "warning",
            "filters.unmatched",
            "filters",
            f"filters.tables.{pattern} matches no published table: it filters nothing",
            "Correct the pattern, or take it out: <schema>.<table> as PostgreSQL spells them, case included.",
        )
    if not facts.refused and not facts.unmatched:
        yield Finding(
            "ok",
            "filters.rule",
            "filters",
            f"{number(filters, 'filter')} for {number(facts.tables, 'table')}",
        )
