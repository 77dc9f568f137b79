"""Records in two steps: drafts of rows before their transaction's commit, and the rest after it.

The value of a record is a row and then its source block. The row needs nothing but the table's description; the
block needs the commit (its LSN and time, the number of the event among those that were not rolled back). So rows of a
streamed transaction become drafts (`transactions/drafts.py`) while it is open, by the encoder's usual path without
a source block, and `finish` joins them with the block of the transaction: a seventh of the work of a row.

Mostly that happens when the records are handed over (`DraftedRecords`): a value that is made for one call and freed
behind it stays in the processor's cache. The interpreter's part of a large transaction is a sixth smaller so.

A draft holds for the description that it was made with. `form` numbers what rows take from one: names, types, key.
Where the commit finds another, which needs DDL in the transaction itself that no Relation message shows, such as a
primary key that was added, `OutdatedDraftError` has the transaction sent once more, after its commit.
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
"""What a draft holds of a run of rows: the number of their description (`form`), their op, and the parts of each.

Those are `PARTS`: the key, or empty; the value up to its source block; the event's LSN as text.
"""

PARTS: Final = 3


class OutdatedDraftError(WithoutStreamingError):
    """Rows were drafted with another description of their table than the one that holds at their commit."""

    def __init__(self, table: TableFragments, commit_lsn: int) -> None:
        relation = table.relation
        super().__init__(
            f"The streamed transaction with the commit {Lsn(commit_lsn)} has changed what identifies or makes up rows "
            f"of {relation.schema}.{relation.name}.",
            hint="It is received once more, not streamed.",
            commit_lsn=commit_lsn,
        )


class DraftWriter:
    """Makes drafts of rows and keeps, in their order, what is none. `xid` is that of the row that comes next."""

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
        """A row's key, its value up to the source block, and its LSN. Returns the bytes of both."""
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
        """This event stays a frame."""
        self._end()
        self.kept.append(frame)

    def end(self) -> list[SpoolItem]:
        """All of it."""
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
    """The records of a draft. `first` is the place of the first row's key in `parts`."""

    def __init__(  # noqa: PLR0917  what a draft, its table and its transaction have
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
    """The records of a draft, whose first event has the number after `serial`.

    `table` must have been renewed for the transaction.

    Returns:
        None if there are other records between them (tombstones), or if each says more than its number.
    """
    gone, (_, op, parts) = _opened(draft)
    has_key = bool(table.key_slots)
    if op == DELETED and tombstones and has_key:
        return None
    envelope = table.source.envelope(table.source.ending(op, processed_at))
    if envelope is None:
        return None
    return DraftedRecords(table.topic, has_key, parts, gone * PARTS, serial + 1, envelope)


def finish(  # noqa: PLR0917  what a transaction has and a draft has not
    draft: Draft,
    table: TableFragments,
    serial: int,
    processed_at: bytes,
    tombstones: bool,
    out: list[Record],
) -> int:
    """Append the records of any draft to `out`, and return their bytes. The arguments have the meaning that they
    have in `late_records`.
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
    """The op of a draft's records, and the number of the description that it was made with."""
    _, (form, op, _) = _opened(draft)
    return op, form


def parts_of(draft: Draft) -> list[bytes]:
    """`PARTS` for each row of a draft that is still there."""
    gone, (_, _, parts) = _opened(draft)
    return parts[gone * PARTS :]


def _opened(draft: Draft) -> tuple[int, Content]:
    gone, content = content_of(draft)
    return gone, cast("Content", content)
