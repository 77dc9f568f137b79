"""Sources of `cdcd tail`: the pipeline's topics, or a temporary slot. It changes neither."""

import asyncio
import select
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TextIO

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.descriptions import SchemasTopic
from cdcd.adapters.kafka.reading import Follower
from cdcd.adapters.postgres.slot import SlotWait
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.catalog.patterns import TablePattern, parse_pattern
from cdcd.core.catalog.relations import UNKNOWN_PLACE, TableDescription, TypeDescription
from cdcd.core.catalog.routing import DEFAULT, parse_table
from cdcd.core.engine.context import PREFIX as CONTEXT
from cdcd.core.engine.fates import BELONGS
from cdcd.core.engine.left_out import LeftOutTables
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.core.facts import unheard
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Record
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.outbox import shaped
from cdcd.core.records.shaping.partitioning import partitioned, without_partition
from cdcd.core.records.shaping.routed import routed
from cdcd.core.snapshot.signals import RESERVED
from cdcd.core.table_names import table_text
from cdcd.core.transactions.steps import NonTransactionalMessage, Opened
from cdcd.daemon.settings import encoder_settings, require_json
from cdcd.stream.settings import StreamSettings
from cdcd.stream.source import StreamSource
from cdcd.stream.stream import Stream, Transaction
from cdcd.tools.operations.change_lines import Filter, ReadRecord, as_json, as_line
from cdcd.tools.operations.conditions import parse_condition
from cdcd.tools.operations.shown_values import BINARY, ShownForms
from cdcd.tools.operations.sides import bound_columns

POLL_S: Final = 0.5

ANSWER_S: Final = 10.0
"""Seconds that the broker may take to return the descriptions of tables."""

SCHEMAS: Final = "cdcd-tail.descriptions-of-tables"
"""The topic of descriptions among the records of a slot, which are not written to Kafka."""

Say = Callable[[str], None]

_WITH_TOKENS: Final = frozenset(prefix.encode() for prefix in (*RESERVED, CONTEXT))


class Shown:
    """Shows records until the limit is reached.

    Args:
        show: is called with each line.
        notice: is called with texts that are not records.
        limit: maximum number of records; 0 for no limit.
        watched: stream that the lines go to; BrokenPipeError is raised when it is a pipe without a reader.
        descriptions: descriptions of columns, by which lines show values.
    """

    def __init__(
        self,
        wanted: Filter,
        *,
        as_objects: bool,
        show: Say,
        notice: Say,
        limit: int = 0,
        watched: TextIO | None = None,
        descriptions: ShownForms | None = None,
    ) -> None:
        self.descriptions = descriptions
        self._filter = wanted
        self._as_objects = as_objects
        self._show = show
        self._notice = notice
        self._left = limit or None
        self._poll = _poll_for(watched)

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def take(self, records: Iterator[ReadRecord]) -> None:
        """Show the wanted records. Raises ConfigError for the condition, and BrokenPipeError."""
        for seen in records:
            if self.is_full:
                return
            envelope = self._filter.wanted(seen)
            if envelope is not None:
                line = as_json(seen) if self._as_objects else as_line(seen, envelope, self.descriptions)
                self._show(line)
                self._left = None if self._left is None else self._left - 1
        while self._filter.notices:
            self._notice(self._filter.notices.pop(0))
        # Without this check, a closed pipe would be noticed only at the next change.
        if self._poll is not None and self._poll.poll(0):
            raise BrokenPipeError


def _poll_for(stream: TextIO | None) -> "select.poll | None":
    try:
        number = -1 if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None
    if number < 0:
        return None
    poll = select.poll()
    # For a pipe without a reader, POLLERR is reported without a request (poll(2)).
    poll.register(number, 0)
    return poll


def filter_of(tables: tuple[str, ...], where: str, flattened: Config | None = None) -> Filter:
    """Return the filter of the records to show.

    `flattened`: the configuration of a pipeline whose topics may have flattened records.

    Raises ConfigError: a pattern or the condition cannot be read.
    """
    patterns = tuple(parse_pattern(table, "--table") for table in tables)
    condition = parse_condition(where) if where else None
    if flattened is None or not flattened.event_flattening.enabled:
        return Filter(patterns, condition)
    topics, names = flattened.topics, flattened.topic_names()
    named = {topic: table_text(schema, table) for (schema, table), topic in topics.by_table.items()}
    is_literal = all(pattern.is_literal for pattern in patterns)
    if topics.name != DEFAULT and not is_literal:
        raise ConfigError(
            f"Flattened records do not name their table, and topics.name: {topics.name} does not show it either.",
            hint="Give --table names without * and ?, or leave it out.",
        )
    if is_literal:
        for schema, table in map(parse_table, tables):
            named |= dict.fromkeys(names.all_of(schema, table), table_text(schema, table))
    return Filter(
        patterns, condition, lambda topic: named.get(topic, topic.removeprefix(f"{topics.prefix}."))
    )


