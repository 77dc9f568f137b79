"""Writes records of rows into a buffer without making an object for each value; compiled code uses this.

It handles every row of which all values were sent, and leaves other rows (unchanged TOAST, changed keys) to the
code with fragments, which uncompiled code uses for all rows. Both make the same bytes, which tests check.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.wiretext import checked
from cdcd.core.protocol.peek import (
    DELETE,
    INSERT,
    NEW_ROW,
    OLD_KEY,
    OLD_ROW,
    ROW_HEAD_BYTES,
    row_width,
)
from cdcd.core.records.debezium_json.changes import LEFT, write_row
from cdcd.core.records.debezium_json.source_block import CREATED, DELETED, UPDATED
from cdcd.core.records.debezium_json.table_fragments import TableFragments

if TYPE_CHECKING:
    from mypy_extensions import i64

LSN_MAX: Final = 2**63 - 1

_BUFFER_BYTES_MAX: Final = 1 << 20
"""Size above which a buffer is replaced, so that one large record does not keep its memory."""

WITHOUT_OLD: Final = b'{"before":null,"after":'
"""Beginning of an event without an old row."""

_BRACE: Final = 0x7D  # }


class RowWriter:
    """Writes one event after the other: call `begin` first, then `draft` or `record`."""

    def __init__(self) -> None:
        self._out = BytesWriter()
        self._part = BytesWriter()
        self.row_at: i64 = 0
        """Where the new row begins in the current event, if an old row precedes it."""
        self.key: bytes | None = None
        """Key of the current event; None if its table has no key."""

    def buffer(self) -> BytesWriter:
        """Return the buffer, emptied. An event that was begun in it is lost."""
        if len(self._out) > _BUFFER_BYTES_MAX:
            self._out = BytesWriter()
        out = self._out
        out.truncate(0)
        return out

    def begin(self, table: TableFragments, tag: int, kind: int, frame: bytes, at: int, opening: bytes) -> int:
        """Write `before` and `after` of a row frame whose first row's values are at `frame[at]`.

        Args:
            opening: the beginning of the record; empty for a draft.

        Returns:
            The op of the record, or LEFT if the code with fragments must handle the row.

        Raises:
            ValueError, IndexError: the frame is malformed.
        """
        out = self.buffer()
        if opening:
            out.write(opening)
        if not table.width:
            return LEFT
        end: i64 = at
        changed = False
        if tag == DELETE:
            op = DELETED
            if kind not in (OLD_KEY, OLD_ROW):
                raise ValueError("unknown kind of row")
            out.write(b'{"before":')
        else:
            op = CREATED if tag == INSERT else UPDATED
            if op == UPDATED and kind != NEW_ROW:
                end = self._old_row(table, kind, frame, at)
                if end == LEFT:
                    return LEFT
                changed = True
            elif kind != NEW_ROW:
                raise ValueError("unknown kind of row")
            else:
                out.write(WITHOUT_OLD)
        end = write_row(frame, end, table.places, out)
        if end == LEFT:
            return LEFT
        if end != len(frame):
            raise ValueError("the row does not end with the frame")
        before, self.key = self.key, self._key(table)
        if changed and before != self.key:
            return LEFT
        out.append(_BRACE)
        if op == DELETED:
            out.write(b',"after":null')
        return op

    def _old_row(self, table: TableFragments, kind: int, frame: bytes, at: "i64") -> "i64":
        """Write the row before an update; returns where the values of the new row begin, or LEFT."""
        if kind == OLD_KEY:
            # The server sends the old key only if the key has changed.
            return LEFT
        if kind != OLD_ROW:
            raise ValueError("unknown kind of row")
        out = self._out
        out.write(b'{"before":')
        end: i64 = write_row(frame, at, table.places, out)
        if end != LEFT:
            self.key = self._key(table)
            out.write(b'},"after":')
            self.row_at = len(out)
            if frame[end] != NEW_ROW:
                raise ValueError("unknown kind of row")
            if row_width(frame, end) != table.width:
                raise ValueError("the row has another number of columns than the relation")
            end += ROW_HEAD_BYTES
        return end

    def _key(self, table: TableFragments) -> bytes | None:
        """Return the key of the last written row."""
        if not table.key_places:
            return None
        out, part = self._out, self._part
        part.truncate(0)
        for place in table.key_places:
            part.write(place.key_fragment)
            at: i64 = place.begin
            while at < place.end:
                part.append(out[at])
                at += 1
        part.write(table.key_end)
        return table.finished_key(part.getvalue())

    def draft(self) -> bytes:
        """Return the event up to its source block; UnicodeDecodeError if it is not UTF-8."""
        return checked(self._out.getvalue())

    def record(self, table: TableFragments, op: int, lsn: "i64", serial: "i64", processed_at: bytes) -> bytes:
        """Return the whole event, with the source block of the open transaction; UnicodeDecodeError
        if it is not UTF-8.
        """
        table.source.write(op, lsn, serial, processed_at, self._out)
        return checked(self._out.getvalue())
