"""Records of Debezium's heartbeats in JSON, and the content of logical messages."""

from collections.abc import Iterable
from itertools import chain
from typing import Final

from cdcd.core.catalog.logical import LogicalType, logical_type
from cdcd.core.catalog.modes import Modes, under
from cdcd.core.catalog.types import BYTEA
from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.debezium_json.connect_schema import CLOSING, WITH_SCHEMA, Schema, opening, schema_of
from cdcd.core.records.debezium_json.converters import Bytea, converter_of
from cdcd.core.records.debezium_json.event_schemas import (
    HEARTBEAT_KEY,
    HEARTBEAT_VALUE,
    MESSAGE_KEY,
    message_value,
)
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, base64_pieces, gathered
from cdcd.core.records.debezium_json.source_block import SourceBlock, TableSource, TransactionFacts
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers
from cdcd.core.records.encoder import HEADER_WATERMARK, EncoderSettings, Record

US_PER_MS: Final = 1000


def watermark(lsn: int) -> Headers:
    """Return the header for an LSN."""
    return [(HEADER_WATERMARK, b"%d" % lsn)]


class HeartbeatRecords:
    """Makes the records of heartbeats in JSON, with their schemas or without."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.topic = settings.heartbeat_topic or ""
        self._value_head = opening(HEARTBEAT_VALUE) if settings.value_format == WITH_SCHEMA else b""
        self.key = to_bytes(f'{{"serverName":{quote(wire(settings.prefix))}}}')
        if settings.key_format == WITH_SCHEMA:
            self.key = opening(HEARTBEAT_KEY) + self.key + CLOSING

    def record(self, lsn: int, now_us: int) -> Record:
        """Return the heartbeat record of this time, in microseconds since 1970; `lsn` as in
        `Encoder.encode_heartbeat`.
        """
        value = b'{"ts_ms":%d}' % (now_us // US_PER_MS)
        if self._value_head:
            value = self._value_head + value + CLOSING
        return self.topic, self.key, value, watermark(lsn)


def _form(modes: Modes) -> LogicalType:
    return under(modes, logical_type(BYTEA, -1, {}))


def message_schema(modes: Modes) -> Schema:
    """Return the schema of logical messages under these modes."""
    return message_value(schema_of(_form(modes)))


class MessageContent:
    """Converts contents under these modes."""

    def __init__(self, modes: Modes) -> None:
        self._converter: Final = converter_of(_form(modes))
        self._is_base64 = isinstance(self._converter, Bytea)
        self._is_text = schema_of(_form(modes))["type"] == "string"

    def json(self, content: memoryview) -> str:
        """Return the JSON of the content."""
        return self._converter.binary(bytes(content))

    def json_pieces(self, content: memoryview) -> Iterable[bytes]:
        """Return the JSON of the content in pieces, so that a large content is not copied more often than necessary."""
        if self._is_base64 and len(content) > PIECE_BYTES:
            return chain((b'"',), base64_pieces(content, 0, len(content)), (b'"',))
        return [to_bytes(self.json(content))]

    def data(self, content: memoryview) -> bytes:
        """Return the bytes of the content for a binary format, which are those of a text or of the content itself."""
        return self.json(content)[1:-1].encode("ascii") if self._is_text else bytes(content)


class MessageKeys:
    """Makes the keys of logical messages in JSON, with their schema if keys have one."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._head = opening(MESSAGE_KEY) if settings.key_format == WITH_SCHEMA else b""

    def key(self, message: LogicalMessage) -> bytes:
        """Return the key of a message."""
        key = to_bytes(f'{{"prefix":{quote(wire(message.prefix))}}}')
        return self._head + key + CLOSING if self._head else key


class JsonMessages:
    """Makes the records of logical messages as Debezium's envelopes."""

    def __init__(self, settings: EncoderSettings, topic: str) -> None:
        has_schema = settings.value_format == WITH_SCHEMA
        self.topic = topic
        self.keys = MessageKeys(settings)
        self.content = MessageContent(settings.modes)
        self._block = SourceBlock(settings)
        self._source = TableSource(
            "", "", opening=opening(message_schema(settings.modes)) if has_schema else b""
        )
        self._end = CLOSING if has_schema else b""

    def put(
        self,
        message: LogicalMessage,
        content: memoryview,
        facts: TransactionFacts,
        serial: int,
        now_us: int,
        out: list[Record],
    ) -> int:
        """Append the record of a message, and return its bytes. `message` comes without its content."""
        prefix = quote(wire(message.prefix))
        # Debezium's schema for these (PostgresSchemaFactory) has another order, and of the times only ts_ms.
        self._source.renew(self._block, facts)
        before = f'{{"op":"m","ts_ms":{now_us // 1000}'.encode("ascii")
        until_content = self._source.joined(
            [before],
            b"%d" % message.lsn,
            b"%d" % serial,
            to_bytes(f'}},"transaction":null,"message":{{"prefix":{prefix},"content":'),
        )
        written = self.content.json_pieces(content)
        value = gathered(chain((until_content,), written, (b"}}", self._end)))
        key = self.keys.key(message)
        out.append((self.topic, key, value, None))
        return len(key) + len(value)
