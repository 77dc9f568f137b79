"""Debezium's envelope in Protobuf: each value in Confluent's wire format, with the id of its schema before it.

Everything but the bytes is as in Avro (`avro/encoder.py`): which records there are, their order, when schemas are
registered, what stands for a value that was not sent. A message has its length before it, so that a row is written to
a buffer first, and copied from there into the record.

Fields of columns have the numbers that `schemas.py` says. Nothing stands for NULL.
"""

from typing import TYPE_CHECKING, Final

from cdcd.core.facts import Observer, unheard
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.snapshot_rows import AvroSnapshotEncoder
from cdcd.core.records.avro.source_block import AvroTableSource
from cdcd.core.records.debezium_json.source_block import SourceBlock
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.protobuf.around import ProtobufEnvelope
from cdcd.core.records.protobuf.form import PREFIX, ProtobufForm
from cdcd.core.records.protobuf.heartbeats import ProtobufHeartbeats
from cdcd.core.records.protobuf.source_block import ProtobufSourceBlock, ProtobufTableSource
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
    """Encodes rows of changes and of snapshots. See `Encoder` for the methods."""

    def __init__(self, settings: EncoderSettings, binary: bool = False, observe: Observer = unheard) -> None:
        form = ProtobufForm()
        self._envelope = ProtobufEnvelope()
        AvroSnapshotEncoder.__init__(
            self,
            settings,
            binary,
            observe,
            form=form,
            around=self._envelope,
            block=ProtobufSourceBlock(settings),
            block_alone=ProtobufSourceBlock(settings),
        )
        self._of_messages = ProtobufTableSource("", "", None)
        self._avro_heartbeats = ProtobufHeartbeats(settings, form)

    def _table_source(self, fragments: TableFragments) -> AvroTableSource:
        """See `AvroEncoder`."""
        relation, schema_id = fragments.relation, fragments.schema_id
        if self.metadata is None:
            return ProtobufTableSource(relation.schema, relation.name, schema_id)
        return CountedProtobufSource(relation.schema, relation.name, schema_id, self.metadata)

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
        record = self._envelope.new_record()
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
