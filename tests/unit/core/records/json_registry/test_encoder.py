import json
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.errors import TransientError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Insert, LogicalMessage, Message, Relation, Truncate, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import HEARTBEATS, MESSAGES, Record, SnapshotPosition
from cdcd.core.records.stream import RecordStream
from tests.unit.core.records.debezium_json.test_encoder import (
    COMMIT_TIME,
    ID_AND_NAME,
    LSN,
    NOW_US,
    OID,
    UNAVAILABLE,
    WITH_NOTE,
    relation,
    row,
)
from tests.unit.core.records.json_registry.reading import Schemas

EU = "golden.public.t-eu"


class Harness:
    """Encoders of this format, whose schemas are registered, and of JSON, in the same transaction."""

    def __init__(self, of: Relation = ID_AND_NAME, *, registered: bool = True, **settings: Any) -> None:
        self.schemas = Schemas()
        self.encoder = record_stream(self.schemas.settings(**settings))
        in_json = {**settings, "key_format": "json", "value_format": "json"}
        self.plain = record_stream(self.schemas.settings(**in_json))
        for encoder in (self.encoder, self.plain):
            encoder.define(of, TableDescription(), {})
        if registered:
            for oid in (OID, MESSAGES, HEARTBEATS):
                self.schemas.register(self.encoder, oid)
        for encoder in (self.encoder, self.plain):
            encoder.begin(7, 1000, COMMIT_TIME, 900)

    def records(self, message: Message) -> list[Record]:
        return self._encoded(self.encoder, message)

    def _encoded(self, encoder: RecordStream, message: Message) -> list[Record]:
        out: list[Record] = []
        frame = write_frame(XLogData(LSN, LSN, 0, write_message(message)))
        size = encoder.encode(frame, False, NOW_US, out)
        assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
        return out

    def assert_as_json(self, message: Message) -> list[Record]:
        """The records of JSON, which those of this format are behind the ids of schemas."""
        plain, made = self._encoded(self.plain, message), self.records(message)
        assert len(plain) == len(made)
        for expected, (topic, key, value, headers) in zip(plain, made, strict=True):
            bare = [
                (name, self.schemas.split(data)[1] if name.startswith("__debezium.") else data)
                for name, data in headers or []
            ]
            assert expected == (topic, self._text(key, "key"), self._text(value, "value"), bare or None)
        return plain

    def _text(self, data: bytes | None, part: str) -> bytes | None:
        if data is None:
            return None
        schema_id, text = self.schemas.split(data)
        assert self.schemas.uses[schema_id].subject.endswith(f"-{part}")
        assert self.schemas.misfits(schema_id, json.loads(text)) == []
        return text


def test_a_record_is_zero_the_id_of_the_schema_and_the_json_of_the_value():
    ((_, key, value, _),) = Harness().records(Insert(None, OID, row("1", "a")))
    assert key == b'\0\0\0\0\xf0{"id":1}'
    assert value is not None
    assert value.startswith(b'\0\0\0\0\xf1{"before":null,"after":{"id":1,"name":"a"},"source":{')


def test_a_changed_key_has_the_other_key_with_its_schema_in_a_header():
    plain = Harness().assert_as_json(Update(None, OID, "K", row("1", None), row("2", "b")))
    assert [value is None for _, _, value, _ in plain] == [False, True, False]


def test_rows_truncates_and_values_that_were_not_sent_are_as_in_json():
    harness = Harness(relation(*WITH_NOTE, identity="f"))
    harness.assert_as_json(Update(None, OID, "O", row("1", "a", "x"), row("1", "b", None)))
    (record,) = harness.assert_as_json(Update(None, OID, "O", row("1", "a", None), (b"1", b"b", UNCHANGED)))
    assert json.loads(record[2] or b"")["after"]["note"] == UNAVAILABLE
    (record,) = harness.assert_as_json(Truncate(None, False, False, (OID,)))
    assert record[1] is None


def test_logical_messages_are_as_in_json():
    Harness().assert_as_json(LogicalMessage(None, True, LSN, "app", b'\xff"hi"'))


