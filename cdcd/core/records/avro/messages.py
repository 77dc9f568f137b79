"""The values of logical messages in binary formats, and Debezium's heartbeats in Avro (`debezium_json/messages.py`)."""

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter

from cdcd.core.catalog.modes import Modes
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.source_block import AvroSourceBlock, AvroTableSource
from cdcd.core.records.avro.writing import number, optional, text, write_bytes
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.messages import US_PER_MS, message_schema
from cdcd.core.records.debezium_json.source_block import TransactionFacts
from cdcd.core.records.debezium_json.table_fragments import Headers
from cdcd.core.records.encoder import EncoderSettings

_SOME: Final = 2
"""The content is there."""

_EMPTY: Final = b"\x00\x00"
"""Neither `schema_id` nor `transaction`."""


class MessageValues:
    """Makes the values of logical messages.

    Attributes:
        header_bytes: bytes of the headers of the last message, if they count (`Encoder.encode`).
    """

    header_bytes: int = 0

    def schema(self, modes: Modes) -> Schema:
        """Return the Connect schema of the values."""
        return message_schema(modes)

    def value(
        self,
        schema_id: int,
        message: LogicalMessage,
        data: bytes,
        facts: TransactionFacts,
        serial: int,
        now_us: int,
    ) -> tuple[bytes, Headers | None]:
        """Return the value and the headers of a message. `message` is without its content, which is `data`."""
        raise NotImplementedError


class AvroMessages(MessageValues):
    """Makes the values of logical messages in Avro."""

    def __init__(self, settings: EncoderSettings, head: Callable[[int], bytes]) -> None:
        self._head = head
        self._block = AvroSourceBlock(settings)
        self._source = AvroTableSource("", "", None)

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
        out = BytesWriter()
        out.write(self._head(schema_id))
        out.write(text("m") + optional(number(now_us // 1000)))
        self._source.write_source(message.lsn, serial, out)
        out.write(_EMPTY)
        write_content(message, data, out)
        return out.getvalue(), None


def write_content(message: LogicalMessage, data: bytes, out: BytesWriter) -> None:
    """Write the prefix and the content `data` of a message, which are optional fields in Avro."""
    out.write(optional(text(message.prefix)))
    out.append(_SOME)
    write_bytes(data, out)


def heartbeat_value(now_us: int) -> bytes:
    """Return the value of a heartbeat at this time, in microseconds since 1970, without its head."""
    return number(now_us // US_PER_MS)
