"""Turns the events of transactions into the records of a format.

The rule: everything that all formats have in common is in this module. Each event has the next number of its
transaction, even if it has no record. If a format cannot represent some values of a row, the record is written
without these values (`unwritable.py`). A malformed row is refused, and the error names its position. An update that
moves a row becomes a delete and an insert with the same number. Requests to the daemon are not encoded (`skip`).

Each format is a subclass with the methods at the end, which make the records of a row, a truncate, a logical
message and a heartbeat.
"""

from collections.abc import Iterable, Mapping
from struct import error
from typing import Final

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.wiretext import checked, to_bytes, wire
from cdcd.core.errors import FatalError
from cdcd.core.facts import Observer
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import (
    Binary,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    TupleData,
    Update,
    Value,
)
from cdcd.core.protocol.peek import (
    DELETE,
    HEAD_BYTES,
    INSERT,
    MESSAGE,
    STREAMED_HEAD_BYTES,
    UPDATE,
    lsn_of,
    read_head,
)
from cdcd.core.protocol.reader import read_message, read_message_head
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.debezium_json.changes import explain
from cdcd.core.records.debezium_json.connect_schema import CLOSING, MESSAGE_KEY, WITH_SCHEMA, opening
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.messages import HeartbeatRecords, MessageContent
from cdcd.core.records.debezium_json.source_block import DELETED, OPS, SourceBlock, unix_us
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import (
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    Encoded,
    EncoderSettings,
    LateRecords,
    Record,
    SnapshotPosition,
    record_bytes,
)
from cdcd.core.records.markers import INCREMENTAL
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.shaping.shape import Part, Shape, Shapes, placed_lines, put_header
from cdcd.core.records.unwritable import (
    UNDECODABLE,
    Found,
    UnwritableError,
    UnwritableValues,
    named,
    rows_of,
    stood_in,
    undecodable_key,
    with_rows,
)
from cdcd.core.transactions.drafts import Draft, SpoolItem

_ROWS: Final = (INSERT, UPDATE, DELETE)


