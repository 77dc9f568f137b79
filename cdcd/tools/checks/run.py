"""Runs `cdcd check` on this machine, on each side (PostgreSQL: `postgres_side.py`), and on the combination of the
sides; nothing is changed.

A side that does not answer is a finding too, and its error's exit code becomes the command's, because it is more
specific than the code for findings. The other side is still checked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.errors import filled
from cdcd.adapters.kafka.principal import identity_of
from cdcd.adapters.kafka.producer import (
    TIMEOUT_REFUSED_MS,
    construct,
    producer_properties,
    try_transactional_id,
)
from cdcd.adapters.kafka.shared_id import SUFFIX, shared_hint
from cdcd.adapters.postgres.inspection import ServerFacts
from cdcd.adapters.postgres.publication import OPERATIONS
from cdcd.config.loading import Config
from cdcd.core.catalog.patterns import parse_pattern
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
from cdcd.daemon.process import FILES_MIN, file_limit
from cdcd.daemon.settings import (
    TRANSACTION_S,
    names,
    own_topics,
    sink_settings,
    topic_spec,
)
from cdcd.telemetry.findings import Finding, of_error
from cdcd.telemetry.terminal_text import number, plain
from cdcd.tools.checks import kafka, machine
from cdcd.tools.checks.claims import check_claims
from cdcd.tools.checks.kafka import TableTopic, check_existing
from cdcd.tools.checks.postgres_side import ANSWER_S, ask_postgres
from cdcd.tools.checks.publication import check_root_topics, check_rows
from cdcd.tools.checks.records import SUBJECT, ask_registry
from cdcd.tools.checks.rehearsal import ID_SEARCH_S, RehearsalOutcome, rehearse

FOUND_ERROR: Final = 10
"""Exit code if both sides answered and there is an error (`errors.EXIT_CODES`)."""


KAFKA: Final = 4
"""Exit code if the broker does not answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings, first this machine's, then PostgreSQL's, with the resulting exit code."""

    findings: tuple[Finding, ...]
    exit_code: int


@dataclass(frozen=True, slots=True)
class Side(Generic[T]):
    """Answer of one side: its findings and facts; without an answer, None and an exit code."""

    findings: Sequence[Finding]
    facts: T | None
    exit_code: int = 0


def examine(config: Config) -> CheckReport:
    """Check both sides, and then their combination.

    Failures of PostgreSQL, Kafka and the machine are findings, and not raised.

    If this process may open fewer files than a daemon needs, the report has only that finding, because the
    connections of the other checks could fail anywhere.
    """
    limit = file_limit()
    if limit is not None and limit < FILES_MIN:
        return CheckReport(tuple(machine.check_files(config)), LimitError.exit_code)
    return asyncio.run(_examine(config))


async def _examine(config: Config) -> CheckReport:
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
    return CheckReport(
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


async def ask_kafka(config: Config) -> tuple[Sequence[Finding], kafka.BrokerFacts]:
    """Return Kafka's findings, from the settings that a run would use, without those about topics of tables."""
    return await asyncio.to_thread(_ask_kafka, config)


def _ask_kafka(config: Config) -> tuple[Sequence[Finding], kafka.BrokerFacts]:
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


