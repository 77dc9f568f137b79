"""Makes records in two steps: drafts of rows before the commit of their transaction, and the rest afterwards.

The value of a record has the row first and then the source block. The row depends only on the table's description;
the source block depends on the commit (its LSN and time, and the number of the event among those that were not
rolled back). So rows of a streamed transaction become drafts (`transactions/drafts.py`) while the transaction is
open, by the usual code without a source block, and `finish` joins them with the transaction's block, which is a
seventh of the work for a row.

Usually the joining happens when the records are handed over (`DraftedRecords`): a value that is made for one call
and freed afterwards stays in the processor's cache. For a large transaction, this saves a sixth of the
interpreter's time.

A draft is valid for the description of the table that it was made with. `form` is the number of a description as
far as it concerns rows: names, types, key. If the commit finds another description, `OutdatedDraftError` makes the
server send the transaction again after its commit. This needs DDL in the transaction itself which no Relation
message shows, such as an added primary key.
"""

from typing import TYPE_CHECKING, Final, cast

from librt.strings import BytesWriter

from cdcd.core.errors import WithoutStreamingError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.debezium_json.source_block import DELETED, Envelope
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import Record
from cdcd.core.records.late_records import LateRecords, Produce
from cdcd.core.transactions.drafts import Draft, SpoolItem, content_of, make_draft
from cdcd.core.transactions.spool import FRAME_BYTES

if TYPE_CHECKING:
    from mypy_extensions import i64

Content = tuple[int, int, list[bytes]]
"""Content of a draft of consecutive rows: the number of their description (`form`), their op, and the parts of each
row.

There are `PARTS` parts: the key or nothing; the value up to its source block; the LSN of the event as text.
"""

PARTS: Final = 3


class OutdatedDraftError(WithoutStreamingError):
    """Rows were drafted with another description of their table than the one at their commit."""

    def __init__(self, table: TableFragments, commit_lsn: int) -> None:
        relation = table.relation
        super().__init__(
            f"The streamed transaction with commit LSN {Lsn(commit_lsn)} changed the key or the columns of "
            f"{relation.schema}.{relation.name}.",
            hint="cdcd receives the transaction again, without streaming.",
            commit_lsn=commit_lsn,
        )


