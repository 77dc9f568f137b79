"""What a format is for the engine: rows of committed transactions in, records out.

`Encoder` is the interface. The engine calls nothing else, and knows no format; `available.py` lists those there are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.field_names import ChosenFields, FieldRule
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.protection import ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.renaming import Router
from cdcd.core.catalog.routing import DEFAULT as DEFAULT_TEMPLATE
from cdcd.core.catalog.routing import RoutedTopics, TopicNames, topic_name
from cdcd.core.catalog.sharing import SharedTopic
from cdcd.core.catalog.table_rules import (
    ChosenKeys,
    ChosenPartitions,
    KeyFormRule,
    KeyRule,
    PartitionRule,
)
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.flattening import Flattening
from cdcd.core.records.schema_names import NONE
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse
from cdcd.core.records.shaping.settings import TableComputed
from cdcd.core.table_names import Table
from cdcd.core.transactions.drafts import Draft, SpoolItem
from cdcd.core.transactions.position import Counts

if TYPE_CHECKING:
    from cdcd.core.records.debezium_json.known_tables import KnownTables
    from cdcd.core.records.late_records import LateRecords
    from cdcd.core.records.shaping.shape import Shapes

SKIPPABLE: Final = ("c", "u", "d")
"""Operations whose records can be left out, by their `op`; rows of snapshots cannot. `truncate` is for TRUNCATE."""

_NULL_IN_KEYS: Final = ("json", "text", "protobuf")
"""Formats that have null for a column of the key."""

Record = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""Topic, key, value and headers; a value of None is a tombstone."""

HEADER_NEW_KEY: Final = "__debezium.newkey"
HEADER_OLD_KEY: Final = "__debezium.oldkey"
HEADER_UNCHANGED: Final = "cdcd.unchanged"
"""JSON array of the columns whose value in this record is a placeholder, because the server did not send it."""
HEADER_UNWRITABLE: Final = "cdcd.unwritable"
"""JSON array of the columns of which this record lacks a value, because its format has no form for it."""
HEADER_CHANGE: Final = "cdcd.change"
"""Place of a change among all changes, as `records/change_headers.py` writes it."""
HEADER_LETTER_OF: Final = "cdcd.topic"
"""Header of a dead letter: the topic for which the record was made."""
HEADER_LETTER_REASON: Final = "cdcd.reason"
"""Header of a dead letter: why the topic does not have the record."""
HEADER_SIZE: Final = "cdcd.size"
"""Of a record that went elsewhere, or lost its value: the size of the value in bytes; of a logical message whose record
lost its value, that of its content."""
HEADER_DIGEST: Final = "cdcd.sha256"
"""Of a record of a logical message that lost its value: the SHA-256 of what `HEADER_SIZE` counts, in hexadecimal."""
LOST_KEY_BYTES_MAX: Final = 1_000
"""A record of a logical message that loses its value loses a longer key too. The key holds the prefix, which the sender
of the message chose."""
HEADER_PIPELINE: Final = "cdcd.pipeline"
"""Of a description of a table: the name of the pipeline that writes the table's records."""
HEADER_WATERMARK: Final = "cdcd.watermark"
"""An LSN in decimal, as `source.commit_lsn` has it: Kafka holds each change whose `commit_lsn` is less.

In a heartbeat it is said of all topics. In a record without key and value it is said of the record's partition.
"""


def record_bytes(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]] | None) -> int:
    """Bytes of key, value and headers. An application chooses the headers of its events, so they may be the most."""
    size = (0 if key is None else len(key)) + (0 if value is None else len(value))
    if headers is not None:
        for name, content in headers:
            size += len(name) + len(content)
    return size


def is_watermark(value: bytes | None, headers: Iterable[tuple[str, object]]) -> bool:
    """Whether a record of a table's topic is a watermark, and no tombstone. Readers of changes pass it over."""
    return value is None and any(name == HEADER_WATERMARK for name, _ in headers)


