"""Whether the rules of `routes.tables` fit the published tables, and whether each routes something.

Rules that match no table are most often under a name that was spelled wrong, and then all rows are in the table's own
topic.
"""

from collections.abc import Collection, Iterator

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.protection import Protections
from cdcd.core.records.shaping.row_routes import ChosenRoutes, check_routes
from cdcd.core.records.shaping.settings import TableRoutes
from cdcd.daemon.rules.expressions import ExpressionFacts, check_expressions, look_at_expressions
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.terminal_text import number


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
