"""Flattened records in every format: read by each format's own library, they have what flattened JSON has.

Flattened JSON is compared with a real Debezium in `debezium_json/test_flat_rows.py`.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ProtocolError, SourceError
from cdcd.core.facts import Fact
from cdcd.core.facts.rules import FlatteningCollision
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import (
    Begin,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Update,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.encoder import MESSAGES, Encoder, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import Flattening
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.avro.reading import Schemas as AvroSchemas
from tests.unit.core.records.avro.reading import as_avro_would
from tests.unit.core.records.cloudevents.reading import read_event, size_of
from tests.unit.core.records.debezium_json.test_debezium_schemas import ORDERS
from tests.unit.core.records.debezium_json.test_flat_rows import ALL, added, row
from tests.unit.core.records.debezium_json.test_golden_records import types_of
from tests.unit.core.records.json_registry.reading import Schemas as JsonSchemas
from tests.unit.core.records.protobuf.reading import Schemas as ProtobufSchemas
from tests.unit.core.records.protobuf.reading import expected
from tests.unit.core.records.protobuf.test_golden_records import described

STREAMS = value_streams()
NOW_US = 1_700_000_000_123_456
MODES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
EVERYTHING = Flattening("rewrite-with-tombstone", added(ALL), added(ALL))


class InFormat:
    """Settings for flattened records in a format, and how they are read."""

    def __init__(self, name: str, flattening: Flattening) -> None:
        self.name = name
        self.schemas: Any = (
            ProtobufSchemas(in_order=False)
            if name == "protobuf"
            else JsonSchemas()
            if name == "json_registry"
            else AvroSchemas()
        )
        more: dict[str, Any] = {"flattening": flattening, "value_format": name}
        if name.startswith("cloudevents"):
            _, mode, data = name.split("-")
            more |= {"value_format": "cloudevents", "key_format": "json", "events": CloudEvents(mode, data)}
        self.settings: EncoderSettings = self.schemas.settings(**more)

    def read(self, record: Record, in_json: Any) -> tuple[Any, Any]:
        """What this format has for the value of flattened JSON, and what its reader finds."""
        value = record[2]
        if self.name.startswith("cloudevents"):
            event = read_event(record)
            assert event.get_type() == "io.debezium.connector.postgresql.DataChangeEvent"
            if not self.name.endswith("avro"):
                return in_json, event.get_data()
            # In binary mode, the SDK takes data that are UTF-8 for a text.
            value = event.get_data() if "structured" in self.name else value
        assert isinstance(value, bytes)
        schema_id, found = self.schemas.read(value)
        if self.name == "json_registry":
            assert self.schemas.misfits(schema_id, found) == []
            return in_json, found
        if self.name == "protobuf":
            return expected(in_json, self.schemas.descriptor(schema_id)), found
        return as_avro_would(in_json, json.loads(self.schemas.texts[schema_id])), found


FORMATS = (
    "avro",
    "protobuf",
    "json_registry",
    "cloudevents-structured-json",
    "cloudevents-binary-json",
    "cloudevents-binary-avro",
    "cloudevents-structured-avro",
)


def encoders_of(chosen: InFormat, flattening: Flattening, binary: bool = False) -> list[Encoder]:
    plain = replace(chosen.settings, key_format="json", value_format="json")
    return [record_stream(each, binary, lambda _: None) for each in (plain, chosen.settings)]


def both(golden: Golden, chosen: InFormat, flattening: Flattening) -> list[tuple[Record, Record]]:
    """The flattened records of a stream in JSON and in the format."""
    frames = [frame for frame in golden.frames() if frame[0] == ord("w")]
    messages = [(frame, read_message(frame, XLOG_HEADER)) for frame in frames]
    types = types_of([message for _, message in messages if isinstance(message, Relation)])
    encoders = encoders_of(chosen, flattening, golden.mode == "v1-binary")
    pairs: list[tuple[Record, Record]] = []
    for frame, message in messages:
        written: list[list[Record]] = []
        for encoder in encoders:
            out: list[Record] = []
            if isinstance(message, Relation):
                encoder.define(message, described(message), types)
                chosen.schemas.register(encoder, message.oid)
            elif isinstance(message, Begin):
                encoder.begin(message.xid, message.final_lsn, message.commit_time, 4711)
                encoder.set_origin("elsewhere", 7)
            elif isinstance(message, Insert | Update | Delete | Truncate):
                try:
                    encoder.encode(frame, False, NOW_US, out)
                except (ProtocolError, SourceError) as error:
                    out = [("refused", None, error.message.encode(), None)]
            written.append(out)
        if written[0] and written[0][0][0] == "refused":
            assert written[0] == written[1]
            continue
        pairs += zip(written[0], written[1], strict=True)
    assert encoders[0].counts == encoders[1].counts
    return pairs


def own_headers(record: Record) -> list[tuple[str, bytes]]:
    """The headers that are not an event's, without keys, whose form is the format's."""
    return [
        (name, b"" if name.startswith("__debezium.") else value)
        for name, value in record[3] or []
        if not name.startswith(("ce_", "content-type")) and name not in {"cdcd.unwritable", "__schema_id"}
    ]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_every_flattened_record_of_a_real_server_has_what_json_has(golden: Golden, name: str):
    chosen = InFormat(name, EVERYTHING)
    pairs = both(golden, chosen, EVERYTHING)
    assert len(pairs) > 50
    for plain, record in pairs:
        assert (plain[0], plain[1] is None, plain[2] is None) == (
            record[0],
            record[1] is None,
            record[2] is None,
        )
        assert own_headers(plain) == own_headers(record)
        if plain[2] is None:
            continue
        in_json = json.loads(plain[2])
        for column in json.loads(dict(record[3] or []).get("cdcd.unwritable", b"[]")):
            in_json[column] = None
        wanted, found = chosen.read(record, in_json)
        assert found == wanted


def changes(encoder: Encoder, *messages: Any) -> list[Record]:
    out: list[Record] = []
    encoder.begin(7, 900, 0, 800)
    for message in messages:
        encoder.encode(write_frame(XLogData(500, 500, 0, write_message(message))), False, NOW_US, out)
    return out


FULL = Relation(None, 9, "public", "full", "f", (Column(1, "id", 23, -1), Column(0, "note", 25, -1)))
KEYLESS = Relation(None, 10, "public", "keyless", "f", (Column(0, "id", 23, -1),))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tombstones", [True, False])
def test_a_delete_becomes_what_it_becomes_in_json(name: str, mode: str, tombstones: bool):
    flattening = Flattening(mode, added("op"), added("op"))
    chosen = InFormat(name, flattening)
    chosen.settings = replace(chosen.settings, tombstones=tombstones, skipped=("u",))
    made = []
    for encoder in encoders_of(chosen, flattening):
        for relation, keys in ((FULL, ("id",)), (KEYLESS, ())):
            encoder.define(relation, TableDescription(keys), {})
            chosen.schemas.register(encoder, relation.oid)
        made.append(
            changes(
                encoder,
                Insert(None, 9, row(1, "a")),
                Update(None, 9, "O", row(1, "a"), row(1, "b")),
                Update(None, 9, "O", row(1, "b"), row(2, "c")),
                Delete(None, 9, "O", row(2, "c")),
                Insert(None, 10, row(3)),
                Delete(None, 10, "O", row(3)),
                Truncate(None, False, False, (9,)),
            )
        )
        assert encoder.encode_end_of_rows(9, None, NOW_US, made[-1]) == 0
    assert len(made[0]) == len(made[1])
    for plain, record in zip(*made, strict=True):
        assert (plain[1] is None, plain[2] is None) == (record[1] is None, record[2] is None)
        assert own_headers(plain) == own_headers(record)
        if plain[2] is not None:
            wanted, found = chosen.read(record, json.loads(plain[2]))
            assert found == wanted


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_snapshot_are_flattened_in_every_format(name: str):
    chosen = InFormat(name, EVERYTHING)
    plain = replace(chosen.settings, key_format="json", value_format="json")
    lines = [b"1\t2\ta}%b\n", b"2\t2\t\\N\n", b"3\t2\tc\\td\n"]
    position = SnapshotPosition(40, 50, "first", "last", "true", 6)
    made, encoded = [], []
    for settings in (plain, chosen.settings):
        encoder = record_stream(settings, False, lambda _: None)
        encoder.define(ORDERS, TableDescription(("Order no", "line")), {})
        chosen.schemas.register(encoder, ORDERS.oid)
        out: list[Record] = []
        encoded.append(encoder.encode_rows(ORDERS.oid, lines, position, NOW_US, out, set()))
        made.append(out)
    assert [each.rows for each in encoded] == [3, 3]
    for in_json, record in zip(*made, strict=True):
        assert own_headers(in_json) == own_headers(record)
        expected_row = json.loads(in_json[2] or b"")
        wanted, found = chosen.read(record, expected_row)
        assert found == wanted
        assert {"__source_snapshot", "__snapshot"} & set(expected_row)
        assert expected_row["__commit_lsn"] == 50
    ours = encoded[1].bytes
    assert ours == size_of(made[1])


def test_avro_and_protobuf_have_the_row_as_their_schema():
    avro = InFormat("avro", Flattening("tombstone"))
    encoder = encoders_of(avro, Flattening())[1]
    encoder.define(FULL, TableDescription(("id",)), {})
    avro.schemas.register(encoder, 9)
    ((_, _, value, _),) = changes(encoder, Insert(None, 9, row(1, "a")))
    # As Debezium's ExtractNewRecordState has it: the schema is a record, and not a union with null.
    assert value == b"\0\0\0\0\x02" + b"\x02" + b"\x02\x02a"
    assert {
        use.subject: json.loads(use.text)["name"] for use in encoder_uses(avro) if "Value" in use.text
    } == {"golden.public.full-value": "Value"}
    protobuf = InFormat("protobuf", Flattening("rewrite", added("op,lsn")))
    encoder = encoders_of(protobuf, Flattening())[1]
    encoder.define(FULL, described(FULL), {})
    protobuf.schemas.register(encoder, 9)
    text = next(use.text for use in encoder_uses(protobuf) if use.subject.endswith("-value"))
    assert "message Value {" in text
    assert "optional int32 id = 1" in text
    assert "optional string note = 2" in text


def encoder_uses(chosen: InFormat) -> list[Any]:
    return list(chosen.schemas.uses.values())


@pytest.mark.parametrize("name", FORMATS)
def test_an_added_field_with_the_name_of_a_column_is_left_out_in_every_format(name: str):
    facts: list[Fact] = []
    columns = (Column(1, "__op", 25, -1), Column(0, "__deleted", 16, -1), Column(0, "v", 25, -1))
    relation = Relation(None, 5, "public", "t", "d", columns)
    chosen = InFormat(name, Flattening("rewrite", added("op,table")))
    encoder = record_stream(chosen.settings, False, facts.append)
    encoder.define(relation, TableDescription(("__op",)), {})
    chosen.schemas.register(encoder, 5)
    (made,) = changes(encoder, Insert(None, 5, row("mine", "t", "x")))
    wanted, found = chosen.read(made, {"__op": "mine", "__deleted": True, "v": "x", "__table": "t"})
    assert found == wanted
    assert facts == [FlatteningCollision("public.t", "__op, __deleted", "golden.public.t")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_logical_message_is_not_flattened_in_any_format(name: str):
    message = LogicalMessage(None, True, 500, "prefix", b"content")
    frame = write_frame(XLogData(500, 500, 0, write_message(message)))
    records = []
    chosen = InFormat(name, EVERYTHING)
    for settings in (chosen.settings, replace(chosen.settings, flattening=None)):
        encoder = record_stream(settings, False, lambda _: None)
        chosen.schemas.register(encoder, MESSAGES)
        encoder.begin(7, 900, 0, 800)
        out: list[Record] = []
        encoder.encode(frame, False, NOW_US, out)
        records.append(out)
    assert records[0] == records[1]


def test_the_data_of_an_event_have_the_schema_of_the_flattened_row():
    flattening = Flattening("rewrite", added("op"))
    settings = EncoderSettings(
        "1",
        "p",
        "d",
        value_format="cloudevents",
        flattening=flattening,
        events=CloudEvents("structured", "json_schema"),
    )
    encoder = record_stream(settings, False, lambda _: None)
    encoder.define(FULL, TableDescription(("id",)), {})
    (made,) = changes(encoder, Insert(None, 9, row(1, "a")))
    data = read_event(made).get_data()
    assert data["payload"] == {"id": 1, "note": "a", "__deleted": "false", "__op": "c"}
    assert data["schema"]["name"] == "p.public.full.Value"
    assert [field["field"] for field in data["schema"]["fields"]] == list(data["payload"])