MESSAGES: Final = 0
HEARTBEATS: Final = -1
TRANSACTIONS: Final = -2
"""Stand for logical messages, for heartbeats, and for END of transactions where else a relation is named by its oid."""
HEADER_PARTITION: Final = "cdcd.partition"
"""Of a record whose partition columns choose (`partitioner.columns`): the hash of their values, 4 bytes, big-endian.

The sink takes this header out, and no record in Kafka has it.
"""


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """What the records' form depends on, apart from the data.

    Attributes:
        version: cdcd's version, `source.version`.
        prefix: of the topics, `source.name`.
        database: its name, `source.db`.
        message_topic: for logical messages; None is `<prefix>.message`.
        schemas_topic: for the descriptions of tables (`schemas.py`); None: there are none, nor `source.schema_id`.
        names, topic_template: topics of some tables, and the rule for those of all other tables (`routing.py`).
        checkpoint_topic, dead_letter_topic: which no table may take; None: there is none.
        tombstones, truncate: a delete is followed by a record without a value; TRUNCATE makes records.
        unavailable: stands for a value that the server did not send.
        column_rules: which columns' values are left out or replaced.
        bindings: the columns that the rules are bound to. All encoders of a session share them.
        key_format, value_format: names of `available.py`.
        modes: how values of some types are written.
        name_adjustment: how names of schemas come to be ones that Avro takes (`schema_names.py`).
        flattening: how records are flattened; None: they are envelopes.
        events: how records are CloudEvents, if `value_format` says so.
        skipped: the operations of `SKIPPABLE` that have no records.
        transaction_topic: for BEGIN and END of transactions; None: there are none, and no record tells its transaction.
        heartbeat_topic: for heartbeats; None: there are none.
        subjects: how subjects of a schema registry are named: topic, record or topic_record.
        schema_ids: the ids that the registry gave.
        key_rules, key_forms: the keys, and the forms of keys, that are chosen for tables.
        partition_rules: the columns that choose the partitions of tables' records.
        computed_rules, field_rules: computed fields; names of fields that are not their columns', and constant fields.
        routes: topics that rows of tables may go to beside the tables' own.
        renames: rules that rename the topics by the template.
        claims_topic: the topic with the claims of all pipelines, which no table may take; None: there is none.
        shared: topics for several tables.
        dead_letters: kinds of records that go to `dead_letter_topic` (`records/dead_letters.py`).
        change_header: records of changes have the header `cdcd.change`, and registrations have the text of the schema.
        pipeline: the pipeline's name, which descriptions of tables carry in a header; "": they carry none.
    """

    version: str
    prefix: str
    database: str
    message_topic: str | None = None
    schemas_topic: str | None = None
    names: Mapping[Table, str] = field(default_factory=dict)
    checkpoint_topic: str | None = None
    dead_letter_topic: str | None = None
    tombstones: bool = True
    truncate: bool = True
    unavailable: str = "__debezium_unavailable_value"
    column_rules: tuple[ColumnRule, ...] = ()
    key_format: str = "json"
    value_format: str = "json"
    modes: Modes = field(default_factory=Modes)
    name_adjustment: str = NONE
    flattening: Flattening | None = None
    events: CloudEvents = field(default_factory=CloudEvents)
    skipped: tuple[str, ...] = ()
    transaction_topic: str | None = None
    heartbeat_topic: str | None = None
    subjects: str = "topic"
    schema_ids: SchemaIds = field(default_factory=SchemaIds, compare=False)
    topic_template: str = DEFAULT_TEMPLATE
    key_rules: tuple[KeyRule, ...] = ()
    partition_rules: tuple[PartitionRule, ...] = ()
    field_rules: tuple[FieldRule, ...] = ()
    routes: tuple[RoutedTopics, ...] = ()
    renames: tuple[Router, ...] = ()
    claims_topic: str | None = None
    bindings: Bindings = field(default_factory=Bindings, compare=False)
    pipeline: str = ""
    key_forms: tuple[KeyFormRule, ...] = ()
    shared: tuple[SharedTopic, ...] = ()
    computed_rules: tuple[TableComputed, ...] = ()
    dead_letters: tuple[str, ...] = ()
    change_header: bool = False

    @property
    def protections(self) -> Protections:
        """The rules that protect columns, with the columns that they are bound to."""
        return Protections(self.column_rules, self.modes, self.bindings)

    @property
    def chosen_keys(self) -> ChosenKeys:
        """The keys that are chosen, as the records' forms allow them. ConfigError: a pattern is malformed."""
        return ChosenKeys(
            self.key_rules,
            forms=self.key_forms,
            has_schemas=any(each not in _NULL_IN_KEYS for each in (self.key_format, self.value_format)),
        )

    @property
    def chosen_partitions(self) -> ChosenPartitions:
        """The partitions that columns choose. ConfigError: a pattern is malformed."""
        return ChosenPartitions(self.partition_rules, self.protections)

    @property
    def chosen_fields(self) -> ChosenFields:
        """The fields that the configuration names. ConfigError: a pattern is malformed."""
        return ChosenFields(self.field_rules, self.protections)

    @property
    def topics(self) -> TopicNames:
        """How the topics are called. SinkError: the prefix makes the name of the messages' topic too long."""
        return TopicNames(
            self.prefix,
            self.names,
            topic_name(self.message_topic or f"{self.prefix}.message"),
            self.schemas_topic,
            self.checkpoint_topic,
            self.dead_letter_topic,
            self.transaction_topic,
            self.heartbeat_topic,
            self.topic_template,
            self.routes,
            self.renames,
            self.claims_topic,
            self.shared,
        )


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """Where rows of a snapshot stand among the changes.

    Attributes:
        lsn: everything that was committed before it is in the rows, if it is in the stream before them.
        commit_lsn: after that of every transaction before the rows, and before that of every one after them.
        first, last, others: `source.snapshot` of the first row, the last one and those between.
        event_no: how many rows stand at this `commit_lsn` already; the next one has the number after it.
        op: operation of the records: r for rows that were read, else that of a difference (`engine/healing.py`), for
            which there are records in JSON only.
    """

    lsn: int
    commit_lsn: int
    first: str
    last: str
    others: str
    event_no: int = 0
    op: str = "r"


