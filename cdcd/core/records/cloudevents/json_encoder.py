"""CloudEvents with data in JSON, which has `before` and `after` as in Debezium's envelope.

Rows of streamed transactions are drafted as for envelopes, and get the attributes after the commit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.facts import Observer, unheard
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.cloudevents.attributes import MESSAGE, EventForm, Events
from cdcd.core.records.cloudevents.blocks import EventBlock, FlatEventBlock, TransactionFacts
from cdcd.core.records.cloudevents.tables import (
    EventMetadata,
    EventTables,
    content_type,
    data_schema,
    message_schema,
)
from cdcd.core.records.debezium_json.connect_schema import CLOSING, WITH_SCHEMA, envelope_schema, opening
from cdcd.core.records.debezium_json.drafting import PARTS, parts_of
from cdcd.core.records.debezium_json.flat_encoder import FlatEncoder
from cdcd.core.records.debezium_json.pieces import Part, checked_parts, gathered, part_of
from cdcd.core.records.debezium_json.snapshot_rows import SnapshotEncoder, row_form
from cdcd.core.records.debezium_json.source_block import DELETED, READ, SourceBlock
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import Encoded, EncoderSettings, LateRecords, Record, SnapshotPosition
from cdcd.core.records.schema_names import adjusted
from cdcd.core.transactions.drafts import Draft, row_count

_MESSAGE_OP: Final = "m"
_END: Final = b"}"


class JsonEventsEncoder(SnapshotEncoder):
    """Encodes rows of changes and of snapshots. See `Encoder` for the methods."""

    def __init__(self, settings: EncoderSettings, binary: bool = False, observe: Observer = unheard) -> None:
        form = EventForm(settings, content_type(settings.events))
        self._event_tables = EventTables(settings, form)
        self._message_events = JsonMessageEvents(settings, form)
        self._has_schema = settings.events.data == WITH_SCHEMA
        self._row_header_bytes = 0
        self._openings: dict[int, bytes] = {}
        """Beginning of the data of a table's events, if the data has a schema."""
        self._block = EventBlock(settings)
        self._block_alone = EventBlock(settings)
        SnapshotEncoder.__init__(self, settings, binary, observe, self._block, self._block_alone)
        if self.metadata is not None:
            self.metadata = EventMetadata(settings, self.metadata.topic, form)

    def _described(self, fragments: TableFragments) -> None:
        settings, relation = self._settings, fragments.relation
        self._event_tables.describe(fragments, self.metadata)
        if self._has_schema:
            topic = adjusted(fragments.topic, settings.name_adjustment)
            keys, modes = fragments.key_columns, settings.modes
            types, rules = fragments.described.types, fragments.described.rules
            envelope = envelope_schema(
                fragments.shown, keys, types, topic, rules, modes=modes, constants=fragments.constants
            )
            self._openings[relation.oid] = opening(data_schema(envelope))

    def _event(
        self,
        table: TableFragments,
        op: int,
        lsn: int,
        event_no: int,
        rows: Sequence[Part],
        headers: Headers | None,
    ) -> tuple[bytes, Headers]:
        """Return the value and the headers of an event; `rows` has the parts of an envelope up to its source block."""
        data: list[Part] = [*rows, _END]
        if self._has_schema:
            data = [self._openings[table.relation.oid], *data, CLOSING]
        return self._event_tables.make(table, self._block.facts, op, lsn, event_no, data, headers)

    def _append_written(self, table: TableFragments, op: int, out: list[Record]) -> int:
        if self._drafts is not None:
            return SnapshotEncoder._append_written(self, table, op, out)
        if self._skips[op]:
            return 0
        key = self._writer.key
        size = self._append_event(table, op, key, [self._writer.draft()], None, out)
        if op == DELETED and key is not None and self._settings.tombstones:
            out.append((table.topic, key, None, None))
            size += len(key)
        return size

    def _append(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        if self._drafts is not None:
            return SnapshotEncoder._append(self, table, op, key, parts, headers, out)
        if self._skips[op]:
            return 0
        return self._append_event(table, op, key, checked_parts(parts), headers, out)

    def _append_event(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        rows: Sequence[Part],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        table.tally.counts[op] += 1
        value, made = self._event(table, op, self._lsn, self._serial, rows, headers)
        out.append((table.topic, key, value, made))
        return len(value) + len(key or b"") + self._event_tables.header_bytes

    def late_records(self, draft: Draft, now_us: int, out: list[Record]) -> LateRecords | None:
        """Return None, because the id of an event is in two places."""
        return None

    def _finish(self, draft: Draft, now_us: int, out: list[Record]) -> int:
        op, table = self._drafted(draft, now_us, out)
        count = row_count(draft)
        if self._skips[op]:
            self._serial += count
            return 0
        parts = parts_of(draft)
        has_key = bool(table.key_slots)
        size = 0
        for at in range(0, len(parts), PARTS):
            self._serial += 1
            self._lsn = int(parts[at + 2])
            key = parts[at] if has_key else None
            size += self._append_event(table, op, key, [parts[at + 1]], None, out)
            if op == DELETED and key is not None and self._settings.tombstones:
                out.append((table.topic, key, None, None))
                size += len(key)
        return size

    def _end_of_rows(self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]) -> int:
        """See `Encoder`."""
        self._event_tables.ends_rows = True
        try:
            return SnapshotEncoder._end_of_rows(self, oid, between, now_us, out)
        finally:
            self._event_tables.ends_rows = False

    # Rows of snapshots.

    def _rows(
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        """See `Encoder`."""
        self._row_header_bytes = 0
        encoded = SnapshotEncoder._rows(self, oid, lines, position, now_us, out, dropped)
        return replace(encoded, bytes=encoded.bytes + self._row_header_bytes)

    def _form(
        self,
        table: TableFragments,
        columns: list[tuple[list[bytes], bool]],
        position: SnapshotPosition,
        now_us: int,
    ) -> bytes:
        """Return an envelope up to its source block, and the row's number."""
        return b'{"before":null,"after":' + row_form(table, columns) + b"%b"

    def _completed(
        self,
        table: TableFragments,
        records: list[Record],
        position: SnapshotPosition,
        now_us: int,
        event_no: int,
    ) -> list[Record]:
        made: list[Record] = []
        for number, (topic, key, written, _) in enumerate(records, event_no + 1):
            assert written is not None, "a row that is read has a value"
            rows = [part_of(written, 0, written.rindex(_END) + 1)]
            value, headers = self._event(table, READ, int(position.lsn), number, rows, None)
            self._row_header_bytes += self._event_tables.header_bytes
            made.append((topic, key, value, headers))
        return made

    # Logical messages.

    def _message(
        self,
        message: LogicalMessage,
        content: memoryview,
        source: SourceBlock,
        serial: int,
        out: list[Record],
    ) -> int:
        facts = self._block_alone.facts if source is self._block_alone else self._block.facts
        key = self.json_message_key(message)
        self._messages += 1
        value, headers = self._message_events.event(
            message, self._content.json_pieces(content), serial, facts
        )
        out.append((self._message_topic, key, value, headers))
        return len(key) + len(value) + self._message_events.header_bytes


class JsonMessageEvents(Events):
    """Makes the events of logical messages."""

    def __init__(self, settings: EncoderSettings, form: EventForm) -> None:
        Events.__init__(self, settings, form, MESSAGE)
        has_schema = settings.events.data == WITH_SCHEMA
        self._opening = opening(message_schema(settings.modes)) if has_schema else b""
        self._closing = CLOSING if has_schema else b""

    def event(
        self, message: LogicalMessage, content: Iterable[bytes], serial: int, facts: TransactionFacts
    ) -> tuple[bytes, Headers]:
        """Return the value and the headers; `content` has the message's content as JSON, in pieces."""
        prefix = quote(wire(message.prefix))
        begin = to_bytes(f'{{"message":{{"prefix":{prefix},"content":')
        self.renew(facts)
        data: list[Part] = [self._opening, begin, gathered(content), b"}}", self._closing]
        return self.make(_MESSAGE_OP, _MESSAGE_OP, message.lsn, serial, data, None)


class FlatJsonEventsEncoder(FlatEncoder):
    """Makes events whose data is a flattened row (`debezium_json/flat_encoder.py`)."""

    def __init__(self, settings: EncoderSettings, binary: bool = False, observe: Observer = unheard) -> None:
        form = EventForm(settings, content_type(settings.events))
        self._event_tables = EventTables(settings, form)
        self._message_events = JsonMessageEvents(settings, form)
        self._block = FlatEventBlock(settings)
        self._block_alone = EventBlock(settings)
        FlatEncoder.__init__(self, settings, binary, observe, self._block, self._block_alone)
        self._is_event = True

    def _has_schema(self) -> bool:
        return self._settings.events.data == WITH_SCHEMA

    def _described(self, fragments: TableFragments) -> None:
        FlatEncoder._described(self, fragments)
        self._event_tables.describe(fragments, None)

    def _event(
        self,
        table: TableFragments,
        op: int,
        lsn: bytes,
        event_no: int,
        data: Sequence[Part],
        headers: Headers,
    ) -> tuple[bytes, Headers]:
        made = self._event_tables.make(table, self._block.facts, op, int(lsn), event_no, data, headers)
        self._header_bytes = self._event_tables.header_bytes
        return made

    def _rows(
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        """See `Encoder`."""
        self._row_header_bytes = 0
        encoded = FlatEncoder._rows(self, oid, lines, position, now_us, out, dropped)
        return replace(encoded, bytes=encoded.bytes + self._row_header_bytes)

    def _message(
        self,
        message: LogicalMessage,
        content: memoryview,
        source: SourceBlock,
        serial: int,
        out: list[Record],
    ) -> int:
        facts = self._block_alone.facts if source is self._block_alone else self._block.facts
        key = self.json_message_key(message)
        self._messages += 1
        value, headers = self._message_events.event(
            message, self._content.json_pieces(content), serial, facts
        )
        out.append((self._message_topic, key, value, headers))
        return len(key) + len(value) + self._message_events.header_bytes
