"""Settings of decisions and clients from the configuration, the same for `cdcd run` and `cdcd check`."""

import hmac
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from cdcd import __version__
from cdcd.adapters.credentials.columns import PROCESS_KEY, checkpoint_keys, protections
from cdcd.adapters.credentials.tokens import request_tokens
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.checkpoint import CheckpointTopic, CheckpointWriter
from cdcd.adapters.kafka.claim_store import ClaimBucket, ClaimDirectory, ClaimStore
from cdcd.adapters.kafka.producer import SinkSettings
from cdcd.adapters.kafka.shared_id import IdUse
from cdcd.adapters.kafka.topics import TopicSpec
from cdcd.adapters.postgres.following import Desired
from cdcd.config.loading import Config
from cdcd.config.sections.columns import ColumnsConfig
from cdcd.config.sections.kafka import KafkaConfig
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.engine.checkpoint import RecordSettings
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.engine.context import PREFIX as CONTEXT_PREFIX
from cdcd.core.engine.feedback import interval_for
from cdcd.core.engine.record_settings import CHANGES
from cdcd.core.engine.settings import EngineSettings
from cdcd.core.engine.startup_rules import StartSettings
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.shortened import UNLIMITED, MessageLimits
from cdcd.core.protocol.versions import OPTION_SINCE
from cdcd.core.records.cloud_events import CLOUDEVENTS
from cdcd.core.records.encoder import SKIPPABLE, EncoderSettings
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.core.records.shaping.publishing import PREFIX as PUBLISHED_PREFIX
from cdcd.core.snapshot.signals import CONTENT_MAX, RESERVED

_KEYS: Final = ("hash_key", "encryption_key")

TRANSACTION_S: Final = 60.0
"""Timeout of Kafka transactions in seconds, if the brokers' maximum is unknown."""


def start_settings(config: Config) -> StartSettings:
    """Return the part of the configuration that affects the decisions of a start."""
    return StartSettings(
        stream=config.postgres.stream,
        snapshot=config.snapshots,
        sets_aside=config.tables.on_error == "set_aside",
        checkpoint_topic=config.topics.checkpoint,
        topics=config.topic_names(),
        messages=config.hears_messages,
        delivers_messages=config.delivers_messages,
        publishes_messages=config.outbox.messages,
        truncate=config.writes_truncates,
        counts_epochs=config.kafka.delivery == "at_least_once",
        name=config.name,
        records=record_settings(config),
        authenticates=bool(checkpoint_keys(config)),
        protects=bool(config.columns.patterns),
    )


def record_settings(config: Config) -> RecordSettings:
    """Return checksums of the settings that affect records. Settings at their defaults are left out."""
    written = config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    for name in _KEYS:
        # A key that moves to another file is still the same key.
        for key in (name, f"{name}_file"):
            written.get("columns", {}).pop(key, None)
    written.get("columns", {}).pop("former_keys", None)
    found = {name: _at(written, name) for name in CHANGES} | _key_marks(config.columns)
    return tuple(
        [
            (name, zlib.crc32(json.dumps(value, sort_keys=True).encode()))
            for name, value in sorted(found.items())
            if value not in (None, {}, [])
        ]
    )


def _key_marks(columns: ColumnsConfig) -> dict[str, str]:
    """Return marks that distinguish the keys of `columns`.

    A mark reveals nothing about the key, because the key is the HMAC's key.
    """
    return {
        f"columns.{name}": hmac.digest(key.get_secret_value().encode(), b"cdcd settings", "sha256").hex()
        for name, key, patterns in (
            ("hash_key", columns.hash_key, columns.hash),
            ("encryption_key", columns.encryption_key, columns.encrypt),
        )
        if key is not None and patterns
    }


def _at(written: Any, name: str) -> Any:
    for part in name.split("."):
        written = written.get(part) if isinstance(written, dict) else None
    return written


def engine_settings(
    config: Config,
    wal_sender_timeout_s: float,
    *,
    delivers_messages: bool = True,
    server_version: int = OPTION_SINCE["messages"],
) -> EngineSettings:
    """Return the part of the configuration that affects the engine's decisions.

    Args:
        delivers_messages: True if logical messages have records, also messages that were not requested (`Ready`).
        server_version: `server_version_num`. It decides whether the server sends logical messages.
    """
    return EngineSettings(
        name=config.name,
        batches=config.kafka.batches,
        snapshot=config.snapshots,
        heartbeat=config.heartbeat.settings,
        status_interval_s=interval_for(config.postgres.status_interval_s, wal_sender_timeout_s),
        shutdown_grace_s=config.postgres.shutdown_grace_s,
        prepared_warning_age_s=config.postgres.prepared_warning_age_s,
        request_tokens=request_tokens(config),
        truncate=config.writes_truncates,
        context=config.context.settings,
        message_prefixes=None if delivers_messages else _published_prefixes(config),
        record_bytes_max=_record_bytes_max(config),
        sets_aside=config.tables.on_error == "set_aside",
        has_requests=config.snapshot.signals != "off" and server_version >= OPTION_SINCE["messages"],
        fails_over_bytes=sink_settings(config, TRANSACTION_S).message_bytes_max
        if config.kafka.oversized == "fail"
        else 0,
    )


