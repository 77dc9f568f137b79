"""Debezium's heartbeat record in Avro (`debezium_json/heartbeats.py`)."""

from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.avro.writing import number, text
from cdcd.core.records.debezium_json.connect_schema import HEARTBEAT_KEY, HEARTBEAT_VALUE
from cdcd.core.records.debezium_json.heartbeats import US_PER_MS
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaUse


class AvroHeartbeats:
    """The schemas of heartbeats, and their parts without the head that names the schema's id.

    Attributes:
        key_use: None: keys are JSON.
        is_told: the schemas topic has the ids.
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
        """The schemas that must have an id before the first record."""
        return (self.value_use,) if self.key_use is None else (self.key_use, self.value_use)

    def value(self, now_us: int) -> bytes:
        """The value at this time, in microseconds since 1970."""
        return number(now_us // US_PER_MS)