def descriptions_of(config: Config, notice: Say, *, from_topics: bool) -> ShownForms:
    """Return the descriptions of columns: from the schemas topic, or from the stream of a slot.

    `notice` is called once if the topic cannot be read. Values are then shown as records have them.
    """
    binary = BINARY[config.format.binary_handling_mode]
    topic = config.topics.schemas
    if not from_topics or not topic:
        return ShownForms(binary)
    refused: list[CdcdError] = []

    def read(take: Callable[[bytes], object]) -> None:
        if refused:
            return
        connection, _ = client.configured(config.kafka)
        try:
            if topic in Admin(connection, ANSWER_S).names():
                SchemasTopic(topic, connection, f"{config.name}-tail", ANSWER_S).read(take)
        except CdcdError as error:
            refused.append(error)
            notice(f"Types of columns are not known, because topic {topic} cannot be read: {error.message}")

    return ShownForms(binary, read)


def follow_topics(
    config: Config, shown: Shown, tables: tuple[str, ...], *, beginning: bool, notice: Say
) -> None:
    """Show new records of the topics, up to the limit.

    Raises:
        ConfigError: the topics are not in JSON.
        SinkError: there is no topic, or Kafka refuses.
        SinkUnavailableError: Kafka does not answer.
    """
    require_json(
        config,
        "cdcd tail --from topics",
        "`cdcd tail --from slot` shows the same changes in JSON. A consumer that knows the registry reads Avro, "
        "Protobuf and json_registry, such as kafka-avro-console-consumer, kafka-protobuf-console-consumer and "
        "kafka-json-schema-console-consumer. A consumer with an SDK of CloudEvents reads those.",
    )
    connection, _ = client.configured(config.kafka)
    follower = Follower(connection, f"{config.name}-tail", topics_of(config, tables), beginning=beginning)
    try:
        if not follower.topics:
            notice(no_topic(config, tables))
        while not shown.is_full:
            messages = follower.poll(POLL_S)
            shown.take(map(seen_of, messages))
    finally:
        follower.close()


def no_topic(config: Config, tables: tuple[str, ...]) -> str:
    """Return the notice that these tables have no topic yet."""
    wanted = f"of {', '.join(tables)} " if tables else ""
    where = f"below {config.topics.prefix}" if config.topics.name == DEFAULT else f"of {config.topics.name}"
    return (
        f"There is no topic {wanted}yet {where}: the daemon makes a table's topic before its first record. This waits "
        f"for it; Ctrl-C ends it. `cdcd status` says whether pipeline {config.name} runs, and which tables it has."
    )


