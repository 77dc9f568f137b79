import json
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

import pytest

from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import EXCLUDE, ColumnRule
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import WithoutStreamingError
from cdcd.core.facts import Fact, Observer, unheard
from cdcd.core.facts.rules import ValueUnwritable
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.stream import RecordStream
from cdcd.core.transactions.drafts import SpoolItem, without_first
from tests.unit.core.records.cloudevents.reading import extensions_of, read_event, said_of_source, size_of
from tests.unit.core.records.debezium_json.test_drafting import (
    DESCRIPTIONS,
    RELATIONS,
    drafted,
    every_change,
    framed,
    row,
)
from tests.unit.core.records.formats import json_of

OID, OTHER = 16384, 16385
NOW_US = 1_700_000_000_123_456
COMMIT_US = 1_600_000_000_123_456
POSTGRES_EPOCH_US = 946_684_800_000_000
ITEM = Relation(None, OID, "public", "item", "d", (Column(1, "id", 23, -1), Column(0, "note", 25, -1)))
SECOND = Relation(None, OTHER, "s", 'o"ther', "d", (Column(1, "id", 23, -1),))
STRUCTURED, BINARY = CloudEvents(), CloudEvents("binary")
BOTH = [STRUCTURED, BINARY]


def settings_of(events: CloudEvents, **more: Any) -> EncoderSettings:
    return EncoderSettings("1", "shop", "db", value_format="cloudevents", events=events, **more)


class Harness:
    """An encoder of events in a transaction, and one of plain JSON beside it."""

    def __init__(
        self,
        events: CloudEvents = STRUCTURED,
        relations: Iterable[Relation] = (ITEM, SECOND),
        *,
        observe: Observer = unheard,
        writes: bool = False,
        **settings: Any,
    ) -> None:
        self.encoder = record_stream(settings_of(events, **settings), False, observe)
        self.plain = record_stream(EncoderSettings("1", "shop", "db", **settings))
        json_of(self.encoder).writes = json_of(self.plain).writes = writes
        for each in (self.encoder, self.plain):
            for relation in relations:
                each.define(relation, TableDescription(), {})
            each.begin(7, 1000, COMMIT_US - POSTGRES_EPOCH_US, 900)

    def both(self, *messages: Message) -> list[tuple[Record, Record]]:
        made: list[list[Record]] = []
        for encoder in (self.plain, self.encoder):
            out: list[Record] = []
            for message in messages:
                known = len(out)
                frame = write_frame(XLogData(500, 500, 0, write_message(message)))
                size = encoder.encode(frame, False, NOW_US, out)
                assert size == size_of(out[known:])
            made.append(out)
        return list(zip(*made, strict=True))

    def records(self, *messages: Message) -> list[Record]:
        return [record for _, record in self.both(*messages)]


def records_of(encoder: RecordStream, kept: list[SpoolItem], skip: int = 0) -> list[Record]:
    out: list[Record] = []
    encoder.begin(7, 1000, 0, 900)
    encoder.skip(skip)
    assert encoder.encode_all(kept, True, NOW_US, out) == size_of(out)
    return out


AROUND = (
    '"source":"/debezium/postgresql/shop","specversion":"1.0","type":"io.debezium.connector.postgresql.DataChangeEvent",'
    '"time":"2020-09-13T12:26:40.123Z","datacontenttype":"application/json"'
)
EXTENSIONS = (
    '"iodebeziumop":"c","iodebeziumversion":"1","iodebeziumconnector":"postgresql","iodebeziumname":"shop",'
    '"iodebeziumtsms":"1600000000123","iodebeziumsnapshot":"false","iodebeziumdb":"db",'
    '"iodebeziumsequence":"[\\"900\\",\\"500\\"]","iodebeziumtsus":"1600000000123456",'
    '"iodebeziumtsns":"1600000000123456000","iodebeziumschema":"public","iodebeziumtable":"item",'
    '"iodebeziumsourcetxid":"7","iodebeziumlsn":"500","iodebeziumcommitlsn":"1000","iodebeziumeventserialno":"1"'
)


