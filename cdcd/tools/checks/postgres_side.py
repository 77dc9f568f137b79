"""What `cdcd check` asks PostgreSQL: facts about the server, and whether the rules of the configuration fit its
tables.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cdcd.adapters.credentials.columns import bindings_of, protections
from cdcd.adapters.kafka.checkpoint import peek_checkpoint
from cdcd.adapters.postgres.connection import Dsn, connect, parse_dsn
from cdcd.adapters.postgres.inspection import ServerFacts, ServerWanted, read_facts
from cdcd.adapters.postgres.money import look_at_money
from cdcd.adapters.postgres.readers import ReadersFacts
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.table_rules import ChosenKeys
from cdcd.core.errors import (
    CdcdError,
)
from cdcd.core.facts import unheard
from cdcd.core.protocol.versions import OPTION_SINCE
from cdcd.core.records.shaping.computing import ComputedFields
from cdcd.core.snapshot.beginning import WHEN_NEEDED
from cdcd.core.table_names import table_text
from cdcd.daemon.rules.readers import ask_about_readers, check_readers
from cdcd.daemon.rules.rows import (
    check_all_routes,
    check_filters,
    check_outbox,
    check_queries,
    look_at_filters,
    look_at_outbox,
    look_at_queries,
    look_at_routes,
    refuse_context,
)
from cdcd.daemon.rules.tables import (
    KeyFacts,
    check_columns,
    check_fields,
    check_keys,
    check_partition_columns,
    look_at_columns,
    look_at_fields,
    look_at_keys,
    look_at_partitions,
)
from cdcd.daemon.settings import (
    checkpoint_topic,
    encoder_settings,
)
from cdcd.telemetry.findings import Finding, of_error
from cdcd.tools.checks import postgres
from cdcd.tools.checks.postgres import check_heartbeat
from cdcd.tools.checks.records import look_at_records

ANSWER_S: Final = 10.0
"""Seconds that the broker may take for an answer."""


CONNECTIONS: Final = 3
"""Number of the daemon's connections besides its walsender and the readers of snapshots: for the lock and two kinds
of look-ups."""


WITH_READERS: Final = 2
"""Connections of cdcd's own role if other roles read: one holds the slot's snapshot, one writes watermarks."""


async def ask_postgres(config: Config) -> tuple[Sequence[Finding], ServerFacts]:
    """Return PostgreSQL's findings, from the settings that a run would use."""
    source = config.postgres
    wanted = ServerWanted(
        slot=source.slot,
        publication=source.publication,
        tables=source.tables,
        topics=config.topic_names(),
        protocol=source.protocol,
        streaming=source.streaming,
        two_phase=source.two_phase,
        failover=source.failover,
        messages=config.hears_messages,
        origin=source.origin,
        binary=source.binary,
        status_interval_s=source.status_interval_s,
        signals=config.snapshot.signals,
        when_needed=config.snapshot.mode == WHEN_NEEDED,
        heals=config.snapshot.lost_slot == "heal",
        truncate=config.writes_truncates,
        signals_from_anybody=config.snapshot.signals_from == "anybody",
        outbox_messages=config.outbox.messages,
        contexts_from_anybody=config.context.enabled and config.context.token is None,
        pipeline=config.name,
        connections=CONNECTIONS
        + (config.snapshot.parallelism if config.snapshot.mode != "never" else 0)
        + (WITH_READERS if source.readers else 0)
        + (config.heartbeat.action_query is not None),
        application_name=f"{config.name} check",
        connect_timeout_s=source.connect_timeout_s,
        selection=config.tables.selection,
        changes=config.postgres.publication_changes,
        trusted=config.postgres.trusted_owners,
    )
    dsn = parse_dsn(*source.access())
    facts = await read_facts(dsn, wanted)
    keys = await _ask_about_keys(config, dsn, facts)
    facts = replace(facts, chosen=keys.chosen, repeating=keys.repeating)
    readers = await _ask_about_readers(config, dsn, facts)
    facts = _with_readers(config, facts, readers)
    money = await look_at_money(
        dsn, application_name=wanted.application_name, connect_timeout_s=wanted.connect_timeout_s
    )
    hears = config.hears_messages and facts.server_version >= OPTION_SINCE["messages"]
    silent = refuse_context(config.context, hears_messages=hears)
    findings = [
        *postgres.examine(facts, wanted),
        *([] if silent is None else [of_error("context.source", "context", silent)]),
        *postgres.check_money(money, config.money.digits),
        *check_keys(keys),
        *check_readers(readers, config),
    ]
    if not keys.refused:
        findings += await _ask_about_rules(config, dsn, facts)
        findings += await _ask_about_records(config, dsn, facts, findings)
    # A standby waits for the primary, where it checks again.
    if not facts.session.in_recovery:
        findings += await check_heartbeat(config, dsn)
    return findings, facts


