"""The checks of rules for rows: `filters.tables`, `routes.tables`, the outbox and `snapshot.queries`.

It is made by `cdcd check` and at every start of a session. A filter that matches no table usually has a misspelled
name, and then the topic has all rows. If rules of routes match no table, all rows are in the table's own topic.

`cdcd check` and every start of a session run them.

A query of `snapshot.queries` is sent as the snapshot would send it, to the role that reads the table, but without rows
(LIMIT 0). So the server finds columns that do not fit, missing rights, and a query that writes or locks.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.quoting import identifier
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.snapshot_queries import without_rows
from cdcd.adapters.postgres.snapshot_reader import CORRECT_QUERY, LOCK_TIMEOUT_S, SnapshotReader
from cdcd.adapters.postgres.tables import source_tables
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
from cdcd.core.snapshot.reading import Changed, KeyQuery, Refused, SourceTable
from cdcd.core.table_names import table_text
from cdcd.daemon.readers import readers_of
from cdcd.daemon.rules.tables import described_tables
from cdcd.telemetry.findings import Finding, of_error
from cdcd.telemetry.terminal_text import number

_ANSWER_BYTES_MAX: Final = 1 << 20
"""Bytes of an answer that has no rows."""

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
    wanted = {table_text(schema, name): table for (schema, name), table in outbox.tables.items()}
    oids = [oid for oid, name in published.items() if name in wanted]
    tables_now = await described_tables(connection, oids) if oids else None
    for relation in () if tables_now is None else tables_now.relations:
        assert tables_now is not None
        try:
            rules = protections.in_force(relation, tables_now.descriptions[relation.oid])
            check_columns(relation, wanted[table_text(relation.schema, relation.name)], rules)
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
        more = sum(table.topics_max for table in outbox.tables.values())
        made = f", whose rows may make {number(more, 'topic')}" if more else ""
        yield Finding("ok", "outbox.source", "outbox", f"events come from {' and '.join(ways)}{made}")


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """Result of applying the queries to the tables.

    Attributes:
        refused: errors of queries that cannot read their tables.
        unmatched: names that no published table has.
        busy: tables that are locked or were altered meanwhile, so that their queries were not applied.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]
    busy: tuple[str, ...] = ()


async def look_at_queries(config: Config, connection: Connection, published: Mapping[int, str]) -> QueryFacts:
    """Apply the queries to the published tables (`schema.table` by oid).

    Raises:
        TransientError, SourceError: the server does not answer, or refuses a role.
    """
    queries, readers = config.snapshot.query_texts, readers_of(config)
    refused: list[ConfigError] = []
    busy: list[str] = []
    for oid, name in published.items():
        if name not in queries:
            continue
        try:
            table = await _as_read(connection, config.postgres.publication, oid)
        except TableBusyError:
            busy.append(name)
            continue
        access = readers.of(*table.place)
        try:
            reader = await SnapshotReader.open(
                access.dsn(),
                application_name=f"{config.name} snapshot queries",
                connect_timeout_s=config.postgres.connect_timeout_s,
                queries={name: without_rows(queries[name])},
                trusted=access.trusted,
            )
        except CdcdError as error:
            raise access.explained(error) from error
        try:
            await reader.take_snapshot()
            answer = await reader.read(KeyQuery(table, (), ()), _ANSWER_BYTES_MAX)
        except TableBusyError:
            busy.append(name)
            continue
        finally:
            reader.close()
        if isinstance(answer, Changed):
            busy.append(name)
        # A missing right on the table itself is the finding of another check.
        elif isinstance(answer, Refused) and answer.hint == CORRECT_QUERY:
            refused.append(ConfigError(f"{name} cannot be read: {answer.reason}", hint=CORRECT_QUERY))
    return QueryFacts(tuple(refused), tuple(sorted(queries.keys() - set(published.values()))), tuple(busy))


async def _as_read(connection: Connection, publication: str, oid: int) -> SourceTable:
    """Return the table with the columns that a snapshot reads.

    The publication may not be there yet. cdcd creates one without column lists, which has no generated columns.

    Raises:
        TableBusyError: another session has locked the table, or it was dropped.
    """
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'".encode())
        found = await source_tables(connection, publication, [oid])
    if found:
        return found[0]
    described = await described_tables(connection, [oid])
    if not described.relations:
        raise TableBusyError("the table was dropped")
    (relation,), table = described.relations, described.descriptions[oid]
    generated = {column.name for column in table.columns if column.generated}
    numbered = zip(table.numbers, relation.columns, strict=True)
    return SourceTable(
        replace(relation, columns=tuple([each for each in relation.columns if each.name not in generated])),
        "",
        (),
        f"{identifier(relation.namespace)}.{identifier(relation.name)}",
        partitioned=table.is_partitioned,
        columns=json.dumps(
            [[place, each.name, each.type_oid, each.type_modifier] for place, each in numbered]
        ),
    )


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
    for name in facts.busy:
        yield Finding(
            "warning",
            "snapshot.query",
            "snapshot.queries",
            f"the query of {name} was not checked, because the table is locked or was altered meanwhile",
            "Run cdcd check again when no other session alters the table.",
        )
    if not facts.refused and not facts.unmatched and not facts.busy:
        yield Finding(
            "ok", "snapshot.query", "snapshot.queries", f"{number(queries, 'table')} read by a query"
        )
