"""Captured streams of real servers in Avro: read by fastavro, every value is the one that JSON has."""

import json

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ProtocolError, SourceError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Begin, Delete, Insert, LogicalMessage, Relation, Truncate, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoder, Record
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.avro.reading import Schemas, as_avro_would, without
from tests.unit.core.records.debezium_json.test_golden_records import KEYS, types_of

STREAMS = value_streams()


def both(golden: Golden, schemas: Schemas, skipped: tuple[str, ...] = ()) -> list[tuple[Record, Record]]:
    """The records of a stream in JSON and in Avro."""
    frames = [frame for frame in golden.frames() if frame[0] == ord("w")]
    messages = [(frame, read_message(frame, XLOG_HEADER)) for frame in frames]
    types = types_of([message for _, message in messages if isinstance(message, Relation)])
    avro = record_stream(schemas.settings(skipped=skipped))
    encoders: list[Encoder] = [
        record_stream(schemas.settings(key_format="json", value_format="json", skipped=skipped)),
        avro,
    ]
    schemas.register(avro, 0)
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
                encoder.encode_message(frame, False, None, 1_700_000_000_123_456, out)
            elif isinstance(message, Insert | Update | Delete | Truncate | LogicalMessage):
                try:
                    size = encoder.encode(frame, False, 1_700_000_000_123_456, out)
                    assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
                except (ProtocolError, SourceError) as error:
                    written.append([("refused", None, error.message.encode(), None)])
                    continue
            written.append(out)
        json_records, avro_records = written
        if avro_records and avro_records[0][0] == "refused":
            assert json_records == avro_records
            continue
        pairs += zip(json_records, avro_records, strict=True)
    return pairs


@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_every_record_of_a_real_server_has_the_values_that_json_has(golden):
    schemas = Schemas()
    pairs = both(golden, schemas)
    assert len(pairs) > 50
    for (topic, key, value, headers), (avro_topic, avro_key, avro_value, avro_headers) in pairs:
        assert (topic, key is None, value is None) == (avro_topic, avro_key is None, avro_value is None)
        named = dict(avro_headers or []).get("cdcd.unwritable")
        unwritable = json.loads(named) if named else []
        names = [name for name, _ in avro_headers or [] if name != "cdcd.unwritable"]
        assert [name for name, _ in headers or []] == names
        for part, json_data, data in (("key", key, avro_key), ("value", value, avro_value)):
            if json_data is not None and data is not None:
                schema_id, read = schemas.read(data)
                assert schemas.uses[schema_id].subject == f"{topic}-{part}"
                assert read == as_avro_would(
                    without(json.loads(json_data), unwritable), json.loads(schemas.texts[schema_id])
                )


@pytest.mark.parametrize("skipped", [("c",), ("u",), ("d",)])
def test_skipped_operations_have_no_records_here_either(skipped):
    pairs = both(STREAMS[-1], Schemas(), skipped)
    assert 0 < len(pairs) < len(both(STREAMS[-1], Schemas()))
    for (_, _, value, _), (_, _, data, _) in pairs:
        assert (value is None) == (data is None)


def test_records_of_usual_rows_are_less_than_half_as_large_as_in_json():
    pairs = both(STREAMS[0], Schemas())
    usual = [pair for pair in pairs if len(pair[0][2] or b"") < 2000]
    in_json, in_avro = (
        sum(len(record[1] or b"") + len(record[2] or b"") for record in each)
        for each in zip(*usual, strict=True)
    )
    assert in_avro <= 0.45 * in_json, (in_avro, in_json)
