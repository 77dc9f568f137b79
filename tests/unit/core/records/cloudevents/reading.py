"""Reads events by the SDK of the CNCF, in the mode that the record itself tells."""

from collections.abc import Iterable
from typing import Any

from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event, from_structured_event

from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.encoder import EncoderSettings, Record
from tests.unit.core.records.avro.reading import Schemas

SOURCE_FIELDS = {"sourcetxid": "txId"}
"""Attributes that are not called after the field of the source block."""


def events_settings(schemas: Schemas, events: CloudEvents, **more: Any) -> EncoderSettings:
    """Of an encoder of events, whose schemas are registered with `schemas` if data are in Avro."""
    key_format = "avro" if events.data == "avro" and events.mode == "structured" else "json"
    return schemas.settings(
        **{"key_format": key_format, "value_format": "cloudevents", "events": events, **more}
    )


def size_of(records: Iterable[Record]) -> int:
    """The bytes that count of records: keys, values, and the attributes that are headers."""
    return sum(
        len(key or b"")
        + len(value or b"")
        + sum(
            len(name) + len(each)
            for name, each in headers or ()
            if name.startswith("ce_") or (name == "content-type" and b"cloudevents" not in each)
        )
        for topic, key, value, headers in records
        if not topic.endswith("schemas")
    )


def read_event(record: Record) -> Any:
    """The SDK's event of a record that is not a tombstone. The SDK refuses what is no event by the specification."""
    _, _, value, headers = record
    assert value is not None
    found = dict(headers or [])
    assert len(found) == len(headers or []), "each header is there once"
    # The SDK would take the key for an attribute, and one in Avro is no text.
    message = KafkaMessage(found, None, value)
    if found["content-type"].startswith(b"application/cloudevents"):
        assert found["content-type"] == b"application/cloudevents+json; charset=UTF-8"
        assert not any(name.startswith("ce_") for name in found)
        return from_structured_event(message)
    return from_binary_event(message)


def extensions_of(event: Any) -> dict[str, Any]:
    """The attributes that Debezium adds, without their prefix."""
    return {
        name.removeprefix("iodebezium"): value
        for name, value in event.get_attributes().items()
        if name.startswith("iodebezium")
    }


def said_of_source(envelope: dict[str, Any]) -> dict[str, str]:
    """What the attributes of an event must say, by the envelope of the same record."""
    source: dict[str, Any] = {"op": envelope["op"], **envelope["source"]}
    source["sourcetxid"] = source.pop("txId")
    if (place := envelope.get("transaction")) is not None:
        source |= {
            "txid": place["id"],
            "txtotalorder": place["total_order"],
            "txdatacollectionorder": place["data_collection_order"],
        }
    return {
        name.replace("_", ""): str(value)
        for name, value in source.items()
        if value is not None and value != ""
    }
