"""Runs `cdcd check` on this machine, on each side, and on the combination of the sides; nothing is changed.

A side that does not answer is a finding too, and its error's exit code becomes the command's, because it is more
specific than the code for findings. The other side is still checked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from cdcd.adapters.credentials.columns import bindings_of, protections
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.checkpoint import peek_checkpoint
from cdcd.adapters.kafka.errors import filled
from cdcd.adapters.kafka.producer import (
    TIMEOUT_REFUSED_MS,
    construct,
    producer_properties,
    try_transactional_id,
)
from cdcd.adapters.kafka.rights import principal_of
from cdcd.adapters.kafka.shared_id import shared_hint
from cdcd.adapters.postgres.connection import Dsn, connect, parse_dsn
from cdcd.adapters.postgres.inspection import Facts, Wanted, read_facts
from cdcd.adapters.postgres.money import look_at_money
from cdcd.adapters.postgres.publication import OPERATIONS
from cdcd.adapters.postgres.readers import ReadersFacts
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.table_rules import ChosenKeys
from cdcd.core.errors import (
    CdcdError,
    ConfigError,
    FencedError,
    LimitError,
    PositionError,
    SinkError,
    TransientError,
)
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.versions import OPTION_SINCE
from cdcd.core.snapshot.beginning import WHEN_NEEDED
from cdcd.daemon.process import FILES_MIN, file_limit
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
    TRANSACTION_S,
    checkpoint_topic,
    encoder_settings,
    names,
    own_topics,
    sink_settings,
    topic_spec,
)
from cdcd.telemetry.findings import Finding, of_error
from cdcd.telemetry.terminal_text import number, plain
from cdcd.tools.checks import kafka, machine, postgres
from cdcd.tools.checks.kafka import TableTopic, check_existing
from cdcd.tools.checks.postgres import check_heartbeat
from cdcd.tools.checks.publication import check_root_topics, check_rows
from cdcd.tools.checks.records import SUBJECT, ask_registry, look_at_records
from cdcd.tools.checks.rehearsal import Outcome, rehearse

FOUND_ERROR: Final = 10
"""Exit code if both sides answered and there is an error (`errors.EXIT_CODES`)."""

ANSWER_S: Final = 10.0
"""Seconds that the broker may take for an answer."""

CONNECTIONS: Final = 3
"""Number of the daemon's connections besides its walsender and the readers of snapshots: for the lock and two kinds
of look-ups."""

WITH_READERS: Final = 2
"""Connections of cdcd's own role if other roles read: one holds the slot's snapshot, one writes watermarks."""

KAFKA: Final = 4
"""Exit code if the broker does not answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, first this machine's, then PostgreSQL's, with the resulting exit code."""

    findings: tuple[Finding, ...]
    exit_code: int


@dataclass(frozen=True, slots=True)
class Side(Generic[T]):
    """Answer of one side: its findings and facts; without an answer, None and an exit code."""

    findings: Sequence[Finding]
    facts: T | None
    exit_code: int = 0


def examine(config: Config) -> Report:
    """Check both sides, and then their combination.

    Failures of PostgreSQL, Kafka and the machine are findings, and not raised.

    If this process may open fewer files than a daemon needs, the report has only that finding, because the
    connections of the other checks could fail anywhere.
    """
    limit = file_limit()
    if limit is not None and limit < FILES_MIN:
        return Report(tuple(machine.check_files(config)), LimitError.exit_code)
    return asyncio.run(_examine(config))


async def _examine(config: Config) -> Report:
    here, source, sink, registry = await asyncio.gather(
        asyncio.to_thread(lambda: list(machine.examine(config))),
        asked("PostgreSQL", "postgres", config, ask_postgres),
        asked("Kafka", "kafka", config, ask_kafka),
        asked(SUBJECT, "registry", config, ask_registry),
    )
    findings = [*here, *source.findings, *sink.findings, *registry.findings]
    if source.facts is not None and sink.facts is not None:
        # The two run one after the other, because each of PostgreSQL's checks may use the last free walsender.
        findings += await ask_both(config, source.facts, sink.facts, findings)
    findings.append(machine.check_code())
    known = names(config)
    wrong = FOUND_ERROR if any(finding.level == "error" for finding in findings) else 0
    return Report(
        tuple(replace(one, fix=filled(one.fix, known)) for one in findings),
        source.exit_code or sink.exit_code or registry.exit_code or wrong,
    )


Ask = Callable[[Config], Awaitable[tuple[Sequence[Finding], T]]]


async def asked(subject: str, side: str, config: Config, ask: Ask[T]) -> Side[T]:
    """Return the side's answer, or its error as a finding."""
    try:
        findings, facts = await ask(config)
    except CdcdError as error:
        code = KAFKA if side != "postgres" and isinstance(error, TransientError) else error.exit_code
        return Side([of_error(_code(side, error), subject, error)], None, code)
    return Side(findings, facts)


