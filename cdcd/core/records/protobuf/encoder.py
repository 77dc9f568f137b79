"""Debezium's envelope in Protobuf: each value in Confluent's wire format, with the id of its schema before it.

Everything but the bytes is as in Avro (`avro/encoder.py`): which records there are, their order, when schemas are
registered, what stands for a value that was not sent. A message has its length before it, so that a row is written to
a buffer first, and copied from there into the record.

Fields of columns have the numbers that `schemas.py` says. Nothing stands for NULL.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.facts import Observer
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.around import Around
from cdcd.core.records.avro.encoder import Encoding, RegistryFormat
from cdcd.core.records.avro.messages import MessageValues
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.avro.writing import BUFFER_BYTES_MAX, append_slice
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.messages import US_PER_MS
from cdcd.core.records.debezium_json.source_block import TransactionFacts
from cdcd.core.records.debezium_json.table_fragments import Headers
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.format import Current, Format
from cdcd.core.records.protobuf.form import PREFIX, ProtobufForm
from cdcd.core.records.protobuf.source_block import ProtobufSourceBlock, ProtobufTableSource, times
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
        end: i64 = len(rows)
        if self._has_before:
            split: i64 = self._split if self._has_after else end
            record.write(_BEFORE)
            write_varint(split, record)
            append_slice(rows, 0, split, record)
        if self._has_after:
            begin: i64 = self._split if self._has_before else 0
            record.write(_AFTER)
            write_varint(end - begin, record)
            append_slice(rows, begin, end, record)
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


class ProtobufMessages(MessageValues):
    """Makes the values of logical messages in Protobuf."""

    def __init__(self, settings: EncoderSettings, head: Callable[[int], bytes]) -> None:
        self._head = head
        self._block = ProtobufSourceBlock(settings)
        self._source = ProtobufTableSource("", "", None)

    def value(
        self,
        schema_id: int,
        message: LogicalMessage,
        data: bytes,
        facts: TransactionFacts,
        serial: int,
        now_us: int,
    ) -> tuple[bytes, Headers | None]:
        """See `MessageValues`."""
        self._source.renew(self._block, facts)
        content = text_field(PREFIX, message.prefix) + _CONTENT
        out = BytesWriter()
        out.write(self._head(schema_id))
        out.write(_MESSAGE_OP)
        out.write(number_field(_MESSAGE_TS_MS, now_us // 1000))
        self._source.write_source(message.lsn, serial, out)
        out.write(_MESSAGE)
        size: i64 = len(data)
        write_varint(len(content) + varint_size(size) + size, out)
        out.write(content)
        write_bytes(data, out)
        return out.getvalue(), None


def _heartbeat_key(prefix: str) -> bytes:
    return text_field(_FIELD, prefix)


def _heartbeat_value(now_us: int) -> bytes:
    return number_field(_FIELD, now_us // US_PER_MS)


PROTOBUF_ENCODING: Final = Encoding(
    ProtobufForm,
    ProtobufSourceBlock,
    ProtobufTableSource,
    ProtobufEnvelope,
    ProtobufMessages,
    _heartbeat_key,
    _heartbeat_value,
)


def protobuf_format(
    settings: EncoderSettings, tables: KnownTables, current: Current, observe: Observer
) -> Format:
    """Return the format of Debezium's envelopes, or of flattened rows, in Protobuf."""
    return RegistryFormat(settings, tables, current, observe, PROTOBUF_ENCODING)
