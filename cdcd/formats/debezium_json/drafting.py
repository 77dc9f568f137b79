"""Records in two steps: drafts of rows before their transaction's commit, and the rest after it.

The value of a record is a row and then its source block. The row needs nothing but the table's description; the
block needs the commit (its LSN and time, the number of the event among those that were not rolled back). So rows of a
streamed transaction become drafts (`transactions/drafts.py`) while it is open, by the encoder's usual path without
a source block, and `finish` joins them with the block of the transaction: a seventh of the work of a row.

A draft holds for the description that it was made with. `form` numbers what rows take from one: names, types, key.
Where the commit finds another, which needs DDL in the transaction itself that no Relation message shows, such as a
primary key that was added, `OutdatedDraftError` has the transaction sent once more, after its commit.
"""

from typing import Final, cast

from librt.strings import BytesWriter

from cdcd.errors import WithoutStreamingError
from cdcd.formats.debezium_json.source_block import DELETED
from cdcd.formats.debezium_json.table_fragments import TableFragments
from cdcd.formats.encoder import Record
from cdcd.protocol.lsn import Lsn
from cdcd.transactions.drafts import Draft, SpoolItem, content_of, make_draft
from cdcd.transactions.spool import FRAME_BYTES

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


def finish(  # noqa: PLR0917  what a transaction has and a draft has not
    draft: Draft,
    table: TableFragments,
    serial: int,
    processed_at: bytes,
    tombstones: bool,
    buffer: BytesWriter,
    out: list[Record],
) -> int:
    """Append the records of a draft, whose first event has the number after `serial`; returns their bytes.

    `table` must have been renewed for the transaction.
    """
    gone, content = _opened(draft)
    _, op, parts = content
    topic = table.topic
    source = table.source
    ending = source.ending(op, processed_at)
    has_key = bool(table.key_slots)
    deletes = op == DELETED and tombstones and has_key
    size = 0
    at = gone * PARTS
    values = source.joined_all(parts[at + 1 :: PARTS], parts[at + 2 :: PARTS], serial + 1, ending, buffer)
    for value in values:
        if has_key:
            key = parts[at]
            at += PARTS
            size += len(key) + len(value)
            out.append((topic, key, value, None))
            if deletes:
                size += len(key)
                out.append((topic, key, None, None))
        else:
            size += len(value)
            out.append((topic, None, value, None))
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