def kafka_wanted(config: Config) -> kafka.BrokerWanted:
    """Return the Kafka part of the configuration that does not depend on tables."""
    sink, topics = config.kafka, config.topics
    connection, producer = client.configured(sink)
    largest = str(producer.get("message.max.bytes", kafka.MESSAGE_MAX_BYTES))
    return kafka.BrokerWanted(
        topics=own_topics(config, messages=config.delivers_messages is not False or config.outbox.messages),
        checkpoint=config.topics.checkpoint,
        spec=topic_spec(config),
        exactly_once=sink.delivery == "exactly_once",
        transaction_timeout_s=sink.transaction.timeout_s,
        # A value that is not a number is refused by librdkafka with its own message.
        message_max_bytes=int(largest) if largest.isdecimal() else kafka.MESSAGE_MAX_BYTES,
        schemas=config.topics.schemas,
        identity=identity_of(connection),
        prefix=config.topics.prefix,
        reads=[
            name
            for name in (topics.checkpoint, topics.schemas, topics.claims, config.snapshot.signal_topic)
            if name
        ],
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
    config: Config, source: ServerFacts, sink: kafka.BrokerFacts, findings: Sequence[Finding]
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
        found += await asyncio.to_thread(_ask_about_topics, config, source, outcome)
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


def _may_ask_for_id(
    config: Config, source: ServerFacts, sink: kafka.BrokerFacts, findings: Sequence[Finding]
) -> bool:
    """Return True if the right on the transactional id is to be checked.

    An active instance has the right, and must not be disturbed. Brokers that allow any timeout would not refuse the
    request, and brokers that cannot keep their transaction log would not answer.
    """
    has_log = not any(one.code == "transaction.log" and one.level == "error" for one in findings)
    answers = has_log and sink.timeout_max_ms != TIMEOUT_REFUSED_MS
    return config.kafka.delivery == "exactly_once" and not source.active and answers


def _ignored(config: Config, outcome: RehearsalOutcome) -> list[Finding]:
    """Report ignored records of the checkpoint topic, which another client wrote."""
    ignored = outcome.ignored
    if ignored is None:
        return []
    return [
        Finding(
            "warning",
            "topic.ignored",
            f"topic {config.topics.checkpoint}",
            f"{number(ignored.count, 'record')} from offset {ignored.first} to {ignored.last} are ignored: "
            f"{plain(ignored.why)}",
            "Find out who writes there, and let only the pipeline's principal write to the topic (deploy/acl.md).",
        )
    ]


def _sharers(config: Config, outcome: RehearsalOutcome) -> list[Finding]:
    """Report other pipelines that use the transactional id, if they do not refuse the start."""
    used = config.kafka.transactional_id
    subject = f"transactional id {used}"
    found = [
        Finding(
            "warning",
            "transaction.id",
            subject,
            f"the newest checkpoint of {plain(each.told)} names this id, too: two pipelines with one id end each other",
            shared_hint(each, used),
        )
        for each in outcome.id_search.sharers
    ]
    if outcome.id_search.unread:
        unread = number(outcome.id_search.unread, "topic")
        found.append(
            Finding(
                "warning",
                "transaction.id",
                subject,
                f"{unread} named *{SUFFIX} were not read in {ID_SEARCH_S:g} s, so it is not known whether another "
                "pipeline uses this id",
                "Delete the topics of pipelines that are gone. List the topics with kafka-topics --list.",
            )
        )
    return found


def _lost_checkpoint(config: Config, source: ServerFacts, sink: kafka.BrokerFacts) -> Finding | None:
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
    config: Config,
    outcome: RehearsalOutcome,
    findings: Sequence[Finding],
    source: ServerFacts,
    sink: kafka.BrokerFacts,
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


def _ask_about_topics(config: Config, source: ServerFacts, outcome: RehearsalOutcome) -> list[Finding]:
    """Return findings about the topics of the published tables, and those that rows of outbox tables have made."""
    made = [topic for topic in outcome.made_topics if config.outbox.settings.makes(topic)]
    topic_names = config.topic_names()
    operations = source.publication.operations if source.publication else OPERATIONS
    has_constants = any(form.constants for form in config.key.forms.values())
    tables = {
        topic: TableTopic(
            table.qualified,
            keyless=not table.has_key and table.qualified not in source.chosen,
            repeats=not has_constants
            and any(each.topic == topic and not each.key_field for each in config.topics.shared_topics),
            truncated=config.topics.writes_truncates and "truncate" in operations,
            whole=table.replica_identity == "f",
            marked=config.heartbeat.watermark_interval_s > 0,
            outdated=table.qualified in outcome.reading.outdated,
        )
        # Of the tables that share a topic, a table without a key decides.
        for table in sorted(source.tables, key=lambda each: not each.has_key)
        for topic in topic_names.all_of(table.schema, table.name)
    }
    unmatched = list(_shared_by_no_table(config, source))
    if not tables and not made:
        return unmatched
    wanted = replace(kafka_wanted(config), topics=[*tables, *made], tables=tables)
    facts = kafka.read_facts(_admin(config), wanted)
    found = kafka.examine(facts, wanted, (*kafka.TOPICS, check_existing))
    return [
        *unmatched,
        *found,
        *check_claims(_admin(config), config, [*tables, *made]),
        *check_root_topics(source, topic_names, facts.names),
    ]


def _shared_by_no_table(config: Config, source: ServerFacts) -> Iterator[Finding]:
    """Report patterns of `topics.shared` that match no published table."""
    for topic, shared in config.topics.shared.items():
        for text in shared.tables:
            pattern = parse_pattern(text, "topics.shared")
            if not any(pattern.matches(table.schema, table.name) for table in source.tables):
                yield Finding(
                    "warning",
                    "topics.unmatched",
                    "topics.shared",
                    f"{text} matches no published table, so no record goes to {topic} because of it",
                    "Correct the pattern, or remove it: <schema>.<table> as PostgreSQL spells them.",
                )
