"""Captured streams of real servers in Protobuf: read by Google's runtime, every value is the one that JSON has."""

import json
from typing import Any, Protocol

import pytest

from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.errors import ProtocolError, SourceError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Begin, Delete, Insert, LogicalMessage, Relation, Truncate, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.avro.reading import without
from tests.unit.core.records.debezium_json.test_golden_records import KEYS, types_of
from tests.unit.core.records.protobuf.reading import Schemas, expected

STREAMS = value_streams()
NOW_US = 1_700_000_000_123_456


def described(relation: Relation) -> TableDescription:
    """What the catalog would say of a table of which no column was dropped."""
    columns = [
        CatalogColumn(column.name, number, "", column.type_oid, 1, None)
        for number, column in enumerate(relation.columns, start=1)
    ]
    return TableDescription(KEYS.get(relation.name, ()), (), tuple(columns))


class Registering(Protocol):
    """Settings of a format with a registry, and its registry."""

    def settings(self, **more: Any) -> EncoderSettings: ...
    def register(self, encoder: Encoder, oid: int) -> int: ...


def both(
    golden: Golden, schemas: Registering, modes: Modes, skipped: tuple[str, ...] = ()
) -> list[tuple[Record, Record]]:
    """The records of a stream in JSON and in Protobuf."""
    frames = [frame for frame in golden.frames() if frame[0] == ord("w")]
    messages = [(frame, read_message(frame, XLOG_HEADER)) for frame in frames]
    types = types_of([message for _, message in messages if isinstance(message, Relation)])
    protobuf = record_stream(schemas.settings(modes=modes, skipped=skipped))
    encoders: list[Encoder] = [
        record_stream(schemas.settings(key_format="json", value_format="json", modes=modes, skipped=skipped)),
        protobuf,
    ]
    schemas.register(protobuf, 0)
    pairs: list[tuple[Record, Record]] = []
    for frame, message in messages:
        written: list[list[Record]] = []
        for encoder in encoders:
            out: list[Record] = []
            if isinstance(message, Relation):
                encoder.define(message, described(message), types)
                if encoder is protobuf:
                    schemas.register(protobuf, message.oid)
            elif isinstance(message, Begin):
                encoder.begin(message.xid, message.final_lsn, message.commit_time, 4711)
            elif isinstance(message, LogicalMessage) and not message.transactional:
                encoder.encode_message(frame, False, None, NOW_US, out)
            elif isinstance(message, Insert | Update | Delete | Truncate | LogicalMessage):
                try:
                    size = encoder.encode(frame, False, NOW_US, out)
                    assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
                except (ProtocolError, SourceError) as error:
                    out = [("refused", None, error.message.encode(), None)]
            written.append(out)
        json_records, records = written
        if records and records[0][0] == "refused":
            assert json_records == records
            continue
        pairs += zip(json_records, records, strict=True)
    return pairs


def assert_equal(schemas: Schemas, pairs: list[tuple[Record, Record]]) -> None:
    assert len(pairs) > 50
    for (topic, key, value, headers), (other_topic, other_key, other_value, other_headers) in pairs:
        assert (topic, key is None, value is None) == (other_topic, other_key is None, other_value is None)
        named = dict(other_headers or []).get("cdcd.unwritable")
        unwritable = json.loads(named) if named else []
        assert _names(headers) == _names(other_headers)
        for part, json_data, data in (("key", key, other_key), ("value", value, other_value)):
            if json_data is not None and data is not None:
                schema_id, read = schemas.read(data)
                assert schemas.uses[schema_id].subject == f"{topic}-{part}"
                assert read == expected(
                    without(json.loads(json_data), unwritable), schemas.descriptor(schema_id)
                )


def _names(headers: list[tuple[str, bytes]] | None) -> list[str]:
    return [name for name, _ in headers or [] if name != "cdcd.unwritable"]


@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_every_record_of_a_real_server_has_the_values_that_json_has(golden):
    schemas = Schemas()
    assert_equal(schemas, both(golden, schemas, Modes()))


MODES = [
    Modes("precise", "connect", "numeric", "hex", "map"),
    Modes("double", "nanoseconds", "string", "base64", "map"),
    Modes("string", "isostring", "string", "base64-url-safe", "json"),
    Modes("precise", "microseconds", "numeric", "bytes", "map"),
]


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_the_same_under_each_mode(modes):
    schemas = Schemas()
    assert_equal(schemas, both(STREAMS[-1], schemas, modes))


@pytest.mark.parametrize("skipped", [("c",), ("u",), ("d",)])
def test_skipped_operations_have_no_records_here_either(skipped):
    schemas = Schemas()
    pairs = both(STREAMS[-1], schemas, Modes(), skipped)
    assert len(pairs) < len(both(STREAMS[-1], Schemas(), Modes()))
    assert_equal(schemas, pairs)


def test_records_of_usual_rows_are_less_than_half_as_large_as_in_json():
    pairs = both(STREAMS[0], Schemas(), Modes())
    usual = [pair for pair in pairs if len(pair[0][2] or b"") < 2000]
    in_json, in_protobuf = (
        sum(len(record[1] or b"") + len(record[2] or b"") for record in each)
        for each in zip(*usual, strict=True)
    )
    assert in_protobuf <= 0.5 * in_json, (in_protobuf, in_json)