def _record_bytes_max(config: Config) -> int:
    """Return the value of `EngineSettings.record_bytes_max`."""
    leaves_out = (
        config.kafka.oversized != "fail"
        or config.filters.tables
        or config.routes.tables
        or config.outbox.tables
        or config.topics.skipped_operations
        or protections(config.columns).rules
    )
    return 0 if leaves_out else sink_settings(config, TRANSACTION_S).message_bytes_max


def _published_prefixes(config: Config) -> tuple[bytes, ...]:
    return (PUBLISHED_PREFIX,) if config.outbox.messages else ()


def message_limits(config: Config, *, delivers_messages: bool) -> MessageLimits:
    """Return the maximum sizes of logical messages that are kept whole.

    Larger messages become their size and digest.
    """
    by_prefix = {prefix.encode(): CONTENT_MAX for prefix in RESERVED}
    if config.context.enabled:
        by_prefix[CONTEXT_PREFIX.encode()] = config.context.bytes_max
    if config.outbox.messages:
        by_prefix[PUBLISHED_PREFIX] = config.outbox.message_bytes_max
    if not delivers_messages:
        return MessageLimits(by_prefix, None)
    # A record is larger than the content in every format. Other policies of `oversized` store the value elsewhere.
    refuses = config.kafka.oversized == "fail"
    return MessageLimits(
        by_prefix, sink_settings(config, TRANSACTION_S).message_bytes_max if refuses else UNLIMITED
    )


def encoder_settings(
    config: Config,
    database: str,
    schema_ids: SchemaIds | None = None,
    bindings: Bindings | None = None,
    *,
    money_digits: int = DIGITS_OF_C,
) -> EncoderSettings:
    """Return the settings that affect the form of records.

    Args:
        database: name of the source's database.
        money_digits: number of decimal digits of money (`postgres/money.py`). Callers that write or compare values
            must pass it.
        schema_ids: known ids of a schema registry.
        bindings: columns to which the rules of `columns` are bound.
    """
    topics = config.topics
    return EncoderSettings(
        version=__version__,
        prefix=topics.prefix,
        database=database,
        message_topic=topics.message,
        schemas_topic=topics.schemas or None,
        names=topics.by_table,
        topic_template=topics.name,
        renames=topics.renames,
        claims_topic=topics.claims,
        shared=topics.shared_topics,
        checkpoint_topic=topics.checkpoint,
        dead_letter_topic=config.kafka.dead_letter_topic,
        dead_letters=tuple(config.kafka.dead_letters),
        tombstones=topics.tombstones,
        truncate=config.writes_truncates,
        unavailable=config.format.placeholder,
        column_rules=protections(config.columns).rules,
        key_format=config.format.key,
        value_format=config.format.value,
        modes=config.format.modes(money_digits),
        name_adjustment=config.format.schema_name_adjustment_mode,
        flattening=config.event_flattening.settings,
        events=config.cloudevents.settings,
        skipped=tuple([op for op in SKIPPABLE if op in topics.skipped_operations]),
        transaction_topic=topics.transaction_topic,
        heartbeat_topic=config.heartbeat_topic,
        subjects=config.registry.subjects,
        key_rules=config.key.rules,
        key_forms=config.key.form_rules,
        partition_rules=config.partitioner.rules,
        field_rules=config.fields.rules,
        computed_rules=config.fields.computed,
        routes=config.routes.topics,
        change_header=config.format.change_header,
        pipeline=config.name,
        schema_ids=SchemaIds() if schema_ids is None else schema_ids,
        bindings=Bindings() if bindings is None else bindings,
    )


def require_json(config: Config, command: str, hint: str) -> None:
    """Refuse a format that the command cannot read. Raises ConfigError."""
    if config.needs_registry or config.format.value == CLOUDEVENTS:
        raise ConfigError(
            f"{command} does not read format.value: {config.format.value}, only JSON.", hint=hint
        )


