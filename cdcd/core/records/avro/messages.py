"""The values of logical messages in Avro."""

from typing import Final

from librt.strings import BytesWriter

from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.source_block import AvroTableSource
from cdcd.core.records.avro.writing import number, optional, text, write_bytes

_SOME: Final = 2
"""The content is there."""

_EMPTY: Final = b"\x00\x00"
"""Neither `schema_id` nor `transaction`."""


class MessageValues:
    """Makes the values of logical messages.

    Attributes:
        source: the source block; the caller owes `renew` for each transaction.
    """

    def __init__(self, source: AvroTableSource | None = None) -> None:
        self.source = source or AvroTableSource("", "", None)

    def value(self, head: bytes, message: LogicalMessage, data: bytes, serial: int, now_us: int) -> bytes:
        """The value of a message. `message` is without its content, which is `data`."""
        out = BytesWriter()
        out.write(head)
        out.write(text("m") + optional(number(now_us // 1000)))
        self.source.write_source(message.lsn, serial, out)
        out.write(_EMPTY)
        out.write(optional(text(message.prefix)))
        out.append(_SOME)
        write_bytes(data, out)
        return out.getvalue()
