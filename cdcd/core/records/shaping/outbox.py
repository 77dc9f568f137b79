"""A shape (`shape.py`) that makes the records of published events.

An event that cannot be published is never lost silently, and never ends the daemon: a logical message goes to the
topic of logical messages, a row goes to its table's own topic, and the observer is told why. At most one such
report is made per `REPORT_S`, because anybody may send many such events. A message that is too large for the topic
of logical messages gets no record.

`OutboxRows` makes the records of events that an application inserts into an outbox table. The rule: only an INSERT is
an event. A DELETE only shows that the application has cleaned up, and an UPDATE has no meaning for readers who may
have read the event already (Debezium's outbox event router decides the same). A row that cannot be an event goes to
the table's own topic like any change, so that it is not lost.

The payload is PostgreSQL's text for the column; for a `bytea` column it is the bytes themselves. With fields beside it
(`OutboxTable.envelope`), the value is a JSON object, in which payload and fields have the form of their columns. Key
and payload may also be in Avro (`event_forms.py`).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from cdcd.core.catalog.modes import logical_type_under
from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.routing import unchecked_topic
from cdcd.core.catalog.types import BYTEA
from cdcd.core.catalog.wiretext import checked
from cdcd.core.errors import ConfigError, RecordTooLargeError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.rules import EventRefused
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Binary, Insert, LogicalMessage, Relation, TupleData, Unchanged
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.debezium_json.connect_schema import Schema, schema_of
from cdcd.core.records.debezium_json.converter import Converter
from cdcd.core.records.debezium_json.converters import converter_for
from cdcd.core.records.encoder import Encoder, EncoderSettings, record_bytes
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.shaping.event_forms import EncodedPart, EventSchemas, OutboxEvent
from cdcd.core.records.shaping.event_topics import EventTopics
from cdcd.core.records.shaping.publishing import PREFIX, read_event
from cdcd.core.records.shaping.settings import AVRO, TEXT, Outbox, OutboxTable
from cdcd.core.records.shaping.shape import NO_NEEDS, Counts, Needs, Shape, ShapedPart, of_row
from cdcd.core.table_names import table_text
from cdcd.core.transactions.drafts import SpoolItem

EVENT_ID: Final = "id"
"""Header with the id of an event, with Debezium's name."""

PAYLOAD: Final = "payload"
"""Field of the payload in a value with other fields, with Debezium's name."""

_NO_TYPES: Final[Mapping[int, TypeDescription]] = {}
_HEX: Final = b"\\x"
_SHOWN_MAX: Final = 200