def require_no_registry(config: Config, command: str, hint: str) -> None:
    """Refuse a format whose records need the ids of a schema registry. Raises ConfigError."""
    if config.needs_registry:
        chosen = f"format.value: {config.format.value}"
        if config.format.value == CLOUDEVENTS:
            chosen += f" with cloudevents.data: {config.cloudevents.data}"
        raise ConfigError(
            f"{command} does not write {chosen}, which needs the ids of a schema registry.", hint=hint
        )


def sink_settings(config: Config, timeout_s: float) -> SinkSettings:
    """Return the settings of the sink: the connection to Kafka, and the guarantee.

    Args:
        timeout_s: seconds after which the broker aborts an open transaction.
    """
    connection, producer = client.configured(config.kafka)
    return SinkSettings(
        client=connection,
        producer=producer,
        exactly_once=config.kafka.delivery == "exactly_once",
        transactional_id=config.kafka.transactional_id,
        checkpoint_topic=config.topics.checkpoint,
        records=checkpoint_records(config),
        batch_bytes_max=config.kafka.transaction.bytes_max,
        timeout_s=timeout_s,
        retry=config.kafka.retry.delays,
        parted=bool(config.partitioner.columns),
        slot=config.postgres.slot,
        shares=bool(config.topics.shared or config.kafka.dead_letters),
    )


def id_use(config: Config) -> IdUse:
    """Return this pipeline's use of its transactional id."""
    is_used = config.kafka.delivery == "exactly_once"
    return IdUse(config.kafka.transactional_id if is_used else "", config.postgres.slot)


def checkpoint_records(config: Config) -> CheckpointRecords:
    """Return the rules for this pipeline's records in its checkpoint topic, with its keys."""
    return CheckpointRecords(config.name, checkpoint_keys(config), PROCESS_KEY)


def checkpoint_topic(config: Config, answer_s: float) -> CheckpointTopic:
    """The topic of this pipeline's checkpoint, for a reader.

    Args:
        answer_s: seconds that the broker may take for each answer.
    """
    connection, _ = client.configured(config.kafka)
    return CheckpointTopic(connection, config.topics.checkpoint, checkpoint_records(config), answer_s)


def checkpoint_writer(config: Config, answer_s: float) -> CheckpointWriter:
    """What writes this pipeline's checkpoint without its daemon. `answer_s` as in `checkpoint_topic`."""
    _, producer = client.configured(config.kafka)
    return CheckpointWriter(checkpoint_topic(config, answer_s), producer, id_use(config))


def topic_spec(config: Config) -> TopicSpec:
    """Return the settings for the creation of missing topics."""
    create = config.topics.create
    return TopicSpec(create.enabled, create.partitions, create.replication_factor, dict(create.config))


def own_topics(config: Config, *, messages: bool) -> list[str]:
    """Return the topics that a start needs for any tables.

    Args:
        messages: True if logical messages have records, so that their topic is needed.
    """
    topics = [config.topics.checkpoint]
    if config.topics.schemas:
        topics.append(config.topics.schemas)
    if messages:
        topics.append(config.topics.message)
    if config.topics.transaction_topic is not None:
        topics.append(config.topics.transaction_topic)
    if config.heartbeat_topic is not None:
        topics.append(config.heartbeat_topic)
    if config.kafka.has_dead_letters:
        topics.append(config.kafka.dead_letter_topic)
    return [*topics, *config.outbox.topics]


def names(config: Config) -> Mapping[str, str]:
    """Return the values for the placeholders `<name>` in hints about Kafka (`kafka/errors.py`)."""
    known = {
        "bootstrap": config.kafka.bootstrap_servers,
        "prefix": config.topics.prefix,
        "checkpoint": config.topics.checkpoint,
        "schemas": config.topics.schemas or f"{config.topics.prefix}.schemas",
        "transactional.id": config.kafka.transactional_id,
    }
    user = config.kafka.librdkafka().get("sasl.username")
    return {**known, "user": str(user)} if user else known


def desired_tables(config: Config) -> Desired:
    """The tables that the configuration wants published."""
    postgres = config.postgres
    tables = None if postgres.tables is None else tuple(postgres.tables)
    return Desired(tables, config.tables.selection, drops=postgres.publication_changes != "never")


def claim_store(kafka: KafkaConfig) -> ClaimStore | None:
    """Return the place for claim checks; None if the policy of `kafka.oversized` needs none.

    Raises:
        ConfigError: the extra that `kafka.claim_check_store` needs is missing, or refuses its settings.
    """
    if kafka.oversized != "claim_check":
        return None
    store, directory = kafka.claim_check_store, kafka.claim_check_directory
    if store.url is not None:
        return ClaimBucket(store.url, store.endpoint, store.region)
    assert directory is not None, "the configuration is checked"
    return ClaimDirectory(directory)
