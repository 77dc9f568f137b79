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
from cdcd.core.records.avro.encoder import RegistryEncoder, RegistryFormat
from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.avro.messages import AvroHeartbeats, MessageValues
from cdcd.core.records.avro.source_block import AvroTableSource
from cdcd.core.records.debezium_json.heartbeats import US_PER_MS
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.protobuf.around import ProtobufEnvelope
from cdcd.core.records.protobuf.form import PREFIX, ProtobufForm
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
