"""The formats that records can have, by their names in the configuration. A new format is an entry of `FORMATS`."""

from typing import Final

from cdcd.core.facts import Observer, unheard
from cdcd.core.records.avro.encoder import avro_format
from cdcd.core.records.avro.form import AVRO
from cdcd.core.records.cloud_events import CLOUDEVENTS
from cdcd.core.records.cloudevents.avro_events import cloudevents_format
from cdcd.core.records.debezium_json.encoder import json_format
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.json_registry.encoder import json_registry_format
from cdcd.core.records.json_registry.schemas import JSON_REGISTRY
from cdcd.core.records.protobuf.encoder import protobuf_format
from cdcd.core.records.protobuf.form import PROTOBUF
from cdcd.core.records.stream import MakeFormat, RecordStream

FORMATS: Final[dict[str, MakeFormat]] = {
    "json": json_format,
    "json_schema": json_format,
    AVRO: avro_format,
    PROTOBUF: protobuf_format,
    JSON_REGISTRY: json_registry_format,
    CLOUDEVENTS: cloudevents_format,
}
"""By the name of the values' format. A format takes the format of keys from the settings."""


def record_stream(
    settings: EncoderSettings, binary: bool = False, observe: Observer = unheard
) -> RecordStream:
    """Return the stream of records of a pipeline.

    Args:
        binary: whether values may come in binary form.
        observe: gets facts.
    """
    return RecordStream(settings, binary, observe, FORMATS[settings.value_format])
