"""The check of `filters.tables` and `routes.tables`: whether each rule fits the published tables, and matches one.

`cdcd check` and every start of a session look. A filter that matches no table is most often a name that was spelled
wrong, and then the topic has all rows. If rules of routes match no table, all rows are in the table's own topic.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.shaping.row_filters import TableFilters, check_filter
from cdcd.core.records.shaping.row_routes import ChosenRoutes, check_routes
from cdcd.core.records.shaping.settings import TableFilter, TableRoutes
from cdcd.daemon.rules.columns import described_tables
from cdcd.telemetry.findings import Finding, of_error
from cdcd.telemetry.terminal_text import number

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

Check = Callable[[Relation, Sequence[R], Mapping[int, TypeDescription], Protections, TableDescription], None]
"""Raises ConfigError if the rules do not fit their table."""


class Chosen(Protocol[R_co]):
    """The rules of a section."""

    def of_table(self, relation: Relation) -> Sequence[R_co]:
        """Those that match a table."""

    def unmatched(self, relations: Sequence[Relation]) -> Sequence[str]:
        """The patterns that match none of these tables."""


@dataclass(frozen=True, slots=True)
class ExpressionFacts:
    """How the rules meet the tables.

    Attributes:
        refused: why rules do not fit a table, at most one error for each table.
        unmatched: the patterns that match no published table.
        tables: how many tables have rules.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]
    tables: int


async def look_at_expressions(
    connection: Connection,
    oids: Collection[int],
    chosen: Chosen[R],
    protections: Protections,
    check: Check[R],
) -> ExpressionFacts:
    """Hold the rules against the published tables with these oids. Raises TransientError and SourceError."""
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
    return ExpressionFacts(tuple(refused), tuple(chosen.unmatched(relations)), tables)


def check_expressions(
    facts: ExpressionFacts, section: str, *, rule: str, unmatched: str, does: str, said: str
) -> Iterator[Finding]:
    """What `cdcd check` says of the rules of a section.

    Args:
        rule, unmatched: the codes of findings about rules, and about patterns without tables.
        does: what a pattern without tables does not do, such as "filters".
        said: what is there, if all is well.
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
    """Hold the filters against the published tables with these oids. Raises TransientError and SourceError."""
    return await look_at_expressions(connection, oids, TableFilters(filters), protections, check_filter)


def check_filters(facts: ExpressionFacts, filters: int) -> Iterator[Finding]:
    """What `cdcd check` says of so many filters."""
    said = f"{number(filters, 'filter')} for {number(facts.tables, 'table')}"
    return check_expressions(
        facts, "filters", rule="filters.rule", unmatched="filters.unmatched", does="filters", said=said
    )


async def look_at_routes(
    connection: Connection, oids: Collection[int], routes: tuple[TableRoutes, ...], protections: Protections
) -> ExpressionFacts:
    """Hold the routes against the published tables with these oids. Raises TransientError and SourceError."""
    return await look_at_expressions(connection, oids, ChosenRoutes(routes), protections, check_routes)


def check_all_routes(facts: ExpressionFacts, routes: int) -> Iterator[Finding]:
    """What `cdcd check` says of the routes of so many patterns."""
    said = f"{number(routes, 'pattern')} with rules for {number(facts.tables, 'table')}"
    return check_expressions(
        facts, "routes", rule="routes.rule", unmatched="routes.unmatched", does="routes", said=said
    )