@pytest.mark.parametrize("writes", [False, True])
def test_a_structured_event_is_debeziums_attributes_and_the_rows(writes):
    (record,) = Harness(writes=writes).records(Insert(None, OID, row("1", 'a"ä')))
    assert record == (
        "shop.public.item",
        b'{"id":1}',
        f'{{"id":"commit_lsn:1000;event:1;table:16384;op:c",{AROUND},{EXTENSIONS},'
        '"data":{"before":null,"after":{"id":1,"note":"a\\"ä"}}}'.encode(),
        [("content-type", b"application/cloudevents+json; charset=UTF-8")],
    )


@pytest.mark.parametrize("writes", [False, True])
def test_a_binary_event_is_the_rows_and_a_header_for_each_attribute(writes):
    (record,) = Harness(BINARY, writes=writes).records(Insert(None, OID, row("1", "a")))
    _, key, value, headers = record
    assert (key, value) == (b'{"id":1}', b'{"before":null,"after":{"id":1,"note":"a"}}')
    attributes = json.loads(f'{{"id":"commit_lsn:1000;event:1;table:16384;op:c",{AROUND},{EXTENSIONS}}}')
    names = {"datacontenttype": "content-type"}
    assert headers == [(names.get(name, f"ce_{name}"), text.encode()) for name, text in attributes.items()]


def test_without_extensions_only_the_attributes_of_the_specification_are_there():
    (record,) = Harness(CloudEvents(extensions=False)).records(Insert(None, OID, row("1", "a")))
    assert record[2] == (
        f'{{"id":"commit_lsn:1000;event:1;table:16384;op:c",{AROUND},"data":{{"before":null,"after":'
        '{"id":1,"note":"a"}}}'.encode()
    )


@pytest.mark.parametrize("events", BOTH)
@pytest.mark.parametrize("writes", [False, True])
def test_a_changed_key_is_two_events_and_a_tombstone_that_is_none(events, writes):
    first, tombstone, created = Harness(events, writes=writes).both(
        Update(None, OID, "K", row("1", None), row("2", "b"))
    )
    assert tombstone[0] == tombstone[1]
    for plain, record in (first, created):
        envelope = json.loads(plain[2] or b"")
        event = read_event(record)
        assert event.get_data() == {"before": envelope["before"], "after": envelope["after"]}
        assert extensions_of(event) == said_of_source(envelope)
        assert (plain[3] or [])[0] in (record[3] or [])
    ids = [read_event(record).get_id() for _, record in (first, created)]
    assert ids == [f"commit_lsn:1000;event:1;table:16384;op:{op}" for op in "dc"]


@pytest.mark.parametrize("events", BOTH)
@pytest.mark.parametrize("writes", [False, True])
def test_a_delete_is_an_event_and_a_tombstone_without_the_headers_of_one(events, writes):
    (_, record), (plain, tombstone) = Harness(events, writes=writes).both(
        Delete(None, OID, "K", row("1", None))
    )
    assert read_event(record).get_data() == {"before": {"id": 1, "note": None}, "after": None}
    assert tombstone == plain == ("shop.public.item", b'{"id":1}', None, None)
    assert (
        len(Harness(events, writes=writes, tombstones=False).records(Delete(None, OID, "K", row("1", None))))
        == 1
    )


def test_the_id_does_not_depend_on_what_a_restart_forgets():
    def id_of(last_commit_lsn: int | None) -> str:
        encoder = record_stream(settings_of(STRUCTURED))
        encoder.define(ITEM, TableDescription(), {})
        encoder.begin(7, 1000, 0, last_commit_lsn)
        encoder.skip(2)
        out: list[Record] = []
        frame = write_frame(XLogData(500, 500, 0, write_message(Insert(None, OID, row("1", "a")))))
        encoder.encode(frame, False, NOW_US + (last_commit_lsn or 0), out)
        return str(read_event(out[0]).get_id())

    assert id_of(None) == id_of(900) == "commit_lsn:1000;event:3;table:16384;op:c"


