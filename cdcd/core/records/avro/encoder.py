"""Records of formats with a registry: each value in Confluent's wire format, with the id of its schema before it.

The schemas are the Connect schemas of `format: json_schema`, as the converters of Confluent write them (`schemas.py`).
Avro and Protobuf are two rows of `Encoding`, which has what differs between them.

There is one way to write a row, compiled or not: value after value into a buffer. A value that the server did not
send (unchanged TOAST) is copied from the old row, if that has it. If it does not, Debezium's placeholder is
written. If the placeholder is not a value of the column's type, null is written. The header `cdcd.unchanged` has
the names of such columns, as in JSON.

Rows of streamed transactions are not drafted, but are kept as frames until the commit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.hints import HINT
from cdcd.core.errors import ProtocolError
from cdcd.core.facts import Observer
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.protocol.peek import (
    DELETE,
    INSERT,
    NEW_ROW,
    OLD_KEY,
    OLD_ROW,
    ROW_HEAD_BYTES,
    row_width,
)
from cdcd.core.records.avro.around import Around, AvroEnvelope, EventRows, FlatRow
from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.form import AvroForm, known_id
from cdcd.core.records.avro.messages import AvroMessages, MessageValues, heartbeat_value
from cdcd.core.records.avro.rows import BinarySchemas, named_unchanged, write_fields, write_row
from cdcd.core.records.avro.source_block import (
    AvroSourceBlock,
    AvroTableSource,
    BinarySourceBlock,
    BinaryTableSource,
    RegisteredTransactionMetadata,
)
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.avro.writing import append_slice, text
from cdcd.core.records.cloudevents.tables import EventTables, data_schema
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.event_schemas import HEARTBEAT_KEY, HEARTBEAT_VALUE, MESSAGE_KEY
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.messages import (
    HeartbeatRecords,
    MessageContent,
    MessageKeys,
    watermark,
)
from cdcd.core.records.debezium_json.snapshot_rows import explain_row, line_with, row_of_line
from cdcd.core.records.debezium_json.source_block import (
    CREATED,
    DELETED,
    READ,
    TRUNCATED,
    UPDATED,
    TransactionFacts,
)
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import (
    HEARTBEATS,
    MESSAGES,
    TRANSACTIONS,
    EncoderSettings,
    Record,
)
from cdcd.core.records.format import LSN_MAX, CopiedRows, Current, Format, moved_from, moved_to, size_of
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.unwritable import Found, named

if TYPE_CHECKING:
    from mypy_extensions import i64


@dataclass(frozen=True, slots=True)
class Encoding:
    """What differs between the formats with a registry. `AVRO_ENCODING` is one; `protobuf/encoder.py` has another one.

    Attributes:
        form: schemas and the bytes of fields.
        source_block, table_source: what `source` has for a transaction, and for a table: schema, name, id of its
            description, transaction metadata.
        around: what stands around rows.
        messages: the values of logical messages; the second argument makes the beginning of a value with a schema.
        heartbeat_key, heartbeat_value: key and value of a heartbeat without their heads, from the prefix of topics, and
            from the time in microseconds since 1970.
    """

    form: Callable[[], BinaryForm]
    source_block: Callable[[EncoderSettings], BinarySourceBlock]
    table_source: Callable[[str, str, str | None, TransactionMetadata | None], BinaryTableSource]
    around: Callable[[], Around]
    messages: Callable[[EncoderSettings, Callable[[int], bytes]], MessageValues]
    heartbeat_key: Callable[[str], bytes]
    heartbeat_value: Callable[[int], bytes]


AVRO_ENCODING: Final = Encoding(
    AvroForm, AvroSourceBlock, AvroTableSource, AvroEnvelope, AvroMessages, text, heartbeat_value
)


@dataclass(frozen=True, slots=True)
class BinaryEvents:
    """Makes events whose data is in a binary format.

    Attributes:
        tables: events of changes.
        messages: events of logical messages.
    """

    tables: EventTables
    messages: MessageValues


MakeEvents = Callable[[EncoderSettings, Current, BinaryForm, TransactionMetadata | None], BinaryEvents]


class RegistryFormat(Format):
    """Records whose keys or values have their schema in a registry.

    Args:
        make_events: makes the events of which rows are the data; None if there are no events.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        tables: KnownTables,
        current: Current,
        observe: Observer,
        encoding: Encoding,
        make_events: MakeEvents | None = None,
    ) -> None:
        self._form = encoding.form()
        self._schemas = BinarySchemas(settings, self._form)
        metadata: RegisteredTransactionMetadata | None = None
        if tables.names.transaction is not None:
            metadata = RegisteredTransactionMetadata(settings, tables.names.transaction, self._form)
            self._schemas.others(TRANSACTIONS, *metadata.uses)
        Format.__init__(self, metadata, self._schemas)
        self._settings = settings
        self._known = tables
        self._current = current
        self._encoding = encoding
        self._block = encoding.source_block(settings)
        self._events = (
            None if make_events is None else make_events(settings, current, self._form, self.metadata)
        )
        self._flat: FlatRow | None = None
        self._around = encoding.around() if self._events is None else EventRows()
        if settings.flattening is not None:
            self._flat = FlatRow(settings, self._form, current, observe)
            self._around = self._flat
        self._latest: AvroTable | None = None
        """The table whose row was encoded last; None before the first row."""
        self._now_us = -1
        self._part = BytesWriter()
        self._messages = (
            encoding.messages(settings, self._form.head) if self._events is None else self._events.messages
        )
        self._content = MessageContent(settings.modes)
        self._message_topic = tables.names.message or ""
        self._message_keys = MessageKeys(settings)
        self._message_key_use = self._key_use(self._message_topic, MESSAGE_KEY)
        self._message_value_use = self._form.use(
            settings, self._message_topic, self._messages.schema(settings.modes), "value"
        )
        self._schemas.others(MESSAGES, self._message_key_use, self._message_value_use)
        self._heartbeats = HeartbeatRecords(settings)
        self._heartbeat_key_use = self._key_use(self._heartbeats.topic, HEARTBEAT_KEY)
        self._heartbeat_value_use = self._form.use(settings, self._heartbeats.topic, HEARTBEAT_VALUE, "value")
        self._schemas.others(HEARTBEATS, self._heartbeat_key_use, self._heartbeat_value_use)

    def _key_use(self, topic: str, schema: Schema) -> SchemaUse | None:
        """Return the schema of keys with its subject; None if keys are JSON."""
        if self._settings.key_format != self._form.format:
            return None
        return self._form.use(self._settings, topic, schema, "key")

    def describe(self, table: TableFragments) -> None:
        """See `Format`."""
        relation = table.relation
        flat = None if self._flat is None else self._flat.form_of(table, table.described.rules)
        described = AvroTable(
            self._settings,
            self._form,
            table,
            tables=self._known,
            source=self._encoding.table_source(
                relation.schema, relation.name, table.schema_id, self.metadata
            ),
            value_schema=_whole if self._events is None else data_schema,
            flat=flat,
        )
        if self._flat is not None and flat is not None:
            self._flat.describe(described, flat)
        self._schemas.describe_rows(described)
        if self._events is not None:
            self._events.tables.describe(table)
        self._latest = None

    def begin(self, table: TableFragments, out: list[Record]) -> None:
        """See `Format`."""
        avro = self._schemas.rows[table.relation.oid]
        if not avro.value_head:
            self._schemas.ready(avro, out)
            if self._events is not None:
                self._events.tables.name_schema(table, schema_url(self._settings, avro.value_use))
        if self._events is None:
            avro.source.renew(self._block, self._current.facts)
        self._around.begin(avro)

    def _avro(self, table: TableFragments) -> AvroTable:
        latest = self._latest
        if latest is None or latest.fragments is not table:
            latest = self._latest = self._schemas.rows[table.relation.oid]
        return latest

    def _open(self, table: AvroTable) -> BytesWriter:
        """Return the buffer with the part that precedes the rows of a value."""
        now_us = self._current.now_us
        if now_us != self._now_us:
            self._now_us = now_us
            self._around.set_now(now_us)
        return self._around.open(table)

    # Rows.

    def row(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        """See `Format`."""
        if width != table.width:
            raise ValueError("the row has another number of columns than the relation")
        avro = self._avro(table)
        avro.takes_null = self._current.stands_in
        self._open(avro)
        if tag == DELETE:
            return self._delete_row(avro, frame, kind, at, out)
        if tag != INSERT and kind != NEW_ROW:
            return self._update_with_old_row(avro, frame, kind, at, out)
        if kind != NEW_ROW:
            raise ValueError("unknown kind of row")
        self._around.before(False)
        self._around.after(True)
        unchanged = self._last_row(avro, frame, at, False, False)
        key = avro.key(self._around.out, self._part)
        headers = named_unchanged(avro, unchanged) if unchanged else None
        return self._put(avro, CREATED if tag == INSERT else UPDATED, key, headers, out)

    def _record(self, table: AvroTable, op: int, key: bytes | None, headers: Headers | None) -> Record:
        """Return the record whose row is in the buffer."""
        fragments, current = table.fragments, self._current
        if self._events is not None:
            fragments.tally.counts[op] += 1
            data = self._around.end(table, op, current.lsn, current.serial)
            value, made = self._events.tables.make(fragments, op, current.serial, [data], headers)
            return fragments.topic, key, value, made
        self._count(table, op)
        value = self._around.end(table, op, current.lsn, current.serial)
        return fragments.topic, key, value, headers

    def _count(self, table: AvroTable, op: int) -> None:
        lsn = self._current.lsn
        if lsn > LSN_MAX:
            raise ProtocolError(f"An LSN of {lsn} has no place in {self._form.name}.", hint=HINT)
        table.fragments.tally.counts[op] += 1

    def _header_bytes(self) -> int:
        """Return the bytes of the last record's headers, if they count (`Encoder.encode`)."""
        return 0 if self._events is None else self._events.tables.header_bytes

    def _put(
        self, table: AvroTable, op: int, key: bytes | None, headers: Headers | None, out: list[Record]
    ) -> int:
        if self._current.skips[op]:
            return 0
        if self._flat is not None:
            return self._put_flat(self._flat, table, op, key, headers, out)
        record = self._record(table, op, key, headers)
        out.append(record)
        return size_of(record) + self._header_bytes()

    def _put_flat(
        self,
        flat: FlatRow,
        table: AvroTable,
        op: int,
        key: bytes | None,
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Append the records of an event: for a delete none, one or two, for a truncate none."""
        if op == TRUNCATED:
            return 0
        size = 0
        is_deleted = op == DELETED
        has_tombstone = is_deleted and key is not None and flat.forms.has_tombstones
        headers = flat.headers(table, op, self._current.lsn, self._current.serial, headers)
        if not is_deleted or flat.forms.rewrites:
            record = self._record(table, op, key, headers)
            out.append(record)
            size = size_of(record) + self._header_bytes()
        elif has_tombstone:
            self._count(table, op)
        if has_tombstone and key is not None:
            out.append((table.fragments.topic, key, None, headers))
            size += len(key)
        return size

    def _put_delete(
        self, table: AvroTable, key: bytes | None, headers: Headers | None, out: list[Record]
    ) -> int:
        size = self._put(table, DELETED, key, headers, out)
        if self._flat is not None:
            return size
        if key is not None and self._settings.tombstones and not self._current.skips[DELETED]:
            out.append((table.fragments.topic, key, None, headers))
            size += len(key)
        return size

    def _delete_row(self, table: AvroTable, frame: bytes, kind: int, at: int, out: list[Record]) -> int:
        if kind not in (OLD_KEY, OLD_ROW):
            raise ValueError("unknown kind of row")
        self._around.before(True)
        unchanged = self._last_row(table, frame, at, False, False)
        self._around.after(False)
        headers = named_unchanged(table, unchanged) if unchanged else None
        return self._put_delete(table, table.key(self._around.out, self._part), headers, out)

    def _update_with_old_row(
        self, table: AvroTable, frame: bytes, kind: int, at: int, out: list[Record]
    ) -> int:
        if kind not in (OLD_KEY, OLD_ROW):
            raise ValueError("unknown kind of row")
        # The buffer has no other name here, so that `Around.end` can release it before it needs its memory again.
        around, fragments = self._around, table.fragments
        around.before(True)
        begin: i64 = len(around.out)
        missing_old: list[int] = []
        end: i64 = write_row(frame, at, table, around.out, missing_old, False, False)
        old_key = table.key(around.out, self._part)
        after: i64 = len(around.out)
        if frame[end] != NEW_ROW:
            raise ValueError("unknown kind of row")
        if row_width(frame, end) != fragments.width:
            raise ValueError("the row has another number of columns than the relation")
        end += ROW_HEAD_BYTES
        around.after(True)
        new: i64 = len(around.out)
        missing = self._last_row(table, frame, end, True, kind == OLD_ROW)
        key = table.key(around.out, self._part)
        left, came = named_unchanged(table, missing_old), named_unchanged(table, missing)
        is_other = old_key is not None and key is not None and old_key != key
        if is_other or self._current.came is not None:
            written = around.out.getvalue()
            self._open(table)
            around.before(True)
            append_slice(written, begin, after, around.out)
            around.after(False)
            size = self._put_delete(table, old_key, [*moved_to(key), *left] or None, out)
            written = written[new:]
            self._open(table)
            around.before(False)
            around.after(True)
            append_slice(written, 0, len(written), around.out)
            written = b""
            to = out if self._current.came is None else self._current.came
            return size + self._put(table, CREATED, key, [*moved_from(old_key), *came] or None, to)
        both = named_unchanged(table, missing + [column for column in missing_old if column not in missing])
        return self._put(table, UPDATED, key, both or None, out)

    def _last_row(self, table: AvroTable, frame: bytes, at: int, has_old: bool, whole: bool) -> list[int]:
        """Write the row at the end of the frame, and return the columns whose value was not sent."""
        unchanged: list[int] = []
        if write_row(frame, at, table, self._around.out, unchanged, has_old, whole) != len(frame):
            raise ValueError("the row does not end with the frame")
        return unchanged

    def truncate(self, table: TableFragments, out: list[Record]) -> int:
        """See `Format`."""
        avro = self._avro(table)
        self._open(avro)
        self._around.before(False)
        self._around.after(False)
        return self._put(avro, TRUNCATED, None, None, out)

    def lines(self, table: TableFragments, lines: list[bytes], first: int, rows: CopiedRows) -> None:
        """See `Format`."""
        avro, current, flat = self._avro(table), self._current, self._flat
        for place, line in enumerate(lines, first):
            key, found = self._copy_row(avro, line, rows)
            if key is not None:
                if key in rows.dropped:
                    rows.left_out.append(place)
                    continue
                rows.keys.append(key)
            rows.count += 1
            current.serial = rows.position.event_no + rows.count
            headers = None if flat is None else flat.headers(avro, READ, current.lsn, current.serial, None)
            record = self._record(avro, READ, key, headers)
            rows.size += size_of(record) + self._header_bytes()
            if found:
                names = rows.stand_ins.note(table, found, rows.position.lsn, current.now_us)
                record = named(record, names)
            rows.out.append(record)

    def _copy_row(self, table: AvroTable, line: bytes, rows: CopiedRows) -> tuple[bytes | None, list[Found]]:
        """Write a row into the buffer up to its source block; its key, and its values that have no form."""
        table.takes_null = False
        try:
            return self._write_line(table, line), []
        except (ValueError, IndexError) as cause:
            fragments = table.fragments
            refusal = explain_row(line, fragments.relation, fragments.converters)
            if refusal is not None:
                raise refusal from cause
        found = rows.stand_ins.found(fragments, row_of_line(line), rows.position.lsn)
        assert found, "a row was refused in which nothing is wrong"
        table.takes_null = True
        return self._write_line(table, line_with(line, found, fragments.key_columns)), found

    def _write_line(self, table: AvroTable, line: bytes) -> bytes | None:
        """Write a row; its key. ValueError, IndexError: see `write_row`."""
        buffer = self._open(table)
        self._around.before(False)
        self._around.after(True)
        write_fields(table, line, buffer)
        return table.key(buffer, self._part)

    # What is not a row.

    def message(
        self,
        message: LogicalMessage,
        content: memoryview,
        facts: TransactionFacts,
        serial: int,
        out: list[Record],
    ) -> int:
        """See `Format`. The schemas of messages precede the first one."""
        value, headers = self._messages.value(
            self._schemas.id(self._message_value_use),
            message,
            self._content.data(content),
            facts,
            serial,
            self._current.now_us,
        )
        if self._message_key_use is not None:
            key = self._schemas.head(self._message_key_use) + self._form.message_key(message.prefix)
        else:
            key = self._message_keys.key(message)
        self._schemas.tell(MESSAGES, out)
        self._current.messages += 1
        out.append((self._message_topic, key, value, headers))
        return len(key) + len(value) + self._messages.header_bytes

    def heartbeat(self, lsn: int, out: list[Record]) -> int:
        """See `Format`."""
        encoding = self._encoding
        value = self._schemas.head(self._heartbeat_value_use) + encoding.heartbeat_value(self._current.now_us)
        key = self._heartbeats.key
        if self._heartbeat_key_use is not None:
            key = self._schemas.head(self._heartbeat_key_use) + encoding.heartbeat_key(self._settings.prefix)
        self._schemas.tell(HEARTBEATS, out)
        out.append((self._heartbeats.topic, key, value, watermark(lsn)))
        return len(key) + len(value)


def _whole(envelope: Schema) -> Schema:
    return envelope


def schema_url(settings: EncoderSettings, use: SchemaUse) -> bytes:
    """Return the URL of a schema in the registry; TransientError if it has no id yet."""
    return f"{settings.schema_ids.registry}/schemas/ids/{known_id(settings, use)}".encode()


def avro_format(
    settings: EncoderSettings, tables: KnownTables, current: Current, observe: Observer
) -> Format:
    """Return the format of Debezium's envelopes, or of flattened rows, in Avro."""
    return RegistryFormat(settings, tables, current, observe, AVRO_ENCODING)
