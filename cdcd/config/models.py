"""Every key of the configuration, with its type, its bounds, its default and its reason.

`Config` is the whole; the keys of each section are in a module of `sections/`. The models are strict: a key that is not
here is an error, a number is not text, a boolean is not a number. `config/reference.yaml`, `cdcd config --schema` and
the checks of the environment are derived from the models, so a key is described here and nowhere else.

A field's `json_schema_extra` may have two marks: `default_from`, a template of a default that depends on the pipeline's
name, and `example`, which the reference shows for a key without a default.

Secrets are `SecretStr`. Whatever is dumped or printed from a model has them masked.
"""

from pathlib import Path
from typing import Any, Final

from pydantic import Field, PrivateAttr, model_validator

from cdcd.config.defaults import with_derived_defaults
from cdcd.config.sections.columns import ColumnsConfig
from cdcd.config.sections.context import ContextConfig
from cdcd.config.sections.format import CloudEventsConfig, EventFlatteningConfig, FormatConfig, MoneyConfig
from cdcd.config.sections.kafka import KafkaConfig
from cdcd.config.sections.outbox import OutboxConfig
from cdcd.config.sections.postgres import HeartbeatConfig, PostgresConfig
from cdcd.config.sections.process import (
    HttpConfig,
    LogConfig,
    OtlpConfig,
    ReadyConfig,
    RecordConfig,
    SecurityConfig,
    SpoolConfig,
)
from cdcd.config.sections.registry import RegistryConfig
from cdcd.config.sections.routes import FiltersConfig, RoutesConfig
from cdcd.config.sections.snapshot import SnapshotConfig
from cdcd.config.sections.tables import FieldsConfig, KeyConfig, PartitionerConfig, TablesConfig
from cdcd.config.sections.topics import TopicsConfig
from cdcd.config.types import Name, Section
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.routing import TopicNames, collisions, equivalent, may_be_of_a_table, parse_table
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.records.cloud_events import CLOUDEVENTS

_REGISTERED: Final = ("avro", "protobuf", "json_registry")
"""Formats whose schemas are in a registry."""