class OutboxRows:
    """Makes events of the rows of an outbox table, by the table's latest description.

    Args:
        rules: for each column of the relation, the rule that protects it, or None. Events have the values
            unchanged, so no column that they use may have a rule.

    Raises:
        ConfigError: the table lacks a column, or a column is protected.
    """

    def __init__(
        self,
        relation: Relation,
        table: OutboxTable,
        topics: EventTopics,
        rules: Sequence[ColumnRule | None],
        settings: EncoderSettings,
        schemas: EventSchemas,
        types: Mapping[int, TypeDescription] = _NO_TYPES,
    ) -> None:
        self.has_needs = table.has_schemas or table.topics_max > 0
        self._table = table
        self._topics = topics
        self._schemas = schemas
        self._width = len(relation.columns)
        check_columns(relation, table, rules)
        self._at = {column.name: index for index, column in enumerate(relation.columns)}
        self._bytes = {column.name for column in relation.columns if column.type_oid == BYTEA}
        by_name = {column.name: column for column in relation.columns}
        self._forms: dict[str, tuple[Converter, Schema]] = {}
        """Form in JSON, and schema, of key and payload if they are in Avro, and of the fields of the value."""
        for column in (*table.envelope.values(), *table.in_avro, *[table.payload] * bool(table.envelope)):
            oid, modifier = by_name[column].type_oid, by_name[column].type_modifier
            converter = converter_for(oid, modifier, types, settings.modes)
            self._forms[column] = (
                converter,
                schema_of(logical_type_under(settings.modes, oid, modifier, types)),
            )
        self._fields: list[tuple[bytes, str]] = []
        """Name as JSON, and column, of each field of the value; [] if the value is the payload alone."""
        if table.envelope:
            named = {PAYLOAD: table.payload, **table.envelope}
            self._fields = [(json.dumps(name, ensure_ascii=False).encode(), named[name]) for name in named]

    def prepared(self, row: TupleData, now_us: int) -> OutboxEvent:
        """Return the event of an inserted row. `now_us`: the time by which refused topics are requested again.

        ValueError if the row is not an event; its text explains why to a person, and shows no value except that of
        the topic.
        """
        if len(row) != self._width:
            raise ValueError("the row has another number of columns than the relation")
        table = self._table
        route = self._text(row, table.route_by)
        if route is None:
            raise ValueError(f"{table.route_by} is NULL")
        topic = unchecked_topic(table.topic.replace("{value}", route))
        key = self._value(row, table.key)
        if not key:
            raise ValueError(f"{table.key} is NULL or empty")
        headers: list[tuple[str, bytes]] = []
        named = {EVENT_ID: table.event_id, **table.headers} if table.event_id else table.headers
        for name, column in named.items():
            value = self._value(row, column)
            if value is not None:
                headers.append((name, value))
        written = EncodedPart(key) if table.key_form == TEXT else self._in_avro(row, topic, table.key, "key")
        payload = self._payload(row, topic)
        # The row of an event that is refused for another reason makes no topic.
        is_made = self._topics.admit(table, topic, now_us)
        return OutboxEvent(topic, written, payload, headers or None, table.schemas_max, is_made)

    def _payload(self, row: TupleData, topic: str) -> EncodedPart | None:
        """Return the value of an event; None for a tombstone."""
        table = self._table
        if self._fields:
            return EncodedPart(self._object(row))
        payload = self._value(row, table.payload)
        if payload is None:
            return None
        if table.payload_form == TEXT:
            return EncodedPart(payload)
        if table.payload_form == AVRO:
            return self._in_avro(row, topic, table.payload, "value")
        try:
            schema, value = table.json.read(payload, table.payload)
            return self._schemas.record_of_json(topic, schema, value)
        except ValueError as cause:
            raise ValueError(f"{table.payload} is no record in Avro: {cause}") from None

    def _in_avro(self, row: TupleData, topic: str, column: str, part: str) -> EncodedPart:
        sent = row[self._at[column]]
        assert isinstance(sent, bytes), "the value was checked"
        converter, schema = self._forms[column]
        # The key of an event is never null.
        return self._schemas.column(
            topic, {**schema, "optional": part == "value"}, converter.wire(sent), part
        )

    def _object(self, row: TupleData) -> bytes:
        """Return the value of an event whose payload has fields beside it."""
        parts: list[bytes] = []
        for name, column in self._fields:
            # It is checked, and then converted from the text that the server sent.
            written = b"null"
            if self._value(row, column) is not None:
                sent = row[self._at[column]]
                assert isinstance(sent, bytes)
                written = self._forms[column][0].wire(sent)
            parts.append(name + b":" + written)
        return b"{" + b",".join(parts) + b"}"

    def _text(self, row: TupleData, column: str) -> str | None:
        value = self._value(row, column)
        return None if value is None else value.decode("utf-8")

    def _value(self, row: TupleData, column: str) -> bytes | None:
        value = row[self._at[column]]
        if value is None:
            return None
        if isinstance(value, (Binary, Unchanged)):
            raise ValueError(f"the server did not send {column} as text")  # noqa: TRY004  of the wire, not our call
        if column in self._bytes:
            return _bytes_of(value, column)
        try:
            return checked(value)
        except UnicodeDecodeError:
            raise ValueError(f"{column} is no text in the encoding of the database") from None