@pytest.mark.parametrize("events", BOTH)
def test_a_truncate_of_two_tables_is_two_events_and_the_end_of_rows_another_one(events):
    harness = Harness(events)
    records = harness.records(Truncate(None, False, False, (OID, OTHER)))
    harness.encoder.encode_end_of_rows(OID, None, NOW_US, records)
    harness.encoder.encode_end_of_rows(OID, (2000, 4), NOW_US, records)
    found = [read_event(record) for record in records]
    assert [event.get_data() for event in found] == [{"before": None, "after": None}] * 4
    assert [event.get_id() for event in found] == [
        "commit_lsn:1000;event:1;table:16384;op:t",
        "commit_lsn:1000;event:1;table:16385;op:t",
        "commit_lsn:1000;event:1;table:16384;op:end",
        "commit_lsn:2000;event:4;table:16384;op:end",
    ]
    assert [extensions_of(event)["op"] for event in found] == ["t"] * 4
    assert extensions_of(found[1])["table"] == 'o"ther'
    assert (extensions_of(found[3])["snapshot"], extensions_of(found[3])["commitlsn"]) == (
        "incremental",
        "2000",
    )


@pytest.mark.parametrize("events", BOTH)
def test_logical_messages_are_events_with_a_type_of_their_own(events):
    harness = Harness(events)
    (record,) = harness.records(LogicalMessage(None, True, 480, 'p"', b"\x00content"))
    frame = write_frame(
        XLogData(500, 500, 0, write_message(LogicalMessage(None, False, 2000, "q", b"outside")))
    )
    out: list[Record] = []
    size = harness.encoder.encode_message(frame, False, None, NOW_US, out)
    assert size == size_of(out)
    inside, outside = read_event(record), read_event(out[0])
    assert record[:2] == ("shop.message", b'{"prefix":"p\\""}')
    assert inside.get_type() == "io.debezium.connector.postgresql.MessageEvent"
    assert inside.get_data()["message"]["prefix"] == 'p"'
    assert b64decode(inside.get_data()["message"]["content"]) == b"\x00content"
    assert [event.get_id() for event in (inside, outside)] == [
        "commit_lsn:1000;event:1;op:m",
        "commit_lsn:1999;event:0;op:m",
    ]
    assert (extensions_of(inside)["op"], extensions_of(inside)["sourcetxid"]) == ("m", "7")
    assert "sourcetxid" not in extensions_of(outside)
    assert "table" not in extensions_of(outside)


@pytest.mark.parametrize("events", BOTH)
@pytest.mark.parametrize("tombstones", [True, False])
def test_drafts_are_the_events_that_their_frames_are(events, tombstones):
    frames = every_change()
    encoders = [record_stream(settings_of(events, tombstones=tombstones)) for _ in range(2)]
    for encoder in encoders:
        for relation in RELATIONS:
            encoder.define(relation, DESCRIPTIONS.get(relation.oid, TableDescription()), {})
    plain, encoder = encoders
    kept = drafted(encoder, frames)
    assert sum(isinstance(one, tuple) for one in kept) > 8
    records = records_of(encoder, kept)
    assert records == records_of(plain, frames)
    assert encoder.counts == plain.counts
    ids = [read_event(record).get_id() for record in records if record[2] is not None]
    assert len(set(ids)) == len(ids)


def test_events_that_are_delivered_already_and_skipped_operations_count():
    frames = framed(*[Insert(7, RELATIONS[0].oid, row(str(number), "a", "x")) for number in range(5)])

    def made(**settings: Any) -> RecordStream:
        encoder = record_stream(settings_of(STRUCTURED, **settings))
        encoder.define(RELATIONS[0], TableDescription(), {})
        return encoder

    encoder = made()
    (draft,) = drafted(encoder, frames)
    assert isinstance(draft, tuple)
    assert records_of(encoder, [without_first(draft, 3)], skip=3) == records_of(made(), frames)[3:]
    without = made(skipped=("c",))
    kept = drafted(without, frames)
    update = framed(Update(7, RELATIONS[0].oid, "", None, row("1", "b", "y")))
    (record,) = records_of(without, [*kept, *frames, *update])
    assert read_event(record).get_id() == "commit_lsn:1000;event:11;table:16384;op:u"


