"""The check of `filters.tables` and `routes.tables`: whether each rule can be applied to the published tables, and
matches one.

It is made by `cdcd check` and at every start of a session. A filter that matches no table usually has a misspelled
name, and then the topic has all rows. If rules of routes match no table, all rows are in the table's own topic.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import TableRules
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.shaping.filtering import check_filter, table_filters
from cdcd.core.records.shaping.routed import check_routes, table_routes
from cdcd.core.records.shaping.settings import TableFilter, TableRoutes
from cdcd.daemon.rules.columns import described_tables
from cdcd.telemetry.findings import Finding, of_error
from cdcd.telemetry.terminal_text import number

R = TypeVar("R", TableFilter, TableRoutes)

Check = Callable[[Relation, Sequence[R], Mapping[int, TypeDescription], Protections, TableDescription], None]
"""Function that raises ConfigError if the rules do not fit their table."""


@dataclass(frozen=True, slots=True)
class ExpressionFacts:
    """Result of applying the rules to the tables.

    Attributes:
        refused: errors of rules that do not fit a table, at most one for each table.
        unmatched: patterns that match no published table.
        tables: number of tables with rules.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]
    tables: int


async def look_at_expressions(
    connection: Connection,
    oids: Collection[int],
    chosen: TableRules[R],
    protections: Protections,
    check: Check[R],
) -> ExpressionFacts:
    """Apply the rules to the published tables with these oids. Raises TransientError and SourceError."""
    tables_now = await described_tables(connection, oids)
    relations = tables_now.relations
    refused: list[ConfigError] = []
    tables = 0
    for relation in relations:
        found = chosen.of_table(relation)
        if not found:
            continue
        tables += 1
        try:
            check(relation, found, tables_now.types, protections, tables_now.descriptions[relation.oid])
        except ConfigError as error:
            refused.append(error)
    return ExpressionFacts(tuple(refused), tuple(each.table for each in chosen.unmatched(relations)), tables)


def check_expressions(
    facts: ExpressionFacts, section: str, *, rule: str, unmatched: str, does: str, said: str
) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the rules of a section.

    Args:
        rule, unmatched: codes of findings about rules, and about patterns without tables.
        does: missing effect of a pattern without tables, such as "filters".
        said: text of the finding if all is well.
    """
    for error in facts.refused:
        yield of_error(rule, section, error)
    for pattern in facts.unmatched:
        yield Finding(
            "warning",
            unmatched,
            section,
            f"{section}.tables.{pattern} matches no published table: it {does} nothing",
            "Correct the pattern, or take it out: <schema>.<table> as PostgreSQL spells them, case included.",
        )
    if not facts.refused and not facts.unmatched:
        yield Finding("ok", rule, section, said)


async def look_at_filters(
    connection: Connection, oids: Collection[int], filters: tuple[TableFilter, ...], protections: Protections
) -> ExpressionFacts:
    """Apply the filters to the published tables with these oids. Raises TransientError and SourceError."""
    return await look_at_expressions(connection, oids, table_filters(filters), protections, check_filter)


def check_filters(facts: ExpressionFacts, filters: int) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about this number of filters."""
    said = f"{number(filters, 'filter')} for {number(facts.tables, 'table')}"
    return check_expressions(
        facts, "filters", rule="filters.rule", unmatched="filters.unmatched", does="filters", said=said
    )


async def look_at_routes(
    connection: Connection, oids: Collection[int], routes: tuple[TableRoutes, ...], protections: Protections
) -> ExpressionFacts:
    """Apply the routes to the published tables with these oids. Raises TransientError and SourceError."""
    return await look_at_expressions(connection, oids, table_routes(routes), protections, check_routes)


def check_all_routes(facts: ExpressionFacts, routes: int) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the routes of this number of patterns."""
    said = f"{number(routes, 'pattern')} with rules for {number(facts.tables, 'table')}"
    return check_expressions(
        facts, "routes", rule="routes.rule", unmatched="routes.unmatched", does="routes", said=said
    )
