"""The values of logical messages, and Debezium's heartbeat records (`debezium_json/messages.py`), in Avro."""

from typing import Final

from librt.strings import BytesWriter

from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.avro.source_block import AvroTableSource
from cdcd.core.records.avro.writing import number, optional, text, write_bytes
from cdcd.core.records.debezium_json.connect_schema import HEARTBEAT_KEY, HEARTBEAT_VALUE
from cdcd.core.records.debezium_json.messages import US_PER_MS
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse

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


class AvroHeartbeats:
    """Makes heartbeats without the head that has the schema's id, and has their schemas.

    Attributes:
        key_use: schema of keys; None if keys are JSON.
        is_told: whether the ids were written to the schemas topic.
    """

    def __init__(self, settings: EncoderSettings, form: AvroForm) -> None:
        topic = settings.heartbeat_topic or ""
        self.key_use: SchemaUse | None = None
        if settings.key_format == form.format:
            self.key_use = form.use(settings, topic, HEARTBEAT_KEY, "key")
        self.value_use = form.use(settings, topic, HEARTBEAT_VALUE, "value")
        self.key = text(settings.prefix)
        self.is_told = False

    @property
    def uses(self) -> tuple[SchemaUse, ...]:
        """The schemas that must be registered before the first heartbeat."""
        return (self.value_use,) if self.key_use is None else (self.key_use, self.value_use)

    def value(self, now_us: int) -> bytes:
        """Return the value of a heartbeat at this time, in microseconds since 1970."""
        return number(now_us // US_PER_MS)