def test_a_draft_of_another_description_has_its_transaction_sent_again():
    encoder = record_stream(settings_of(STRUCTURED))
    whole = RELATIONS[1]
    encoder.define(whole, TableDescription(("id",)), {})
    kept = drafted(encoder, framed(Insert(7, whole.oid, row("1", "a", "x"))))
    encoder.define(whole, TableDescription(("id", "name")), {})
    with pytest.raises(WithoutStreamingError):
        records_of(encoder, kept)


@pytest.mark.parametrize("events", BOTH)
def test_rows_of_a_snapshot_are_events(events):
    rules = (ColumnRule(parse_column_pattern("public.item.note", "columns"), EXCLUDE),)
    cases: list[tuple[dict[str, Any], list[str | None]]] = [
        ({}, ["}%b", "c\td"]),
        ({"column_rules": rules}, [None, None]),
    ]
    for more, notes in cases:
        plain = record_stream(EncoderSettings("1", "shop", "db", **more))
        encoder = record_stream(settings_of(events, **more))
        made: list[list[Record]] = []
        for each in (plain, encoder):
            each.define(ITEM, TableDescription(), {})
            out: list[Record] = []
            lines = [b"1\t}%b\n", b"2\t\\N\n", b"3\tc\\td\n"]
            position = SnapshotPosition(40, 50, "first", "last", "true", 6)
            told = each.encode_rows(OID, lines, position, NOW_US, out, {b'{"id":2}'})
            assert (told.rows, told.keys) == (2, [b'{"id":1}', b'{"id":3}'])
            assert told.bytes == size_of(out)
            made.append(out)
        found = [read_event(record) for record in made[1]]
        for (_, key, value, _), record, event in zip(*made, found, strict=True):
            envelope = json.loads(value or b"")
            assert record[1] == key
            assert event.get_data() == {"before": None, "after": envelope["after"]}
            assert extensions_of(event) == said_of_source(envelope)
        assert [event.get_data()["after"].get("note") for event in found] == notes
        assert [event.get_id() for event in found] == [
            f"commit_lsn:50;event:{number};table:16384;op:r" for number in (7, 8)
        ]


@pytest.mark.parametrize("events", BOTH)
@pytest.mark.parametrize("writes", [False, True])
def test_headers_of_values_that_were_not_sent_or_have_no_form_stand_behind_those_of_the_event(events, writes):
    facts: list[Fact] = []
    amounts = Relation(
        None, OID, "public", "item", "d", (Column(1, "id", 23, -1), Column(0, "amount", 1700, 786438))
    )
    harness = Harness(events, [amounts], observe=facts.append, writes=writes, modes=Modes(decimal="precise"))
    records = harness.records(
        Update(None, OID, "", None, (b"1", UNCHANGED)), Insert(None, OID, row("2", "NaN"))
    )
    assert [record[3][-1] for record in records if record[3]] == [
        ("cdcd.unchanged", b'["amount"]'),
        ("cdcd.unwritable", b'["amount"]'),
    ]
    assert read_event(records[1]).get_data()["after"] == {"id": 2, "amount": None}
    assert [type(fact) for fact in facts] == [ValueUnwritable]
    out: list[Record] = []
    position = SnapshotPosition(40, 50, "first", "last", "true")
    harness.encoder.encode_rows(OID, [b"1\t1.5\n", b"2\tNaN\n"], position, NOW_US, out, set())
    assert [(record[3] or [])[-1][0] for record in out] != ["cdcd.unwritable"] * 2
    assert (out[1][3] or [])[-1] == ("cdcd.unwritable", b'["amount"]')
    assert read_event(out[1]).get_id() == "commit_lsn:50;event:2;table:16384;op:r"


def test_a_protected_column_is_in_no_event():
    rules = (ColumnRule(parse_column_pattern("public.item.note", "columns"), EXCLUDE),)
    harness = Harness(column_rules=rules)
    records = harness.records(
        Insert(None, OID, row("1", "secret")), Delete(None, OID, "O", row("1", "secret"))
    )
    assert not any(b"secret" in bytes(repr(record), "utf-8") for record in records)


