"""Turns the events of transactions into the records of a format.

The rule: everything that all formats have in common is in this module. Each event has the next number of its
transaction, even if it has no record. If a format cannot represent some values of a row, the record is written
without these values (`unwritable.py`). A malformed row is refused, and the error names its position. An update that
moves a row becomes a delete and an insert with the same number. Requests to the daemon are not encoded (`skip`).

A format (`format.py`) writes the records of a row, a truncate, a logical message and a heartbeat.
"""

from collections.abc import Callable, Mapping
from struct import error
from typing import Final

from cdcd.core.catalog.hints import HINT
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.errors import FatalError, ProtocolError
from cdcd.core.facts import Observer
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation, Truncate
from cdcd.core.protocol.peek import (
    DELETE,
    HEAD_BYTES,
    INSERT,
    MESSAGE,
    STREAMED_HEAD_BYTES,
    UPDATE,
    read_head,
)
from cdcd.core.protocol.reader import read_message, read_message_head
from cdcd.core.records.change_headers import ChangeHeaders
from cdcd.core.records.dead_letters import DeadLetters
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.snapshot_rows import runs
from cdcd.core.records.debezium_json.source_block import DELETED, OPS, TransactionFacts, unix_us
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import Encoded, EncoderSettings, Record, SnapshotPosition, record_bytes
from cdcd.core.records.format import CopiedRows, Current, Format
from cdcd.core.records.late_records import LateRecords
from cdcd.core.records.markers import INCREMENTAL
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.shaping.computing import ComputedFields
from cdcd.core.records.shaping.shape import ShapedPart, Shapes, placed_lines, put_header
from cdcd.core.records.stand_ins import StandIns
from cdcd.core.records.unwritable import named
from cdcd.core.transactions.drafts import Draft, SpoolItem, relation_of_draft

_ROWS: Final = (INSERT, UPDATE, DELETE)

MakeFormat = Callable[[EncoderSettings, KnownTables, Current, Observer], Format]
"""Makes a format. It keeps the catalog of tables and the current event, and reports facts to the observer."""


