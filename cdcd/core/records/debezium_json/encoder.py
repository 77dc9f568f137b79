"""Stage 6: envelope -> bytes of Debezium's JSON, for key and value each with its schema or without.

For each Relation message a table's fragments are made (`table_fragments.py`): its topic, its key, and for its columns
the JSON that never changes (`,"name":`) and the converters of what goes between. A row is then: copy the list of
fragments, let stage 4 put the values in, join them with the source block (`source_block.py`), which is made again for
each transaction that touches the table. Compiled code writes the same into a buffer (`row_writer.py`) and goes this
way only where it must.

Records are Debezium's: `c`, `u`, `d` with a tombstone after it; an update that changes the key is `d` (header
`__debezium.newkey`), tombstone, `c` (header `__debezium.oldkey`). `before` is what the server sent of the old row: all
of it under REPLICA IDENTITY FULL, else on a delete or a changed key the identity, the other columns null. Deviations,
each because the other way loses something or helps nobody:

- A value that the server did not send (unchanged TOAST) is Debezium's placeholder, and the record names its column
  in the header `cdcd.unchanged`.
- A delete in a table without a key has no tombstone: it would have neither key nor value.
- Tables without columns have events, with `{}` for a row. Columns that differ only in case are two columns.
- `source` has `commit_lsn`, `event_serial_no` and `schema_id` at its end. Both halves of a key change have the same
  number.
- Truncate is on, one record for each table, to its topic, with a null key.
- Of an update that changes the key, the halves are skipped as `d` and `c` (`EncoderSettings.skipped`), not as `u`.

The same frames in the same transactions give the same bytes, but for the times of processing at the envelope's end.

Rows of a transaction whose fate is open are drafted (`draft_all`), on the same path, and finished by `encode_all`
(`drafting.py`).
"""

from collections.abc import Mapping
from itertools import chain
from struct import error
from typing import Final

from cdcd.core.catalog.hints import HINT
from cdcd.core.catalog.wiretext import checked, to_bytes, wire
from cdcd.core.errors import ProtocolError, SourceError
from cdcd.core.facts import Observer, unheard
from cdcd.core.protocol.messages import LogicalMessage, Relation
from cdcd.core.protocol.peek import (
    COMPILED,
    DELETE,
    INSERT,
    NEW_ROW,
    OLD_KEY,
    OLD_ROW,
    ROW_HEAD_BYTES,
    STREAMED_HEAD_BYTES,
    UPDATE,
    read_head,
    row_width,
    xid_of,
)
from cdcd.core.records.debezium_json.changes import LEFT, read_row
from cdcd.core.records.debezium_json.connect_schema import (
    CLOSING,
    WITH_SCHEMA,
    opening,
)
from cdcd.core.records.debezium_json.drafting import (
    DraftWriter,
    OutdatedDraftError,
    finish,
    late_records,
    op_and_form,
)
from cdcd.core.records.debezium_json.messages import message_schema
from cdcd.core.records.debezium_json.pieces import gathered
from cdcd.core.records.debezium_json.row_writer import LSN_MAX, RowWriter
from cdcd.core.records.debezium_json.source_block import (
    CREATED,
    DELETED,
    EVENT_NOS,
    TRUNCATED,
    UPDATED,
    SourceBlock,
    TableSource,
    processed_at,
)
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import (
    HEADER_UNCHANGED,
    EncoderSettings,
    LateRecords,
    Record,
)
from cdcd.core.records.stream import RecordStream, moved_from, moved_to
from cdcd.core.transactions.drafts import Draft, SpoolItem, relation_of_draft, row_count

_ROWS: Final = (INSERT, UPDATE, DELETE)

_NOT_DRAFTED: Final = -1