def _code(side: str, error: CdcdError) -> str:
    if isinstance(error, ConfigError):
        return {"postgres": "postgres.setting", "kafka": "kafka.property", "registry": "registry.setting"}[
            side
        ]
    return f"{side}.{'unreachable' if isinstance(error, TransientError) else 'refused'}"


async def ask_postgres(config: Config) -> tuple[Sequence[Finding], Facts]:
    """Return PostgreSQL's findings, from the settings that a run would use."""
    source = config.postgres
    wanted = Wanted(
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
    findings = [
        *postgres.examine(facts, wanted),
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


async def _ask_about_keys(config: Config, dsn: Dsn, facts: Facts) -> KeyFacts:
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


async def _ask_about_readers(config: Config, dsn: Dsn, facts: Facts) -> ReadersFacts:
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


def _with_readers(config: Config, facts: Facts, readers: ReadersFacts) -> Facts:
    """Return the facts with the barriers of each table's own reader."""
    if not config.postgres.readers:
        return _with_lists(facts)
    own = [one for one in facts.barriers if readers.names.get(one.table) is None]
    return _with_lists(
        replace(facts, barriers=(*own, *[one for each in readers.readers for one in each.barriers]))
    )


def _with_lists(facts: Facts) -> Facts:
    """Return the facts without barriers that do not matter because of column lists."""
    lists = {table.qualified: table.columns for table in facts.tables}
    kept = [one.with_list(lists.get(one.table)) for one in facts.barriers]
    return replace(facts, barriers=tuple([one for one in kept if one is not None]))


async def _ask_about_rules(config: Config, dsn: Dsn, facts: Facts) -> list[Finding]:
    """Check `columns`, `fields`, `filters`, `partitioner`, `routes`, `outbox` and `snapshot.queries` against the
    published tables.
    """
    bindings = await asyncio.to_thread(_bound_columns, config)
    rules = protections(config.columns, bindings)
    outbox, filters = config.outbox.settings, config.filters.settings
    settings = encoder_settings(config, "", bindings=bindings)
    partitions, fields, routes = settings.chosen_partitions, settings.chosen_fields, config.routes.settings
    queries = config.snapshot.queries
    if not any((rules.rules, outbox.is_on, filters, partitions, fields, routes, queries)):
        return []
    connection = await connect(
        dsn,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    published = {table.oid: f"{table.schema}.{table.name}" for table in facts.tables}
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
            found += check_fields(await look_at_fields(connection, published.keys(), fields))
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
    config: Config, dsn: Dsn, facts: Facts, findings: Sequence[Finding]
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


async def ask_kafka(config: Config) -> tuple[Sequence[Finding], kafka.Facts]:
    """Return Kafka's findings, from the settings that a run would use, without those about topics of tables."""
    return await asyncio.to_thread(_ask_kafka, config)


def _ask_kafka(config: Config) -> tuple[Sequence[Finding], kafka.Facts]:
    timeout_s = config.kafka.transaction.timeout_s
    _construct(config, timeout_s or kafka.TIMEOUT_MAX_MS / 1000)
    wanted = kafka_wanted(config)
    facts = kafka.read_facts(_admin(config), wanted)
    findings = kafka.examine(facts, wanted, (*kafka.BROKER, *kafka.TOPICS, check_existing))
    if timeout_s is None and facts.timeout_max_ms != kafka.TIMEOUT_MAX_MS:
        try:
            _construct(config, facts.timeout_max_ms / 1000 if facts.timeout_max_ms else TRANSACTION_S)
        except CdcdError as error:
            findings.append(of_error("kafka.property", "kafka.properties", error))
    return findings, facts


def kafka_wanted(config: Config) -> kafka.Wanted:
    """Return the Kafka part of the configuration that does not depend on tables."""
    sink = config.kafka
    connection, producer = client.configured(sink)
    largest = str(producer.get("message.max.bytes", kafka.MESSAGE_MAX_BYTES))
    return kafka.Wanted(
        topics=own_topics(config, messages=config.delivers_messages is not False or config.outbox.messages),
        checkpoint=config.topics.checkpoint,
        spec=topic_spec(config),
        exactly_once=sink.delivery == "exactly_once",
        transaction_timeout_s=sink.transaction.timeout_s,
        # A value that is not a number is refused by librdkafka with its own message.
        message_max_bytes=int(largest) if largest.isdecimal() else kafka.MESSAGE_MAX_BYTES,
        schemas=config.topics.schemas,
        principal=principal_of(connection),
        reads_schemas=bool(config.topics.schemas) and config.registry.url is not None,
    )


def _admin(config: Config) -> Admin:
    connection, _ = client.configured(config.kafka)
    return Admin(connection, ANSWER_S)


def _construct(config: Config, timeout_s: float) -> None:
    """Create the producer of a run, to check that librdkafka accepts the properties; nothing is sent."""
    settings = sink_settings(config, timeout_s)
    where = f"Kafka at {config.kafka.bootstrap_servers}"
    construct(producer_properties(settings, settings.client, settings.batch_size, lambda *_: None), where)


async def ask_both(
    config: Config, source: Facts, sink: kafka.Facts, findings: Sequence[Finding]
) -> list[Finding]:
    """Return findings that need both sides: resume position, tables to read, and topics of the tables.

    Args:
        findings: findings of the sides. They are not repeated.
    """
    outcome = await rehearse(config, source)
    found = [
        *_position(config, outcome, findings, source, sink),
        *_ignored(config, outcome),
        *_sharers(config, outcome),
        *check_rows(source, outcome.reading),
    ]
    try:
        found += await asyncio.to_thread(_ask_about_topics, config, source, outcome.reading.outdated)
        if _may_ask_for_id(config, source, sink, findings):
            settings = sink_settings(config, TRANSACTION_S)
            refusal = await asyncio.to_thread(try_transactional_id, settings, ANSWER_S)
            subject = f"transactional id {settings.transactional_id}"
            found.append(
                Finding("ok", "transaction.id", subject, "this principal may write by it")
                if refusal is None
                else of_error("transaction.id", subject, refusal)
            )
    except CdcdError as error:
        found.append(of_error(_code("kafka", error), "Kafka", error))
    return found


def _may_ask_for_id(config: Config, source: Facts, sink: kafka.Facts, findings: Sequence[Finding]) -> bool:
    """Return True if the right on the transactional id is to be checked.

    An active instance has the right, and must not be disturbed. Brokers that allow any timeout would not refuse the
    request, and brokers that cannot keep their transaction log would not answer.
    """
    has_log = not any(one.code == "transaction.log" and one.level == "error" for one in findings)
    answers = has_log and sink.timeout_max_ms != TIMEOUT_REFUSED_MS
    return config.kafka.delivery == "exactly_once" and not source.active and answers


def _ignored(config: Config, outcome: Outcome) -> list[Finding]:
    """Report ignored records of the checkpoint topic, which another client wrote."""
    ignored = outcome.ignored
    if ignored is None:
        return []
    return [
        Finding(
            "warning",
            "topic.ignored",
            f"topic {config.topics.checkpoint}",
            f"{number(ignored.count, 'record')} from offset {ignored.first} to {ignored.last} do not count: "
            f"{plain(ignored.why)}",
            "Find out who writes there, and let only the pipeline's principal write to the topic (deploy/acl.md).",
        )
    ]


def _sharers(config: Config, outcome: Outcome) -> list[Finding]:
    """Report other pipelines that use the transactional id, if they do not refuse the start."""
    used = config.kafka.transactional_id
    return [
        Finding(
            "warning",
            "transaction.id",
            f"transactional id {used}",
            f"the newest checkpoint of {plain(each.told)} names this id, too: two pipelines with one id end each other",
            shared_hint(each, used),
        )
        for each in outcome.sharers
    ]


def _lost_checkpoint(config: Config, source: Facts, sink: kafka.Facts) -> Finding | None:
    """Report a lost checkpoint: a pipeline with a slot and a topic of descriptions has delivered before."""
    slot, schemas = source.slot, config.topics.schemas
    if slot is None or slot.confirmed_flush_lsn is None or not schemas or schemas not in sink.names:
        return None
    return Finding(
        "warning",
        "position.state",
        f"topic {config.topics.checkpoint}",
        f"it has no checkpoint, although slot {slot.name} and topic {schemas} are there. If the topic was deleted or "
        f"emptied, the next start goes on where the slot stands ({Lsn(slot.confirmed_flush_lsn)}): records that Kafka "
        "has already come twice, and an unfinished snapshot is not continued",
        "Restore the topic if you can. To begin again with all rows: cdcd reset --yes.",
    )


def _position(
    config: Config, outcome: Outcome, findings: Sequence[Finding], source: Facts, sink: kafka.Facts
) -> list[Finding]:
    refusal = outcome.refusal
    if refusal is None:
        where = (
            f"goes on after {outcome.position}"
            if outcome.has_checkpoint
            else f"there is no checkpoint in {config.topics.checkpoint}: begins where the slot stands"
        )
        changed = [
            Finding(
                "warning",
                "records.setting",
                each.setting,
                f"it has changed since the pipeline ran last. {each.effect}",
                each.hint,
            )
            for each in outcome.changed
        ]
        lost = None if outcome.has_checkpoint else _lost_checkpoint(config, source, sink)
        return [lost or Finding("ok", "position.state", "position", where), *changed]
    errors = [one for one in findings if one.level == "error"]
    if any(one.found == refusal.message for one in errors):
        return []
    if isinstance(refusal, PositionError):
        return [of_error("position.state", "position", refusal)]
    if isinstance(refusal, LimitError):
        return [of_error("spool.durable", "spool.durable_directory", refusal)]
    if isinstance(refusal, FencedError):
        return [of_error("transaction.id", f"transactional id {config.kafka.transactional_id}", refusal)]
    if isinstance(refusal, SinkError):
        return [of_error("topic.checkpoint", f"topic {config.topics.checkpoint}", refusal)]
    # Refusals that a side has already reported are not repeated. A refusal that no side has reported must not be
    # missing.
    return [] if errors else [of_error("start.refused", "start", refusal)]


def _ask_about_topics(config: Config, source: Facts, outdated: Collection[str]) -> list[Finding]:
    """Return findings about the topics of the published tables.

    `outdated`: tables whose former rows the next start ends.
    """
    topic_names = config.topic_names()
    operations = source.publication.operations if source.publication else OPERATIONS
    tables = {
        topic: TableTopic(
            table.qualified,
            keyless=not table.has_key and table.qualified not in source.chosen,
            truncated=config.topics.writes_truncates and "truncate" in operations,
            whole=table.replica_identity == "f",
            marked=config.heartbeat.watermark_interval_s > 0,
            outdated=table.qualified in outdated,
        )
        for table in source.tables
        for topic in topic_names.all_of(table.schema, table.name)
    }
    if not tables:
        return []
    wanted = replace(kafka_wanted(config), topics=list(tables), tables=tables)
    facts = kafka.read_facts(_admin(config), wanted)
    found = kafka.examine(facts, wanted, (*kafka.TOPICS, check_existing))
    return [*found, *check_root_topics(source, topic_names, facts.names)]
