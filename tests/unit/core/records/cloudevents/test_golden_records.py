"""Captured streams of real servers as CloudEvents: read by the CNCF's SDK, every event has what plain JSON has."""

import json
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ProtocolError, SourceError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Begin, Delete, Insert, LogicalMessage, Relation, Truncate, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.avro.reading import Schemas, as_avro_would, without
from tests.unit.core.records.cloudevents.reading import (
    events_settings,
    extensions_of,
    read_event,
    said_of_source,
    size_of,
)
from tests.unit.core.records.debezium_json.test_golden_records import KEYS, types_of

STREAMS = value_streams()
NOW_US = 1_700_000_000_123_456


def both(golden: Golden, schemas: Schemas, settings: EncoderSettings) -> list[tuple[Record, Record]]:
    """The records of a stream as plain JSON and as events."""
    frames = [frame for frame in golden.frames() if frame[0] == ord("w")]
    messages = [(frame, read_message(frame, XLOG_HEADER)) for frame in frames]
    types = types_of([message for _, message in messages if isinstance(message, Relation)])
    plain = EncoderSettings("test", "golden", "db")
    encoders: list[Encoder] = [
        record_stream(each, golden.mode == "v1-binary", lambda _: None) for each in (plain, settings)
    ]
    schemas.register(encoders[1], 0)
    pairs: list[tuple[Record, Record]] = []
    for frame, message in messages:
        written: list[list[Record]] = []
        for encoder in encoders:
            out: list[Record] = []
            if isinstance(message, Relation):
                encoder.define(message, TableDescription(KEYS.get(message.name, ())), types)
                schemas.register(encoder, message.oid)
            elif isinstance(message, Begin):
                encoder.begin(message.xid, message.final_lsn, message.commit_time, 4711)
            elif isinstance(message, LogicalMessage) and not message.transactional:
                encoder.encode_message(frame, False, None, NOW_US, out)
            elif isinstance(message, Insert | Update | Delete | Truncate | LogicalMessage):
                try:
                    size = encoder.encode(frame, False, NOW_US, out)
                    assert size == size_of(out)
                except (ProtocolError, SourceError) as error:
                    out = [("refused", None, error.message.encode(), None)]
            written.append(out)
        if written[0] and written[0][0][0] == "refused":
            assert written[0] == written[1]
            continue
        pairs += zip(written[0], written[1], strict=True)
    assert len(pairs) > 50
    return pairs


def check_around(event: Any, record: Record, envelope: dict[str, Any]) -> None:
    """Everything but the data and the key."""
    assert event.get_source() == "/debezium/postgresql/golden"
    assert event.get_specversion() == "1.0"
    kind = "MessageEvent" if envelope["op"] == "m" else "DataChangeEvent"
    assert event.get_type() == f"io.debezium.connector.postgresql.{kind}"
    assert event.get_time() is not None
    assert int(event.get_time().timestamp() * 1000 + 0.5) == envelope["source"]["ts_ms"]
    assert extensions_of(event) == said_of_source(envelope)


@pytest.mark.parametrize("mode", ["structured", "binary"])
@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_every_event_of_a_real_server_has_what_json_has(golden, mode):
    schemas = Schemas()
    settings = events_settings(schemas, CloudEvents(mode))
    ids: list[str] = []
    for plain, record in both(golden, schemas, settings):
        assert record[:2] == plain[:2]
        if plain[2] is None:
            assert record == plain
            continue
        envelope = json.loads(plain[2])
        event = read_event(record)
        ids.append(event.get_id())
        check_around(event, record, envelope)
        assert event.get_datacontenttype() == "application/json"
        names = ["message"] if envelope["op"] == "m" else ["before", "after"]
        assert event.get_data() == {name: envelope[name] for name in names}
        others = [each for each in record[3] or [] if not each[0].startswith(("ce_", "content-type"))]
        assert others == (plain[3] or [])
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("mode", ["structured", "binary"])
@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_data_in_avro_have_the_values_that_json_has(golden, mode):
    schemas = Schemas()
    settings = events_settings(schemas, CloudEvents(mode, "avro"))
    ids: list[str] = []
    for (topic, key, value, plain_headers), record in both(golden, schemas, settings):
        assert (topic, key is None, value is None) == (record[0], record[1] is None, record[2] is None)
        if value is None:
            continue
        others = [each for each in record[3] or [] if not each[0].startswith(("ce_", "content-type"))]
        named = dict(others).get("cdcd.unwritable")
        unwritable = json.loads(named) if named else []
        assert [name for name, _ in plain_headers or []] == [
            name for name, _ in others if name != "cdcd.unwritable"
        ]
        envelope = without(json.loads(value), unwritable)
        event = read_event(record)
        ids.append(event.get_id())
        check_around(event, record, envelope)
        assert event.get_datacontenttype() == "application/avro"
        data = event.get_data()
        data = data.encode() if isinstance(data, str) else data
        schema_id, read = schemas.read(data)
        assert event.get_dataschema() == f"http://registry/schemas/ids/{schema_id}"
        assert schemas.uses[schema_id].subject == f"{topic}-value"
        names = ["message"] if envelope["op"] == "m" else ["before", "after"]
        expected = {name: envelope[name] for name in names}
        assert read == as_avro_would(expected, json.loads(schemas.texts[schema_id]))
        if settings.key_format == "json":
            assert record[1] == key
        elif key is not None and record[1] is not None:
            key_id, read_key = schemas.read(record[1])
            assert read_key == as_avro_would(
                without(json.loads(key), unwritable), json.loads(schemas.texts[key_id])
            )
    assert len(set(ids)) == len(ids)
