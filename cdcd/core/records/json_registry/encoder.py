"""Records in JSON whose schemas are JSON Schema subjects of a registry.

The rule: a key or value is the one of `format: json`, byte for byte, behind a zero byte and the id of its schema
(Confluent's wire format). So this format writes JSON first, and then puts the beginnings before it. Rows of streamed
transactions are not drafted, but are kept as frames until the commit, because a draft may precede the ids.
"""

from typing import Final

from cdcd.core.facts import Observer
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.registered import RegisteredSchemas, RegisteredTable
from cdcd.core.records.avro.source_block import RegisteredTransactionMetadata
from cdcd.core.records.debezium_json.around import JsonAround, JsonEnvelope
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.encoder import JsonFormat
from cdcd.core.records.debezium_json.event_schemas import HEARTBEAT_KEY, HEARTBEAT_VALUE, MESSAGE_KEY
from cdcd.core.records.debezium_json.flat_rows import FlatRows
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.messages import JsonMessages, message_schema
from cdcd.core.records.debezium_json.source_block import TransactionFacts
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import (
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEARTBEATS,
    MESSAGES,
    TRANSACTIONS,
    EncoderSettings,
    Record,
    SnapshotPosition,
)
from cdcd.core.records.format import CopiedRows, Current, Format
from cdcd.core.records.json_registry.schemas import JsonForm
from cdcd.core.records.schema_registrations import SchemaUse

_OF_KEYS: Final = (HEADER_NEW_KEY, HEADER_OLD_KEY)


class RegisteredJsonFormat(JsonFormat):
    """Records in JSON with the ids of their schemas; `around` makes the values, and knows their Connect schemas."""

    def __init__(
        self,
        settings: EncoderSettings,
        tables: KnownTables,
        current: Current,
        around: JsonAround,
        *,
        messages: JsonMessages,
    ) -> None:
        self._form = JsonForm()
        self._registered = RegisteredSchemas(settings, self._form)
        metadata: RegisteredTransactionMetadata | None = None
        if tables.names.transaction is not None:
            metadata = RegisteredTransactionMetadata(settings, tables.names.transaction, self._form)
            self._registered.others(TRANSACTIONS, *metadata.uses)
        JsonFormat.__init__(self, settings, current, around, messages, metadata)
        self.schemas = self._registered
        self._known = tables
        self._message_uses = self._uses(messages.topic, MESSAGE_KEY, message_schema(settings.modes))
        self._registered.others(MESSAGES, *self._message_uses)
        self._heartbeat_uses = self._uses(settings.heartbeat_topic or "", HEARTBEAT_KEY, HEARTBEAT_VALUE)
        self._registered.others(HEARTBEATS, *self._heartbeat_uses)

    def _uses(self, topic: str, key: Schema, value: Schema) -> tuple[SchemaUse | None, SchemaUse]:
        """Return the schema of keys and the schema of values. None: keys have no schema in the registry."""
        settings, form = self._settings, self._form
        has_key = settings.key_format == form.format
        key_use = form.use(settings, topic, key, "key") if has_key else None
        return key_use, form.use(settings, topic, value, "value")

    def describe(self, table: TableFragments) -> None:
        """See `Format`."""
        JsonFormat.describe(self, table)
        self._registered.describe(
            RegisteredTable(
                self._settings,
                self._form,
                table,
                topics=self._known.row_topics(table.relation.oid),
                key=table.key_schema(self._settings) if table.key_columns else None,
                value=self._around.schema(table),
            )
        )

    def _table(self, table: TableFragments) -> RegisteredTable:
        return self._registered.tables[table.relation.oid]

    def begin(self, table: TableFragments, out: list[Record]) -> None:
        """See `Format`."""
        registered = self._table(table)
        if not registered.value_head:
            self._registered.ready(registered, out)
        JsonFormat.begin(self, table, out)

    def row(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        """See `Format`."""
        came, known = self._current.came, len(out)
        known_came = 0 if came is None else len(came)
        size = JsonFormat.row(self, table, tag, kind, width, frame, at, out)
        registered = self._table(table)
        size += _named(out, known, registered.key_head, registered.value_head)
        if came is not None:
            size += _named(came, known_came, registered.key_head, registered.value_head)
        return size

    def truncate(self, table: TableFragments, out: list[Record]) -> int:
        """See `Format`."""
        known = len(out)
        size = JsonFormat.truncate(self, table, out)
        return size + _named(out, known, b"", self._table(table).value_head)

    def lines(self, table: TableFragments, lines: list[bytes], first: int, rows: CopiedRows) -> None:
        """See `Format`."""
        registered = self._table(table)
        head = registered.key_head
        dropped = {key[len(head) :] for key in rows.dropped} if head else rows.dropped
        made = CopiedRows(rows.position, dropped, [], rows.stand_ins)
        made.count = rows.count
        JsonFormat.lines(self, table, lines, first, made)
        rows.count = made.count
        rows.size += made.size + _named(made.out, 0, head, registered.value_head)
        rows.keys += [head + key for key in made.keys] if head else made.keys
        rows.left_out += made.left_out
        rows.out.extend(made.out)

    def deletes(
        self,
        table: TableFragments,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        out: list[Record],
    ) -> int:
        """See `Format`."""
        known, registered = len(out), self._table(table)
        size = JsonFormat.deletes(self, table, keys, position, out)
        return size + _named(out, known, registered.key_head, registered.value_head)

    def message(
        self,
        message: LogicalMessage,
        content: memoryview,
        facts: TransactionFacts,
        serial: int,
        out: list[Record],
    ) -> int:
        """See `Format`. The records of the schemas precede the first message."""
        key_head, value_head = self._heads(self._message_uses)
        self._registered.tell(MESSAGES, out)
        known = len(out)
        size = JsonFormat.message(self, message, content, facts, serial, out)
        return size + _named(out, known, key_head, value_head)

    def heartbeat(self, lsn: int, out: list[Record]) -> int:
        """See `Format`."""
        key_head, value_head = self._heads(self._heartbeat_uses)
        self._registered.tell(HEARTBEATS, out)
        known = len(out)
        size = JsonFormat.heartbeat(self, lsn, out)
        return size + _named(out, known, key_head, value_head)

    def _heads(self, uses: tuple[SchemaUse | None, SchemaUse]) -> tuple[bytes, bytes]:
        key_use, value_use = uses
        return b"" if key_use is None else self._registered.head(key_use), self._registered.head(value_use)


def _named(out: list[Record], first: int, key_head: bytes, value_head: bytes) -> int:
    """Put the heads before keys and values of the records from `first` on, and return the number of added bytes."""
    size = 0
    for place in range(first, len(out)):
        topic, key, value, headers = out[place]
        if key is not None:
            key = key_head + key
            size += len(key_head)
        if value is not None:
            value = value_head + value
            size += len(value_head)
        if headers is not None and key_head:
            headers = [(name, key_head + data if name in _OF_KEYS else data) for name, data in headers]
        out[place] = topic, key, value, headers
    return size


def json_registry_format(
    settings: EncoderSettings, tables: KnownTables, current: Current, observe: Observer
) -> Format:
    """Return the format of Debezium's envelopes, or of flattened rows, in JSON with schemas in a registry."""
    around: JsonAround = (
        JsonEnvelope(settings, current)
        if settings.flattening is None
        else FlatRows(settings, current, observe)
    )
    messages = JsonMessages(settings, tables.names.message or "")
    return RegisteredJsonFormat(settings, tables, current, around, messages=messages)