class RecordStream:
    """Turns the row frames of committed transactions into records.

    The caller must call `define` before the first row of a relation and whenever it is described anew; `begin`
    (and, where needed, `set_origin` and `skip`) before a transaction's rows; then each row once, in order.

    Args:
        source, alone: the source blocks of transactions, and of logical messages outside of transactions.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        binary: bool,
        observe: Observer,
        source: SourceBlock,
        alone: SourceBlock,
    ) -> None:
        self._settings = settings
        self.tables = KnownTables(settings, binary)
        names = self.tables.names
        self._message_topic = names.message or ""
        self.metadata = (
            None if names.transaction is None else TransactionMetadata(settings, names.transaction)
        )
        """Of the transaction that is open; None: records say nothing of it."""
        self._unwritable = UnwritableValues(observe)
        self._messages = 0
        self._shapes = Shapes()
        self._recent: TableFragments | None = None
        """Of the last row: the next one is most often of the same table."""
        self._source = source
        self._alone = alone
        self._recent_oid = 0
        self._content = MessageContent(settings.modes)
        self._message_key = opening(MESSAGE_KEY) if settings.key_format == WITH_SCHEMA else b""
        self._heartbeats = HeartbeatRecords(settings)
        self._transaction = 0
        self._commit_lsn = 0
        self._serial = 0
        self._skips = [op in settings.skipped for op in OPS]
        """True for each op whose events have a number but no record."""
        self._came: list[Record] | None = None
        """List for the records of the insert, while an update is encoded as a delete and an insert; otherwise None."""
        self._lsn = 0
        self._now_us = -1

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """See `Encoder`."""
        messages = {("", "m"): self._messages} if self._messages else {}
        counts = {**messages, **self.tables.counts}
        return self._shapes.counted(counts)

    @property
    def unwritable(self) -> dict[tuple[str, str], int]:
        """See `Encoder`."""
        return self._unwritable.counts

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """See `Encoder`."""
        self._shapes.check(relation, table, types)
        fragments = self.tables.define(relation, table, types, self.metadata)
        if fragments is not None:
            self._recent = None
            self._described(fragments)
        self._shapes.define(relation, table, types)

    def shape_by(self, shape: Shape) -> None:
        """See `Encoder`."""
        self._shapes.put(shape)

    def forget(self, relation_oid: int) -> None:
        """See `Encoder`."""
        self.tables.forget(relation_oid)
        self._recent = None

    def to_topic(self, relation_oid: int, record: Record, topic: str) -> Record:
        """See `Encoder`."""
        _, key, value, headers = record
        return topic, key, value, headers

    def unregistered(self, relation_oid: int) -> tuple[SchemaUse, ...]:
        """See `Encoder`. A format without a registry has none."""
        return ()

    def begin(self, xid: int, commit_lsn: int, commit_time: int, last_commit_lsn: int | None) -> None:
        """See `Encoder`."""
        self._source.begin(xid, commit_lsn, unix_us(commit_time), last_commit_lsn)
        if self.metadata is not None:
            self.metadata.begin(xid, commit_lsn, unix_us(commit_time))
        self._commit_lsn = commit_lsn
        self._transaction += 1
        self._serial = 0

    def set_origin(self, name: str, lsn: int | None) -> None:
        """Set the origin of the transaction that has begun, because it was replicated from another server; `lsn` is its
        commit position there, 0 or None if unknown.
        """
        self._source.set_origin(name, lsn or None)
        self._transaction += 1

    def skip(self, events: int) -> None:
        """Count `events` events of the transaction that have no record here; the next event has the number after
        theirs.

        They are the first events, which are delivered already, or requests to the daemon.
        """
        self._serial += events

    @property
    def serial(self) -> int:
        """See `Encoder`."""
        return self._serial

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Encode several events in their order, some of which may be drafts, as `encode` does.

        Raises:
            WithoutStreamingError: rows were drafted with a description that is not valid at their commit.
        """
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
        if self._shapes.active:
            return self._shaped(frame, in_stream, now_us, out)
        return self._encode(frame, in_stream, now_us, out)

    def _shaped(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Encode what the shapes make of an event. A faulty event counts once, and leaves at most descriptions."""
        known, serial = len(out), self._serial
        size = 0
        try:
            parts = self._shapes.parts(frame, in_stream, now_us)
        except (ValueError, IndexError) as cause:
            # The error that the format raises names the malformed part of the message.
            self._encode(frame, in_stream, now_us, out)
            raise AssertionError("a row was refused in which nothing is wrong") from cause
        except FatalError:
            self._serial = serial + 1
            raise
        if parts is None:
            return self._encode(frame, in_stream, now_us, out)
        serial = self._serial
        try:
            for part in parts:
                self._serial = serial
                size += self._encode_part(part, in_stream, now_us, out)
        except FatalError:
            out[known:] = [record for record in out[known:] if record[0] == self._settings.schemas_topic]
            raise
        finally:
            self._serial = serial + 1
        return size

    def _encode_part(self, part: Part, in_stream: bool, now_us: int, out: list[Record]) -> int:
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
        self._serial += 1
        self._set_now(now_us)
        table: TableFragments | None = None
        known = tag = 0
        try:
            self._lsn, tag, oid, kind, width = read_head(frame, in_stream)
            at = STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES
            if tag in _ROWS:
                table = self._table(oid, out)
                known = len(out)
                return self._row(table, tag, kind, width, frame, at, out)
        except (ValueError, IndexError, error) as cause:
            if table is not None:
                if len(out) > known:
                    # This is the delete for an update that moves a row; it is made again before the new row.
                    del out[known:]
                    table.tally.counts[DELETED] -= 1
                return self._stand_in(table, frame, in_stream, out, cause)
        if tag == MESSAGE:
            head, content = read_message_head(frame, XLOG_HEADER, in_stream=in_stream)
            return self._message(head, content, self._source, self._serial, out)
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, Truncate), "only events come here"
        if not self._settings.truncate:
            for oid in message.relation_oids:
                self._table(oid, out)
            return 0
        return sum([self._put_truncate(self._table(oid, out), out) for oid in message.relation_oids])

    def _encode_moved(
        self, frame: bytes, in_stream: bool, now_us: int, out: list[Record], came: list[Record]
    ) -> int:
        """As `_encode`, for an Update with an old row: as a delete and an insert, also if the key is the same.

        Args:
            out: gets the delete and its tombstone.
            came: gets the insert, which has the same number.
        """
        self._came = came
        try:
            return self._encode(frame, in_stream, now_us, out)
        finally:
            self._came = None

    def _stand_in(
        self, table: TableFragments, frame: bytes, in_stream: bool, out: list[Record], cause: Exception
    ) -> int:
        """Return the records of a row that was refused, if it has values without a form (`records/unwritable.py`).

        Raises:
            CdcdError: the row is malformed.
        """
        refusal = explain(frame, in_stream, table.relation, table.converters)
        if refusal is not None:
            raise refusal from cause
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, Insert | Update | Delete), "only row messages come here"
        rows = rows_of(message)
        found = [self.found_unwritable(table, row, lsn_of(frame)) for row in rows]
        assert any(found), "a row was refused in which nothing is wrong"
        others = stood_in(rows, found, table.key_columns)
        written = frame[:XLOG_HEADER] + write_message(with_rows(message, others))
        self._lsn, tag, _, kind, width = read_head(written, in_stream)
        known, came = len(out), self._came
        at = STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES
        size = self._row_again(table, tag, kind, width, written, at, out)
        if len(out) > known or came:
            names = self.note_unwritable(
                table, [one for each in found for one in each], self._lsn, self._now_us
            )
            out[known:] = [named(record, names) for record in out[known:]]
            if came:
                came[:] = [named(record, names) for record in came]
        return size

    def _row_again(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        """As `_row`, with what stands for values without a form."""
        return self._row(table, tag, kind, width, frame, at, out)

    def found_unwritable(self, table: TableFragments, row: TupleData, lsn: int) -> list[Found]:
        """Return the values of a row for which the format has no form, without malformed values.

        Raises:
            SourceError: a text of the key cannot be decoded, so that nobody can tell which row this is.
        """
        found: list[Found] = []
        for column, value in enumerate(row):
            try:
                self._try(table, column, value)
            except UnwritableError as error:
                found.append((column, error))
            except UnicodeDecodeError:
                if column in table.key_columns:
                    raise undecodable_key(table.relation, column, lsn) from None
                found.append((column, UnwritableError(*UNDECODABLE)))
            except (ValueError, IndexError):
                continue
        return found

    def note_unwritable(
        self, table: TableFragments, found: Iterable[Found], lsn: int, now_us: int
    ) -> list[str]:
        """Count and report values of a row that has a record; the names of their fields, each once."""
        relation = table.relation
        names: list[str] = []
        for column, cause in found:
            name = relation.columns[column].name
            self._unwritable.note(f"{relation.schema}.{relation.name}", name, lsn, cause, now_us)
            field = table.shown.columns[column].name
            if field not in names:
                names.append(field)
        return names

    def encode_message(
        self,
        frame: bytes,
        in_stream: bool,
        last_commit_lsn: int | None,
        now_us: int,
        out: list[Record],
    ) -> int:
        """Encode a logical message outside of any transaction.

        Its txId is null, and the time of its processing is used in place of a commit time. Its LSN is the end of
        its WAL record, where the next commit record may begin, so the byte before it is used as its commit LSN
        (`CommitOrder.non_transactional_message`).
        """
        parts = self._shapes.parts(frame, in_stream, now_us)
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
        self._set_now(now_us)
        self._alone.begin(None, message.lsn - 1, now_us, last_commit_lsn)
        return self._message(message, content, self._alone, 0, out)

    def encode_end_of_rows(
        self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]
    ) -> int:
        """See `Encoder`."""
        size = self._end_of_rows(oid, between, now_us, out)
        for topic in self._shapes.topics(oid):
            known = len(out)
            size += self._end_of_rows(oid, between, now_us, out)
            self._move(oid, topic, known, out)
        return size

    def _end_of_rows(self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]) -> int:
        """Append a truncate record that no event made to the table's own topic."""
        if between is not None:
            self._commit_lsn, self._serial = between
            self._source.begin(None, self._commit_lsn, now_us, None, snapshot=INCREMENTAL)
            if self.metadata is not None:
                self.metadata.between()
            self._transaction += 1
        self._set_now(now_us)
        self._lsn = self._commit_lsn
        return self._put_truncate(self._table(oid, out), out)

    def json_message_key(self, message: LogicalMessage) -> bytes:
        """Return the key of a logical message, with its schema if keys have one."""
        key = to_bytes(f'{{"prefix":{quote(wire(message.prefix))}}}')
        return self._message_key + key + CLOSING if self._message_key else key

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
        if not self._shapes.active:
            return self._rows(oid, lines, position, now_us, out, dropped)
        given = self._shapes.rows(oid, lines, position.lsn, now_us)
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
            self._shapes.encoded(oid, each, encoded, own, records)
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
        if not self._shapes.active:
            return self._drafts_of(frames, relations)
        kept: list[SpoolItem] = []
        run: list[SpoolItem] = []
        for frame in frames:
            if not self._shapes.takes(frame, True):
                run.append(frame)
                continue
            if run:
                kept += self._drafts_of(run, relations)
                run = []
            kept.append(frame)
        if run:
            kept += self._drafts_of(run, relations)
        return kept

    # The methods from here on are defined by each format.

    def _drafts_of(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """Return the drafts of frames. Rows are not drafted, unless the format defines this."""
        return frames

    def late_records(self, draft: Draft, now_us: int, out: list[Record]) -> LateRecords | None:
        """See `Encoder`."""
        return None

    def _finish(self, draft: Draft, now_us: int, out: list[Record]) -> int:
        """Return the records of a draft; formats that draft rows define this."""
        raise NotImplementedError

    def encode_heartbeat(self, lsn: int, now_us: int, out: list[Record]) -> int:
        """See `Encoder`."""
        raise NotImplementedError

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
        raise NotImplementedError

    def encode_deletes(
        self,
        oid: int,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
    ) -> Encoded:
        """See `Encoder`. Only topics in JSON are compared with tables."""
        raise NotImplementedError

    def _described(self, fragments: TableFragments) -> None:
        """Take the new description of a relation. Formats that keep more than `fragments` define this."""

    def _try(self, table: TableFragments, column: int, value: Value) -> None:
        """Write a value to nowhere.

        Raises:
            UnwritableError: it has no form.
            UnicodeDecodeError: it is not UTF-8.
            ValueError, IndexError: it is malformed.
        """
        if isinstance(value, Binary):
            to_bytes(table.converters[column].binary(value.data))
        elif isinstance(value, bytes):
            table.converters[column].json(checked(value).decode("latin-1"))

    def _set_now(self, now_us: int) -> None:
        """Set the time at which records are made, in microseconds since 1970."""
        raise NotImplementedError

    def _table(self, oid: int, out: list[Record]) -> TableFragments:
        """Return a relation that is prepared for the open transaction, and described in `out`."""
        raise NotImplementedError

    def _row(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        """Append the records of a row, and return their bytes. ValueError, IndexError: the row is malformed."""
        raise NotImplementedError

    def _put_truncate(self, table: TableFragments, out: list[Record]) -> int:
        """Append the record of a TRUNCATE of a table, and return its bytes."""
        raise NotImplementedError

    def _message(
        self,
        message: LogicalMessage,
        content: memoryview,
        source: SourceBlock,
        serial: int,
        out: list[Record],
    ) -> int:
        """Append the record of a logical message, and return its bytes. `message` comes without its content."""
        raise NotImplementedError


def moved_to(key: bytes | None) -> Headers:
    """Return the header for the delete of a row that has this key now."""
    return [] if key is None else [(HEADER_NEW_KEY, key)]


def moved_from(key: bytes | None) -> Headers:
    """Return the header for the insert of a row that had this key before."""
    return [] if key is None else [(HEADER_OLD_KEY, key)]
