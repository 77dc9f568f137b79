"""Options of Debezium's CloudEventsConverter, which is cdcd's `format.value: cloudevents` in the structured mode.

The names and defaults are those of Debezium 3.7.0 (CloudEventsConverterConfig).
"""

from collections.abc import Mapping
from typing import Final

from cdcd.tools.adopt.options_registry import avro_options, registry_options
from cdcd.tools.adopt.verdicts import (
    Kind,
    Option,
    Verdict,
    boolean,
    by_value,
    differs,
    irrelevant,
    lacks,
    only,
    same,
    to,
)

CLOUDEVENTS_CONVERTER: Final = "io.debezium.converters.cloudeventsconverter"
"""The class of the converter, in lower case."""

EVENTS_ARE: Final = differs(
    "Values are CloudEvents (format.value: cloudevents). Their `id` is another one, iodebeziumtxId is called "
    "iodebeziumsourcetxid, attributes that are null are left out, and there is a header content-type "
    "(docs/cloudevents.md).",
    format__value="cloudevents",
)

_AT: Final = "value.converter."
_DATA: Final = f"{_AT}data.serializer.type"
_SCHEMAS: Final = f"{_AT}json.schemas.enable"
_GENERATED: Final = "value,id:generate,type:generate,traceparent:header,dataschemaname:generate"
_OF_HEADERS: Final = (
    "cdcd makes all attributes from the change. Let the outbox write its own events (docs/outbox.md), or accept this "
    "option."
)


def _metadata(value: str) -> Verdict:
    parts = {each.strip().lower() for each in value.split(",")}
    if "value" in parts and parts <= set(_GENERATED.split(",")):
        return same("The attributes are made from the change.")
    return lacks(_OF_HEADERS)


EVENTS: Final = (
    Option(
        f"{_AT}serializer.type",
        "json",
        by_value(
            {"json": same("An event is a JSON object.")},
            lacks(
                "cdcd writes events in JSON, or attributes in headers (cloudevents.mode: binary). Let the consumers "
                "read one of these first."
            ),
        ),
    ),
    Option(
        _DATA,
        "json",
        by_value(
            {
                "json": same("Data are JSON."),
                "avro": differs(
                    "Data are Avro, as base64 in data_base64 and not in data, which is for text.",
                    cloudevents__data="avro",
                ),
            }
        ),
    ),
    Option(
        _SCHEMAS,
        "true",
        by_value(
            {
                "true": same("Data have their schema beside them.", cloudevents__data="json_schema"),
                "false": same("Data are JSON without schemas."),
            }
        ),
    ),
    Option(f"{_AT}extension.attributes.enable", "true", to("cloudevents.extension_attributes", boolean)),
    Option(
        f"{_AT}opentelemetry.tracing.attributes.enable",
        "false",
        only(
            "false",
            "Events have no traceparent.",
            lacks(
                "cdcd knows no traces, so events have no traceparent. Accept this option if nobody reads it."
            ),
        ),
    ),
    Option(f"{_AT}metadata.source", None, _metadata),
    Option(
        f"{_AT}schema.data.name.source.header.enable",
        None,
        only("false", "The schema of the data has the converter's name.", lacks(_OF_HEADERS)),
    ),
    Option(f"{_AT}schema.cloudevents.name", None, irrelevant("An event in JSON has no schema.")),
    Option(f"{_AT}schema.name.adjustment.mode", None, irrelevant("An event in JSON has no schema.")),
    Option(
        f"{_AT}avro.apicurio.registry.url",
        None,
        lambda _: lacks(
            "cdcd speaks Confluent's API, which Apicurio has at /apis/ccompat/v7. Set registry.url to that. Data begin "
            "with a byte 0 and the id in four bytes."
        ),
    ),
    *registry_options("value", f"{_AT}avro."),
    *avro_options(f"{_AT}avro."),
)
"""Rows for the options. Without the converter, they have no effect (`of_events`)."""

_NAMES: Final = frozenset(option.name for option in EVENTS)


def has_events(options: Mapping[str, str]) -> bool:
    """Whether the connector has the converter for values."""
    return options.get("value.converter", "").strip().lower() == CLOUDEVENTS_CONVERTER


def counts(name: str, options: Mapping[str, str]) -> bool:
    """Whether the default of an option of the converter has an effect, or the option is not one of it."""
    return name not in _NAMES or (has_events(options) and not _is_of_other_data(name, options))


def of_events(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option, if the connector's converter has the option."""
    if name == f"{_AT}schemas.enable" and has_events(options):
        return Verdict(Kind.IRRELEVANT, "value.converter does not have this option.")
    if name not in _NAMES:
        return found
    if options.get("value.converter") and not has_events(options):
        return Verdict(Kind.IRRELEVANT, "value.converter does not have this option.")
    if _is_of_other_data(name, options):
        return Verdict(Kind.IRRELEVANT, f"It is not for the data that {_DATA} names.")
    return found


def not_flattened(options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of a transform. An event has an envelope's rows, and a flattened record has none."""
    if not has_events(options) or not any(key.startswith("event_flattening.") for key in found.keys):
        return found
    return lacks(
        "Flattened records are no CloudEvents: Debezium's converter writes null for them. Choose one of the two: take "
        "the transform out of the connector, or accept this option, and cdcd writes CloudEvents with before and after."
    )


def _is_of_other_data(name: str, options: Mapping[str, str]) -> bool:
    is_avro = options.get(_DATA, "").strip().lower() == "avro"
    return is_avro if name == _SCHEMAS else not is_avro and name.startswith(f"{_AT}avro.")
