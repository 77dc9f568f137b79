"""Debezium's heartbeat record, with a header for the LSN up to which everything is delivered.

Key and value are the same as Debezium's, so that consumers of Debezium can read them: `{"serverName":"shop"}` and
`{"ts_ms":…}`. Debezium has the LSN in Kafka Connect's offsets, which readers of the topic do not see. Therefore
cdcd writes it into the header `cdcd.watermark`.
"""

from typing import Final

from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.records.debezium_json.connect_schema import (
    CLOSING,
    HEARTBEAT_KEY,
    HEARTBEAT_VALUE,
    WITH_SCHEMA,
    opening,
)
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