class RecordStream:
    """Turns frames of committed transactions into records. `Encoder` says what the caller owes.

    Attributes:
        tables: the relations that were defined.
        format: writes the records.
        shapes: stand between events and records.
        current: the event that is encoded.
    """

    def __init__(
        self, settings: EncoderSettings, binary: bool, observe: Observer, make_format: MakeFormat
    ) -> None:
        self._settings = settings
        self._computed = ComputedFields(settings.computed_rules, settings.protections, observe)
        self.tables = KnownTables(settings, binary, self._computed)
        self.current = Current(settings)
        self.format = make_format(settings, self.tables, self.current, observe)
        self._headers = ChangeHeaders(settings, self.current)
        self._stand_ins = StandIns(observe, self.format.schemas.check)
        self._letters = DeadLetters(settings, self.format, self.tables, self.current, observe)
        self.shapes = Shapes()
        self._facts = self.current.facts
        self._alone = TransactionFacts()
        """Facts about a logical message outside of transactions."""
        self._recent: TableFragments | None = None
        """Table of the last row, because the next row is usually of the same table."""
        self._recent_oid = 0

    @property
    def metadata(self) -> TransactionMetadata | None:
        """See `Encoder`."""
        return self.format.metadata

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """See `Encoder`."""
        messages = {("", "m"): self.current.messages} if self.current.messages else {}
        counts = {**messages, **self.tables.counts, **self._computed.counts, **self._letters.counts}
        return self.shapes.counted(counts)

    @property
    def unwritable(self) -> dict[tuple[str, str], int]:
        """See `Encoder`."""
        return self._stand_ins.values.counts

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """See `Encoder`."""
        self.shapes.check(relation, table, types)
        fragments = self.tables.define(relation, table, types, self.format.metadata)
        if fragments is not None:
            self._recent = None
            self.format.describe(fragments)
            self._letters.describe(fragments)
        self.shapes.define(relation, table, types)

    def forget(self, relation_oid: int) -> None:
        """See `Encoder`."""
        self.tables.forget(relation_oid)
        self._recent = None

    def to_topic(self, relation_oid: int, record: Record, topic: str) -> Record:
        """See `Encoder`."""
        return self.format.schemas.to_topic(relation_oid, record, topic)

    def unregistered(self, relation_oid: int) -> tuple[SchemaUse, ...]:
        """See `Encoder`."""
        return self._letters.unregistered(relation_oid)

    def send_to_dead_letters(self, relation_oid: int, reason: str) -> bool:
        """See `Encoder`."""
        self._recent = None
        return self._letters.refuse(relation_oid, reason)

    def begin(self, xid: int, commit_lsn: int, commit_time: int, last_commit_lsn: int | None) -> None:
        """See `Encoder`."""
        self._facts.begin(xid, commit_lsn, unix_us(commit_time), last_commit_lsn)
        if self.format.metadata is not None:
            self.format.metadata.begin(xid, commit_lsn, unix_us(commit_time))
        self.current.serial = 0

    def set_origin(self, name: str, lsn: int | None) -> None:
        """See `Encoder`."""
        self._facts.set_origin(name, lsn or None)

    def skip(self, events: int) -> None:
        """See `Encoder`. These are the first events, which are delivered already, or requests to the daemon."""
        self.current.serial += events

    @property
    def serial(self) -> int:
        """See `Encoder`."""
        return self.current.serial

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        """See `Encoder`."""
        size = 0
        for one in kept:
            size += (
                self.encode(one, in_stream, now_us, out)
                if isinstance(one, bytes)
                else self._finish(one, now_us, out)
            )
        return size

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """See `Encoder`. Requests to the daemon itself do not come here (`skip`)."""
        if self.shapes.active:
            return self._shaped(frame, in_stream, now_us, out)
        return self._encode(frame, in_stream, now_us, out)

    def _shaped(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Encode what the shapes make of an event. A faulty event counts once, and leaves at most descriptions."""
        known, serial = len(out), self.current.serial
        size = 0
        try:
            parts = self.shapes.parts(frame, in_stream, now_us)
        except (ValueError, IndexError) as cause:
            # The error that the format raises names the malformed part of the message.
            self._encode(frame, in_stream, now_us, out)
            raise AssertionError("a row was refused in which nothing is wrong") from cause
        except FatalError:
            self.current.serial = serial + 1
            raise
        if parts is None:
            return self._encode(frame, in_stream, now_us, out)
        serial = self.current.serial
        try:
            for part in parts:
                self.current.serial = serial
                size += self._encode_part(part, in_stream, now_us, out)
        except FatalError:
            out[known:] = [record for record in out[known:] if record[0] == self._settings.schemas_topic]
            raise
        finally:
            self.current.serial = serial + 1
        return size

    def _encode_part(self, part: ShapedPart, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Encode a part of an event, and give its records their topic and their partition."""
        record = part.record
        if record is not None:
            out.append(record)
            return record_bytes(record[1], record[2], record[3])
        known = len(out)
        if part.moves and part.left is not None and part.came is not None:
            came: list[Record] = []
            size = self._encode_moved(part.frame, in_stream, now_us, out, came)
            own = self.tables.topic_of(part.oid)
            put_header(out, known, own, part.left)
            put_header(came, 0, own, part.came)
            out += came
        else:
            size = self._encode(part.frame, in_stream, now_us, out)
            if part.left is not None:
                put_header(out, known, self.tables.topic_of(part.oid), part.left)
        if part.topic:
            self._move(part.oid, part.topic, known, out)
        return size

    def _move(self, oid: int, topic: str, known: int, out: list[Record]) -> None:
        """Move the records from index `known` on, which are for the table's own topic, to another one of its topics."""
        own = self.tables.topic_of(oid)
        if topic == own:
            return
        for place in range(known, len(out)):
            # There are also descriptions of tables among them.
            if out[place][0] == own:
                out[place] = self.to_topic(oid, out[place], topic)

    def _encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Append the records of one event, whatever its shapes are."""
        current = self.current
        current.serial += 1
        current.now_us = now_us
        frame = self._computed.frame(frame, in_stream, now_us)
        table: TableFragments | None = None
        known = tag = 0
        try:
            current.lsn, tag, oid, kind, width = read_head(frame, in_stream)
            at = STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES
            if tag in _ROWS:
                table = self._table(oid, out)
                known = len(out)
                if not (self._letters.is_on or self._headers.is_on):
                    return self.format.row(table, tag, kind, width, frame, at, out)
                size = self._letters.format_of(table).row(table, tag, kind, width, frame, at, out)
                size += self._headers.row(table, tag, known, out, current.came)
                self._letters.take(table, known, out, current.came)
                return size
        except (ValueError, IndexError, error) as cause:
            if table is not None:
                if len(out) > known:
                    # This is the delete for an update that moves a row; it is made again before the new row.
                    del out[known:]
                    table.tally.counts[DELETED] -= 1
                return self._stand_in(table, frame, in_stream, out, cause)
        if tag == MESSAGE:
            head, content = read_message_head(frame, XLOG_HEADER, in_stream=in_stream)
            return self.format.message(head, content, self._facts, current.serial, out)
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, Truncate), "only events come here"
        if not self._settings.truncate:
            for oid in message.relation_oids:
                self._table(oid, out)
            return 0
        return sum([self._truncate(oid, out) for oid in message.relation_oids])

    def _truncate(self, oid: int, out: list[Record]) -> int:
        table = self._table(oid, out)
        known = len(out)
        size = self._letters.format_of(table).truncate(table, out)
        size += self._headers.truncate(table, known, out)
        self._letters.take(table, known, out)
        return size

    def _encode_moved(
        self, frame: bytes, in_stream: bool, now_us: int, out: list[Record], came: list[Record]
    ) -> int:
        """As `_encode`, for an Update with an old row: `out` gets the delete and its tombstone, `came` the insert."""
        self.current.came = came
        try:
            return self._encode(frame, in_stream, now_us, out)
        finally:
            self.current.came = None

    def _stand_in(
        self, table: TableFragments, frame: bytes, in_stream: bool, out: list[Record], cause: Exception
    ) -> int:
        """Append the records of a row that was refused, if it has values without a form (`stand_ins.py`)."""
        current = self.current
        written, found = self._stand_ins.frame(table, frame, in_stream, cause)
        current.lsn, tag, _, kind, width = read_head(written, in_stream)
        known, came = len(out), current.came
        at = STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES
        current.stands_in = True
        try:
            size = self._letters.format_of(table).row(table, tag, kind, width, written, at, out)
        finally:
            current.stands_in = False
        if len(out) > known or came:
            names = self._stand_ins.note(table, found, current.lsn, current.now_us)
            for records, first in ((out, known), (came or [], 0)):
                records[first:] = [named(record, names) for record in records[first:]]
            size += self._headers.row(table, tag, known, out, came)
            self._letters.take(table, known, out, came)
        return size

    def encode_message(
        self,
        frame: bytes,
        in_stream: bool,
        last_commit_lsn: int | None,
        now_us: int,
        out: list[Record],
    ) -> int:
        """See `Encoder`. The txId is null, and the time of processing stands for a commit time. The LSN is the end of
        the message's WAL record, where the next commit record may begin, so the byte before it is used as commit LSN
        (`CommitOrder.non_transactional_message`).
        """
        parts = self.shapes.parts(frame, in_stream, now_us)
        if parts is None:
            return self._message_alone(frame, in_stream, last_commit_lsn, now_us, out)
        size = 0
        for part in parts:
            if part.record is not None:
                size += self._encode_part(part, in_stream, now_us, out)
            else:
                size += self._message_alone(part.frame, in_stream, last_commit_lsn, now_us, out)
        return size

    def _message_alone(
        self, frame: bytes, in_stream: bool, last_commit_lsn: int | None, now_us: int, out: list[Record]
    ) -> int:
        """Append the record of a logical message outside of any transaction, whatever its shapes are."""
        message, content = read_message_head(frame, XLOG_HEADER, in_stream=in_stream)
        self.current.now_us = now_us
        self._alone.begin(None, message.lsn - 1, now_us, last_commit_lsn)
        return self.format.message(message, content, self._alone, 0, out)

    def encode_end_of_rows(
        self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]
    ) -> int:
        """See `Encoder`."""
        size = self._end_of_rows(oid, between, now_us, out)
        for topic in self.shapes.topics(oid):
            known = len(out)
            size += self._end_of_rows(oid, between, now_us, out)
            self._move(oid, topic, known, out)
        return size

    def _end_of_rows(self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]) -> int:
        """Append a truncate record that no event made to the table's own topic."""
        current = self.current
        if between is not None:
            commit_lsn, current.serial = between
            self._facts.begin(None, commit_lsn, now_us, None, snapshot=INCREMENTAL)
            if self.format.metadata is not None:
                self.format.metadata.between()
        current.now_us = now_us
        current.lsn = self._facts.commit_lsn
        current.ends_rows = True
        try:
            return self._truncate(oid, out)
        finally:
            current.ends_rows = False

    def encode_rows(
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        """See `Encoder`."""
        if not self.shapes.active:
            return self._rows(oid, lines, position, now_us, out, dropped)
        given = self.shapes.rows(oid, lines, position.lsn, now_us)
        own = self.tables.topic_of(oid)
        rows = size = 0
        keys: list[bytes] | None = []
        for number, each in enumerate(given, 1):
            placed = position
            if len(given) > 1:
                placed = placed_lines(
                    position, rows, len(each.lines), first=number == 1, last=number == len(given)
                )
            records: list[Record] = []
            encoded = self._rows(oid, each.lines, placed, now_us, records, dropped)
            self.shapes.encoded(oid, each, encoded, own, records)
            if each.topic:
                self._move(oid, each.topic, 0, records)
            out += records
            rows += encoded.rows
            size += encoded.bytes
            keys = None if keys is None or encoded.keys is None else keys + encoded.keys
        return Encoded(rows, size, keys)

    def draft_all(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """See `Encoder`. Events that a shape takes are not drafted."""
        drafts = None if self._computed.is_on or self._headers.is_on else self.format.drafts
        if drafts is None:
            return frames
        if not self.shapes.active:
            return drafts.draft_all(frames, relations)
        kept: list[SpoolItem] = []
        run: list[SpoolItem] = []
        for frame in frames:
            if not self.shapes.takes(frame, True):
                run.append(frame)
                continue
            if run:
                kept += drafts.draft_all(run, relations)
                run = []
            kept.append(frame)
        if run:
            kept += drafts.draft_all(run, relations)
        return kept

    def late_records(self, draft: Draft, now_us: int, out: list[Record]) -> LateRecords | None:
        """See `Encoder`."""
        drafts = self.format.drafts
        if drafts is None:
            return None
        self.current.now_us = now_us
        return drafts.late_records(draft, self._table(relation_of_draft(draft), out))

    def _finish(self, draft: Draft, now_us: int, out: list[Record]) -> int:
        """Append the records of a draft."""
        drafts = self.format.drafts
        assert drafts is not None, "who drafts finishes"
        self.current.now_us = now_us
        return drafts.finish(draft, self._table(relation_of_draft(draft), out), out)

    def encode_heartbeat(self, lsn: int, now_us: int, out: list[Record]) -> int:
        """See `Encoder`."""
        self.current.now_us = now_us
        return self.format.heartbeat(lsn, out)

    def _rows(
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        """Append the records of rows of COPY, whatever their shapes are."""
        current = self.current
        current.now_us = now_us
        current.lsn = int(position.lsn)
        lines = self._computed.lines(oid, lines, position.lsn, now_us)
        rows = CopiedRows(position, dropped, out, self._stand_ins)
        for begin, end, marker in runs(len(lines), position):
            self._facts.begin(None, position.commit_lsn, now_us, None, snapshot=marker)
            table = self._table(oid, out)
            known, first = len(out), position.event_no + rows.count + 1
            self._letters.format_of(table).lines(table, lines[begin:end], begin, rows)
            rows.size += self._headers.rows(table, OPS.index(position.op), first, known, out)
            self._letters.take(table, known, out)
        keys = rows.keys if self.tables.fragments[oid].key_columns else None
        return Encoded(rows.count, rows.size, keys, rows.left_out)

    def encode_deletes(
        self,
        oid: int,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
    ) -> Encoded:
        """See `Encoder`. Only topics in JSON are compared with tables."""
        self.current.now_us = now_us
        self._facts.begin(None, position.commit_lsn, now_us, None, snapshot=position.others)
        table = self._table(oid, out)
        known = len(out)
        size = self.format.deletes(table, keys, position, out)
        size += self._headers.rows(table, DELETED, position.event_no + 1, known, out)
        return Encoded(len(keys), size, None)

    def _table(self, oid: int, out: list[Record]) -> TableFragments:
        """Return a relation that is prepared for the open transaction, and described in `out`."""
        recent = self._recent
        number = self._facts.number
        if recent is not None and oid == self._recent_oid and recent.transaction == number:
            return recent
        table = self.tables.fragments.get(oid)
        if table is None:
            raise ProtocolError(
                f"A change in the relation with oid {oid}, which the server never described.", hint=HINT
            )
        if table.transaction != number:
            if table.is_new:
                self.tables.introduce(table, out)
            self._letters.format_of(table).begin(table, out)
            table.transaction = number
        self._recent_oid = oid
        self._recent = table
        return table