async def _ask_about_keys(config: Config, dsn: Dsn, facts: ServerFacts) -> KeyFacts:
    """Check `key.columns` against the published tables, and that partitions send the values of keys."""
    keys = encoder_settings(config, "").chosen_keys
    if not facts.tables:
        return KeyFacts()
    connection = await connect(
        dsn,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    try:
        return await look_at_keys(connection, [table.oid for table in facts.tables], keys)
    finally:
        await connection.close()


async def _ask_about_readers(config: Config, dsn: Dsn, facts: ServerFacts) -> ReadersFacts:
    """Read the owners of the tables and the roles that read them."""
    connection = await connect(
        dsn,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    try:
        tables = {table.oid: table.qualified for table in facts.tables}
        return await ask_about_readers(config, connection, tables)
    finally:
        await connection.close()


def _with_readers(config: Config, facts: ServerFacts, readers: ReadersFacts) -> ServerFacts:
    """Return the facts with the barriers of each table's own reader."""
    if not config.postgres.readers:
        return _with_lists(facts)
    of_readers = {table_text(*table) for table, place in readers.places.items() if place is not None}
    own = [one for one in facts.barriers if one.table not in of_readers]
    return _with_lists(
        replace(facts, barriers=(*own, *[one for each in readers.readers for one in each.barriers]))
    )


def _with_lists(facts: ServerFacts) -> ServerFacts:
    """Return the facts without barriers that do not matter because of column lists."""
    lists = {table.qualified: table.columns for table in facts.tables}
    kept = [one.with_list(lists.get(one.table)) for one in facts.barriers]
    return replace(facts, barriers=tuple([one for one in kept if one is not None]))


async def _ask_about_rules(config: Config, dsn: Dsn, facts: ServerFacts) -> list[Finding]:
    """Check `columns`, `fields`, `filters`, `partitioner`, `routes`, `outbox` and `snapshot.queries` against the
    published tables.
    """
    bindings = await asyncio.to_thread(_bound_columns, config)
    rules = protections(config.columns, bindings)
    outbox, filters = config.outbox.settings, config.filters.settings
    settings = encoder_settings(config, "", bindings=bindings)
    partitions, fields, routes = settings.chosen_partitions, settings.chosen_fields, config.routes.settings
    queries = config.snapshot.queries
    computed = ComputedFields(settings.computed_rules, rules, unheard)
    if not any((rules.rules, outbox.is_on, filters, partitions, fields, routes, queries)):
        return []
    connection = await connect(
        dsn,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    published = {table.oid: table_text(table.schema, table.name) for table in facts.tables}
    found: list[Finding] = []
    try:
        if rules.rules:
            keys = ChosenKeys(config.key.rules)
            found += check_columns(await look_at_columns(connection, published.keys(), rules, keys))
        if filters:
            found += check_filters(
                await look_at_filters(connection, published.keys(), filters, rules), len(filters)
            )
        if partitions:
            found += check_partition_columns(
                await look_at_partitions(connection, published.keys(), partitions, settings.chosen_keys)
            )
        if fields:
            found += check_fields(await look_at_fields(connection, published.keys(), fields, computed))
        if routes:
            met_by_routes = await look_at_routes(connection, published.keys(), routes, rules)
            found += check_all_routes(met_by_routes, len(routes))
        if queries:
            found += check_queries(await look_at_queries(config, connection, published), len(queries))
        if outbox.is_on:
            hears = config.hears_messages and facts.server_version >= OPTION_SINCE["messages"]
            met = await look_at_outbox(connection, published, outbox, rules, hears_messages=hears)
            found += check_outbox(met, outbox)
    finally:
        await connection.close()
    return found


async def _ask_about_records(
    config: Config, dsn: Dsn, facts: ServerFacts, findings: Sequence[Finding]
) -> list[Finding]:
    """Find tables that have no records in the chosen format. A finding of a rule's own check is not repeated."""
    if not facts.tables:
        return []
    connection = await connect(
        dsn,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    try:
        bindings = await asyncio.to_thread(_bound_columns, config)
        settings = encoder_settings(config, facts.session.database, bindings=bindings)
        refused = await look_at_records(connection, [table.oid for table in facts.tables], settings)
    finally:
        await connection.close()
    told = {one.found for one in findings}
    return [of_error("format.table", table, error) for table, error in refused if error.message not in told]


def _bound_columns(config: Config) -> Bindings:
    """Return the columns that rules are bound to; none if Kafka does not answer, which other findings report."""
    if not config.columns.patterns:
        return Bindings()
    try:
        found = peek_checkpoint(checkpoint_topic(config, ANSWER_S))
        return bindings_of(config.columns, found)
    except CdcdError:
        return Bindings()
