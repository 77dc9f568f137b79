"""Debezium's heartbeat records in Avro (`debezium_json/heartbeats.py`)."""

from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.avro.writing import number, text
from cdcd.core.records.debezium_json.connect_schema import HEARTBEAT_KEY, HEARTBEAT_VALUE
from cdcd.core.records.debezium_json.heartbeats import US_PER_MS
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse


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
