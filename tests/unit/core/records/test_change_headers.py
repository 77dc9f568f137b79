"""The header `cdcd.change` says in every format what the envelope in JSON says of a change."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import Begin, Column, Delete, Insert, Relation, Truncate, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record, SnapshotPosition, record_bytes
from cdcd.core.records.flattening import Flattening
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.core.records.schemas import read_form
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.debezium_json.test_flat_rows import row
from tests.unit.core.records.debezium_json.test_golden_records import types_of
from tests.unit.core.records.protobuf.test_golden_records import described
from tests.unit.core.records.test_flattened_formats import changes

FULL = Relation(None, 9, "public", 'full "é"', "f", (Column(1, "id", 23, -1), Column(0, "note", 25, -1)))
KEYLESS = Relation(None, 10, "public", "keyless", "f", (Column(0, "id", 23, -1),))
FLAT = {mode: Flattening(mode) for mode in ("tombstone", "rewrite", "rewrite-with-tombstone")}
FORMATS = ("json", "json_schema", "json_registry", "avro", "protobuf")
NOW_US = 1_700_000_000_123_456


def encoder_of(value_format: str, flattening: Flattening | None, **more: Any) -> Encoder:
    """An encoder whose schemas have ids."""
    more = {"change_header": True, "schemas_topic": "p.schemas", **more}
    settings = EncoderSettings(
        "1",
        "p",
        "d",
        value_format=value_format,
        flattening=flattening,
        schema_ids=SchemaIds("http://registry"),
        **more,
    )
    return record_stream(settings, False, lambda _: None)


def define(encoder: Encoder, relation: Relation, ids: SchemaIds, *keys: str) -> None:
    encoder.define(relation, TableDescription(keys), {})
    for use in encoder.unregistered(relation.oid):
        ids.put(use, (ids.newest() or 0) + 1)


def told(records: list[Record]) -> list[Any]:
    """The headers of records of tables, without descriptions; None for a record without the header."""
    return [
        json.loads(found) if (found := dict(headers or []).get("cdcd.change")) else None
        for topic, _, _, headers in records
        if topic != "p.schemas"
    ]


def said(records: list[Record]) -> list[Any]:
    """What envelopes in JSON say of their changes; None for a tombstone."""
    found: list[Any] = []
    for topic, _, value, _ in records:
        if topic == "p.schemas":
            continue
        if value is None:
            found.append(None)
            continue
        envelope = json.loads(value)
        names = ("ts_us", "schema", "table", "commit_lsn", "schema_id", "event_serial_no")
        found.append({"op": envelope["op"], "source": {name: envelope["source"][name] for name in names}})
    return found


MESSAGES = (
    Insert(None, 9, row(1, "a")),
    Update(None, 9, "O", row(1, "a"), row(1, "b")),
    Update(None, 9, "O", row(1, "b"), row(2, "c")),
    Delete(None, 9, "O", row(2, "c")),
    Insert(None, 10, row(3)),
    Update(None, 10, "O", row(3), row(4)),
    Truncate(None, False, False, (9, 10)),
)


def records_of(value_format: str, flattening: Flattening | None, **more: Any) -> list[Record]:
    """The records of changes, of a truncate that no event made, and of rows of a snapshot."""
    encoder = encoder_of(value_format, flattening, **more)
    ids = encoder._settings.schema_ids  # type: ignore[attr-defined]
    define(encoder, FULL, ids, "id")
    define(encoder, KEYLESS, ids)
    made = changes(encoder, *MESSAGES)
    encoder.encode_end_of_rows(9, (899, 5), NOW_US, made)
    position = SnapshotPosition(40, 950, "first", "last", "true", 6)
    lines = [b"1\ta\n", b"2\tb\n", b"3\t\\N\n"]
    out: list[Record] = []
    encoded = encoder.encode_rows(9, lines, position, NOW_US, out, set())
    if more.get("change_header", True):
        headers = sum(
            len(name) + len(value) for *_, each in out for name, value in each or [] if name == "cdcd.change"
        )
        assert encoded.bytes == sum(record_bytes(key, value, None) for _, key, value, _ in out) + headers
    return made + out


@pytest.mark.parametrize("value_format", FORMATS)
def test_each_record_of_an_envelope_says_what_the_envelope_in_json_says(value_format: str):
    expected = said(records_of("json", None))
    plain = records_of(value_format, None, change_header=False)
    made = records_of(value_format, None)
    ids = {each["source"].pop("schema_id") for each in told(made) if each}
    for each in expected:
        if each:
            assert each["source"].pop("schema_id") is not None
    found = told(made)
    for each in found:
        if each:
            each["source"].pop("schema_id", None)
    assert found == expected
    assert len(ids) == 2
    # AND without the option, no record has the header, and keys and values are the same but for the schema's id
    assert set(told(plain)) == {None}
    assert [each[:2] for each in plain if each[0] != "p.schemas"] == [
        each[:2] for each in made if each[0] != "p.schemas"
    ]


@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize("mode", FLAT)
def test_each_change_of_flattened_rows_has_one_header(value_format: str, mode: str):
    expected = [each for each in said(records_of("json", None)) if each]
    made = records_of(value_format, FLAT[mode])
    found = [each for each in told(made) if each]
    if mode == "tombstone":
        # A table without a key has no tombstones. A mirror refuses it.
        assert [each["op"] for each in found] == [each["op"] for each in expected]
    for each in (*found, *expected):
        each["source"].pop("schema_id")
    assert found == expected
    # AND a tombstone has the header only if no other record tells of the delete
    bare = [
        dict(headers or [])
        for topic, key, value, headers in made
        if topic != "p.schemas" and key is not None and value is None
    ]
    assert ["cdcd.change" in each for each in bare] == (
        [True, True] if mode == "tombstone" else [False, False] if "with" in mode else []
    )
    # AND a truncate has a record without key and value
    assert [
        json.loads(dict(headers or [])["cdcd.change"])["source"]["table"]
        for topic, key, value, headers in made
        if topic != "p.schemas" and key is None and value is None
    ] == [FULL.name, KEYLESS.name, FULL.name]


def test_a_truncate_that_is_not_wanted_has_no_record():
    made = records_of("json", FLAT["rewrite"], truncate=False)
    assert "t" not in [each["op"] for each in told(made) if each]


def test_deletes_of_rows_that_the_source_lacks_have_the_header():
    encoder = encoder_of("json", None)
    define(encoder, FULL, SchemaIds(), "id")
    out: list[Record] = []
    position = SnapshotPosition(40, 950, "first", "last", "true", 6)
    encoder.encode_deletes(9, [(b"1",), (b"2",)], position, NOW_US, out)
    assert told(out) == said(out)
    assert [each["source"]["event_serial_no"] for each in told(out) if each] == [7, 8]


@pytest.mark.parametrize("golden", value_streams(), ids=str)
def test_every_change_of_a_real_server_has_the_header(golden: Golden):
    frames = [frame for frame in golden.frames() if frame[0] == ord("w")]
    messages = [(frame, read_message(frame, XLOG_HEADER)) for frame in frames]
    types = types_of([message for _, message in messages if isinstance(message, Relation)])
    settings = EncoderSettings("1", "p", "d", schemas_topic="p.schemas", change_header=True)
    encoder = record_stream(settings, golden.mode == "v1-binary", lambda _: None)
    out: list[Record] = []
    for frame, message in messages:
        if isinstance(message, Relation):
            encoder.define(message, described(message), types)
        elif isinstance(message, Begin):
            encoder.begin(message.xid, message.final_lsn, message.commit_time, 4711)
        elif isinstance(message, Insert | Update | Delete | Truncate):
            encoder.encode(frame, False, NOW_US, out)
    assert len(out) > 50
    assert told(out) == said(out)


def test_a_description_names_the_format_and_a_registration_has_the_schema():
    made = records_of("avro", None)
    registrations: list[bytes] = []
    forms: list[bytes] = []
    for topic, _, value, _ in made:
        if topic == "p.schemas":
            assert value is not None
            (registrations if b'"subject"' in value else forms).append(value)
    assert {json.loads(each)["type"] for each in registrations} == {"AVRO"}
    assert all(json.loads(json.loads(each)["text"])["type"] == "record" for each in registrations)
    found = [read_form(each) for each in forms]
    assert [form.change_header for _, form in found] == ["avro", "avro"]
    # AND the description of a pipeline without the option is another one
    for fingerprint, form in found:
        assert form.fingerprint == fingerprint
        assert replace(form, change_header="").fingerprint != fingerprint


def test_rows_of_a_transaction_that_is_open_are_no_drafts():
    encoder = encoder_of("json", None)
    define(encoder, FULL, SchemaIds(), "id")
    frames: list[Any] = [write_frame(XLogData(500, 500, 0, write_message(Insert(5, 9, row(1, "a")))))]
    relation = replace(FULL, xid=5)
    assert encoder.draft_all(frames, {9: (1, relation)}) == frames