def _bytes_of(text: bytes, column: str) -> bytes:
    """Return the bytes of a bytea whose text is hexadecimal, as `bytea_output` is set on cdcd's connections."""
    if not text.startswith(_HEX):
        raise ValueError(f"{column} is not in hexadecimal form")
    return bytes.fromhex(text[len(_HEX) :].decode("ascii"))


def check_columns(relation: Relation, table: OutboxTable, rules: Sequence[ColumnRule | None]) -> None:
    """Raise ConfigError if the relation lacks a column that events need, or if the column is protected."""
    name = table_text(relation.schema, relation.name)
    known = {column.name: rule for column, rule in zip(relation.columns, rules, strict=True)}
    for column in table.columns:
        if column not in known:
            raise ConfigError(
                f"The outbox table {name} has no published column {column}.",
                hint=f"Name the table's columns in outbox.tables ({name}), or add the column to the publication.",
            )
        rule = known[column]
        if rule is not None:
            raise ConfigError(
                f"{rule} matches column {name}.{column}, which events of the outbox would show in clear.",
                hint=f"Narrow the pattern, or take {name} out of outbox.tables.",
            )


REPORT_S: Final = 10
"""Minimum of seconds between reports of refused events."""

REASON_MAX: Final = 400
"""Maximum number of characters of the reason in a report."""

PUBLISHED: Final = "published"
REFUSED: Final = "refused"
IGNORED: Final = "ignored"
"""Ops of `counts`: published events; events that could not be published, whatever record they have instead; updates
and deletes in outbox tables, which have no record."""


def shaped(
    inner: Encoder,
    outbox: Outbox,
    settings: EncoderSettings,
    observe: Observer,
    *,
    fails_over_bytes: int = 0,
    made_topics: Collection[str] = (),
) -> Encoder:
    """Return `inner`, which makes the records of events, if any are published.

    Args:
        fails_over_bytes: as in `EngineSettings`.
        made_topics: the topics that rows have made, by the checkpoint.
    """
    if outbox.is_on:
        inner.shapes.put(OutboxShape(outbox, settings, observe, fails_over_bytes, made_topics))
    return inner