class DebeziumJsonEncoder(RecordStream):
    """Turns the row frames of committed transactions into records.

    The caller owes: `define` before the first row of a relation and whenever it is described again; `begin` (and, where
    it applies, `set_origin` and `skip`) before a transaction's rows; then each row once, in order.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        binary: bool = False,
        observe: Observer = unheard,
        source: SourceBlock | None = None,
        alone: SourceBlock | None = None,
    ) -> None:
        RecordStream.__init__(
            self, settings, binary, observe, source or SourceBlock(settings), alone or SourceBlock(settings)
        )
        self._message_source = TableSource(
            "",
            "",
            opening=opening(message_schema(settings.modes)) if settings.value_format == WITH_SCHEMA else b"",
        )
        self._message_end = CLOSING if settings.value_format == WITH_SCHEMA else b""
        self._drafts: DraftWriter | None = None
        """While rows are drafted: where they go."""
        self._lsn_text = (-1, b"")
        self._writer = RowWriter()
        self.writes = COMPILED
        """Rows are written into a buffer where that is possible (`row_writer.py`), not put together from fragments."""
        self._processed_at = b""

    def _drafts_of(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """Drafts of row frames in a stream, in their order, and the frames of which there can be none.

        A frame stays a frame if its relation is not described here as in the stream (`relations`), if it changes a
        key, if the server left a value out (unchanged TOAST), or if it is malformed, which matters only at the commit.
        The caller must see which rows have a value left out: while their table is read, it reads them again by key.
        """
        drafts = DraftWriter()
        tables: dict[int, TableFragments | None] = {}
        self._drafts = drafts
        try:
            for frame in frames:
                assert isinstance(frame, bytes), "what is drafted comes from the wire"
                if not self._draft(frame, tables, relations, drafts):
                    drafts.keep(frame)
        finally:
            self._drafts = None
        return drafts.end()

    def _draft(
        self,
        frame: bytes,
        tables: dict[int, TableFragments | None],
        relations: Mapping[int, tuple[int, Relation]],
        drafts: DraftWriter,
    ) -> bool:
        try:
            self._lsn, tag, oid, kind, width = read_head(frame, True)
            if oid in tables:
                table = tables[oid]
            else:
                table = self.tables.fragments.get(oid)
                known = relations.get(oid)
                if table is not None and (known is None or known[1] != table.relation):
                    table = None
                tables[oid] = table
            if table is None:
                return False
            drafts.xid = xid_of(frame)
            return self._row(table, tag, kind, width, frame, STREAMED_HEAD_BYTES, []) != _NOT_DRAFTED
        except (ValueError, IndexError, error, SourceError):
            return False

    def late_records(self, draft: Draft, now_us: int, out: list[Record]) -> LateRecords | None:
        """See `Encoder`."""
        op, table = self._drafted(draft, now_us, out)
        if self._skips[op]:
            return None
        late = late_records(draft, table, self._serial, self._processed_at, self._settings.tombstones)
        if late is not None:
            self._serial += late.count
            table.tally.counts[op] += late.count
        return late

    def _finish(self, draft: Draft, now_us: int, out: list[Record]) -> int:
        op, table = self._drafted(draft, now_us, out)
        count = row_count(draft)
        if self._skips[op]:
            self._serial += count
            return 0
        size = finish(draft, table, self._serial, self._processed_at, self._settings.tombstones, out)
        self._serial += count
        table.tally.counts[op] += count
        return size

    def _drafted(self, draft: Draft, now_us: int, out: list[Record]) -> tuple[int, TableFragments]:
        """The op of a draft, and its table.

        Raises:
            OutdatedDraftError: the description of the table is another one than the draft was made with.
        """
        op, form = op_and_form(draft)
        table = self._table(relation_of_draft(draft), out)
        if table.form != form:
            raise OutdatedDraftError(table, self._commit_lsn)
        self._set_now(now_us)
        return op, table

    def _set_now(self, now_us: int) -> None:
        if now_us != self._now_us:
            self._now_us = now_us
            self._processed_at = processed_at(now_us)

    def _encode_moved(
        self, frame: bytes, in_stream: bool, now_us: int, out: list[Record], came: list[Record]
    ) -> int:
        """See `Encoder`."""
        writes, self.writes = self.writes, False
        try:
            return RecordStream._encode_moved(self, frame, in_stream, now_us, out, came)
        finally:
            self.writes = writes

    def _row(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        """The records of a row, or its draft; `_NOT_DRAFTED` where it can have none."""
        if width != table.width:
            raise ValueError("the row has another number of columns than the relation")
        if self.writes and self._lsn <= LSN_MAX:
            begins = table.source.opening if self._drafts is None else b""
            op = self._writer.begin(table, tag, kind, frame, at, begins)
            if op != LEFT:
                return self._append_written(table, op, out)
        if tag != INSERT:
            change = self._update if tag == UPDATE else self._delete
            return change(table, frame, kind, at, out)
        if kind != NEW_ROW:
            raise ValueError("unknown kind of row")
        parts = table.event_template.copy()
        unchanged = _read_last_row(table, frame, at, parts)
        headers = _headers(table.stand_in(parts, unchanged)) if unchanged else None
        return self._append(table, CREATED, table.key(parts), parts, headers, out)

    def _update(self, table: TableFragments, frame: bytes, kind: int, at: int, out: list[Record]) -> int:
        old: list[bytes] | None = None
        unchanged_old: list[int] = []
        whole = kind == OLD_ROW
        if whole or kind == OLD_KEY:
            old = table.old_template.copy()
            at = read_row(frame, at, table.plan, table.converters, old, unchanged_old)
            table.hide(old, unchanged_old)
            kind = frame[at]
            if row_width(frame, at) != table.width:
                raise ValueError("the row has another number of columns than the relation")
            at += ROW_HEAD_BYTES
        if kind != NEW_ROW:
            raise ValueError("unknown kind of row")
        parts = table.event_template.copy()
        unchanged = _read_last_row(table, frame, at, parts)
        missing_old = table.stand_in(old, unchanged_old) if old is not None and unchanged_old else []
        if unchanged and old is not None:
            unchanged = table.take_over(parts, unchanged, old, unchanged_old, whole)
        missing = table.stand_in(parts, unchanged) if unchanged else []
        key = table.key(parts)
        if old is not None:
            old_key = table.key(old)
            before = b"".join(old)
            is_other = old_key is not None and key is not None and old_key != key
            if is_other or self._came is not None:
                if self._drafts is not None:
                    return _NOT_DRAFTED
                left = [*moved_to(key), *_headers(missing_old)]
                came = [*moved_from(old_key), *_headers(missing)]
                size = self._append_delete(table, old_key, before, left or None, out)
                to = out if self._came is None else self._came
                return size + self._append(table, CREATED, key, parts, came or None, to)
            parts[1] = before
            missing += [name for name in missing_old if name not in missing]
        return self._append(table, UPDATED, key, parts, _headers(missing) or None, out)

    def _delete(self, table: TableFragments, frame: bytes, kind: int, at: int, out: list[Record]) -> int:
        if kind not in (OLD_KEY, OLD_ROW):
            raise ValueError("unknown kind of row")
        old = table.old_template.copy()
        unchanged = _read_last_row(table, frame, at, old)
        headers = _headers(table.stand_in(old, unchanged)) if unchanged else None
        return self._append_delete(table, table.key(old), b"".join(old), headers, out)

    def _append_delete(
        self,
        table: TableFragments,
        key: bytes | None,
        before: bytes,
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        parts = [b'{"before":', before, b',"after":null']
        size = self._append(table, DELETED, key, parts, headers, out)
        if (
            key is not None
            and self._settings.tombstones
            and self._drafts is None
            and not self._skips[DELETED]
        ):
            out.append((table.topic, key, None, headers))
            size += len(key)
        return size

    def _append_written(self, table: TableFragments, op: int, out: list[Record]) -> int:
        """The record of the row that is with `_writer`, or its draft."""
        writer = self._writer
        key = writer.key
        if self._drafts is not None:
            return self._drafts.add(table, op, key, writer.draft(), self._lsn_bytes())
        if self._skips[op]:
            return 0
        value = writer.record(table, op, self._lsn, self._serial, self._processed_at)
        table.tally.counts[op] += 1
        out.append((table.topic, key, value, None))
        size = len(value)
        if key is not None:
            size += len(key)
            if op == DELETED and self._settings.tombstones:
                out.append((table.topic, key, None, None))
                size += len(key)
        return size

    def _lsn_bytes(self) -> bytes:
        lsn, text = self._lsn_text
        if lsn != self._lsn:
            text = str(self._lsn).encode("ascii")
            self._lsn_text = (self._lsn, text)
        return text

    def _append(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Fill in what differs from event to event, and append the record, or its draft."""
        if self._drafts is not None:
            if headers:
                return _NOT_DRAFTED
            return self._drafts.add(table, op, key, checked(b"".join(parts)), self._lsn_bytes())
        if self._skips[op]:
            return 0
        serial = self._serial
        number = EVENT_NOS[serial] if serial < len(EVENT_NOS) else str(serial).encode("ascii")
        source = table.source
        value = checked(
            source.joined(parts, self._lsn_bytes(), number, source.ending(op, self._processed_at))
        )
        table.tally.counts[op] += 1
        out.append((table.topic, key, value, headers))
        return len(value) if key is None else len(key) + len(value)

    def _put_truncate(self, table: TableFragments, out: list[Record]) -> int:
        parts = [b'{"before":null,"after":null']
        return self._append(table, TRUNCATED, None, parts, None, out)

    def encode_heartbeat(self, lsn: int, now_us: int, out: list[Record]) -> int:
        """See `Encoder`."""
        topic, key, value, headers = self._heartbeats.record(lsn, now_us)
        out.append((topic, key, value, headers))
        return len(key or b"") + len(value or b"")

    def _table(self, oid: int, out: list[Record]) -> TableFragments:
        """The fragments of a relation, ready for the transaction that is open, and described in `out`."""
        recent = self._recent
        if recent is not None and oid == self._recent_oid and recent.transaction == self._transaction:
            return recent
        table = self.tables.fragments.get(oid)
        if table is None:
            raise ProtocolError(
                f"A change in the relation with oid {oid}, which the server never described.", hint=HINT
            )
        if table.transaction != self._transaction:
            if table.is_new:
                self.tables.introduce(table, out)
            table.source.renew(self._source)
            table.transaction = self._transaction
        self._recent_oid = oid
        self._recent = table
        return table

    def _message(
        self,
        message: LogicalMessage,
        content: memoryview,
        source: SourceBlock,
        serial: int,
        out: list[Record],
    ) -> int:
        """Append the record of a logical message; `message` is without its content."""
        prefix = quote(wire(message.prefix))
        lsn = message.lsn
        # Debezium's schema for these (PostgresSchemaFactory) has another order, and of the times only ts_ms.
        self._message_source.renew(source)
        before = f'{{"op":"m","ts_ms":{self._now_us // 1000}'.encode("ascii")
        until_content = self._message_source.joined(
            [before],
            b"%d" % lsn,
            b"%d" % serial,
            to_bytes(f'}},"transaction":null,"message":{{"prefix":{prefix},"content":'),
        )
        written = self._content.json_pieces(content)
        value = gathered(chain((until_content,), written, (b"}}", self._message_end)))
        key = self.json_message_key(message)
        self._messages += 1
        out.append((self._message_topic, key, value, None))
        return len(key) + len(value)


def _read_last_row(table: TableFragments, frame: bytes, at: int, values: list[bytes]) -> list[int]:
    """Convert the row with which the frame ends; the slots of its columns that are unchanged TOAST."""
    unchanged: list[int] = []
    if read_row(frame, at, table.plan, table.converters, values, unchanged) != len(frame):
        raise ValueError("the row does not end with the frame")
    table.hide(values, unchanged)
    return unchanged


def _headers(missing: list[bytes]) -> Headers:
    """The header that names columns whose value is missing, if there are any."""
    return [(HEADER_UNCHANGED, b"[%b]" % b",".join(missing))] if missing else []
