"""BEGIN, END and the places of records in the formats with a registry are those that JSON has."""

import json
from typing import Any

import pytest

from cdcd.core.errors import TransientError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Delete, LogicalMessage, Message, Truncate, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import MESSAGES, TRANSACTIONS, Record
from cdcd.core.records.stream import RecordStream
from tests.unit.core.records.avro import reading as avro
from tests.unit.core.records.debezium_json.test_transaction_metadata import (
    ITEM,
    NOW_US,
    OTHER,
    RELATIONS,
    TOPIC,
    XID,
    insert,
)
from tests.unit.core.records.json_registry import reading as json_registry
from tests.unit.core.records.protobuf import reading as protobuf
from tests.unit.core.records.protobuf.test_encoder import described

FORMATS = {"avro": avro.Schemas, "protobuf": protobuf.Schemas, "json_registry": json_registry.Schemas}
TRANSACTION: list[Message] = [
    insert(1),
    insert(1, OTHER.oid),
    Update(None, ITEM.oid, "K", (b"1", None), (b"2", b"y")),
    LogicalMessage(None, True, 500, "app", b"hi"),
    Delete(None, ITEM.oid, "K", (b"2", None)),
    Truncate(None, False, False, (ITEM.oid, OTHER.oid)),
]


def encoded(encoder: RecordStream, messages: list[Message], restored: int = 0) -> list[Record]:
    """The records of a transaction, of which so many events were delivered before."""
    metadata = encoder.metadata
    assert metadata is not None
    encoder.begin(XID, 1000, 0, None)
    if restored:
        encoder.skip(restored)
        metadata.restore((("public.item", restored),))
    out: list[Record] = []
    frames = [write_frame(XLogData(500, 500, 0, write_message(message))) for message in messages]
    size = encoder.encode_all(list(frames), False, NOW_US, out)
    size += metadata.begun(out)
    size += metadata.ended(out)
    assert size == sum(
        len(key or b"") + len(value or b"") for topic, key, value, _ in out if topic != "schemas"
    )
    return out


def pair(kind: str, *, registered: bool = True, **settings: Any) -> tuple[Any, RecordStream, RecordStream]:
    """The schemas, an encoder of the format, and one of JSON."""
    schemas: Any = FORMATS[kind]()
    made = record_stream(schemas.settings(transaction_topic=TOPIC, **settings))
    plain = record_stream(
        schemas.settings(
            transaction_topic=TOPIC, **{**settings, "key_format": "json", "value_format": "json"}
        )
    )
    for relation in RELATIONS:
        for encoder in (made, plain):
            encoder.define(relation, described(relation), {})
    if registered:
        for oid in (ITEM.oid, OTHER.oid, MESSAGES, TRANSACTIONS):
            schemas.register(made, oid)
    return schemas, made, plain


def read(schemas: Any, data: bytes) -> Any:
    return schemas.read(data)[1]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("restored", [0, 3])
def test_begin_end_and_places_are_those_of_json(kind: str, restored: int):
    schemas, made, plain = pair(kind)
    ours, theirs = encoded(made, TRANSACTION, restored), encoded(plain, TRANSACTION, restored)
    assert [topic for topic, *_ in ours] == [topic for topic, *_ in theirs]
    assert [topic == TOPIC for topic, *_ in ours].count(True) == (1 if restored else 2)
    for (topic, key, value, _), (_, plain_key, plain_value, _) in zip(ours, theirs, strict=True):
        if value is None or plain_value is None:
            assert value is plain_value
            continue
        found, expected = read(schemas, value), json.loads(plain_value)
        if topic == TOPIC:
            assert found == expected
            assert read(schemas, key or b"") == json.loads(plain_key or b"")
        else:
            assert found["transaction"] == expected["transaction"]
            assert found["op"] == expected["op"]


@pytest.mark.parametrize("kind", FORMATS)
def test_keys_may_be_json(kind: str):
    schemas, made, _ = pair(kind, key_format="json")
    first, *_ = encoded(made, [insert(1)])
    assert first[:2] == (TOPIC, b'{"id":"7:1000"}')
    assert read(schemas, first[2] or b"")["status"] == "BEGIN"


@pytest.mark.parametrize("kind", FORMATS)
def test_the_schemas_of_begin_and_end_are_asked_for_with_those_of_each_table_and_told_once(kind: str):
    schemas, made, _ = pair(kind, registered=False, schemas_topic="schemas")
    subjects = [f"{TOPIC}-key", f"{TOPIC}-value"]
    assert [use.subject for use in made.unregistered(ITEM.oid)][2:] == subjects
    assert [use.subject for use in made.unregistered(TRANSACTIONS)] == subjects
    for oid in (ITEM.oid, OTHER.oid, MESSAGES):
        schemas.register(made, oid)
    told = [json.loads(key or b"") for topic, key, *_ in encoded(made, TRANSACTION) if topic == "schemas"]
    assert [each["subject"] for each in told if "subject" in each and TOPIC in each["subject"]] == subjects
    assert made.unregistered(TRANSACTIONS) == ()
    again = [key for topic, key, *_ in encoded(made, TRANSACTION) if topic == "schemas"]
    assert again == []


@pytest.mark.parametrize("kind", FORMATS)
def test_without_ids_there_is_no_end(kind: str):
    _, made, _ = pair(kind, registered=False)
    metadata = made.metadata
    assert metadata is not None
    made.begin(XID, 1000, 0, None)
    metadata.restore((("public.item", 3),))
    with pytest.raises(TransientError, match="not registered"):
        metadata.ended([])


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_between_transactions_have_no_place(kind: str):
    schemas, made, _ = pair(kind)
    encoded(made, [insert(1)])
    out: list[Record] = []
    made.encode_end_of_rows(ITEM.oid, (1000, 5), NOW_US, out)
    ((_, _, value, _),) = out
    assert read(schemas, value or b"")["transaction"] is None