class OutboxShape(Shape):
    """Publishes events. See `Shape` for the methods."""

    def __init__(
        self,
        outbox: Outbox,
        settings: EncoderSettings,
        observe: Observer,
        fails_over_bytes: int = 0,
        made_topics: Collection[str] = (),
    ) -> None:
        self._outbox = outbox
        self._fails_over = fails_over_bytes
        self._topics = EventTopics(outbox, settings, made_topics)
        self._settings = settings
        self._protections = settings.protections
        self._observe = observe
        self._schemas = EventSchemas(settings)
        self._rows: dict[int, OutboxRows] = {}
        self._names: dict[int, str] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._instead: dict[tuple[str, str], int] = {}
        """Number of records that `inner.counts` has because of refused events."""
        self._quiet_until_us = 0
        self._left_out = 0
        self._now_us = 0
        """Time of the last event, by which refused schemas are requested again."""

    @property
    def is_on(self) -> bool:
        return self._outbox.messages or bool(self._rows)

    def counted(self, counts: Counts) -> Counts:
        found = {**counts, **self._counts}
        for each, count in self._instead.items():
            found[each] -= count
        return {each: count for each, count in found.items() if count}

    def check(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        self._made(relation, table, types)

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        rows = self._made(relation, table, types)
        self._names[relation.oid] = table_text(relation.schema, relation.name)
        if rows is None:
            self._rows.pop(relation.oid, None)
        else:
            self._rows[relation.oid] = rows

    def _made(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> OutboxRows | None:
        outbox = self._outbox.tables.get((relation.schema, relation.name))
        if outbox is None:
            return None
        rules = self._protections.in_force(relation, table)
        return OutboxRows(relation, outbox, self._topics, rules, self._settings, self._schemas, types)

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        if not isinstance(item, bytes):
            return False
        return self._is_published(item, in_stream) or of_row(item, in_stream, self._rows) is not None

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        if not self.takes(frame, in_stream):
            return None
        if peek.tag_of(frame) == peek.MESSAGE:
            return self._publish(frame, in_stream, now_us)
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        oid = peek.relation_of_row(frame, in_stream)
        name = self._names[oid]
        if not isinstance(message, Insert):
            _count(name, IGNORED, self._counts)
            return []
        asked_us, self._now_us = self._now_us, now_us
        try:
            event = self._rows[oid].prepared(message.new, asked_us)
            # Time stands still between the request and the record.
            self._schemas.lacking(event, asked_us)
        except ValueError as error:
            self._refuse(name, str(error), frame, now_us)
            _count(name, "c", self._instead)
            return None
        record = self._schemas.record(event)
        topic, key, value, _ = record
        size = record_bytes(key, value, None)
        if 0 < self._fails_over < size:
            raise RecordTooLargeError(
                f"An event of {size} bytes for topic {topic}, of the row of {name} at {Lsn(peek.lsn_of(frame))}: "
                f"message.max.bytes allows records of {self._fails_over} bytes."
            )
        _count(name, PUBLISHED, self._counts)
        return [ShapedPart(frame, record=each) for each in (*self._schemas.ids(event), record)]

    def needs(self, item: SpoolItem, in_stream: bool) -> Needs:
        rows = of_row(item, in_stream, self._rows)
        if rows is None or not rows.has_needs or not isinstance(item, bytes):
            return NO_NEEDS
        try:
            message = read_message(item, XLOG_HEADER, in_stream=in_stream)
            if not isinstance(message, Insert):
                return NO_NEEDS
            event = rows.prepared(message.new, self._now_us)
            schemas = self._schemas.lacking(event, self._now_us)
            return Needs((event.topic,) if event.is_made else (), tuple(schemas))
        except (ValueError, IndexError):
            # `parts` refuses the event, or reports how the message is malformed.
            return NO_NEEDS

    def schema_refused(self, use: SchemaUse, reason: str) -> bool:
        return self._schemas.refuse(use, reason, self._now_us)

    def topic_refused(self, topic: str, reason: str) -> bool:
        return self._topics.refuse(topic, reason, self._now_us)

    @property
    def has_needs(self) -> bool:
        return any(rows.has_needs for rows in self._rows.values())

    @property
    def made_topics(self) -> tuple[str, ...]:
        return self._topics.made

    def _is_published(self, frame: bytes, in_stream: bool) -> bool:
        return (
            self._outbox.messages
            and peek.tag_of(frame) == peek.MESSAGE
            and peek.message_prefix(frame, in_stream) == PREFIX
        )

    def _publish(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        """Return the event's record; None if the event is refused and is encoded like any other message."""
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, LogicalMessage)
        left_out = peek.shortened_bytes(frame)
        size, most = max(len(message.content), left_out), self._outbox.message_bytes_max
        if size > most or left_out >= 0:
            self._refuse("", f"it has {size} bytes, and {most} are allowed", frame, now_us)
            return []
        try:
            record = read_event(message.content, self._topics.listed)
        except ValueError as error:
            self._refuse("", str(error), frame, now_us)
            _count("", "m", self._instead)
            return None
        _count("", PUBLISHED, self._counts)
        return [ShapedPart(frame, record=record)]

    def _refuse(self, table: str, reason: str, frame: bytes, now_us: int) -> None:
        _count(table, REFUSED, self._counts)
        if now_us < self._quiet_until_us:
            self._left_out += 1
            return
        self._quiet_until_us = now_us + REPORT_S * 1_000_000
        left_out, self._left_out = self._left_out, 0
        self._observe(
            EventRefused(
                table=table,
                reason=cut_short(reason, REASON_MAX),
                lsn=str(Lsn(peek.lsn_of(frame))),
                left_out=left_out,
            )
        )


def _count(table: str, op: str, counts: dict[tuple[str, str], int]) -> None:
    counts[table, op] = counts.get((table, op), 0) + 1
