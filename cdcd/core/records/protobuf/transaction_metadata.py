"""The position of each record in its transaction, in Protobuf (`avro/transaction_metadata.py`)."""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.records.avro.source_block import AvroSourceBlock
from cdcd.core.records.debezium_json.transaction_metadata import TableCount, TransactionMetadata
from cdcd.core.records.protobuf.source_block import ProtobufTableSource
from cdcd.core.records.protobuf.writing import LENGTH, VARINT, tag, text_field, varint_size, write_varint

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
