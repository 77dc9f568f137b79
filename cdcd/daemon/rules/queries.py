"""The check of `snapshot.queries`: whether each query can read its table, with the role that reads the table.

It is made by `cdcd check` and at every start of a session. PostgreSQL parses each query, and compares the columns that
it returns with those of the table. It neither plans nor runs the query, so nothing of a table's owner runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.replication import identifier
from cdcd.adapters.postgres.snapshot_reader import CORRECT_QUERY, SnapshotReader
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.core.snapshot.reading import SourceTable
from cdcd.daemon.reader_settings import readers_of
from cdcd.telemetry.findings import Finding, of_error
from cdcd.telemetry.terminal_text import number


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """Result of applying the queries to the tables.

    Attributes:
        refused: errors of queries that cannot read their tables.
        unmatched: names that no published table has.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]


async def look_at_queries(config: Config, connection: Connection, published: Mapping[int, str]) -> QueryFacts:
    """Apply the queries to the published tables (`schema.table` by oid).

    Raises:
        TransientError, SourceError: the server does not answer, or refuses a role.
    """
    queries, readers = config.snapshot.queries, readers_of(config)
    oids = [oid for oid, name in published.items() if name in queries]
    refused: list[ConfigError] = []
    for relation in await catalog.relations(connection, oids):
        sql_name = f"{identifier(relation.namespace)}.{identifier(relation.name)}"
        table = SourceTable(relation, "", (), sql_name)
        access = readers.of(table.name)
        try:
            reader = await SnapshotReader.open(
                access.dsn(),
                application_name=f"{config.name} snapshot queries",
                connect_timeout_s=config.postgres.connect_timeout_s,
            )
        except CdcdError as error:
            raise access.explained(error) from error
        try:
            problem = await reader.misfit(table, queries[table.name])
        finally:
            reader.close()
        if problem:
            refused.append(
                ConfigError(
                    f"{table.name} cannot be read: {problem}",
                    hint=CORRECT_QUERY,
                )
            )
    return QueryFacts(tuple(refused), tuple(sorted(queries.keys() - set(published.values()))))


def check_queries(facts: QueryFacts, queries: int) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about this number of queries."""
    for error in facts.refused:
        yield of_error("snapshot.query", "snapshot.queries", error)
    for name in facts.unmatched:
        yield Finding(
            "warning",
            "snapshot.query_unmatched",
            "snapshot.queries",
            f"snapshot.queries.{name} is the name of no published table, so the query is not used",
            "Correct the name, or remove the query: <schema>.<table> as PostgreSQL spells it.",
        )
    if not facts.refused and not facts.unmatched:
        yield Finding(
            "ok", "snapshot.query", "snapshot.queries", f"{number(queries, 'table')} read by a query"
        )
