"""Records of Debezium's heartbeats in JSON, and the content of logical messages."""

from collections.abc import Iterable
from itertools import chain
from typing import Final

from cdcd.core.catalog.logical import LogicalType, logical_type
from cdcd.core.catalog.modes import Modes, under
from cdcd.core.catalog.types import BYTEA
from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.records.debezium_json.connect_schema import (
    CLOSING,
    HEARTBEAT_KEY,
    HEARTBEAT_VALUE,
    WITH_SCHEMA,
    Schema,
    message_value,
    opening,
    schema_of,
)
from cdcd.core.records.debezium_json.converters import Bytea, converter_of
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, base64_pieces
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
