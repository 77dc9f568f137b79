"""The checks of rules for rows: `filters.tables`, `routes.tables`, the outbox and `snapshot.queries`.

It is made by `cdcd check` and at every start of a session. A filter that matches no table usually has a misspelled
name, and then the topic has all rows. If rules of routes match no table, all rows are in the table's own topic.

`cdcd check` and every start of a session run them.

It is made by `cdcd check` and at every start of a session. PostgreSQL parses each query, and compares the columns that
it returns with those of the table. It neither plans nor runs the query, so nothing of a table's owner runs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.quoting import identifier
from cdcd.adapters.postgres.snapshot_reader import CORRECT_QUERY, SnapshotReader
from cdcd.config.loading import Config
from cdcd.config.sections.context import ContextConfig
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import TableRules
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.shaping.filtering import check_filter, table_filters
from cdcd.core.records.shaping.outbox import check_columns
from cdcd.core.records.shaping.routed import check_routes, table_routes
from cdcd.core.records.shaping.settings import Outbox, TableFilter, TableRoutes
from cdcd.core.snapshot.reading import SourceTable
from cdcd.daemon.readers import readers_of
from cdcd.daemon.rules.tables import described_tables
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


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """Result of checking the outbox against the database.

    Attributes:
        refused: errors of unsuitable outbox tables, at most one for each, and of a server that sends no messages.
        unpublished: outbox tables that are not in the publication, as `schema.table`.
    """

    refused: tuple[ConfigError, ...]
    unpublished: tuple[str, ...]


async def look_at_outbox(
    connection: Connection,
    published: Mapping[int, str],
    outbox: Outbox,
    protections: Protections,
    *,
    hears_messages: bool,
) -> OutboxFacts:
    """Check the outbox against the published tables, which are `schema.table` by oid.

    Args:
        hears_messages: True if the server sends logical messages.

    Raises:
        TransientError, SourceError.
    """
    refused: list[ConfigError] = []
    if outbox.messages and not hears_messages:
        refused.append(
            ConfigError(
                "outbox.messages is on, and this server sends no logical messages, which PostgreSQL 14 and up do.",
                hint="Set outbox.messages: false and use an outbox table (outbox.tables), or upgrade the server.",
            )
        )
    wanted = {f"{schema}.{name}": table for (schema, name), table in outbox.tables.items()}
    oids = [oid for oid, name in published.items() if name in wanted]
    tables_now = await described_tables(connection, oids) if oids else None
    for relation in () if tables_now is None else tables_now.relations:
        assert tables_now is not None
        try:
            rules = protections.in_force(relation, tables_now.descriptions[relation.oid])
            check_columns(relation, wanted[f"{relation.schema}.{relation.name}"], rules)
        except ConfigError as error:
            refused.append(error)
    return OutboxFacts(tuple(refused), tuple(sorted(wanted.keys() - published.values())))


def refuse_context(context: ContextConfig, *, hears_messages: bool) -> ConfigError | None:
    """Return the refusal to start with a context that no message can give; None if the pipeline may start.

    Args:
        hears_messages: True if the server sends logical messages.
    """
    if not context.enabled or hears_messages:
        return None
    return ConfigError(
        "context.enabled is on, and this server sends no logical messages, which PostgreSQL 14 and up do.",
        hint="Set context.enabled: false, or upgrade the server.",
    )


def check_outbox(facts: OutboxFacts, outbox: Outbox) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the outbox."""
    for error in facts.refused:
        yield of_error("outbox.source", "outbox", error)
    for table in facts.unpublished:
        yield Finding(
            "warning",
            "outbox.unpublished",
            "outbox",
            f"outbox.tables has {table}, which is not published: none of its rows is an event",
            f"Add {table} to the publication, or correct the name: <schema>.<table> as PostgreSQL spells it. Of a "
            "partitioned table, this is the name under which its changes are published.",
        )
    if not facts.refused and not facts.unpublished:
        ways = [number(len(outbox.tables), "table")] * bool(outbox.tables) + ["messages"] * outbox.messages
        yield Finding("ok", "outbox.source", "outbox", f"events come from {' and '.join(ways)}")


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
