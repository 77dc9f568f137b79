"""The formats that records can have, by their names in the configuration. A new format is an entry of `FORMATS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.facts import Observer
from cdcd.core.records.avro.encoder import AvroEncoder
from cdcd.core.records.avro.form import AVRO
from cdcd.core.records.avro.snapshot_rows import AvroSnapshotEncoder
from cdcd.core.records.cloud_events import CLOUDEVENTS
from cdcd.core.records.cloudevents.avro_encoder import AvroEventsEncoder
from cdcd.core.records.cloudevents.json_encoder import FlatJsonEventsEncoder, JsonEventsEncoder
from cdcd.core.records.debezium_json.encoder import DebeziumJsonEncoder
from cdcd.core.records.debezium_json.flat_encoder import FlatEncoder
from cdcd.core.records.debezium_json.snapshot_rows import SnapshotEncoder
from cdcd.core.records.encoder import Encoder, EncoderSettings, RowEncoder
from cdcd.core.records.protobuf.encoder import ProtobufEncoder
from cdcd.core.records.protobuf.form import PROTOBUF


@dataclass(frozen=True, slots=True)
class Format:
    """How a format's encoders are made.

    Attributes:
        changes: for what the stream sends; True: values may come in binary form. Both are given who hears of facts.
        rows: for rows that are read from tables.
    """

    changes: Callable[[EncoderSettings, bool, Observer], Encoder]
    rows: Callable[[EncoderSettings, bool, Observer], RowEncoder]


_DEBEZIUM_JSON: Final = Format(DebeziumJsonEncoder, SnapshotEncoder)

_AVRO: Final = Format(AvroEncoder, AvroSnapshotEncoder)

_PROTOBUF: Final = Format(ProtobufEncoder, ProtobufEncoder)

_EVENTS: Final = Format(JsonEventsEncoder, JsonEventsEncoder)

_EVENTS_IN_AVRO: Final = Format(AvroEventsEncoder, AvroEventsEncoder)

FORMATS: Final[Mapping[str, Format]] = {
    "json": _DEBEZIUM_JSON,
    "json_schema": _DEBEZIUM_JSON,
    AVRO: _AVRO,
    PROTOBUF: _PROTOBUF,
    CLOUDEVENTS: _EVENTS,
}
"""By the name of the values' format; the encoder takes the names from its settings."""


_FLATTENED: Final[Mapping[str, Format]] = {
    "json": Format(FlatEncoder, FlatEncoder),
    "json_schema": Format(FlatEncoder, FlatEncoder),
    CLOUDEVENTS: Format(FlatJsonEventsEncoder, FlatJsonEventsEncoder),
}
"""Encoders of flattened records. All others flatten by themselves, if the settings say so."""


def format_of(settings: EncoderSettings) -> Format:
    """The format of a pipeline's records."""
    name = settings.value_format
    if name == CLOUDEVENTS and settings.events.data == AVRO:
        return _EVENTS_IN_AVRO
    if settings.flattening is not None and name in _FLATTENED:
        return _FLATTENED[name]
    return FORMATS[name]
