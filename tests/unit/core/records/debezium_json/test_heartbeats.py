"""The record of a heartbeat, with and without schemas, and behind an outbox."""

import json

import pytest

from cdcd.core.facts import unheard
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import HEARTBEATS, EncoderSettings, Record
from cdcd.core.records.flattening import Flattening
from cdcd.core.records.shaping.outbox import shaped
from cdcd.core.records.shaping.settings import Outbox
from tests.debezium.capture_heartbeat import GOLDEN

TOPIC = "__debezium-heartbeat.shop"
NOW_US = 1_700_000_000_123_456


def settings(**more: object) -> EncoderSettings:
    return EncoderSettings("1", "shop", "db", heartbeat_topic=TOPIC, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "encoder",
    [
        record_stream(settings()),
        record_stream(settings(flattening=Flattening("tombstone", (), ()))),
        shaped(record_stream(settings()), Outbox(("events",), messages=True), settings(), unheard),
    ],
    ids=["json", "flattened", "outbox"],
)
def test_the_record_is_debeziums_with_the_lsn_in_a_header(encoder):
    out: list[Record] = []
    size = encoder.encode_heartbeat(24_023_128, NOW_US, out)
    key, value = b'{"serverName":"shop"}', b'{"ts_ms":1700000000123}'
    assert out == [(TOPIC, key, value, [("cdcd.watermark", b"24023128")])]
    assert size == len(key) + len(value)
    assert encoder.unregistered(HEARTBEATS) == ()
    assert encoder.counts == {}


def test_with_schemas_they_are_what_a_real_debezium_writes():
    encoder = record_stream(settings(key_format="json_schema", value_format="json_schema"))
    out: list[Record] = []
    size = encoder.encode_heartbeat(1, NOW_US, out)
    ((topic, key, value, _),) = out
    assert key is not None
    assert value is not None
    assert size == len(key) + len(value)
    debezium = json.loads(GOLDEN.read_text())
    assert topic == debezium["topic"]
    assert json.loads(key) == debezium["key"]
    written = json.loads(value)
    assert written["payload"] == {"ts_ms": NOW_US // 1000}
    assert (written["schema"], written["payload"].keys()) == (
        debezium["value"]["schema"],
        debezium["value"]["payload"].keys(),
    )


def test_a_prefix_is_text_of_json():
    encoder = record_stream(EncoderSettings("1", 'a"b', "db", heartbeat_topic="t"))
    out: list[Record] = []
    encoder.encode_heartbeat(1, NOW_US, out)
    assert json.loads(out[0][1] or b"") == {"serverName": 'a"b'}
