"""Debezium's envelope in Protobuf around the rows of a value.

A message is preceded by its length, so a row is written to a buffer first and then copied into the record.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.records.avro.around import BUFFER_BYTES_MAX, Around
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.protobuf.source_block import times
from cdcd.core.records.protobuf.writing import LENGTH, tag, write_bytes

if TYPE_CHECKING:
    from mypy_extensions import i64

_BEFORE: Final = tag(1, LENGTH)
_AFTER: Final = tag(2, LENGTH)


class ProtobufEnvelope(Around):
    """Writes Debezium's envelope in Protobuf."""

    def __init__(self) -> None:
        Around.__init__(self)
        self._times = b""
        self._record = BytesWriter()
        self._has_before = self._has_after = False
        self._split: i64 = 0
        """Where the row of `before` ends in the buffer, and where the row of `after` begins."""

    def set_now(self, now_us: int) -> None:
        """See `Around`."""
        self._times = times(now_us)

    def before(self, has_row: bool) -> None:
        """See `Around`."""
        self._has_before = has_row

    def after(self, has_row: bool) -> None:
        """See `Around`."""
        self._has_after = has_row
        self._split = len(self.out)

    def new_record(self) -> BytesWriter:
        """Return an empty buffer for a whole value."""
        if len(self._record) > BUFFER_BYTES_MAX:
            self._record = BytesWriter()
        self._record.truncate(0)
        return self._record

    def end(self, table: AvroTable, op: int, lsn: "i64", event_no: "i64") -> bytes:
        """See `Around`."""
        record = self.new_record()
        record.write(table.value_head)
        rows = self.out.getvalue()
        if len(rows) > BUFFER_BYTES_MAX:
            # The rows are copied behind their length, so this buffer is released, because two buffers would hold a
            # large record.
            self.out = BytesWriter()
        if self._has_before:
            record.write(_BEFORE)
            write_bytes(rows[: self._split] if self._has_after else rows, record)
        if self._has_after:
            record.write(_AFTER)
            write_bytes(rows[self._split :] if self._has_before else rows, record)
        rows = b""
        table.source.write(op, lsn, event_no, self._times, record)
        return record.getvalue()
