"""Captured streams of real servers through stages 4 to 6."""

import json
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Begin, Delete, Insert, LogicalMessage, Relation, Truncate, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from tests.golden.streams import Golden, captured
from tests.unit.core.records.formats import json_of

PLAIN = [golden for golden in captured() if golden.mode == "v1"]
BINARY = [golden for golden in captured() if golden.mode == "v1-binary"]

KEYS = {"whole": ("id",), "by_index": (), "no_columns": ()}


def types_of(relations: list[Relation]) -> dict[int, TypeDescription]:
    """What the catalog would say of the workload's own types, found by the columns that have them."""
    kinds = {"mail": "d", "home": "c"}
    return {
        column.type_oid: TypeDescription(
            column.type_oid, "public", "its name", kinds.get(column.name, "e"), "U", 0, 25, -1
        )
        for relation in relations
        for column in relation.columns
        if column.type_oid >= 16384
    }


SETTINGS = EncoderSettings("test", "golden", "db")


def encoded(
    golden: Golden, writes: bool | None = None, settings: EncoderSettings = SETTINGS
) -> tuple[list[Record], list[str]]:
    """Every record, and the messages of those frames that were refused. `writes`: which way rows go."""
    frames = [frame for frame in golden.frames() if frame[0] == ord("w")]
    messages = [(frame, read_message(frame, XLOG_HEADER)) for frame in frames]
    types = types_of([message for _, message in messages if isinstance(message, Relation)])
    encoder = record_stream(settings)
    if writes is not None:
        json_of(encoder).writes = writes
    records: list[Record] = []
    refused: list[str] = []
    last_commit_lsn = None
    for frame, message in messages:
        if isinstance(message, Relation):
            encoder.define(message, TableDescription(KEYS.get(message.name, ())), types)
        elif isinstance(message, Begin):
            encoder.begin(message.xid, message.final_lsn, message.commit_time, last_commit_lsn)
            last_commit_lsn = message.final_lsn
        elif isinstance(message, LogicalMessage) and not message.transactional:
            encoder.encode_message(frame, False, last_commit_lsn, 0, records)
        elif isinstance(message, Insert | Update | Delete | Truncate | LogicalMessage):
            try:
                encoder.encode(frame, False, 0, records)
            except ProtocolError as error:
                refused.append(error.message)
    return records, refused


@pytest.mark.parametrize("golden", PLAIN, ids=str)
def test_every_event_of_a_real_server_becomes_json_in_the_order_of_the_stream(golden):
    records, refused = encoded(golden)
    assert refused == []
    places = []
    for topic, key, value, headers in records:
        assert key is None or isinstance(json.loads(key), dict)
        for name, data in headers or []:
            assert name.startswith(("__debezium.", "cdcd."))
            json.loads(data)
        if value is not None:
            envelope: dict[str, Any] = json.loads(value)
            source = envelope["source"]
            places.append((source["commit_lsn"], source["event_serial_no"]))
            assert topic.startswith("golden.")
    assert places == sorted(places)
    assert len(set(places)) > 50


@pytest.mark.parametrize("golden", PLAIN, ids=str)
def test_the_first_person_is_as_she_was_written(golden):
    records, _ = encoded(golden)
    people = [json.loads(value) for topic, _, value, _ in records if topic.endswith(".person") and value]
    assert people[0]["after"] == {
        "id": 1,
        "name": "Ada",
        "mood": "happy",
        "today": "ok",
        "mail": "ada@example.org",
        "home": '("Main Street",7)',
        "tags": ["x", "y z", None],
        "paid": "12.50",
        "born": "1815-12-10T12:00:00.000000Z",
        "photo": "AP8Q",
        "note": "z" * 3000,
        "grants": "postgres=r/postgres",
    }
    assert people[2]["after"]["paid"] == "NAN"
    assert people[2]["after"]["note"] == "tab\tline\nend"
    renamed = people[3]
    assert (renamed["op"], renamed["before"], renamed["after"]["name"]) == ("u", None, "Ada Lovelace")
    assert renamed["after"]["note"] == "__debezium_unavailable_value"


@pytest.mark.parametrize("golden", BINARY, ids=str)
def test_the_binary_form_gives_the_same_bytes(golden):
    as_text, _ = encoded(Golden(golden.version, "v1"))
    as_binary, refused = encoded(golden)
    assert refused == []
    assert as_binary == as_text
