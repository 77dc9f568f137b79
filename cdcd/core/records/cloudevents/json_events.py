"""CloudEvents with data in JSON, which has `before` and `after` as in Debezium's envelope, or a flattened row.

Rows of streamed transactions are drafted as for envelopes, and get the attributes after the commit.
"""

from collections.abc import Sequence
from typing import Final

from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.facts import Observer
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.cloudevents.attributes import MESSAGE, EventForm, Events
from cdcd.core.records.cloudevents.tables import (
    EventMetadata,
    EventTables,
    content_type,
    data_schema,
    message_schema,
)
from cdcd.core.records.debezium_json.around import JsonAround, deleted_parts, tombstone
from cdcd.core.records.debezium_json.connect_schema import CLOSING, WITH_SCHEMA, opening
from cdcd.core.records.debezium_json.drafting import PARTS, parts_of
from cdcd.core.records.debezium_json.encoder import JsonDrafts, JsonFormat
from cdcd.core.records.debezium_json.flat_rows import FlatRows
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.messages import JsonMessages
from cdcd.core.records.debezium_json.pieces import Part, checked_parts, gathered, part_of
from cdcd.core.records.debezium_json.row_writer import RowWriter
from cdcd.core.records.debezium_json.snapshot_rows import Columns, row_form
from cdcd.core.records.debezium_json.source_block import DELETED, READ, TransactionFacts
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.format import CopiedRows, Current, Format
from cdcd.core.transactions.drafts import Draft

_MESSAGE_OP: Final = "m"
_END: Final = b"}"


class JsonEventRows(JsonAround):
    """Makes events whose data is both rows."""

    def __init__(self, settings: EncoderSettings, current: Current, events: EventTables) -> None:
        self._settings = settings
        self._current = current
        self._events = events
        self._has_schema = settings.events.data == WITH_SCHEMA
        self._openings: dict[int, bytes] = {}
        """Beginning of the data of a table's events, if the data has a schema."""

    def describe(self, table: TableFragments) -> None:
        """See `JsonAround`."""
        self._events.describe(table)
        if self._has_schema:
            self._openings[table.relation.oid] = opening(data_schema(table.envelope(self._settings)))

    def _event(
        self,
        table: TableFragments,
        op: int,
        rows: Sequence[Part],
        serial: int,
        headers: Headers | None,
    ) -> tuple[bytes, Headers]:
        """Return the value and the headers of an event; `rows` has the parts of an envelope up to its source block."""
        data: list[Part] = [*rows, _END]
        if self._has_schema:
            data = [self._openings[table.relation.oid], *data, CLOSING]
        return self._events.make(table, op, serial, data, headers)

    def _put(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        rows: Sequence[Part],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        table.tally.counts[op] += 1
        value, made = self._event(table, op, rows, self._current.serial, headers)
        out.append((table.topic, key, value, made))
        return len(value) + len(key or b"") + self._events.header_bytes

    def written(self, table: TableFragments, op: int, writer: RowWriter, out: list[Record]) -> int:
        """See `JsonAround`."""
        size = self._put(table, op, writer.key, [writer.draft()], None, out)
        if op == DELETED:
            size += tombstone(self._settings.tombstones, table, writer.key, None, out)
        return size

    def changed(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """See `JsonAround`."""
        return self._put(table, op, key, checked_parts(parts), headers, out)

    def deleted(
        self,
        table: TableFragments,
        key: bytes | None,
        before: bytes,
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """See `JsonAround`."""
        size = self.changed(table, DELETED, key, deleted_parts(before), headers, out)
        return size + tombstone(self._settings.tombstones, table, key, headers, out)

    def finish(self, draft: Draft, table: TableFragments, op: int, out: list[Record]) -> int:
        """See `JsonAround`."""
        parts, current = parts_of(draft), self._current
        has_key = bool(table.key_slots)
        size = 0
        for at in range(0, len(parts), PARTS):
            current.serial += 1
            current.lsn = int(parts[at + 2])
            key = parts[at] if has_key else None
            size += self._put(table, op, key, [parts[at + 1]], None, out)
            if op == DELETED:
                size += tombstone(self._settings.tombstones, table, key, None, out)
        return size

    def form(self, table: TableFragments, columns: Columns, position: SnapshotPosition) -> bytes:
        """See `JsonAround`."""
        return b'{"before":null,"after":' + row_form(table, columns) + b"%b"

    def completed(
        self, table: TableFragments, records: list[Record], rows: CopiedRows, event_no: int
    ) -> list[Record]:
        """See `JsonAround`."""
        made: list[Record] = []
        size = 0
        for number, (topic, key, written, _) in enumerate(records, event_no + 1):
            assert written is not None, "a row that is read has a value"
            data = [part_of(written, 0, written.rindex(_END) + 1)]
            value, headers = self._event(table, READ, data, number, None)
            made.append((topic, key, value, headers))
            size += self._events.header_bytes
        rows.size += size
        return made


class EventMessages(JsonMessages):
    """Makes the events of logical messages."""

    def __init__(self, settings: EncoderSettings, topic: str, form: EventForm) -> None:
        JsonMessages.__init__(self, settings, topic)
        self._events = Events(settings, form, MESSAGE)
        has_schema = settings.events.data == WITH_SCHEMA
        self._opening = opening(message_schema(settings.modes)) if has_schema else b""
        self._closing = CLOSING if has_schema else b""

    def put(
        self,
        message: LogicalMessage,
        content: memoryview,
        facts: TransactionFacts,
        serial: int,
        now_us: int,
        out: list[Record],
    ) -> int:
        """See `JsonMessages`."""
        key = self.keys.key(message)
        prefix = quote(wire(message.prefix))
        begin = to_bytes(f'{{"message":{{"prefix":{prefix},"content":')
        self._events.renew(facts)
        text = gathered(self.content.json_pieces(content))
        data: list[Part] = [self._opening, begin, text, b"}}", self._closing]
        value, headers = self._events.make(_MESSAGE_OP, _MESSAGE_OP, message.lsn, serial, data, None)
        out.append((self.topic, key, value, headers))
        return len(key) + len(value) + self._events.header_bytes


def json_events_format(
    settings: EncoderSettings, tables: KnownTables, current: Current, observe: Observer
) -> Format:
    """Return the format of events with data in JSON, which is both rows, or a flattened row."""
    form = EventForm(settings, content_type(settings.events))
    topic = tables.names.transaction
    metadata = None if topic is None else EventMetadata(settings, topic, form)
    messages = EventMessages(settings, tables.names.message or "", form)
    events = EventTables(settings, form, current, metadata)
    if settings.flattening is not None:
        return JsonFormat(settings, current, FlatRows(settings, current, observe, events), messages, metadata)
    around = JsonEventRows(settings, current, events)
    made = JsonFormat(settings, current, around, messages, metadata)
    # The id of an event is in two places, so no record is made when it is handed over.
    made.drafts = JsonDrafts(made, around, tables, current, tombstones=settings.tombstones, is_late=False)
    return made
