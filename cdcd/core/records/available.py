"""The formats that records can have, by their names in the configuration. A new format is an entry of `FORMATS`."""

from collections.abc import Callable, Mapping
from typing import Final

from cdcd.core.facts import Observer
from cdcd.core.records.avro.encoder import RegistryEncoder
from cdcd.core.records.avro.form import AVRO
from cdcd.core.records.cloud_events import CLOUDEVENTS
from cdcd.core.records.cloudevents.avro_encoder import AvroEventsEncoder
from cdcd.core.records.cloudevents.json_encoder import FlatJsonEventsEncoder, JsonEventsEncoder
from cdcd.core.records.debezium_json.flat_encoder import FlatEncoder
from cdcd.core.records.debezium_json.snapshot_rows import SnapshotEncoder
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.protobuf.encoder import protobuf_encoder
from cdcd.core.records.protobuf.form import PROTOBUF

Format = Callable[[EncoderSettings, bool, Observer], Encoder]
"""Makes the encoder of a format. True: values may come in binary form. Facts go to the observer."""

FORMATS: Final[dict[str, Format]] = {
    "json": SnapshotEncoder,
    "json_schema": SnapshotEncoder,
    AVRO: RegistryEncoder,
    PROTOBUF: protobuf_encoder,
    CLOUDEVENTS: JsonEventsEncoder,
}
"""By the name of the values' format; the encoder takes the names from its settings."""

_FLATTENED: Final[Mapping[str, Format]] = {
    "json": FlatEncoder,
    "json_schema": FlatEncoder,
    CLOUDEVENTS: FlatJsonEventsEncoder,
}
"""Encoders of flattened records. All others flatten by themselves, if the settings say so."""


def format_of(settings: EncoderSettings) -> Format:
    """The format of a pipeline's records."""
    name = settings.value_format
    if name == CLOUDEVENTS and settings.events.data == AVRO:
        return AvroEventsEncoder
    if settings.flattening is not None and name in _FLATTENED:
        return _FLATTENED[name]
    return FORMATS[name]
