"""Options that other options change: a converter's, a heartbeat's, and those of keys beside those of values."""

from collections.abc import Mapping
from typing import Final

from cdcd.tools.adopt.options import OPTIONS
from cdcd.tools.adopt.references import has_placeholder
from cdcd.tools.adopt.verdicts import Kind, Verdict, lacks, same

_CLOUDEVENTS: Final = "io.debezium.converters.cloudeventsconverter"
_CONVERTERS: Final = {
    "io.confluent.connect.avro.avroconverter": ("registry", "avro"),
    "io.confluent.connect.protobuf.protobufconverter": ("registry", "protobuf"),
}
"""Converters that have their schemas in a registry, in lower case, with the kinds of options that they have."""

_OF: Final = {option.name: option.converter for option in OPTIONS if option.converter}
"""The kind of converter for each option of one."""

_OF_JSON: Final = ("schemas.enable", "replace.null.with.default")
"""Options of JsonConverter that the other converters do not have."""

_AT: Final = "value.converter."
_DATA: Final = f"{_AT}data.serializer.type"
_SCHEMAS: Final = f"{_AT}json.schemas.enable"


def of_converter(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option, unless the connector's converter does not have the option."""
    part, _, rest = name.partition(".converter.")
    converter = options.get(f"{part}.converter", "").lower()
    kind = _OF.get(name, "events")
    is_foreign = kind != "events" and kind not in _CONVERTERS.get(converter, ())
    if converter and (is_foreign or (rest in _OF_JSON and converter in _CONVERTERS)):
        found = Verdict(Kind.IRRELEVANT, f"{part}.converter does not have this option.")
    return _of_events(name, options, found)


def _has_events(options: Mapping[str, str]) -> bool:
    """Whether the connector has the converter for values."""
    return options.get("value.converter", "").strip().lower() == _CLOUDEVENTS


def has_effect(name: str, options: Mapping[str, str]) -> bool:
    """Whether the default of an option has an effect, beside the others that are given."""
    part, _, rest = name.partition(".converter.")
    if rest in _OF_JSON:
        return "JsonConverter" in options.get(f"{part}.converter", "")
    if _OF.get(name) == "events" and (not _has_events(options) or _is_of_other_data(name, options)):
        return False
    return name != "flush.lsn.source" or not options.get("lsn.flush.mode")


def _of_events(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of CloudEventsConverter, if the connector has the converter."""
    if name == f"{_AT}schemas.enable" and _has_events(options):
        return Verdict(Kind.IRRELEVANT, "value.converter does not have this option.")
    if _OF.get(name) != "events":
        return found
    if options.get("value.converter") and not _has_events(options):
        return Verdict(Kind.IRRELEVANT, "value.converter does not have this option.")
    if _is_of_other_data(name, options):
        return Verdict(Kind.IRRELEVANT, f"This option does not apply to the data format in {_DATA}.")
    return found


def not_flattened(options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of a transform. An event has an envelope's rows, and a flattened record has none."""
    if not _has_events(options) or not any(key.startswith("event_flattening.") for key in found.keys):
        return found
    return lacks(
        "Flattened records are no CloudEvents: Debezium's converter writes null for them. Choose one of the two: take "
        "the transform out of the connector, or accept this option, and cdcd writes CloudEvents with before and after."
    )


def _is_of_other_data(name: str, options: Mapping[str, str]) -> bool:
    is_avro = options.get(_DATA, "").strip().lower() == "avro"
    return is_avro if name == _SCHEMAS else not is_avro and name.startswith(f"{_AT}avro.")


_INTERVAL: Final = "heartbeat.interval.ms"
_PREFIX: Final = "topic.heartbeat.prefix"
_NAME: Final = "topic.heartbeat.name"
_QUERY: Final = "heartbeat.action.query"

_USUAL: Final = "__debezium-heartbeat"
_OFF: Final = ("", "0")


def of_heartbeat(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of heartbeats beside the connector's other options."""
    if name not in {_QUERY, _PREFIX, _NAME} or not options.get(name, "").strip():
        return found
    if options.get(_INTERVAL, "0").strip() in _OFF:
        return Verdict(Kind.IRRELEVANT, f"Without {_INTERVAL} there are no heartbeats.")
    if name != _PREFIX:
        return found
    if options.get(_NAME, "").strip():
        return Verdict(Kind.IRRELEVANT, f"{_NAME} names the topic.")
    prefix, begins = options.get("topic.prefix", "").strip(), options.get(_PREFIX, _USUAL).strip()
    if begins == _USUAL or has_placeholder(prefix) or has_placeholder(begins):
        return found
    return same("topics.heartbeat is this, a point and the prefix.", topics__heartbeat=f"{begins}.{prefix}")
