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
from struct import error
from typing import Final

from cdcd.core.catalog.wiretext import checked
from cdcd.core.errors import SourceError
from cdcd.core.facts import Observer
from cdcd.core.protocol.messages import LogicalMessage, Relation
from cdcd.core.protocol.peek import (
    COMPILED,
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
from cdcd.core.records.debezium_json.around import JsonAround, JsonEnvelope, deleted_parts, tombstone
from cdcd.core.records.debezium_json.changes import LEFT, read_row
from cdcd.core.records.debezium_json.copied_rows import add_deletes, add_lines
from cdcd.core.records.debezium_json.drafting import (
    DraftWriter,
    OutdatedDraftError,
    late_records,
    op_and_form,
)
from cdcd.core.records.debezium_json.flat_rows import FlatRows
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.messages import HeartbeatRecords, JsonMessages
from cdcd.core.records.debezium_json.row_writer import RowWriter
from cdcd.core.records.debezium_json.source_block import (
    CREATED,
    DELETED,
    TRUNCATED,
    UPDATED,
    TransactionFacts,
    processed_at,
)
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import HEADER_UNCHANGED, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.format import (
    LSN_MAX,
    CopiedRows,
    Current,
    Drafts,
    Format,
    Schemas,
    moved_from,
    moved_to,
    size_of,
)
from cdcd.core.records.late_records import LateRecords
from cdcd.core.transactions.drafts import Draft, SpoolItem, row_count

_NOT_DRAFTED: Final = -1


class JsonFormat(Format):
    """Records in JSON, whose rows are in `around`.

    Attributes:
        writes: whether rows are written into a buffer where that is possible (`row_writer.py`), instead of being put
            together from fragments.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        current: Current,
        around: JsonAround,
        messages: JsonMessages,
        metadata: TransactionMetadata | None,
    ) -> None:
        Format.__init__(self, metadata, Schemas())
        self._settings = settings
        self._current = current
        self._around = around
        self._messages = messages
        self._heartbeats = HeartbeatRecords(settings)
        self._draft: DraftWriter | None = None
        """The drafts to which rows are added, while rows are drafted."""
        self._lsn_text = (-1, b"")
        self._writer = RowWriter()
        self.writes = COMPILED

    def describe(self, table: TableFragments) -> None:
        """See `Format`."""
        self._around.describe(table)

    def begin(self, table: TableFragments, out: list[Record]) -> None:
        """See `Format`."""
        self._around.begin(table)

    # Rows of frames.

    def row(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        """See `Format`. While rows are drafted, `_NOT_DRAFTED` is returned for a row that can have no draft."""
        if width != table.width:
            raise ValueError("the row has another number of columns than the relation")
        current = self._current
        if self.writes and current.lsn <= LSN_MAX and current.came is None:
            begins = table.source.opening if self._draft is None else b""
            op = self._writer.begin(table, tag, kind, frame, at, begins)
            if op != LEFT:
                if self._draft is not None:
                    return self._draft.add(
                        table, op, self._writer.key, self._writer.draft(), self._lsn_bytes()
                    )
                if current.skips[op]:
                    return 0
                return self._around.written(table, op, self._writer, out)
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
            if is_other or self._current.came is not None:
                if self._draft is not None:
                    return _NOT_DRAFTED
                left = [*moved_to(key), *_headers(missing_old)]
                came = [*moved_from(old_key), *_headers(missing)]
                size = self._append_delete(table, old_key, before, left or None, out)
                to = out if self._current.came is None else self._current.came
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
        if self._draft is not None:
            return self._append(table, DELETED, key, deleted_parts(before), headers, out)
        if self._current.skips[DELETED]:
            return 0
        return self._around.deleted(table, key, before, headers, out)

    def _append(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Append the record of a row, or its draft."""
        if self._draft is not None:
            if headers:
                return _NOT_DRAFTED
            return self._draft.add(table, op, key, checked(b"".join(parts)), self._lsn_bytes())
        if self._current.skips[op]:
            return 0
        return self._around.changed(table, op, key, parts, headers, out)

    def _lsn_bytes(self) -> bytes:
        lsn, text = self._lsn_text
        if lsn != self._current.lsn:
            lsn = self._current.lsn
            text = str(lsn).encode("ascii")
            self._lsn_text = (lsn, text)
        return text

    def truncate(self, table: TableFragments, out: list[Record]) -> int:
        """See `Format`."""
        return self._append(table, TRUNCATED, None, [b'{"before":null,"after":null'], None, out)

    def lines(self, table: TableFragments, lines: list[bytes], first: int, rows: CopiedRows) -> None:
        """See `Format`. The values of a column are converted together, in blocks of rows."""
        add_lines(self._around, table, lines, first, rows, self._current.now_us)

    def deletes(
        self,
        table: TableFragments,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        out: list[Record],
    ) -> int:
        """See `Format`."""
        made: list[Record] = []
        add_deletes(table, keys, position, self._current.now_us, made)
        table.tally.counts[DELETED] += len(made)
        known = len(out)
        for record in made:
            out.append(record)
            tombstone(self._settings.tombstones, table, record[1], None, out)
        return sum([size_of(record) for record in out[known:]])

    # What is not a row.

    def message(
        self,
        message: LogicalMessage,
        content: memoryview,
        facts: TransactionFacts,
        serial: int,
        out: list[Record],
    ) -> int:
        """See `Format`."""
        self._current.messages += 1
        return self._messages.put(message, content, facts, serial, self._current.now_us, out)

    def heartbeat(self, lsn: int, out: list[Record]) -> int:
        """See `Format`."""
        record = self._heartbeats.record(lsn, self._current.now_us)
        out.append(record)
        return size_of(record)

    # Drafts of rows.

    def draft_row(self, table: TableFragments, frame: bytes, drafts: DraftWriter) -> bool:
        """Add a row of a streamed transaction to `drafts`; returns False if there can be no draft of it."""
        self._draft = drafts
        try:
            self._current.lsn, tag, _, kind, width = read_head(frame, True)
            drafts.xid = xid_of(frame)
            return self.row(table, tag, kind, width, frame, STREAMED_HEAD_BYTES, []) != _NOT_DRAFTED
        finally:
            self._draft = None


class JsonDrafts(Drafts):
    """Drafts of rows in JSON (`drafting.py`).

    Args:
        is_late: whether records can be made when they are handed over.
    """

    def __init__(
        self,
        form: JsonFormat,
        around: JsonAround,
        tables: KnownTables,
        current: Current,
        *,
        tombstones: bool,
        is_late: bool,
    ) -> None:
        self._format = form
        self._around = around
        self._tables = tables
        self._current = current
        self._tombstones = tombstones
        self._is_late = is_late

    def draft_all(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """Return drafts of row frames in a stream, in their order, and the frames of which there can be none.

        A frame stays a frame if its relation is not described here as in the stream (`relations`), if it changes a
        key, if the server left a value out (unchanged TOAST), or if it is malformed, which matters only at the commit.
        The caller must see which rows have a value left out: while their table is read, it reads them again by key.
        """
        drafts = DraftWriter()
        tables: dict[int, TableFragments | None] = {}
        for frame in frames:
            assert isinstance(frame, bytes), "what is drafted comes from the wire"
            if not self._draft(frame, tables, relations, drafts):
                drafts.keep(frame)
        return drafts.end()

    def _draft(
        self,
        frame: bytes,
        tables: dict[int, TableFragments | None],
        relations: Mapping[int, tuple[int, Relation]],
        drafts: DraftWriter,
    ) -> bool:
        try:
            oid = read_head(frame, True)[2]
            if oid in tables:
                table = tables[oid]
            else:
                table = self._tables.fragments.get(oid)
                known = relations.get(oid)
                if table is not None and (known is None or known[1] != table.relation):
                    table = None
                tables[oid] = table
            return table is not None and self._format.draft_row(table, frame, drafts)
        except (ValueError, IndexError, error, SourceError):
            return False

    def late_records(self, draft: Draft, table: TableFragments) -> LateRecords | None:
        """See `Drafts`."""
        op, current = self._op(draft, table), self._current
        if current.skips[op] or not self._is_late:
            return None
        late = late_records(draft, table, current.serial, processed_at(current.now_us), self._tombstones)
        if late is not None:
            current.serial += late.count
            table.tally.counts[op] += late.count
        return late

    def finish(self, draft: Draft, table: TableFragments, out: list[Record]) -> int:
        """See `Drafts`."""
        op = self._op(draft, table)
        if self._current.skips[op]:
            self._current.serial += row_count(draft)
            return 0
        return self._around.finish(draft, table, op, out)

    def _op(self, draft: Draft, table: TableFragments) -> int:
        """Return the op of a draft. OutdatedDraftError: the table's description is not the draft's."""
        op, form = op_and_form(draft)
        if table.form != form:
            raise OutdatedDraftError(table, self._current.facts.commit_lsn)
        return op


def json_format(
    settings: EncoderSettings, tables: KnownTables, current: Current, observe: Observer
) -> Format:
    """Return the format of Debezium's envelopes, or of flattened rows, in JSON."""
    topic = tables.names.transaction
    metadata = None if topic is None else TransactionMetadata(settings, topic)
    messages = JsonMessages(settings, tables.names.message or "")
    if settings.flattening is not None:
        return JsonFormat(settings, current, FlatRows(settings, current, observe), messages, metadata)
    around = JsonEnvelope(settings, current)
    made = JsonFormat(settings, current, around, messages, metadata)
    made.drafts = JsonDrafts(made, around, tables, current, tombstones=settings.tombstones, is_late=True)
    return made


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