Key = bytes


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of rows that were to be encoded.

    Attributes:
        rows: how many records were appended.
        bytes: the size of their keys and values.
        keys: the key of each, in the records' order; None for a table without a key.
        left_out: which of the rows have no record, because their key was in `dropped`: their numbers from 0, rising.
    """

    rows: int
    bytes: int
    keys: list[Key] | None
    left_out: list[int] = field(default_factory=list)


def owner_headers(settings: EncoderSettings) -> list[tuple[str, bytes]] | None:
    """Return the headers of records in the schemas topic, which name the pipeline; None if it has no name."""
    return [(HEADER_PIPELINE, settings.pipeline.encode())] if settings.pipeline else None


class TransactionRecords(Protocol):
    """Counts the records of the transaction that is open, and makes the records of its BEGIN and END.

    The caller owes, for each transaction and after `Encoder.begin`: `restore` if its first events are delivered
    already, `begun` with the records of each step, and `ended` behind the last one.
    """

    def counts(self) -> Counts:
        """How many records of each table there are so far."""

    def restore(self, counts: Counts) -> None:
        """The transaction has had so many records before."""

    def take_back(self, table: str, records: int) -> None:
        """So many records of the table (`schema.table`) are not delivered, although they were made."""

    def begun(self, records: list[Record]) -> int:
        """If these are the first records of the transaction that count, put BEGIN before them; its bytes, or 0."""

    def ended(self, records: list[Record]) -> int:
        """Append END, if there was a BEGIN; its bytes, or 0."""


class Encoder(Protocol):
    """Turns the row frames of committed transactions into records. Frames and values are checked as they are read.

    The caller owes: `define` before the first row of a relation and whenever it is described again; `begin` (and, where
    it applies, `set_origin` and `skip`) before a transaction's rows; then each row once, in order.

    The same frames in the same transactions give the same bytes, but for the times of processing.
    """

    @property
    def tables(self) -> "KnownTables":
        """The relations that were defined, with their topics and keys."""

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Records so far by (schema.table, op), tombstones not counted; logical messages are ("", "m")."""

    @property
    def unwritable(self) -> dict[tuple[str, str], int]:
        """Values so far for which the format has no form, by (schema.table, column). See `unwritable.py`."""

    @property
    def shapes(self) -> "Shapes":
        """What stands between events and records. Shapes are put before a table is defined."""

    @property
    def metadata(self) -> TransactionRecords | None:
        """Of the transaction that is open; None: transactions have no records of their own."""

    def to_topic(self, relation_oid: int, record: Record, topic: str) -> Record:
        """Return a record of the table as it is written to another topic than the table's own."""

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Take a relation's description, the first or a changed one; one that changes nothing is left alone.

        Raises:
            WithoutBinaryError: rows may come in binary form, and a column's type has no reader for it.
            ConfigError: the rules that protect columns contradict each other, or the table's key.
        """

    def unregistered(self, relation_oid: int) -> tuple[SchemaUse, ...]:
        """The schemas of a defined relation's records that have no id yet.

        Likewise for MESSAGES, HEARTBEATS and TRANSACTIONS. The caller owes: no row of the relation (logical message,
        heartbeat, end of a transaction) before they have one (`EncoderSettings.schema_ids`).
        """

    def begin(self, xid: int, commit_lsn: int, commit_time: int, last_commit_lsn: int | None) -> None:
        """A committed transaction's events follow; the first has the number 1.

        Args:
            commit_time: in microseconds since 2000, as on the wire.
            last_commit_lsn: of the transaction before it, None when that is not known.
        """

    def set_origin(self, name: str, lsn: int | None) -> None:
        """The transaction that has begun came in by replication; `lsn` is its commit there, 0 or None unknown."""

    def skip(self, events: int) -> None:
        """So many events of the transaction have no record here; the next has the number after theirs.

        Args:
            events: -1 for an event that is encoded in several parts: the next part has the number of the last one.
        """

    @property
    def serial(self) -> int:
        """The number of the last event of the open transaction that was begun, also if an error was raised for it."""

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        """As `encode`, for several events in their order, of which some may be drafts.

        If it raises an error of `encode`, `out` has the records of all events before the one at fault, which is the one
        with the number `serial`, and none of this one but maybe a description.

        Raises:
            WithoutStreamingError: what was drafted is no longer what the rows should be.
        """

    def late_records(self, draft: Draft, now_us: int, out: list[Record]) -> "LateRecords | None":
        """As `encode_all` for one draft, but its records are put together when they are handed over.

        Args:
            out: gets what stands before them (the description of the table).

        Returns:
            None if that is not possible: `encode_all` owes the records.

        Raises:
            WithoutStreamingError: as `encode_all`.
        """

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Append the records of one event: Insert, Update, Delete, Truncate or transactional Message.

        Headers that a format writes for each record count as bytes of the value (CloudEvents in the binary mode).

        Args:
            frame: the CopyData payload, `w` and header included.
            in_stream: the message has the xid of a streamed transaction after its tag.
            now_us: when it is processed, in microseconds since 1970.

        Returns:
            The bytes of the keys and values that were appended; 0 for an event without records.

        Raises:
            ProtocolError: the frame or a value in it is malformed, or its relation was never defined.
            WithoutBinaryError: a binary value is of a type without a reader.
            SinkError: the topic of the table is too long, or collides with another one.
            SourceError: the server did not send a part of the key.
        """

    def encode_message(
        self, frame: bytes, in_stream: bool, last_commit_lsn: int | None, now_us: int, out: list[Record]
    ) -> int:
        """The same for a Message outside any transaction."""

    def encode_end_of_rows(
        self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]
    ) -> int:
        """Append a truncate record that no event made: rows of another table end, which had this one's topic before.

        Args:
            between: commit LSN and number by which it stands between two transactions; None: it stands in the one that
                is open, behind its last event.
        """

    def encode_heartbeat(self, lsn: int, now_us: int, out: list[Record]) -> int:
        """Append the record of a heartbeat, and return its bytes. The settings have a topic for it.

        Args:
            lsn: Kafka holds every record of a transaction whose commit record begins before.
        """

    def encode_rows(
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        """Append the records of rows of COPY, each with its newline, whose key is not in `dropped`.

        Raises:
            ProtocolError: a row is malformed.
            SinkError: the topic of the table is too long, or collides with another one.
        """

    def encode_deletes(
        self,
        oid: int,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
    ) -> Encoded:
        """Append the deletes, and tombstones, of rows that the topic has and the table lacks; in Debezium's JSON only.

        Args:
            keys: for each row, the JSON of its key's values, in the key's order.
        """

    def draft_all(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """Drafts of row frames in a stream, in their order, and the frames of which there can be none.

        Nobody but the encoder that made a draft looks into it; `encode_all` finishes it. A row of which the server left
        a value out (unchanged TOAST) stays a frame: while its table is read, the caller reads the row again by key.
        """

    def send_to_dead_letters(self, relation_oid: int, reason: str) -> bool:
        """Send a relation's records to the dead letters until it is defined again: the registry refuses a schema.

        Returns:
            False if `kafka.dead_letters` does not name `schemas`. The caller then decides what happens to the table.
        """

    def forget(self, relation_oid: int) -> None:
        """Know the relation no more, so that its next description comes before its records again."""
