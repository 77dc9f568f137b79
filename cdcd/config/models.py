"""Every key of the configuration, with its type, its bounds, its default and its reason.

`Config` is the whole; the keys of each section are in a module of `sections/`, and the rules between sections in
`combinations.py`. The models are strict: a key that is not here is an error, a number is not text, a boolean is not a
number. `config/reference.yaml`, `cdcd config --schema` and the checks of the environment are derived from the models,
so a key is described here and nowhere else.

A field's `json_schema_extra` may have two marks: `default_from`, a template of a default that depends on the pipeline's
name, and `example`, which the reference shows for a key without a default.

Secrets are `SecretStr`. Whatever is dumped or printed from a model has them masked.
"""

from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, model_validator

from cdcd.config.combinations import COMBINATIONS
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
from cdcd.config.sections.registry import REGISTERED, RegistryConfig
from cdcd.config.sections.routes import FiltersConfig, RoutesConfig
from cdcd.config.sections.snapshot import SnapshotConfig
from cdcd.config.sections.tables import FieldsConfig, KeyConfig, PartitionerConfig, TablesConfig
from cdcd.config.sections.topics import TopicsConfig
from cdcd.config.types import Name, Section
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.records.cloud_events import CLOUDEVENTS


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
    def _combine(self) -> "Config":
        for rule in COMBINATIONS:
            rule(self)
        return self

    @property
    def needs_registry(self) -> bool:
        """Whether the schemas of values, and maybe of keys, are in a schema registry."""
        is_event = self.format.value == CLOUDEVENTS
        return (self.cloudevents.data if is_event else self.format.value) in REGISTERED

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
        """Whether TRUNCATE, and the end of former rows, have records. Flattened rows without headers have none."""
        has_records = self.format.change_header or not self.event_flattening.enabled
        return self.topics.writes_truncates and has_records

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
