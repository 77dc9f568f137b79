"""The record of a heartbeat in Protobuf, as Google's runtime reads it."""

import json

import pytest

from cdcd.core.errors import TransientError
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import HEARTBEATS, Record
from cdcd.core.records.stream import RecordStream
from tests.unit.core.records.protobuf.reading import Schemas

TOPIC = "__debezium-heartbeat.shop"
NOW_US = 1_700_000_000_123_456


def encoder_of(schemas: Schemas, **settings: str) -> RecordStream:
    return record_stream(schemas.settings(heartbeat_topic=TOPIC, schemas_topic="schemas", **settings))


def test_key_and_value_are_debeziums_and_the_schemas_topic_names_their_ids_once():
    schemas = Schemas()
    encoder = encoder_of(schemas)
    schemas.register(encoder, HEARTBEATS)
    out: list[Record] = []
    size = encoder.encode_heartbeat(17, NOW_US, out)
    encoder.encode_heartbeat(18, NOW_US + 1000, out)
    assert [topic for topic, *_ in out] == ["schemas", "schemas", TOPIC, TOPIC]
    _, key, value, headers = out[2]
    assert key is not None
    assert value is not None
    assert size == len(key) + len(value)
    key_id, read_key = schemas.read(key)
    value_id, read_value = schemas.read(value)
    assert read_key == {"serverName": "golden"}
    assert read_value == {"ts_ms": 1_700_000_000_123}
    assert [schemas.descriptor(each).full_name for each in (key_id, value_id)] == [
        "io.debezium.connector.common.ServerNameKey",
        "io.debezium.connector.common.Heartbeat",
    ]
    assert headers == [("cdcd.watermark", b"17")]


def test_keys_may_be_json():
    schemas = Schemas()
    encoder = encoder_of(schemas, key_format="json")
    assert [use.subject for use in encoder.unregistered(HEARTBEATS)] == [f"{TOPIC}-value"]
    schemas.register(encoder, HEARTBEATS)
    out: list[Record] = []
    encoder.encode_heartbeat(17, NOW_US, out)
    assert json.loads(out[-1][1] or b"") == {"serverName": "golden"}


def test_without_ids_there_is_no_record():
    with pytest.raises(TransientError):
        encoder_of(Schemas()).encode_heartbeat(17, NOW_US, [])
