"""Debezium's heartbeat record in Protobuf (`debezium_json/heartbeats.py`)."""

from typing import Final

from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.avro.heartbeats import AvroHeartbeats
from cdcd.core.records.debezium_json.heartbeats import US_PER_MS
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.protobuf.writing import number_field, text_field

_FIELD: Final = 1
"""Number of the only field of a key and of a value."""


class ProtobufHeartbeats(AvroHeartbeats):
    """Makes heartbeats without the head that has the schema's id, and has their schemas."""

    def __init__(self, settings: EncoderSettings, form: AvroForm) -> None:
        AvroHeartbeats.__init__(self, settings, form)
        self.key = text_field(_FIELD, settings.prefix)

    def value(self, now_us: int) -> bytes:
        """See `AvroHeartbeats`."""
        return number_field(_FIELD, now_us // US_PER_MS)
