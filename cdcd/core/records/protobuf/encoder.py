"""Debezium's envelope in Protobuf: each value in Confluent's wire format, with the id of its schema before it.

Everything but the bytes is as in Avro (`avro/encoder.py`): which records there are, their order, when schemas are
registered, what stands for a value that was not sent. A message has its length before it, so that a row is written to
a buffer first, and copied from there into the record.

Fields of columns have the numbers that `schemas.py` says. Nothing stands for NULL.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.facts import Observer, unheard
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.snapshot_rows import AvroSnapshotEncoder
from cdcd.core.records.avro.source_block import AvroTableSource
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.debezium_json.source_block import SourceBlock
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.protobuf.form import PREFIX, ProtobufForm
from cdcd.core.records.protobuf.heartbeats import ProtobufHeartbeats
from cdcd.core.records.protobuf.source_block import ProtobufSourceBlock, ProtobufTableSource, times
from cdcd.core.records.protobuf.transaction_metadata import CountedProtobufSource
from cdcd.core.records.protobuf.writing import (
    LENGTH,
    number_field,
    tag,
    text_field,
    varint_size,
    write_bytes,
    write_varint,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

_BUFFER_BYTES_MAX: Final = 1 << 20
"""A buffer that a large record has made larger is given back."""

_BEFORE: Final = tag(1, LENGTH)
_AFTER: Final = tag(2, LENGTH)

# Fields of a logical message.
_MESSAGE_OP: Final = text_field(1, "m")
_MESSAGE_TS_MS: Final = 2
_MESSAGE: Final = tag(5, LENGTH)
_CONTENT: Final = tag(2, LENGTH)


class ProtobufEncoder(AvroSnapshotEncoder):
    """Encodes rows of changes and of snapshots. See `RowEncoder` for the methods."""

    def __init__(self, settings: EncoderSettings, binary: bool = False, observe: Observer = unheard) -> None:
        form = ProtobufForm()
        AvroSnapshotEncoder.__init__(self, settings, binary, observe, form)
        self._block = ProtobufSourceBlock(settings)
        self._source = self._block
        self._block_alone = ProtobufSourceBlock(settings)
        self._alone = self._block_alone
        self._of_messages = ProtobufTableSource("", "", None)
        self._avro_heartbeats = ProtobufHeartbeats(settings, form)
        self._record_buffer = BytesWriter()
        self._has_before = self._has_after = False
        self._split: i64 = 0
        """Where the row of `before` ends in the buffer, and the row of `after` begins."""

    def _table_source(self, fragments: TableFragments) -> AvroTableSource:
        """See `AvroEncoder`."""
        relation, schema_id = fragments.relation, fragments.schema_id
        if self.metadata is None:
            return ProtobufTableSource(relation.schema, relation.name, schema_id)
        return CountedProtobufSource(relation.schema, relation.name, schema_id, self.metadata)

    def _set_now(self, now_us: int) -> None:
        if now_us != self._now_us:
            self._now_us = now_us
            self._times = times(now_us)

    def _open(self, table: AvroTable) -> BytesWriter:
        """See `AvroEncoder`. The buffer has the rows only."""
        return self._buffer()

    def _before(self, has_row: bool) -> None:
        """See `AvroEncoder`."""
        self._has_before = has_row

    def _after(self, has_row: bool) -> None:
        """See `AvroEncoder`."""
        self._has_after = has_row
        self._split = len(self._out)

    def _new_record(self) -> BytesWriter:
        if len(self._record_buffer) > _BUFFER_BYTES_MAX:
            self._record_buffer = BytesWriter()
        self._record_buffer.truncate(0)
        return self._record_buffer

    def _end(self, table: AvroTable, op: int) -> bytes:
        """See `AvroEncoder`."""
        self._count(table, op)
        record = self._new_record()
        record.write(table.value_head)
        rows = self._out.getvalue()
        if len(rows) > _BUFFER_BYTES_MAX:
            # The rows are written again, after their length, so that two buffers do not hold a large record at once.
            self._out = BytesWriter()
        if self._has_before:
            record.write(_BEFORE)
            write_bytes(rows[: self._split] if self._has_after else rows, record)
        if self._has_after:
            record.write(_AFTER)
            write_bytes(rows[self._split :] if self._has_before else rows, record)
        rows = b""
        table.source.write(op, self._lsn, self._serial, self._times, record)
        return record.getvalue()

    def _message(
        self,
        message: LogicalMessage,
        content: memoryview,
        source: SourceBlock,
        serial: int,
        out: list[Record],
    ) -> int:
        value_head = self._form.head(self._id(self._message_value_use))
        block = self._block_alone if source is self._block_alone else self._block
        self._of_messages.renew(block)
        head = text_field(PREFIX, message.prefix) + _CONTENT
        data = self._content.data(content)
        record = self._new_record()
        record.write(value_head)
        record.write(_MESSAGE_OP)
        record.write(number_field(_MESSAGE_TS_MS, self._now_us // 1000))
        self._of_messages.write_source(message.lsn, serial, record)
        record.write(_MESSAGE)
        size: i64 = len(data)
        write_varint(len(head) + varint_size(size) + size, record)
        record.write(head)
        write_bytes(data, record)
        return self._put_message(message, record.getvalue(), None, out)