@pytest.mark.parametrize("events", BOTH)
def test_records_count_in_their_transaction_and_begin_and_end_are_events(events):
    harness = Harness(events, transaction_topic="shop.transaction")
    records = harness.both(
        Insert(None, OID, row("1", "a")),
        Update(None, OID, "K", row("1", None), row("2", "b")),
        LogicalMessage(None, True, 480, "p", b""),
        Insert(None, OTHER, row("1")),
    )
    for plain, record in records:
        if plain[2] is not None:
            assert extensions_of(read_event(record)) == said_of_source(json.loads(plain[2]))
    metadata, told = harness.encoder.metadata, harness.plain.metadata
    assert metadata is not None
    assert told is not None
    assert metadata.counts() == told.counts() == (("public.item", 3), ('s.o"ther', 1))
    made: list[Record] = []
    expected: list[Record] = []
    size = metadata.begun(made) + metadata.ended(made)
    assert size == size_of(made)
    told.begun(expected)
    told.ended(expected)
    assert [record[:2] for record in made] == [record[:2] for record in expected]
    found = [read_event(record) for record in made]
    assert [event.get_data() for event in found] == [json.loads(value or b"") for _, _, value, _ in expected]
    assert [event.get_id() for event in found] == [
        "transaction:7:1000;status:BEGIN",
        "transaction:7:1000;status:END",
    ]
    assert {event.get_type() for event in found} == {
        "io.debezium.connector.postgresql.TransactionMetadataEvent"
    }
    assert [extensions_of(event) for event in found] == [{"txid": "7:1000"}] * 2
    # A row that is read from a table is in no transaction.
    rows = record_stream(settings_of(events, transaction_topic="shop.transaction"))
    rows.define(ITEM, TableDescription(), {})
    out: list[Record] = []
    rows.encode_rows(OID, [b"1\ta\n"], SnapshotPosition(40, 50, "first", "last", "true"), NOW_US, out, set())
    assert "txid" not in extensions_of(read_event(out[0]))


def test_a_transaction_of_another_server_names_it():
    harness = Harness()
    for encoder in (harness.encoder, harness.plain):
        encoder.set_origin('up"stream', 77)
    ((plain, record),) = harness.both(Insert(None, OID, row("1", "a")))
    found = extensions_of(read_event(record))
    assert found == said_of_source(json.loads(plain[2] or b""))
    assert (found["origin"], found["originlsn"]) == ('up"stream', "77")


def test_the_description_of_a_table_says_that_its_records_are_events():
    harness = Harness(schemas_topic="shop.schemas")
    (_, description), (_, record) = harness.both(Insert(None, OID, row("1", "a")))
    said = json.loads(description[2] or b"")
    assert said["cloudevents"] is True
    assert extensions_of(read_event(record))["schemaid"] == said["fingerprint"]


def test_data_with_a_schema_are_the_payload_beside_it():
    events = CloudEvents("binary", "json_schema")
    harness = Harness(events, transaction_topic="shop.transaction", name_adjustment="avro")
    record, message = harness.records(
        Insert(None, OID, row("1", "a")), LogicalMessage(None, True, 480, "p", b"")
    )
    data = read_event(record).get_data()
    assert data["payload"] == {"before": None, "after": {"id": 1, "note": "a"}}
    schema = data["schema"]
    assert (schema["name"], schema["optional"]) == ("io.debezium.connector.postgresql.Data", False)
    assert [(each["field"], each["name"]) for each in schema["fields"]] == [
        ("before", "shop.public.item.Value"),
        ("after", "shop.public.item.Value"),
    ]
    assert [each["field"] for each in read_event(message).get_data()["schema"]["fields"]] == ["message"]
    made: list[Record] = []
    metadata = harness.encoder.metadata
    assert metadata is not None
    metadata.begun(made)
    assert read_event(made[0]).get_data()["payload"]["status"] == "BEGIN"


@pytest.mark.parametrize("events", BOTH)
def test_a_heartbeat_is_no_event(events: CloudEvents):
    encoder = record_stream(settings_of(events, heartbeat_topic="beats"))
    out: list[Record] = []
    size = encoder.encode_heartbeat(17, NOW_US, out)
    ((topic, key, value, headers),) = out
    assert key is not None
    assert value is not None
    assert (topic, size, headers) == ("beats", len(key) + len(value), [("cdcd.watermark", b"17")])
    assert json.loads(value) == {"ts_ms": NOW_US // 1000}
