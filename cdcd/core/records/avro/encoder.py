"""Records of formats with a registry: each value in Confluent's wire format, with the id of its schema before it.

Topics, descriptions, events and their order are those of every format (`records/stream.py`). The schemas are the
Connect schemas of `format: json_schema`, as the converters of Confluent write them (`schemas.py`). Avro and Protobuf
are two rows of `RegistryFormat`, which has what differs between them.

There is one way to write a row, compiled or not: value after value into a buffer. A value that the server did not
send (unchanged TOAST) is copied from the old row, if that has it. If it does not, Debezium's placeholder is
written. If the placeholder is not a value of the column's type, null is written. The header `cdcd.unchanged` has
the names of such columns, as in JSON.

Rows of streamed transactions are not drafted, but are kept as frames until the commit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.hints import HINT
from cdcd.core.errors import ProtocolError
from cdcd.core.facts import Observer, unheard
from cdcd.core.protocol.messages import Binary, LogicalMessage, Value
from cdcd.core.protocol.peek import (
    DELETE,
    INSERT,
    NEW_ROW,
    OLD_KEY,
    OLD_ROW,
    ROW_HEAD_BYTES,
    row_width,
)
from cdcd.core.records.avro.around import Around, AvroEnvelope, FlatRow
from cdcd.core.records.avro.form import AvroForm, known_id
from cdcd.core.records.avro.messages import AvroHeartbeats, MessageValues
from cdcd.core.records.avro.rows import NULL_IN_KEY, named_unchanged, write_fields, write_row
from cdcd.core.records.avro.source_block import (
    AvroSourceBlock,
    AvroTableSource,
    CountedAvroSource,
    RegisteredTransactionMetadata,
)
from cdcd.core.records.avro.tables import AvroTable, message_uses
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.messages import watermark
from cdcd.core.records.debezium_json.snapshot_rows import explain_row, line_with, row_of_line, runs
from cdcd.core.records.debezium_json.source_block import (
    CREATED,
    DELETED,
    READ,
    TRUNCATED,
    UPDATED,
    SourceBlock,
    unix_us,
)
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import (
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEARTBEATS,
    MESSAGES,
    TRANSACTIONS,
    Encoded,
    EncoderSettings,
    Record,
    SnapshotPosition,
)
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.stream import RecordStream, moved_from, moved_to
from cdcd.core.records.unwritable import Found, UnwritableError, named

if TYPE_CHECKING:
    from mypy_extensions import i64

LSN_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RegistryFormat:
    """What a format with a registry has of its own. `AVRO_FORMAT` is one, `protobuf/encoder.py` has another one.

    Attributes:
        form: the bytes of values.
        source_block, table_source: what `source` has for a transaction, and for a table.
        around: what stands around rows.
        messages: the values of logical messages.
        heartbeats: the records of heartbeats.
    """

    form: Callable[[], AvroForm]
    source_block: Callable[[EncoderSettings], AvroSourceBlock]
    table_source: Callable[[TableFragments, TransactionMetadata | None], AvroTableSource]
    around: Callable[[], Around]
    messages: Callable[[], MessageValues]
    heartbeats: Callable[[EncoderSettings, AvroForm], AvroHeartbeats]


def _table_source(fragments: TableFragments, metadata: TransactionMetadata | None) -> AvroTableSource:
    relation, schema_id = fragments.relation, fragments.schema_id
    if metadata is None:
        return AvroTableSource(relation.schema, relation.name, schema_id)
    return CountedAvroSource(relation.schema, relation.name, schema_id, metadata)


AVRO_FORMAT: Final = RegistryFormat(
    AvroForm, AvroSourceBlock, _table_source, AvroEnvelope, MessageValues, AvroHeartbeats
)


class RegistryEncoder(RecordStream):
    """Turns rows into records of a format with a registry. See `Encoder` for the methods."""

    def __init__(
        self,
        settings: EncoderSettings,
        binary: bool = False,
        observe: Observer = unheard,
        chosen: RegistryFormat = AVRO_FORMAT,
    ) -> None:
        self._chosen = chosen
        self._block = chosen.source_block(settings)
        self._block_alone = chosen.source_block(settings)
        RecordStream.__init__(self, settings, binary, observe, self._block, self._block_alone)
        self._form = chosen.form()
        self._around = chosen.around()
        self._flat: FlatRow | None = None
        if settings.flattening is not None:
            self._flat = FlatRow(settings, self._form, observe)
            self._around = self._flat
        self._avro: dict[int, AvroTable] = {}
        self._latest: AvroTable | None = None
        """The table of the last row."""
        self._part = BytesWriter()
        self._message_values = chosen.messages()
        self._message_key_use, self._message_value_use = message_uses(
            settings, self._message_topic, self._form
        )
        uses = (self._message_key_use, self._message_value_use)
        self._message_uses: tuple[SchemaUse, ...] = tuple([use for use in uses if use is not None])
        self._messages_told = False
        self._metadata_uses: tuple[SchemaUse, ...] = ()
        """The schemas of BEGIN and END if there are such records."""
        self._metadata_told = False
        if self.metadata is not None:
            metadata = RegisteredTransactionMetadata(settings, self.metadata.topic, self._form)
            self.metadata, self._metadata_uses = metadata, metadata.uses
        self._avro_heartbeats = chosen.heartbeats(settings, self._form)
        self._header_bytes = 0
        """Bytes of the headers of the last record, if they count (`Encoder.encode`)."""

    # Schemas.

    def _described(self, fragments: TableFragments) -> None:
        known = self._avro.get(fragments.relation.oid)
        flat = None if self._flat is None else self._flat.form_of(fragments, fragments.described.rules)
        table = AvroTable(
            self._settings,
            self._form,
            fragments,
            tables=self.tables,
            source=self._chosen.table_source(fragments, self.metadata),
            value_schema=self._value_schema,
            flat=flat,
        )
        if self._flat is not None and flat is not None:
            self._flat.describe(table, flat)
        if known is not None and known.is_told and known.uses == table.uses:
            table.is_told = True
        self._avro[fragments.relation.oid] = table
        self._latest = None

    def _value_schema(self, envelope: Schema) -> Schema:
        """Return the schema of a table's values; `envelope` has everything that may be in it, the rows first."""
        return envelope

    def unregistered(self, relation_oid: int) -> tuple[SchemaUse, ...]:
        """See `Encoder`."""
        ids = self._settings.schema_ids
        if relation_oid == MESSAGES:
            uses = self._message_uses
        elif relation_oid == HEARTBEATS:
            uses = self._avro_heartbeats.uses
        elif relation_oid == TRANSACTIONS:
            uses = () if self._metadata_told else self._metadata_uses
        else:
            uses = self._avro[relation_oid].uses + self._metadata_uses
        return tuple([use for use in uses if ids.get(use) is None])

    def _id(self, use: SchemaUse) -> int:
        return known_id(self._settings, use)

    def _tell(self, uses: Sequence[SchemaUse], out: list[Record]) -> None:
        """Write the ids of schemas to the schemas topic, if there is one."""
        topic = self._settings.schemas_topic
        if topic is not None:
            ids = self._settings.schema_ids
            out.extend([(topic, *ids.record(use), None) for use in uses])

    def _ready(self, table: AvroTable, out: list[Record]) -> None:
        """Take the ids of the table's schemas before its first record under this description, and write them to the
        schemas topic.
        """
        value_head = self._form.head(self._id(table.value_use))
        if table.key_use is not None:
            table.key_head = self._form.head(self._id(table.key_use))
        table.value_head = value_head
        for topic, (key_use, value_use) in table.routed_uses.items():
            key_head = b"" if key_use is None else self._form.head(self._id(key_use))
            table.routed_heads[topic] = key_head, self._form.head(self._id(value_use))
        if not table.is_told:
            self._tell(table.uses, out)
            table.is_told = True
        if self._metadata_uses and not self._metadata_told:
            self._tell(self._metadata_uses, out)
            self._metadata_told = True

    def to_topic(self, relation_oid: int, record: Record, topic: str) -> Record:
        """See `Encoder`. A registry may have another id for the same schema under the subjects of another topic."""
        _, key, value, headers = record
        table = self._avro[relation_oid]
        heads = table.routed_heads.get(topic)
        if heads is None or heads == (table.key_head, table.value_head):
            return topic, key, value, headers
        key_head, value_head = heads
        if key is not None:
            key = key_head + key[len(key_head) :]
        if value is not None:
            value = value_head + value[len(value_head) :]
        if headers is not None:
            headers = [
                (name, key_head + each[len(key_head) :] if name in (HEADER_NEW_KEY, HEADER_OLD_KEY) else each)
                for name, each in headers
            ]
        return topic, key, value, headers

    # These methods make the parts around a row.

    def begin(self, xid: int, commit_lsn: int, commit_time: int, last_commit_lsn: int | None) -> None:
        """See `Encoder`."""
        RecordStream.begin(self, xid, commit_lsn, commit_time, last_commit_lsn)
        if self._flat is not None:
            self._flat.source.begin(xid, commit_lsn, unix_us(commit_time), last_commit_lsn)

    def set_origin(self, name: str, lsn: int | None) -> None:
        """See `Encoder`."""
        RecordStream.set_origin(self, name, lsn)
        if self._flat is not None:
            self._flat.source.set_origin(name, lsn or None)

    def _set_now(self, now_us: int) -> None:
        if now_us != self._now_us:
            self._now_us = now_us
            self._around.set_now(now_us)

    def _table(self, oid: int, out: list[Record]) -> TableFragments:
        """See `RecordStream`."""
        latest = self._latest
        if (
            latest is not None
            and oid == self._recent_oid
            and latest.fragments.transaction == self._transaction
        ):
            return latest.fragments
        table = self._avro.get(oid)
        if table is None:
            raise ProtocolError(
                f"A change in the relation with oid {oid}, which the server never described.", hint=HINT
            )
        fragments = table.fragments
        if fragments.transaction != self._transaction:
            if fragments.is_new:
                self.tables.introduce(fragments, out)
            if not table.value_head:
                self._ready(table, out)
            table.source.renew(self._block)
            fragments.transaction = self._transaction
        self._recent_oid = oid
        self._latest = table
        return fragments

    def _count(self, table: AvroTable, op: int) -> None:
        if self._lsn > LSN_MAX:
            raise ProtocolError(f"An LSN of {self._lsn} has no place in {self._form.name}.", hint=HINT)
        table.fragments.tally.counts[op] += 1

    def _end(self, table: AvroTable, op: int) -> bytes:
        """Return the value whose rows are in the buffer."""
        self._count(table, op)
        return self._around.end(table, op, self._lsn, self._serial)

    # Rows.

    def _row(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        if width != table.width:
            raise ValueError("the row has another number of columns than the relation")
        avro = self._latest
        assert avro is not None, "`_table` comes first"
        buffer = self._around.open(avro)
        if tag == DELETE:
            return self._delete_row(avro, frame, kind, at, out)
        if tag != INSERT and kind != NEW_ROW:
            return self._update_with_old_row(avro, frame, kind, at, out)
        if kind != NEW_ROW:
            raise ValueError("unknown kind of row")
        self._around.before(False)
        self._around.after(True)
        unchanged = self._last_row(avro, frame, at, False, False)
        key = avro.key(buffer, self._part)
        headers = named_unchanged(avro, unchanged) if unchanged else None
        return self._put(avro, CREATED if tag == INSERT else UPDATED, key, headers, out)

    def _try(self, table: TableFragments, column: int, value: Value) -> None:
        """See `RecordStream`."""
        place = self._avro[table.relation.oid].places[column]
        converter = place.converter
        if converter is None:
            return
        out = BytesWriter()
        if value is None:
            if place.null is None:
                raise UnwritableError(*NULL_IN_KEY)
        elif isinstance(value, Binary):
            converter.write_binary(value.data, 0, len(value.data), out)
        elif isinstance(value, bytes):
            converter.write(value, 0, len(value), out)

    def _row_again(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        avro = self._avro[table.relation.oid]
        avro.takes_null = True
        try:
            return self._row(table, tag, kind, width, frame, at, out)
        finally:
            avro.takes_null = False

    def _record(self, table: AvroTable, op: int, key: bytes | None, headers: Headers | None) -> Record:
        """Return the record whose row is in the buffer."""
        return table.fragments.topic, key, self._end(table, op), headers

    def _put(
        self, table: AvroTable, op: int, key: bytes | None, headers: Headers | None, out: list[Record]
    ) -> int:
        if self._skips[op]:
            return 0
        if self._flat is not None:
            return self._put_flat(self._flat, table, op, key, headers, out)
        record = self._record(table, op, key, headers)
        out.append(record)
        return size_of(record) + self._header_bytes

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
        headers = flat.headers(table, op, self._lsn, self._serial, headers)
        if not is_deleted or flat.forms.rewrites:
            record = self._record(table, op, key, headers)
            out.append(record)
            size = size_of(record) + self._header_bytes
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
        if key is not None and self._settings.tombstones and not self._skips[DELETED]:
            out.append((table.fragments.topic, key, None, headers))
            size += len(key)
        return size

    def _delete_row(self, table: AvroTable, frame: bytes, kind: int, at: int, out: list[Record]) -> int:
        if kind not in (OLD_KEY, OLD_ROW):
            raise ValueError("unknown kind of row")
        buffer = self._around.out
        self._around.before(True)
        unchanged = self._last_row(table, frame, at, False, False)
        self._around.after(False)
        headers = named_unchanged(table, unchanged) if unchanged else None
        return self._put_delete(table, table.key(buffer, self._part), headers, out)

    def _update_with_old_row(
        self, table: AvroTable, frame: bytes, kind: int, at: int, out: list[Record]
    ) -> int:
        if kind not in (OLD_KEY, OLD_ROW):
            raise ValueError("unknown kind of row")
        buffer, fragments = self._around.out, table.fragments
        self._around.before(True)
        begin: i64 = len(buffer)
        missing_old: list[int] = []
        end: i64 = write_row(frame, at, table, buffer, missing_old, False, False)
        old_key = table.key(buffer, self._part)
        after: i64 = len(buffer)
        if frame[end] != NEW_ROW:
            raise ValueError("unknown kind of row")
        if row_width(frame, end) != fragments.width:
            raise ValueError("the row has another number of columns than the relation")
        end += ROW_HEAD_BYTES
        self._around.after(True)
        new: i64 = len(buffer)
        missing = self._last_row(table, frame, end, True, kind == OLD_ROW)
        key = table.key(buffer, self._part)
        left, came = named_unchanged(table, missing_old), named_unchanged(table, missing)
        is_other = old_key is not None and key is not None and old_key != key
        if is_other or self._came is not None:
            written = buffer.getvalue()
            buffer = self._around.open(table)
            self._around.before(True)
            buffer.write(written[begin:after])
            self._around.after(False)
            size = self._put_delete(table, old_key, [*moved_to(key), *left] or None, out)
            buffer = self._around.open(table)
            self._around.before(False)
            self._around.after(True)
            buffer.write(written[new:])
            to = out if self._came is None else self._came
            return size + self._put(table, CREATED, key, [*moved_from(old_key), *came] or None, to)
        both = named_unchanged(table, missing + [column for column in missing_old if column not in missing])
        return self._put(table, UPDATED, key, both or None, out)

    def _last_row(self, table: AvroTable, frame: bytes, at: int, has_old: bool, whole: bool) -> list[int]:
        """Write the row at the end of the frame, and return the columns whose value was not sent."""
        unchanged: list[int] = []
        if write_row(frame, at, table, self._around.out, unchanged, has_old, whole) != len(frame):
            raise ValueError("the row does not end with the frame")
        return unchanged

    def _put_truncate(self, table: TableFragments, out: list[Record]) -> int:
        avro = self._latest
        assert avro is not None, "`_table` comes first"
        self._around.open(avro)
        self._around.before(False)
        self._around.after(False)
        return self._put(avro, TRUNCATED, None, None, out)

    # Rows of COPY.

    def _rows(
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        """Append the records of rows whose key is not in `dropped`.

        Raises:
            ProtocolError: a row is malformed.
            SinkError: the topic of the table is too long, or collides with another one.
        """
        count = size = 0
        keys: list[bytes] = []
        left_out: list[int] = []
        self._set_now(now_us)
        self._lsn = int(position.lsn)
        for begin, end, marker in runs(len(lines), position):
            self._block.begin(None, position.commit_lsn, now_us, None, snapshot=marker)
            flat = self._flat
            if flat is not None:
                flat.source.begin(None, position.commit_lsn, now_us, None, snapshot=marker)
            self._transaction += 1
            self._table(oid, out)
            table = self._latest
            assert table is not None, "`_table` made it"
            for place, line in enumerate(lines[begin:end], begin):
                key, found = self._copy_row(table, line, position.lsn)
                if key is not None:
                    if key in dropped:
                        left_out.append(place)
                        continue
                    keys.append(key)
                count += 1
                self._serial = position.event_no + count
                headers = None if flat is None else flat.headers(table, READ, self._lsn, self._serial, None)
                record = self._record(table, READ, key, headers)
                size += size_of(record) + self._header_bytes
                if found:
                    names = self.note_unwritable(table.fragments, found, position.lsn, now_us)
                    out.append(named(record, names))
                else:
                    out.append(record)
        return Encoded(count, size, keys if self._avro[oid].key_places else None, left_out)

    def _copy_row(self, table: AvroTable, line: bytes, lsn: int) -> tuple[bytes | None, list[Found]]:
        """Write a row into the buffer up to its source block; its key, and its values that have no form."""
        try:
            return self._write_line(table, line), []
        except (ValueError, IndexError) as cause:
            fragments = table.fragments
            refusal = explain_row(line, fragments.relation, fragments.converters)
            if refusal is not None:
                raise refusal from cause
        found = self.found_unwritable(fragments, row_of_line(line), lsn)
        assert found, "a row was refused in which nothing is wrong"
        table.takes_null = True
        try:
            return self._write_line(table, line_with(line, found, fragments.key_columns)), found
        finally:
            table.takes_null = False

    def _write_line(self, table: AvroTable, line: bytes) -> bytes | None:
        """Write a row; its key. ValueError, IndexError: see `write_row`."""
        buffer = self._around.open(table)
        self._around.before(False)
        self._around.after(True)
        write_fields(table, line, buffer)
        return table.key(buffer, self._part)

    # Logical messages.

    def _message(
        self,
        message: LogicalMessage,
        content: memoryview,
        source: SourceBlock,
        serial: int,
        out: list[Record],
    ) -> int:
        head = self._form.head(self._id(self._message_value_use))
        block = self._block_alone if source is self._block_alone else self._block
        self._message_values.source.renew(block)
        value = self._message_values.value(head, message, self._content.data(content), serial, self._now_us)
        return self._put_message(message, value, None, out)

    def _put_message(
        self, message: LogicalMessage, value: bytes, headers: Headers | None, out: list[Record]
    ) -> int:
        """Append the record of a logical message, preceded by its schemas if it is the first one."""
        if self._message_key_use is not None:
            key = self._form.head(self._id(self._message_key_use)) + self._form.message_key(message.prefix)
        else:
            key = self.json_message_key(message)
        if not self._messages_told:
            self._tell(self._message_uses, out)
            self._messages_told = True
        self._messages += 1
        out.append((self._message_topic, key, value, headers))
        return len(key) + len(value)

    # Heartbeats.

    def encode_heartbeat(self, lsn: int, now_us: int, out: list[Record]) -> int:
        """See `Encoder`."""
        avro = self._avro_heartbeats
        value = self._form.head(self._id(avro.value_use)) + avro.value(now_us)
        key = (
            self._heartbeats.key
            if avro.key_use is None
            else self._form.head(self._id(avro.key_use)) + avro.key
        )
        if not avro.is_told:
            self._tell(avro.uses, out)
            avro.is_told = True
        out.append((self._heartbeats.topic, key, value, watermark(lsn)))
        return len(key) + len(value)


def size_of(record: Record) -> int:
    """Return the bytes of a record's key and value."""
    _, key, value, _ = record
    return len(key or b"") + len(value or b"")
