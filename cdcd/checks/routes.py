"""Whether the rules of `routes.tables` fit the published tables, and whether each routes something.

`cdcd check` and every start of a session look. Rules that match no table are most often under a name that was spelled
wrong, and then all rows are in the table's own topic.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdcd.checks.described import described_tables
from cdcd.checks.finding import Finding, of_error
from cdcd.errors import ConfigError
from cdcd.postgres.connection import Connection
from cdcd.rows.protection import Protections
from cdcd.shaping.row_routes import ChosenRoutes, check_routes
from cdcd.shaping.settings import TableRoutes
from cdcd.telemetry.terminal_text import number


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """How the routes meet the tables.

    Attributes:
        refused: why rules do not fit a table, at most one error for each table.
        unmatched: the patterns that match no published table.
        tables: how many tables have routes.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]
    tables: int


async def look_at_routes(
    connection: Connection,
    oids: Collection[int],
    routes: tuple[TableRoutes, ...],
    protections: Protections,
) -> RouteFacts:
    """Hold the routes against the published tables with these oids. Raises TransientError and SourceError."""
    tables_now = await described_tables(connection, oids)
    relations = tables_now.relations
    chosen = ChosenRoutes(routes)
    refused: list[ConfigError] = []
    tables = 0
    for relation in relations:
        try:
            found = chosen.of_table(relation)
            if found:
                tables += 1
                description = tables_now.descriptions[relation.oid]
                check_routes(relation, found, tables_now.types, protections, description)
        except ConfigError as error:
            refused.append(error)
    return RouteFacts(tuple(refused), tuple(chosen.unmatched(relations)), tables)


def check_all_routes(facts: RouteFacts, routes: int) -> Iterator[Finding]:
    """What `cdcd check` says of the routes of so many patterns."""
    for error in facts.refused:
        yield of_error("routes.rule", "routes", error)
    for pattern in facts.unmatched:
        yield Finding(
            "warning",
            "routes.unmatched",
            "routes",
            f"routes.tables.{pattern} matches no published table: it routes nothing",
            "Correct the pattern, or take it out: <schema>.<table> as PostgreSQL spells them, case included.",
        )
    if not facts.refused and not facts.unmatched:
        yield Finding(
            "ok",
            "routes.rule",
            "routes",
            f"{number(routes, 'pattern')} with rules for {number(facts.tables, 'table')}",
        )