class DraftWriter:
    """Makes drafts of rows, and keeps other events in their order; `xid` is the transaction id of the next row."""

    def __init__(self) -> None:
        self.kept: list[SpoolItem] = []
        self.xid = 0
        self._run = (0, 0, 0, 0)
        self._parts: list[bytes] = []
        self._size = 0

    def add(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        value: bytes,
        lsn: bytes,
    ) -> int:
        """Add a row: its key, its value up to the source block, and its LSN.

        Returns the number of bytes of key and value.
        """
        run = (self.xid, table.relation.oid, table.form, op)
        if run != self._run:
            self._end()
            self._run = run
        key = key or b""
        self._parts += (key, value, lsn)
        size = len(key) + len(value)
        self._size += size + len(lsn) + PARTS * FRAME_BYTES
        return size

    def keep(self, frame: bytes) -> None:
        """Keep this event as a frame."""
        self._end()
        self.kept.append(frame)

    def end(self) -> list[SpoolItem]:
        """Return all drafts and frames in their order."""
        self._end()
        return self.kept

    def _end(self) -> None:
        if self._parts:
            xid, oid, form, op = self._run
            content: Content = (form, op, self._parts)
            self.kept.append(make_draft(xid, oid, len(self._parts) // PARTS, self._size, content))
            self._parts = []
            self._size = 0
        self._run = (0, 0, 0, 0)


class DraftedRecords(LateRecords):
    """Makes the records of a draft; `first` is the index of the first row's key in `parts`."""

    def __init__(
        self, topic: str, has_key: bool, parts: list[bytes], first: int, event_no: int, envelope: Envelope
    ) -> None:
        self._has_key = has_key
        self._parts = parts
        self._first: i64 = first
        self._event_no: i64 = event_no
        self._envelope = envelope
        size: i64 = 0
        largest: i64 = 0
        digits: i64 = len(str(event_no))
        longer: i64 = 10**digits
        number: i64 = event_no
        at: i64 = first
        end: i64 = len(parts)
        around: i64 = envelope.size
        while at < end:
            if number == longer:
                digits += 1
                longer *= 10
            one: i64 = around + digits + len(parts[at + 1]) + 2 * len(parts[at + 2])
            if has_key:
                one += len(parts[at])
            if one > largest:
                largest = one
            size += one
            number += 1
            at += PARTS
        LateRecords.__init__(self, topic, (len(parts) - first) // PARTS, size, largest)

    def records(self) -> list[Record]:
        """See `LateRecords`."""
        out: list[Record] = []
        buffer = BytesWriter()
        parts, envelope = self._parts, self._envelope
        number = self._event_no
        at = self._first
        while at < len(parts):
            value = envelope.value(parts[at + 1], parts[at + 2], number, buffer)
            out.append((self.topic, parts[at] if self._has_key else None, value, None))
            number += 1
            at += PARTS
        return out

    def hand_over(self, produce: Produce, done: int) -> None:
        """See `LateRecords`."""
        self.handed_over = done
        buffer = BytesWriter()
        topic, has_key, parts, envelope = self.topic, self._has_key, self._parts, self._envelope
        number: i64 = self._event_no + done
        at: i64 = self._first + done * PARTS
        end: i64 = len(parts)
        while at < end:
            value = envelope.value(parts[at + 1], parts[at + 2], number, buffer)
            if has_key:
                produce(topic, value, parts[at])
            else:
                produce(topic, value, None)
            self.handed_over += 1
            number += 1
            at += PARTS

    def _forget(self) -> None:
        self._parts = []


def late_records(
    draft: Draft, table: TableFragments, serial: int, processed_at: bytes, tombstones: bool
) -> DraftedRecords | None:
    """Return the records of a draft; the number of its first event is `serial` plus 1.

    `table` must have been renewed for the transaction.

    Returns:
        None if tombstones stand between them, or if more than the number differs between the source blocks.
    """
    gone, (_, op, parts) = _opened(draft)
    has_key = bool(table.key_slots)
    if op == DELETED and tombstones and has_key:
        return None
    envelope = table.source.envelope(table.source.ending(op, processed_at))
    if envelope is None:
        return None
    return DraftedRecords(table.topic, has_key, parts, gone * PARTS, serial + 1, envelope)


def finish(
    draft: Draft,
    table: TableFragments,
    serial: int,
    processed_at: bytes,
    tombstones: bool,
    out: list[Record],
) -> int:
    """Append the records of a draft to `out`, and return their bytes; this works for every draft.

    The arguments have the same meaning as in `late_records`.
    """
    op, _ = op_and_form(draft)
    has_key = bool(table.key_slots)
    deletes = op == DELETED and tombstones and has_key
    ending = table.source.ending(op, processed_at)
    envelope = table.source.envelope(ending)
    buffer = BytesWriter()
    parts = parts_of(draft)
    size = 0
    number = serial
    for at in range(0, len(parts), PARTS):
        number += 1
        key = parts[at] if has_key else None
        if envelope is None:
            value = table.source.joined([parts[at + 1]], parts[at + 2], b"%d" % number, ending)
        else:
            value = envelope.value(parts[at + 1], parts[at + 2], number, buffer)
        out.append((table.topic, key, value, None))
        size += len(value)
        if key is not None:
            size += len(key)
            if deletes:
                out.append((table.topic, key, None, None))
                size += len(key)
    return size


def op_and_form(draft: Draft) -> tuple[int, int]:
    """Return the op of a draft's records, and the number of the description that the draft was made with."""
    _, (form, op, _) = _opened(draft)
    return op, form


def parts_of(draft: Draft) -> list[bytes]:
    """Return the `PARTS` of each row of the draft that was not removed."""
    gone, (_, _, parts) = _opened(draft)
    return parts[gone * PARTS :]


def _opened(draft: Draft) -> tuple[int, Content]:
    gone, content = content_of(draft)
    return gone, cast("Content", content)
