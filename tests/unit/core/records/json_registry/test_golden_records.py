"""Captured streams of real servers in JSON with a registry: the bytes of JSON, which fit the registered schemas."""

import json

import pytest

from cdcd.core.catalog.modes import Modes
from cdcd.core.records.encoder import Record
from tests.golden.streams import value_streams
from tests.unit.core.records.json_registry.reading import Schemas
from tests.unit.core.records.protobuf.test_golden_records import MODES, both

STREAMS = value_streams()


def assert_equal(schemas: Schemas, pairs: list[tuple[Record, Record]]) -> None:
    assert len(pairs) > 50
    for (topic, key, value, headers), (other_topic, other_key, other_value, other_headers) in pairs:
        assert topic == other_topic
        assert [name for name, _ in headers or []] == [name for name, _ in other_headers or []]
        for (_, wanted), (name, found) in zip(headers or [], other_headers or [], strict=True):
            assert (schemas.split(found)[1] if name.startswith("__debezium.") else found) == wanted
        for part, plain, data in (("key", key, other_key), ("value", value, other_value)):
            if plain is None or data is None:
                assert plain is data
                continue
            schema_id, text = schemas.split(data)
            assert schemas.uses[schema_id].subject == f"{topic}-{part}"
            assert text == plain
            # JSON has no number for them, as Confluent's converter has none.
            assert {each for _, each in schemas.misfits(schema_id, json.loads(text))} <= {"NaN"}


@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_every_record_of_a_real_server_has_the_bytes_of_json_and_fits_its_schema(golden):
    schemas = Schemas()
    assert_equal(schemas, both(golden, schemas, Modes()))


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
