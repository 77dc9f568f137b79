"""Every key of the configuration, with its type, its bounds, its default and its reason.

The models are strict: a key that is not here is an error, a number is not text, a boolean is not a number.
`config/reference.yaml`, `cdcd config --schema` and the checks of the environment are derived from them, so a
key is described here and nowhere else. Two marks stand in a field's `json_schema_extra`: `default_from`, a
template of a default that depends on the pipeline's name, and `example`, what the reference shows for a key
without a default.

Secrets are `SecretStr`, and whatever is dumped or printed from a model has them masked.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, SecretStr, field_serializer, model_validator

from cdcd.config.defaults import with_derived_defaults
from cdcd.config.masking import MASK, mask_text
from cdcd.config.types import (
    GIB,
    KIB,
    MIB,
    TIB,
    Dsn,
    FilePath,
    Name,
    Properties,
    PropertyName,
    PropertyValue,
    PublicationName,
    Section,
    Servers,
    SlotName,
    Streaming,
    TableName,
    TablePatterns,
    Text,
    TopicName,
    TopicOrNone,
    TransactionalId,
)
from cdcd.records.routing import Table, TopicNames, collisions, equivalent, parse_table


class Backoff(Section):
    """How long to wait before the next attempt: doubled each time, with jitter."""

    initial_s: float = Field(
        0.5, ge=0.01, le=60, description="Wait before the second attempt; the first follows at once."
    )
    max_s: float = Field(
        30, ge=0.01, le=3600, description="Longest wait: how late an outage's end is noticed at worst."
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Backoff":
        if self.max_s < self.initial_s:
            raise ValueError("max_s must not be below initial_s")
        return self


class PostgresConfig(Section):
    """Where the changes come from."""

    dsn: Dsn = Field(
        description="Any libpq URI or key=value string; sslmode and the like as libpq has them. Needs a "
        "role with REPLICATION that may read the catalog of this database.",
        json_schema_extra={"example": "postgresql://cdcd@localhost:5432/shop"},
    )
    dsn_file: FilePath | None = Field(
        None, description="File that holds the DSN, instead of dsn: a mounted secret stays out of this file."
    )
    password: SecretStr | None = Field(
        None,
        description="Password, instead of one in the DSN: needs no escaping, as in password: ${PGPASSWORD}.",
    )
    password_file: FilePath | None = Field(
        None,
        description="File that holds the password, instead of password. Read again at each reconnect, as are "
        "dsn_file and kafka.properties_files: a secret may change without a restart.",
    )
    slot: SlotName = Field(
        description="Replication slot, created if missing. It holds WAL back until this pipeline has "
        "delivered it.",
        json_schema_extra={"default_from": "cdcd_{name}"},
    )
    failover: bool = Field(
        False,
        description="Whether the slot is copied to the physical standbys that ask for it (sync_replication_slots; "
        "17 and up), so that it is there after a failover. An existing slot is altered. Name the standbys' slots in "
        "synchronized_standby_slots: else Kafka may hold changes that the new primary lacks, and cdcd stops there.",
    )
    publication: PublicationName = Field(
        description="Publication, created if missing. It decides which tables and operations are sent.",
        json_schema_extra={"default_from": "cdcd_{name}"},
    )
    tables: TablePatterns | None = Field(
        None,
        description="Tables that a created publication covers: <schema>.<table> with * for any characters and ? for "
        "one; a part in double quotes is taken literally. null: all tables, later ones too, which needs a superuser. A "
        "publication that exists is left as it is.",
    )
    protocol: Literal["auto", 1, 2, 3, 4] = Field(
        "auto",
        description="Version of the logical replication protocol. auto: the newest that the server speaks.",
    )
    streaming: Streaming = Field(
        "auto",
        description="Whether large transactions are sent before they commit, which spares the server's disk "
        "and spreads the load. auto: parallel on PostgreSQL 16 and up, on with 14 and 15, off before. Large is what "
        "exceeds logical_decoding_work_mem: 8 MB for this session, unless the server, the database, the role or the "
        "DSN sets it.",
    )
    two_phase: bool = Field(
        False,
        description="Whether prepared transactions are sent at PREPARE rather than at COMMIT PREPARED (15 "
        "and up). They are kept here until they are decided; records appear only after COMMIT PREPARED "
        "either way. A slot that exists is changed in either direction, but from true to false only by PostgreSQL 18; "
        "before that the slot goes on as it is, with a warning.",
    )
    messages: bool = Field(
        True, description="Whether logical decoding messages (pg_logical_emit_message) are sent (14 and up)."
    )
    origin: Literal["any", "none"] = Field(
        "any",
        description="none: changes that came to this server by replication are left out (16 and up), which "
        "breaks loops between two servers.",
    )
    binary: bool = Field(
        False,
        description="Whether values are sent in binary form where every column's type has a reader for it.",
    )
    status_interval_s: float = Field(
        10,
        ge=0.1,
        le=600,
        description="Longest time between two status updates. Must stay well below the server's "
        "wal_sender_timeout (60 s), after which it hangs up.",
    )
    connect_timeout_s: int = Field(
        10, ge=2, le=600, description="Longest wait for a connection; libpq has no limit of its own."
    )
    lease_s: float = Field(
        2.5,
        ge=1,
        le=600,
        description="How long the active instance may be silent before a standby ends its sessions and takes over: "
        "frozen, cut off, on a machine that is gone. Longer for servers that stand still for seconds now and then.",
    )
    prepared_warning_age_s: float = Field(
        300,
        ge=1,
        le=2_592_000,
        description="Age at which an undecided prepared transaction is warned of: it holds the slot, and so "
        "the WAL.",
    )
    shutdown_grace_s: float = Field(
        5,
        ge=0,
        le=600,
        description="What PostgreSQL's fast shutdown gets: it waits until everything sent is confirmed, and "
        "for ever if Kafka is away. After this time the connection is closed; the rest comes again.",
    )
    retry: Backoff = Field(description="Pace of reconnecting to PostgreSQL.")

    @field_serializer("dsn")
    def _show_dsn(self, dsn: SecretStr) -> str:
        return mask_text(dsn.get_secret_value())

    @field_serializer("password")
    def _show_password(self, password: SecretStr | None) -> str | None:
        return None if password is None else MASK

    @property
    def stream_options(self) -> str:
        """What decides which events the server sends, for the checkpoint: it must not change inside a transaction."""
        return f"publication={self.publication} messages={self.messages} origin={self.origin}"

    def libpq(self) -> str:
        """The DSN with `password` in it, for libpq. A secret: never to be printed."""
        dsn = self.dsn.get_secret_value()
        if self.password is None:
            return dsn
        password = self.password.get_secret_value()
        # libpq takes the last value of a keyword that is given twice, in both forms.
        if dsn.startswith(("postgresql://", "postgres://")):
            return f"{dsn}{'&' if '?' in dsn else '?'}password={quote(password, safe='')}"
        quoted = password.replace("\\", "\\\\").replace("'", "\\'")
        return f"{dsn} password='{quoted}'"


class KafkaTransactionConfig(Section):
    """How much goes into one Kafka transaction."""

    bytes_max: int = Field(
        4 * MIB,
        ge=KIB,
        le=GIB,
        description="Source transactions share a Kafka transaction until their records have this size. Larger ones "
        "cost less each, and readers with read_committed wait longer for the first record. One that is larger by "
        "itself is handed over in parts of three times this size, or of half of queue_bytes_max where that is less.",
    )
    records_max: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Source transactions share a Kafka transaction until they have so many records, and a part of a "
        "large one has at most about so many.",
    )
    whole_bytes_max: int = Field(
        GIB,
        ge=0,
        le=TIB,
        description="A source transaction whose records have at most this size is one Kafka transaction: a reader with "
        "read_committed sees all of it or nothing. A larger one is cut into parts of three times bytes_max. 0: each "
        "one that is larger than a part is cut. Readers wait for the end of a Kafka transaction, also those of other "
        "tables in the same partitions.",
    )
    timeout_s: Annotated[int, Field(ge=1, le=86_400)] | None = Field(
        None,
        description="After this time the broker aborts an open Kafka transaction, and readers stuck behind it go "
        "on. A large source transaction must be handed over within it. cdcd's next start, or a standby, ends what a "
        "crash left open at once; the time counts only if none comes. null: as long as the brokers allow "
        "(transaction.max.timeout.ms, 15 minutes by default), or 60 if this principal may not read their settings.",
    )


class KafkaConfig(Section):
    """Where the records go."""

    bootstrap_servers: Servers = Field(
        description="Brokers to begin with, as host:port with commas between; the others are found from "
        "these.",
        json_schema_extra={"example": "localhost:9092"},
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once",
        description="at_least_once: no Kafka transactions; less latency, and after a crash some records "
        "come twice.",
    )
    transactional_id: TransactionalId = Field(
        description="Names the one writer: a newer instance with the same id shuts out an older one. "
        "Changing it gives up that protection for the moment of the change.",
        json_schema_extra={"default_from": "cdcd-{name}"},
    )
    properties: Properties = Field(
        default_factory=dict,
        description="librdkafka's own names, passed through: security.protocol, sasl.*, ssl.*, "
        "compression.type, linger.ms, message.max.bytes, partitioner and so on. Those that the guarantees "
        "rest on are refused.",
    )
    properties_files: dict[PropertyName, FilePath] = Field(
        default_factory=dict,
        description="Property name to file that holds its value, for secrets such as sasl.password.",
    )
    transaction: KafkaTransactionConfig = Field(
        description="Small source transactions share a Kafka transaction; a large one is a Kafka transaction by itself "
        "up to whole_bytes_max.",
    )
    queue_bytes_max: int = Field(
        20 * MIB,
        ge=64 * KIB,
        le=2 * GIB,
        description="Records that wait for the broker. When they are more, PostgreSQL's stream is not read "
        "on.",
    )
    oversized: Literal["fail", "dead_letter", "claim_check"] = Field(
        "fail",
        description="What becomes of a record that is larger than the broker takes. fail: the daemon stops "
        "and names table, key and size; dead_letter: the record goes to dead_letter_topic instead, which must take it; "
        "claim_check: the record goes to a file in claim_check_directory and a pointer to its topic.",
    )
    dead_letter_topic: TopicName = Field(
        description="Topic for oversized: dead_letter.",
        json_schema_extra={"default_from": "{prefix}.dead_letter"},
    )
    claim_check_directory: FilePath | None = Field(
        None,
        description="Directory for oversized: claim_check, where the consumers can read it. Never cleaned "
        "by cdcd.",
    )
    retry: Backoff = Field(description="Pace of starting again after Kafka failed.")

    @field_serializer("properties")
    def _show_properties(self, properties: dict[str, str | SecretStr]) -> dict[str, str]:
        return {
            name: MASK if isinstance(value, SecretStr) else mask_text(value)
            for name, value in properties.items()
        }

    @model_validator(mode="after")
    def _claim_check_has_a_place(self) -> "KafkaConfig":
        if self.oversized == "claim_check" and self.claim_check_directory is None:
            raise ValueError("oversized: claim_check needs claim_check_directory")
        return self

    def librdkafka(self) -> dict[str, str]:
        """The properties for librdkafka with bootstrap.servers. Holds secrets: never to be printed."""
        revealed = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in self.properties.items()
        }
        return {"bootstrap.servers": self.bootstrap_servers, **revealed}


class TopicCreationConfig(Section):
    """How missing topics come to be."""

    enabled: bool = Field(
        True,
        description="Whether missing topics are created. false: a missing one is an error that names it.",
    )
    partitions: int = Field(
        1,
        ge=1,
        le=100_000,
        description="Partitions of a created topic. All changes of a key go to one of them.",
    )
    replication_factor: int = Field(
        1,
        ge=1,
        le=100,
        description="Replicas of a created topic. 1 loses data with its broker; 3 in production.",
    )
    config: dict[str, PropertyValue] = Field(
        default_factory=dict, description="Configuration of a created topic, in Kafka's own names."
    )


class TopicsConfig(Section):
    """What the topics are called and what goes into them."""

    prefix: TopicName = Field(
        description="Topic = <prefix>.<schema>.<table>.", json_schema_extra={"default_from": "{name}"}
    )
    names: dict[TableName, TopicName] = Field(
        default_factory=dict,
        description="Topics of single tables: <schema>.<table> to topic, with a part that holds a point in double "
        "quotes. For tables whose topics would be too long, or one to Kafka: characters that it does not allow become "
        "_, and names that differ only in . and _ are the same. A topic must begin with <prefix>. and have a second "
        "point after it. A table that has records in one topic begins anew in another.",
    )
    create: TopicCreationConfig = Field(description="Creation of missing topics.")
    truncate: bool = Field(
        True, description="Whether TRUNCATE is written to the topic of each table, as op t."
    )
    tombstones: bool = Field(
        True,
        description="Whether a delete is followed by a record without value, which compaction needs to "
        "forget.",
    )
    message: TopicName = Field(
        description="Topic for logical decoding messages.",
        json_schema_extra={"default_from": "{prefix}.message"},
    )
    checkpoint: TopicName = Field(
        description="Compacted topic for the position up to which everything is delivered. Deleting it "
        "loses the position; two pipelines must not share it.",
        json_schema_extra={"default_from": "{prefix}.checkpoint"},
    )
    schemas: TopicOrNone = Field(
        description="Compacted topic for the descriptions of tables, which `cdcd mirror` needs: the types of columns, "
        "and which was renamed. false: none, and no source.schema_id in records.",
        json_schema_extra={"default_from": "{prefix}.schemas"},
    )

    @model_validator(mode="after")
    def _distinct(self) -> "TopicsConfig":
        if len({equivalent(topic) for topic in (self.message, self.checkpoint, self.schemas)}) < 3:
            raise ValueError(
                "message, checkpoint and schemas must be three topics, which to Kafka differ in more than '.' and '_'"
            )
        if len(self.by_table) < len(self.names):
            raise ValueError("names must have each table once")
        for topic in self.names.values():
            _, begins, rest = topic.partition(f"{self.prefix}.")
            if not begins or not topic.startswith(begins) or re.fullmatch(r"[^.]+\..+", rest) is None:
                raise ValueError(
                    f"names: {topic} must begin with {self.prefix}. and have a second point after it, as the topics of "
                    "all tables do: rights on topics and `cdcd mirror` go by that"
                )
        names = TopicNames(self.prefix, self.by_table, self.message, self.schemas or None, self.checkpoint)
        if errors := collisions(self.by_table, names):
            raise ValueError(f"names: {errors[0].message}")
        return self

    @property
    def by_table(self) -> dict[Table, str]:
        """`names` by schema and name."""
        return {parse_table(table): topic for table, topic in self.names.items()}


class SpoolConfig(Section):
    """Where changes of undecided transactions wait."""

    directory: FilePath = Field(
        description="Directory for what does not fit into memory, created if missing. Should be on a disk: "
        "where the system's temporary directory is in memory, name another. The files have no names; "
        "nothing stays behind.",
        json_schema_extra={"default_from": "{tmp}/cdcd-{name}"},
    )
    memory_bytes_max: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=TIB,
        description="Changes of undecided transactions that are kept in memory.",
    )
    disk_bytes_max: Annotated[int, Field(ge=MIB, le=1024 * TIB)] | None = Field(
        None,
        description="The daemon stops when the files would be larger than this. null: what the disk has.",
    )


class SnapshotConfig(Section):
    """Rows that are in the tables already."""

    mode: Literal["initial", "never", "only", "when_needed"] = Field(
        "initial",
        description="initial: a new pipeline begins with the rows that exist, as op r, and goes on with the "
        "changes; what was interrupted is finished. never: changes only. only: the process ends when the rows are "
        "delivered; the slot stays for a later run. when_needed: as initial, and again when the slot was lost.",
    )
    method: Literal["exported", "incremental"] = Field(
        "exported",
        description="exported: read at the slot's first position, before streaming; the WAL since then is kept "
        "meanwhile. incremental: beside the stream; every table needs a key.",
    )
    parallelism: int = Field(
        4, ge=1, le=64, description="Connections that read. More than the source can spare slow it down."
    )
    chunk_bytes: int = Field(
        MIB,
        ge=8 * KIB,
        le=64 * MIB,
        description="How much of a table, on disk, is read at a time. Up to parallelism chunks are in memory, and "
        "one more for each table that is being read.",
    )
    added_tables: bool = Field(
        False, description="Whether a table that is added to the publication later is read too."
    )
    exclude: TablePatterns | None = Field(
        None,
        description="Tables of which only changes are delivered, as patterns like those of postgres.tables, such as "
        "those that Spark reads (cdcd mirror --snapshot). On demand they are read like any other.",
    )
    signals: Literal["all", "without_where", "off"] = Field(
        "without_where",
        description="Which requests by logical message (cdcd snapshot, pg_logical_emit_message) are followed. "
        "Whoever may connect to the database can send one. all: also those with a where, which PostgreSQL evaluates as "
        "this role, in a READ ONLY transaction with a timeout; a superuser's functions can do harm even there.",
    )


class HttpConfig(Section):
    """/metrics, /healthz and /readyz."""

    enabled: bool = Field(True, description="Whether the HTTP server runs.")
    host: Text = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0 for all. There is no authentication."
    )
    port: int = Field(
        9464, ge=0, le=65535, description="Port to listen on. 0: any free one, which is logged."
    )
    stall_s_max: float = Field(
        30,
        ge=1,
        le=3600,
        description="/healthz fails when the event loop has been stuck for so long, so that a supervisor "
        "restarts it.",
    )


class LogConfig(Section):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is shown."
    )
    format: Literal["json", "console"] = Field(
        "json", description="json: one object per line, for machines; console: for people."
    )


class ReadyConfig(Section):
    """When /readyz says that the pipeline keeps up."""

    lag_bytes_max: Annotated[int, Field(ge=0, le=1024 * TIB)] | None = Field(
        GIB, description="Largest distance between the server's WAL and what is delivered. null: any."
    )
    lag_s_max: Annotated[float, Field(ge=0, le=2_592_000)] | None = Field(
        300, description="Largest age of the last delivered commit while there is more to deliver. null: any."
    )


class Config(Section):
    """One pipeline: one slot of one database to one Kafka cluster."""

    name: Name = Field(
        description="Name of the pipeline; slot, publication, transactional id, topic prefix are derived "
        "from it.",
        json_schema_extra={"example": "shop"},
    )
    postgres: PostgresConfig = Field(description="Where the changes come from.")
    kafka: KafkaConfig = Field(description="Where the records go.")
    topics: TopicsConfig = Field(description="What the topics are called and what goes into them.")
    spool: SpoolConfig = Field(description="Where changes of undecided transactions wait.")
    snapshot: SnapshotConfig = Field(description="Rows that are in the tables already.")
    http: HttpConfig = Field(description="Server for /metrics, /healthz and /readyz.")
    ready: ReadyConfig = Field(description="When /readyz says that the pipeline keeps up.")
    log: LogConfig = Field(description="What is logged, to standard error.")
    startup_timeout_s: float = Field(
        60,
        ge=0,
        le=86_400,
        description="How long PostgreSQL and Kafka may be unreachable at the start before the process ends "
        "with an error, so that a wrong address is heard of. Once it has streamed, it reconnects for ever.",
    )
    shutdown_timeout_s: float = Field(
        30,
        ge=0,
        le=3600,
        description="After SIGTERM: time for committing what is in flight. Then the process ends anyway; "
        "nothing is lost, it comes again. Should be below the service manager's own limit.",
    )

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        return with_derived_defaults(cls, data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _topics_apart(self) -> "Config":
        topics = self.topics
        others = (topics.message, topics.checkpoint, topics.schemas, *topics.names.values())
        if equivalent(self.kafka.dead_letter_topic) in {equivalent(topic) for topic in others}:
            raise ValueError(
                "kafka.dead_letter_topic must differ from topics.message, topics.checkpoint, topics.schemas and "
                "topics.names, to Kafka in more than '.' and '_'"
            )
        return self

    def topic_names(self) -> TopicNames:
        """How the pipeline's topics are called."""
        topics, sink = self.topics, self.kafka
        return TopicNames(
            topics.prefix,
            topics.by_table,
            topics.message,
            topics.schemas or None,
            topics.checkpoint,
            sink.dead_letter_topic if sink.oversized == "dead_letter" else None,
        )