class Config(Section):
    """One pipeline: one slot of one database to one Kafka cluster."""

    name: Name = Field(
        description="Name of the pipeline; slot, publication, transactional id, topic prefix are derived "
        "from it.",
        json_schema_extra={"example": "shop"},
    )
    postgres: PostgresConfig = Field(description="The source: a PostgreSQL database.")
    kafka: KafkaConfig = Field(description="Where the records go.")
    tables: TablesConfig = Field(
        description="Tables of the publication that the pipeline delivers. All by default."
    )
    topics: TopicsConfig = Field(description="Names and contents of topics.")
    key: KeyConfig = Field(description="Columns of the keys of records.")
    partitioner: PartitionerConfig = Field(
        description="Choice of the partition of a record. By default, the key chooses it."
    )
    fields: FieldsConfig = Field(
        description="Names of fields that differ from their columns, and constant fields. None by default."
    )
    columns: ColumnsConfig = Field(description="Columns whose values readers of the topics must not see.")
    format: FormatConfig = Field(description="Format of keys and values of records.")
    money: MoneyConfig = Field(description="Digits of the type money.")
    cloudevents: CloudEventsConfig = Field(description="Form of CloudEvents, if format.value is cloudevents.")
    event_flattening: EventFlatteningConfig = Field(
        description="Records whose value is the row itself. Off by default."
    )
    outbox: OutboxConfig = Field(
        description="Events that an application publishes in the transaction of the change. Off by default."
    )
    context: ContextConfig = Field(
        description="Headers of records that an application chooses for a transaction. Off by default."
    )
    heartbeat: HeartbeatConfig = Field(
        description="Heartbeats, watermarks, and a query on the source, at an interval. Off by default."
    )
    filters: FiltersConfig = Field(description="Rows of tables that are delivered. By default, all rows.")
    routes: RoutesConfig = Field(
        description="Topics for rows of tables. By default, all rows go to the topic of their table."
    )
    registry: RegistryConfig = Field(
        description="The schema registry that keys, values and data in avro, protobuf and json_registry need, by "
        "Confluent's API."
    )
    spool: SpoolConfig = Field(description="Storage for changes of transactions that are not committed yet.")
    record: RecordConfig = Field(
        description="A recording of the stream, which `cdcd replay` reads. Off by default."
    )
    snapshot: SnapshotConfig = Field(description="Reading of rows that exist already.")
    http: HttpConfig = Field(
        description="Server for the page at /, the status, /metrics, /healthz and /readyz."
    )
    security: SecurityConfig = Field(
        description="Whether a weakness in the pipeline's protection is a warning or ends the start."
    )
    ready: ReadyConfig = Field(description="Limits for /readyz.")
    log: LogConfig = Field(description="The log, on standard error.")
    otlp: OtlpConfig = Field(description="Signals for a collector of OpenTelemetry. Off by default.")
    startup_timeout_s: float = Field(
        60,
        ge=0,
        le=86_400,
        description="How long PostgreSQL and Kafka may be unreachable at the start before the process ends "
        "with an error, so that a wrong address is noticed. After the first stream, it reconnects without a limit. "
        "With "
        "spool.durable, it does not end for Kafka before the durable log could begin or go on.",
    )
    shutdown_timeout_s: float = Field(
        30,
        ge=0,
        le=3600,
        description="After SIGTERM: time to commit the current batch, in seconds. Then the process ends anyway. "
        "Nothing is lost, because the next start delivers the batch again. Set it below the limit of the service "
        "manager.",
    )

    _file_with_secrets: Path | None = PrivateAttr(None)

    @property
    def file_with_secrets(self) -> Path | None:
        """The file of the configuration, if it has a secret in it; None: it has none, or is not known."""
        return self._file_with_secrets

    def note_file_with_secrets(self, file: Path) -> None:
        """Say that the file of the configuration has a secret in it."""
        self._file_with_secrets = file

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        return _with_messages(with_derived_defaults(cls, data)) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _topics_apart(self) -> "Config":
        topics = self.topics
        others = (topics.message, topics.checkpoint, topics.schemas, *topics.names.values())
        transaction = topics.transaction_topic
        if transaction is not None:
            if equivalent(self.kafka.dead_letter_topic) == equivalent(transaction):
                raise ValueError(
                    "kafka.dead_letter_topic must differ from topics.transaction, and the difference must be more "
                    "than '.' and '_'"
                )
            if may_be_of_a_table(transaction, topics.prefix):
                raise ValueError(
                    f"topics.transaction: {transaction} could be the topic of a table, {topics.prefix}.<schema>."
                    "<table>, and the mirror would take its records for rows; choose a name that does not begin so"
                )
        if equivalent(self.kafka.dead_letter_topic) in {equivalent(topic) for topic in others}:
            raise ValueError(
                "kafka.dead_letter_topic must differ from topics.message, topics.checkpoint, topics.schemas and "
                "topics.names, and the difference must be more than '.' and '_'"
            )
        return self

    @model_validator(mode="after")
    def _heartbeat_apart(self) -> "Config":
        topics, heartbeat = self.topics, self.heartbeat_topic
        if heartbeat is None:
            return self
        others = [topics.message, topics.checkpoint, topics.schemas, self.kafka.dead_letter_topic]
        others += [topics.transaction_topic or "", *topics.names.values()]
        if equivalent(heartbeat) in {equivalent(topic) for topic in others if topic}:
            raise ValueError(
                f"topics.heartbeat: {heartbeat} is already another topic of the pipeline (Kafka does not distinguish "
                f"'.' and '_' in names)"
            )
        if may_be_of_a_table(heartbeat, topics.prefix):
            raise ValueError(
                f"topics.heartbeat: {heartbeat} could be the topic of a table, {topics.prefix}.<schema>.<table>, and "
                "the mirror would take its records for rows; choose a name that does not begin so"
            )
        return self

    @model_validator(mode="after")
    def _watermarks_fit(self) -> "Config":
        create = self.topics.create
        policy = str(create.config.get("cleanup.policy", ""))
        if self.heartbeat.watermark_interval_s and create.enabled and "compact" in policy:
            raise ValueError(
                "heartbeat.watermark_interval_s needs topics that are not compacted, because a compacted topic refuses "
                f"records without a key; topics.create.config has cleanup.policy: {policy}"
            )
        return self

    @model_validator(mode="after")
    def _outbox_fits(self) -> "Config":
        topics, outbox = self.topics, self.outbox
        own = [topics.message, topics.checkpoint, topics.schemas, self.kafka.dead_letter_topic]
        own += [each for each in (topics.transaction_topic, self.heartbeat_topic) if each is not None]
        taken = {equivalent(topic) for topic in (*own, *topics.names.values())}
        for topic in outbox.topics:
            if equivalent(topic) in taken:
                raise ValueError(f"outbox.topics: {topic} is already another topic of the pipeline")
            if may_be_of_a_table(topic, topics.prefix):
                raise ValueError(
                    f"outbox.topics: {topic} could be the topic of a table, {topics.prefix}.<schema>.<table>, and the "
                    "mirror would take its events for rows; choose a name that does not begin so"
                )
        has = self.tables.selection.test()
        for table in outbox.tables:
            if not has(table):
                raise ValueError(f"outbox.tables: {table} is left out by tables.include or tables.exclude")
        for (schema, name), given in outbox.by_table.items():
            if given.topics_max and may_be_of_a_table(given.topic.replace("{value}", "x"), topics.prefix):
                raise ValueError(
                    f"outbox.tables: {schema}.{name}: topics_max: {given.topic} could be the topic of a table, "
                    f"{topics.prefix}.<schema>.<table>; choose a topic that does not begin so"
                )
            if given.has_schemas and self.format.value != "avro":
                raise ValueError(
                    f"outbox.tables: {schema}.{name}: key_form and payload_form other than text need "
                    "format.value: avro"
                )
        if outbox.messages and self.postgres.messages is False:
            raise ValueError("outbox.messages needs another postgres.messages than false")
        if self.context.enabled and self.postgres.messages is False:
            raise ValueError("context.enabled needs another postgres.messages than false")
        if outbox.tables and self.postgres.binary:
            raise ValueError(
                "outbox.tables needs postgres.binary: false, because payloads are delivered as text"
            )
        return self

    @model_validator(mode="after")
    def _rows_are_no_events(self) -> "Config":
        patterns = [("filters.tables", text) for text in self.filters.tables]
        patterns += [("partitioner.columns", text) for text in self.partitioner.columns]
        patterns += [("fields.tables", text) for text in self.fields.tables]
        for key, text in patterns:
            pattern = parse_pattern(text, key)
            for table in self.outbox.by_table:
                if pattern.matches(*table):
                    raise ValueError(
                        f"{key}: {text} matches {'.'.join(table)}, whose rows are events (outbox.tables); "
                        "narrow the pattern"
                    )
        return self

    @model_validator(mode="after")
    def _routes_fit(self) -> "Config":
        for text in self.routes.tables:
            pattern = parse_pattern(text, "routes.tables")
            for table in self.outbox.by_table:
                if pattern.matches(*table):
                    raise ValueError(
                        f"routes.tables: {text} matches {'.'.join(table)}, whose rows are events (outbox.tables); "
                        "narrow the pattern"
                    )
        # Only patterns without * and ? name tables: of the others, the start and `cdcd check` know the tables.
        literal = [text for text in self.routes.tables if parse_pattern(text, "routes.tables").is_literal]
        if literal and (errors := collisions([parse_table(text) for text in literal], self.topic_names())):
            raise ValueError(f"routes.tables: {errors[0].message}")
        return self

    @model_validator(mode="after")
    def _routes_have_a_form(self) -> "Config":
        if self.routes.tables and self.format.value == CLOUDEVENTS and self.cloudevents.data == "avro":
            raise ValueError(
                "routes.tables needs another cloudevents.data than avro, because an event names the schema of its data "
                "in the registry, and each topic has schemas of its own there"
            )
        if self.routes.tables and self.partitioner.columns:
            raise ValueError(
                "routes.tables and partitioner.columns cannot be in one pipeline: a row that goes to another topic and "
                "another partition at once has no defined order yet. Use one of them, or two pipelines"
            )
        return self

    @model_validator(mode="after")
    def _nothing_in_clear(self) -> "Config":
        if self.record.directory is not None and self.columns.patterns:
            raise ValueError(
                "record.directory: a recording holds all values in clear, also those that columns protects; remove "
                "one of the two"
            )
        return self

    @model_validator(mode="after")
    def _records_all_tables(self) -> "Config":
        if self.record.directory is not None and not self.tables.selection.is_all:
            raise ValueError(
                "record.directory: a recording begins again in each of its files, and the files do not say which "
                "tables "
                "are left out; remove tables.include and tables.exclude"
            )
        return self

    @model_validator(mode="after")
    def _logs_what_it_can(self) -> "Config":
        if not self.spool.durable:
            return self
        if self.postgres.two_phase:
            raise ValueError(
                "spool.durable needs postgres.two_phase: false, because the log holds committed transactions only"
            )
        if self.postgres.binary:
            raise ValueError(
                "spool.durable needs postgres.binary: false, because cdcd cannot request a value again in text form "
                "after its position was confirmed"
            )
        if self.kafka.delivery != "exactly_once":
            raise ValueError(
                "spool.durable needs kafka.delivery: exactly_once, because only then the checkpoint shows exactly "
                "which part of the log is delivered"
            )
        if self.columns.patterns:
            raise ValueError(
                "spool.durable: the log holds all values in clear, also those that columns protects; remove one of "
                "the two"
            )
        return self

    @model_validator(mode="after")
    def _follows_patterns(self) -> "Config":
        changes = self.postgres.publication_changes
        if changes != "never" and self.postgres.tables is None and self.tables.include is None:
            raise ValueError(
                f"postgres.publication_changes: {changes} needs postgres.tables or tables.include, which say which "
                "tables are to be published"
            )
        return self

    @model_validator(mode="after")
    def _hears_of_partitions(self) -> "Config":
        if self.snapshot.changed_partitions == "read" and (
            not self.hears_messages or self.snapshot.signals == "off"
        ):
            raise ValueError(
                "snapshot.changed_partitions: read needs snapshot.signals other than off, and postgres.messages other "
                "than false, because tables are read again by requests in the stream"
            )
        return self

    @model_validator(mode="after")
    def _signals_are_heard(self) -> "Config":
        signal_topic = self.snapshot.signal_topic
        if signal_topic is None:
            return self
        if not self.hears_messages or self.snapshot.signals == "off":
            raise ValueError(
                "snapshot.signal_topic needs snapshot.signals other than off, and postgres.messages other than false"
            )
        names = self.topic_names()
        own = (
            *[topic for topic, _ in names.own()],
            *names.names.values(),
            *[topic for each in names.routes for topic in each.topics],
            self.kafka.dead_letter_topic,
            self.topics.claims,
            *self.outbox.topics,
        )
        if equivalent(signal_topic) in {equivalent(topic) for topic in own}:
            raise ValueError(
                f"snapshot.signal_topic: {signal_topic} is already another topic of the pipeline"
            )
        return self

    @model_validator(mode="after")
    def _updates_for_snapshots(self) -> "Config":
        snapshot = self.snapshot
        reads = snapshot.mode != "never" or self.reads_added or snapshot.signals != "off"
        if reads and "u" in self.topics.skipped_operations:
            raise ValueError(
                "topics.skipped_operations: u needs snapshot.mode: never, snapshot.added_tables: false and "
                "snapshot.signals: off, because an update may have a row that a snapshot misses"
            )
        return self

    @model_validator(mode="after")
    def _flattens_without_metadata(self) -> "Config":
        if self.event_flattening.enabled and self.topics.transaction_metadata:
            raise ValueError(
                "event_flattening.enabled needs topics.transaction_metadata: false, because a flattened record does "
                "not contain its place in the transaction"
            )
        return self

    @model_validator(mode="after")
    def _keys_have_a_form(self) -> "Config":
        if self.key.forms and self.format.key == "protobuf":
            raise ValueError("key.forms needs another format.key than protobuf, whose keys are messages")
        bare = [pattern for pattern, form in self.key.forms.items() if form.bare]
        if bare and self.format.key in _REGISTERED and self.registry.subjects != "topic":
            raise ValueError(
                f"key.forms: {bare[0]}: bare needs registry.subjects: topic, because the schema of a bare key has no "
                "name of its own"
            )
        if self.format.key == "text" and not bare:
            raise ValueError(
                "format.key: text needs key.forms with bare: true, because only bare keys are texts; choose "
                "format.key: json"
            )
        return self

    @property
    def needs_registry(self) -> bool:
        """Whether the schemas of values, and maybe of keys, are in a schema registry."""
        is_event = self.format.value == CLOUDEVENTS
        return (self.cloudevents.data if is_event else self.format.value) in _REGISTERED

    @model_validator(mode="after")
    def _has_registry(self) -> "Config":
        data = self.cloudevents.data if self.format.value == CLOUDEVENTS else self.format.value
        if self.format.key == "avro" and data != "avro":
            raise ValueError(
                "format.key: avro needs format.value: avro, or cloudevents with cloudevents.data: avro"
            )
        for each in ("protobuf", "json_registry"):
            if self.format.key == each != self.format.value:
                raise ValueError(f"format.key: {each} needs format.value: {each}")
        if not self.needs_registry:
            return self
        is_event = self.format.value == CLOUDEVENTS
        chosen = "cloudevents.data: avro" if is_event else f"format.value: {self.format.value}"
        self.registry.require(chosen)
        if is_event and self.topics.transaction_metadata:
            raise ValueError("topics.transaction_metadata needs another cloudevents.data than avro")
        if self.record.directory is not None:
            raise ValueError(
                "record.directory: a recording does not hold the ids that a schema registry gave, so it cannot be "
                f"replayed with {chosen}; remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _events_are_told_apart(self) -> "Config":
        if self.format.value != CLOUDEVENTS:
            if self.cloudevents != CloudEventsConfig.model_construct():
                raise ValueError("the keys of cloudevents need format.value: cloudevents")
            return self
        if self.cloudevents.data == "avro" and self.registry.subjects == "record":
            raise ValueError(
                "registry.subjects: record needs another cloudevents.data than avro, because the data of all tables "
                "have one name, io.debezium.connector.postgresql.Data; choose topic or topic_record"
            )
        if self.cloudevents.mode == "binary" and self.format.key == "avro":
            raise ValueError(
                "format.key: avro needs cloudevents.mode: structured, because the headers of an event must be text, "
                "and an update of the key has the other key in a header; choose format.key: json"
            )
        if self.topics.transaction_metadata and not self.cloudevents.extension_attributes:
            raise ValueError(
                "topics.transaction_metadata needs cloudevents.extension_attributes: true, because an event names its "
                "transaction in them"
            )
        return self

    @property
    def heartbeat_topic(self) -> str | None:
        """The topic for heartbeats; None: there are none."""
        return self.topics.heartbeat if self.heartbeat.interval_s else None

    @property
    def stream_options(self) -> str:
        """What decides which events the server sends, and what is counted of them, for the checkpoint.

        It must not change inside a transaction.
        """
        postgres = self.postgres
        counted = " transaction_metadata=True" if self.topics.transaction_metadata else ""
        return f"publication={postgres.publication} messages={self.hears_messages} origin={postgres.origin}{counted}"

    @property
    def writes_truncates(self) -> bool:
        """Whether TRUNCATE, and the end of former rows, have records. Flattened records have none for them."""
        return self.topics.writes_truncates and not self.event_flattening.enabled

    @property
    def hears_messages(self) -> bool:
        """Whether the server is asked to send logical messages."""
        messages = self.postgres.messages
        if messages == "asked":
            return self.outbox.messages or self.context.enabled or self.snapshot.signals != "off"
        return messages is not False

    @property
    def delivers_messages(self) -> bool | None:
        """Whether logical messages have records, also those that nobody asked for; None: the checkpoint decides."""
        messages = self.postgres.messages
        return False if messages == "asked" else messages

    def topic_names(self) -> TopicNames:
        """How the pipeline's topics are called."""
        topics, sink = self.topics, self.kafka
        return TopicNames(
            topics.prefix,
            topics.by_table,
            topics.message,
            topics.schemas or None,
            topics.checkpoint,
            sink.dead_letter_topic if sink.has_dead_letters else None,
            topics.transaction_topic,
            self.heartbeat_topic,
            topics.name,
            self.routes.topics,
            topics.renames,
            topics.claims,
            topics.shared_topics,
        )

    @property
    def reads_added(self) -> bool:
        """Whether a table that is added to the publication is read."""
        chosen = self.snapshot.added_tables
        return self.postgres.publication_changes != "never" if chosen is None else chosen

    @property
    def snapshots(self) -> SnapshotSettings:
        """How rows are read that are in the tables already."""
        return self.snapshot.settings(self.on_demand(), added_tables=self.reads_added)

    def on_demand(self) -> tuple[str, ...]:
        """Patterns of the tables that no snapshot reads unless somebody asks for them."""
        return (*(self.snapshot.exclude or ()), *self.outbox.tables)


def _with_messages(data: dict[str, Any]) -> dict[str, Any]:
    """The data in which a topic of one's own for logical messages says that they are delivered."""
    postgres, topics = data["postgres"], data["topics"]
    if not isinstance(postgres, dict) or not isinstance(topics, dict) or postgres.get("messages") is not None:
        return data
    if topics.get("message") == f"{topics.get('prefix')}.message":
        return data
    return {**data, "postgres": {**postgres, "messages": True}}
