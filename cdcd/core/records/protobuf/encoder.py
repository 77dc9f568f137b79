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
from cdcd.core.records.avro.around import BUFFER_BYTES_MAX, Around
from cdcd.core.records.avro.encoder import RegistryEncoder, RegistryFormat
from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.avro.messages import AvroHeartbeats, MessageValues
from cdcd.core.records.avro.source_block import AvroSourceBlock, AvroTableSource
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.debezium_json.messages import US_PER_MS
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TableCount, TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.protobuf.form import PREFIX, ProtobufForm
from cdcd.core.records.protobuf.source_block import ProtobufSourceBlock, ProtobufTableSource, times
from cdcd.core.records.protobuf.writing import (
    LENGTH,
    VARINT,
    number_field,
    tag,
    text_field,
    varint_size,
    write_bytes,
    write_varint,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

_TRANSACTION: Final = tag(4, LENGTH)
_ID: Final = 1
_TOTAL: Final = tag(2, VARINT)
_ORDER: Final = tag(3, VARINT)
_TAGS_BYTES: Final = 2
"""Bytes of the two numbers' tags."""


class CountedProtobufSource(ProtobufTableSource):
    """A `ProtobufTableSource` that counts the records of a transaction, and writes the position of each into it."""

    def __init__(self, schema: str, name: str, schema_id: str | None, metadata: TransactionMetadata) -> None:
        ProtobufTableSource.__init__(self, schema, name, schema_id)
        self._metadata = metadata
        self._name = f"{schema}.{name}"
        self._is_counted = False
        self._count = TableCount()
        self._id = b""

    def renew(self, source: AvroSourceBlock) -> None:
        """See `AvroTableSource`."""
        ProtobufTableSource.renew(self, source)
        metadata = self._metadata
        self._is_counted = bool(metadata.id)
        if self._is_counted:
            self._count = metadata.table(self._name)
            # The id is JSON: a string without characters that need an escape.
            self._id = text_field(_ID, metadata.id[1:-1].decode("ascii"))

    def write(self, op: int, lsn: "i64", event_no: "i64", times: bytes, out: BytesWriter) -> None:
        """See `AvroTableSource`."""
        if not self._is_counted:
            ProtobufTableSource.write(self, op, lsn, event_no, times, out)
            return
        self.write_source(lsn, event_no, out)
        metadata, count = self._metadata, self._count
        metadata.total += 1
        count.records += 1
        total: i64 = metadata.total
        order: i64 = count.records
        out.write(_TRANSACTION)
        write_varint(len(self._id) + _TAGS_BYTES + varint_size(total) + varint_size(order), out)
        out.write(self._id)
        out.write(_TOTAL)
        write_varint(total, out)
        out.write(_ORDER)
        write_varint(order, out)
        out.write(self._closings[op])
        out.write(times)


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


# Fields of a logical message.
_MESSAGE_OP: Final = text_field(1, "m")
_MESSAGE_TS_MS: Final = 2
_MESSAGE: Final = tag(5, LENGTH)
_CONTENT: Final = tag(2, LENGTH)

_FIELD: Final = 1
"""Number of the only field of a heartbeat's key, and of its value."""


class ProtobufMessageValues(MessageValues):
    """Makes the values of logical messages in Protobuf."""

    def __init__(self) -> None:
        MessageValues.__init__(self, ProtobufTableSource("", "", None))

    def value(self, head: bytes, message: LogicalMessage, data: bytes, serial: int, now_us: int) -> bytes:
        """See `MessageValues`."""
        content = text_field(PREFIX, message.prefix) + _CONTENT
        out = BytesWriter()
        out.write(head)
        out.write(_MESSAGE_OP)
        out.write(number_field(_MESSAGE_TS_MS, now_us // 1000))
        self.source.write_source(message.lsn, serial, out)
        out.write(_MESSAGE)
        size: i64 = len(data)
        write_varint(len(content) + varint_size(size) + size, out)
        out.write(content)
        write_bytes(data, out)
        return out.getvalue()


class ProtobufHeartbeats(AvroHeartbeats):
    """Makes heartbeats without the head that has the schema's id, and has their schemas."""

    def __init__(self, settings: EncoderSettings, form: AvroForm) -> None:
        AvroHeartbeats.__init__(self, settings, form)
        self.key = text_field(_FIELD, settings.prefix)

    def value(self, now_us: int) -> bytes:
        """See `AvroHeartbeats`."""
        return number_field(_FIELD, now_us // US_PER_MS)


def _table_source(fragments: TableFragments, metadata: TransactionMetadata | None) -> AvroTableSource:
    relation, schema_id = fragments.relation, fragments.schema_id
    if metadata is None:
        return ProtobufTableSource(relation.schema, relation.name, schema_id)
    return CountedProtobufSource(relation.schema, relation.name, schema_id, metadata)


PROTOBUF_FORMAT: Final = RegistryFormat(
    ProtobufForm,
    ProtobufSourceBlock,
    _table_source,
    ProtobufEnvelope,
    ProtobufMessageValues,
    ProtobufHeartbeats,
)


def protobuf_encoder(
    settings: EncoderSettings, binary: bool = False, observe: Observer = unheard
) -> RegistryEncoder:
    """An encoder of records in Protobuf."""
    return RegistryEncoder(settings, binary, observe, PROTOBUF_FORMAT)