def test_heartbeats_are_as_in_json():
    harness = Harness(heartbeat_topic="beats")
    plain: list[Record] = []
    made: list[Record] = []
    harness.plain.encode_heartbeat(17, NOW_US, plain)
    size = harness.encoder.encode_heartbeat(17, NOW_US, made)
    ((_, key, value, headers),) = made
    assert key is not None
    assert value is not None
    assert size == len(key) + len(value)
    assert plain == [("beats", harness.schemas.split(key)[1], harness.schemas.split(value)[1], headers)]


def test_keys_may_be_json_without_an_id():
    harness = Harness(key_format="json")
    first, tombstone, created = harness.records(Update(None, OID, "K", row("1", None), row("2", "b")))
    assert (first[1], tombstone[1], created[1]) == (b'{"id":1}', b'{"id":1}', b'{"id":2}')
    assert created[3] == [("__debezium.oldkey", b'{"id":1}')]
    assert next(use.subject for use in harness.schemas.uses.values()) == "golden.public.t-value"


@pytest.mark.parametrize("key_format", ["json", "json_registry"])
def test_rows_of_a_snapshot_are_as_in_json_without_those_whose_key_was_delivered(key_format: str):
    harness = Harness(key_format=key_format)
    position = SnapshotPosition(40, 50, "first", "last", "true", 6)
    lines = [b"1\ta\n", b"2\tb\n", b"3\t\\N\n"]
    head = b"" if key_format == "json" else b"\0\0\0\0\xf0"
    made: list[Record] = []
    plain: list[Record] = []
    encoded = harness.encoder.encode_rows(OID, lines, position, NOW_US, made, {head + b'{"id":2}'})
    expected = harness.plain.encode_rows(OID, lines, position, NOW_US, plain, {b'{"id":2}'})
    assert (encoded.rows, encoded.left_out) == (expected.rows, expected.left_out)
    assert [head + key for key in expected.keys or []] == encoded.keys
    assert encoded.bytes == sum(len(key or b"") + len(value or b"") for _, key, value, _ in made)
    assert [(key, harness.schemas.split(value or b"")[1]) for _, key, value, _ in made] == [
        (head + (key or b""), value) for _, key, value, _ in plain
    ]
    assert harness.encoder.counts == harness.plain.counts


def test_a_routed_record_has_the_ids_of_its_topics_schemas():
    harness = Harness(routes=(RoutedTopics("public.t", (EU,)),))
    for record in harness.records(Update(None, OID, "K", (b"1", None), row("2", "a"))):
        topic, key, value, headers = harness.encoder.to_topic(OID, record, EU)
        assert topic == EU
        pairs = [(key, record[1]), (value, record[2])]
        pairs += [(mine, its) for (_, mine), (_, its) in zip(headers or [], record[3] or [], strict=True)]
        for mine, its in pairs:
            if mine is None or its is None:
                assert mine is its
                continue
            my_id, my_text = harness.schemas.split(mine)
            assert harness.schemas.uses[my_id].subject.startswith(EU)
            assert my_text == harness.schemas.split(its)[1]


def test_the_schemas_topic_names_each_id_before_the_first_record_that_has_it():
    harness = Harness(schemas_topic="schemas")
    out: list[Record] = []
    frame = write_frame(XLogData(LSN, LSN, 0, write_message(Insert(None, OID, row("1", "a")))))
    for _ in range(2):
        harness.encoder.encode(frame, False, NOW_US, out)
    told = [json.loads(key or b"").get("subject") for topic, key, *_ in out if topic == "schemas"]
    assert [each for each in told if each] == ["golden.public.t-key", "golden.public.t-value"]
    assert [topic for topic, *_ in out][-2:] == ["golden.public.t"] * 2


@pytest.mark.parametrize(
    "message", [Insert(None, OID, row("1", "a")), LogicalMessage(None, True, LSN, "a", b"")]
)
def test_without_ids_there_is_no_record(message: Message):
    with pytest.raises(TransientError, match="not registered"):
        Harness(registered=False).records(message)
    with pytest.raises(TransientError, match="not registered"):
        Harness(registered=False, heartbeat_topic="beats").encoder.encode_heartbeat(1, NOW_US, [])


def test_a_large_value_has_its_id_too():
    plain = Harness().assert_as_json(Insert(None, OID, row("1", "ß" * 1_000_000)))
    assert len(plain[0][2] or b"") > 2_000_000