def seen_of(message: Any) -> ReadRecord:
    """Return confluent_kafka's message as a record."""
    return ReadRecord(
        message.topic(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.partition(),
        message.offset(),
    )


def topics_of(config: Config, tables: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a function that is True for topics with records of these tables.

    If a pattern has a wildcard, these are all topics except cdcd's own.
    """
    names = config.topic_names()
    patterns: list[TablePattern] = [parse_pattern(table, "--table") for table in tables]
    if patterns and all(pattern.is_literal for pattern in patterns):
        literal = {topic for table in tables for topic in names.all_of(*parse_table(table))}
        return lambda topic: topic in literal
    topics = config.topics
    others = {topics.checkpoint, topics.schemas or "", topics.transaction_topic or ""}
    others.add(config.heartbeat_topic or "")
    others |= {topics.message} if patterns else set()
    described = _Described(config)

    def has_records(topic: str) -> bool:
        if topic in others:
            return False
        return names.is_under_prefix(topic) or topic == topics.message or described.has(topic)

    return has_records


class _Described:
    """The topics that descriptions of tables name. They are read again for each topic that is not known yet."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._has_any = config.topic_names().has_claims
        self._topics: set[str] = set()
        self._others: set[str] = set()

    def has(self, topic: str) -> bool:
        """Return True if the topic has records of a table of this pipeline."""
        if not self._has_any or topic in self._others:
            return False
        if topic not in self._topics:
            self._read()
            if topic not in self._topics:
                self._others.add(topic)
        return topic in self._topics

    def _read(self) -> None:
        """Read the descriptions, unless the topic with them is missing."""
        config = self._config
        connection, _ = client.configured(config.kafka)
        name = config.topics.schemas
        if name and name in Admin(connection, ANSWER_S).names():
            self._topics = set(
                SchemasTopic(name, connection, f"{config.name}-tail", ANSWER_S).described_topics()
            )


def follow_slot(config: Config, shown: Shown, *, notice: Say) -> None:
    """Show new commits, up to the limit.

    Raises:
        SourceError, TransientError: PostgreSQL refuses, or the connection is lost.
    """
    asyncio.run(_follow_slot(config, shown, notice))


async def _follow_slot(config: Config, shown: Shown, notice: Say) -> None:
    postgres = config.postgres

    def on_wait(wait: SlotWait) -> None:
        holder = f"prepared transaction {wait.gid}" if wait.gid else f"server process {wait.pid}"
        notice(f"The temporary slot waits for an open transaction to end ({holder}).")

    dsn, password_command = postgres.access()
    settings = StreamSettings(
        dsn=dsn,
        password_command=password_command,
        publication=postgres.publication,
        messages=config.delivers_messages is not False or config.outbox.messages,
        streaming="off",
        connect_timeout_s=postgres.connect_timeout_s,
        application_name=f"{config.name} tail",
        money_digits=config.money.digits,
    )
    bindings = await asyncio.to_thread(bound_columns, config)

    def decoder(source: StreamSource) -> RecordDecoder:
        source.look_up.protects = bool(config.columns.patterns)
        return RecordDecoder(
            config, source.database, source.money_digits, bindings, shown.descriptions, notice=notice
        )

    stream = Stream(
        settings,
        decoder,
        on_wait=on_wait,
    )
    async with stream:
        notice("Shows what is committed from now on. Ctrl-C ends it.")
        while True:
            async for topic, key, value, headers in await _next(stream, shown):
                shown.take(iter((ReadRecord(topic, key, value, tuple(headers or ())),)))
                if shown.is_full:
                    return


async def _next(stream: Stream[Record], shown: Shown) -> Transaction[Record]:
    """Return the next transaction. During the wait, `shown` checks from time to time that its reader exists."""
    begins = asyncio.ensure_future(anext(stream))
    try:
        while not (await asyncio.wait({begins}, timeout=POLL_S))[0]:
            shown.take(iter(()))
        return begins.result()
    finally:
        begins.cancel()


def _silently(_text: str) -> None:
    """Default of `notice`."""


class RecordDecoder:
    """Makes the records that the daemon would write to Kafka, without tombstones.

    Args:
        descriptions: is called with the descriptions of tables; None if they are not needed.
        notice: is called with a text for each table that has no records because of a fault of its own.
    """

    def __init__(
        self,
        config: Config,
        database: str,
        money_digits: int = DIGITS_OF_C,
        bindings: Bindings | None = None,
        descriptions: ShownForms | None = None,
        notice: Say = _silently,
    ) -> None:
        self._descriptions = descriptions
        self._notice = notice
        settings = encoder_settings(config, database, bindings=bindings, money_digits=money_digits)
        self._commit_lsn = UNKNOWN_PLACE
        settings = replace(
            settings, schemas_topic=None if descriptions is None else SCHEMAS, tombstones=False
        )
        # An envelope contains more information for people than a row.
        settings = replace(settings, flattening=None)
        value_format = config.format.value
        if value_format not in {"json", "json_schema"}:
            # People are shown JSON, also if the daemon writes Avro, Protobuf or CloudEvents.
            value_format = "json"
            settings = replace(settings, key_format="json", value_format="json")
        selection = config.tables.selection
        self._left_out = LeftOutTables(None if selection.is_all else selection.test())
        made = shaped(
            record_stream(settings, False, unheard), config.outbox.settings.in_text, settings, unheard
        )
        made = routed(partitioned(made, settings), config.routes.settings, settings, unheard)
        self._encoder = filtered(made, config.filters.settings, settings, unheard)

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """See `Decoder`."""
        if not self._left_out.describe(relation):
            return
        try:
            self._encoder.define(relation, replace(description, at=self._commit_lsn), types)
        except BELONGS as error:
            # A fault of one table does not end the command for the others, as in the daemon.
            self._left_out.refuse(relation.oid)
            self._notice(f"{relation.schema}.{relation.name} is left out: {error.message}")

    def begin(self, opened: Opened) -> None:
        """See `Decoder`."""
        self._commit_lsn = opened.commit_lsn
        self._encoder.begin(opened.xid, opened.commit_lsn, opened.commit_time, opened.last_commit_lsn)

    def set_origin(self, name: str, lsn: int) -> None:
        """See `Decoder`."""
        self._encoder.set_origin(name, lsn)

    def decode(self, frame: bytes, in_stream: bool) -> list[Record]:
        """See `Decoder`."""
        records: list[Record] = []
        rest = None if _has_token(frame, in_stream) else self._left_out.rest(frame, in_stream)
        if rest is None:
            self._encoder.skip(1)
            return records
        assert isinstance(rest, bytes)
        frame = rest
        self._encoder.encode(frame, in_stream, _unix_us(), records)
        return [without_partition(record) for record in records if not self._takes(record)]

    def _takes(self, record: Record) -> bool:
        """Keep the record if it is the description of a table."""
        if self._descriptions is None or record[0] != SCHEMAS:
            return False
        self._descriptions.take(record[2] or b"")
        return True

    def decode_message(self, step: NonTransactionalMessage) -> list[Record]:
        """See `Decoder`."""
        records: list[Record] = []
        if _has_token(step.frame, step.in_stream):
            self._encoder.skip(1)
            return records
        self._encoder.encode_message(step.frame, step.in_stream, step.last_commit_lsn, _unix_us(), records)
        return records


def _has_token(frame: bytes, in_stream: bool) -> bool:
    """Return whether the event is a request to a daemon or a context, which have no records and may have a token."""
    return peek.tag_of(frame) == peek.MESSAGE and peek.message_prefix(frame, in_stream) in _WITH_TOKENS


def _unix_us() -> int:
    return time.time_ns() // 1000
