import json
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import TransientError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Delete, Insert, LogicalMessage, Message, Truncate, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.encoder import HEARTBEATS, Record, SnapshotPosition
from tests.unit.core.records.avro.reading import Schemas
from tests.unit.core.records.cloudevents.reading import events_settings, extensions_of, read_event, size_of
from tests.unit.core.records.cloudevents.test_json_events import ITEM, NOW_US, OID
from tests.unit.core.records.debezium_json.test_drafting import row

MODES = ["structured", "binary"]


class Harness:
    """An encoder in a transaction, whose schemas are registered."""

    def __init__(self, mode: str, *, registered: bool = True, **settings: Any) -> None:
        self.schemas = Schemas()
        self.encoder = record_stream(events_settings(self.schemas, CloudEvents(mode, "avro"), **settings))
        self.encoder.define(ITEM, TableDescription(), {})
        if registered:
            self.schemas.register(self.encoder, OID)
            self.schemas.register(self.encoder, 0)
        self.encoder.begin(7, 1000, 0, 900)

    def records(self, *messages: Message) -> list[Record]:
        out: list[Record] = []
        for message in messages:
            known = len(out)
            frame = write_frame(XLogData(500, 500, 0, write_message(message)))
            size = self.encoder.encode(frame, False, NOW_US, out)
            assert size == size_of(out[known:])
        return out

    def data(self, record: Record) -> Any:
        data = read_event(record).get_data()
        # The SDK tries whether data are text.
        return self.schemas.read(data.encode() if isinstance(data, str) else data)[1]


@pytest.mark.parametrize("mode", MODES)
def test_each_kind_of_change_is_an_event_with_its_rows(mode):
    harness = Harness(mode)
    records = harness.records(
        Insert(None, OID, row("1", "a")),
        Update(None, OID, "K", row("1", None), row("2", "b")),
        Delete(None, OID, "K", row("2", None)),
        Truncate(None, False, False, (OID,)),
    )
    harness.encoder.encode_end_of_rows(OID, None, NOW_US, records)
    assert [None if record[2] is None else harness.data(record) for record in records] == [
        {"before": None, "after": {"id": 1, "note": "a"}},
        {"before": {"id": 1, "note": None}, "after": None},
        None,
        {"before": None, "after": {"id": 2, "note": "b"}},
        {"before": {"id": 2, "note": None}, "after": None},
        None,
        {"before": None, "after": None},
        {"before": None, "after": None},
    ]
    events = [read_event(record) for record in records if record[2] is not None]
    assert [event.get_id().partition(";")[2] for event in events] == [
        f"event:{number};table:16384;op:{op}"
        for number, op in [(1, "c"), (2, "d"), (2, "c"), (3, "d"), (4, "t"), (4, "end")]
    ]
    assert [name for name, _ in records[2][3] or []] == ["__debezium.newkey"]
    assert records[5][3] is None
    assert {event.get_datacontenttype() for event in events} == {"application/avro"}
    assert harness.encoder.counts == {
        ("public.item", "c"): 2, ("public.item", "d"): 2, ("public.item", "t"): 2,
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_snapshot_and_logical_messages_are_events(mode):
    harness = Harness(mode)
    out: list[Record] = []
    position = SnapshotPosition(40, 50, "first", "last", "true", 6)
    told = harness.encoder.encode_rows(OID, [b"1\ta\n", b"2\t\\N\n"], position, NOW_US, out, set())
    assert told.bytes == size_of(out)
    assert [harness.data(record)["after"] for record in out] == [
        {"id": 1, "note": "a"},
        {"id": 2, "note": None},
    ]
    found = [extensions_of(read_event(record)) for record in out]
    assert [(each["op"], each["snapshot"], each["eventserialno"]) for each in found] == [
        ("r", "first", "7"),
        ("r", "last", "8"),
    ]
    harness = Harness(mode, schemas_topic="schemas")
    *told_schemas, record = harness.records(LogicalMessage(None, True, 480, "p", b"\x00\xff"))
    assert len(told_schemas) == (2 if mode == "structured" else 1)
    assert {topic for topic, _, _, _ in told_schemas} == {"schemas"}
    assert harness.data(record) == {"message": {"prefix": "p", "content": "AP8="}}
    assert read_event(record).get_type() == "io.debezium.connector.postgresql.MessageEvent"
    assert read_event(record).get_dataschema() is not None


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_was_not_sent_is_named_behind_the_headers_of_the_event(mode):
    (record,) = Harness(mode).records(Update(None, OID, "", None, (b"1", UNCHANGED)))
    assert (record[3] or [])[-1] == ("cdcd.unchanged", b'["note"]')


def test_the_schema_of_the_data_is_registered_under_debeziums_name():
    harness = Harness("structured", registered=False)
    uses = harness.encoder.unregistered(OID)
    assert [use.subject for use in uses] == ["golden.public.item-key", "golden.public.item-value"]
    schema = json.loads(uses[1].text)
    assert (schema["namespace"], schema["name"]) == ("io.debezium.connector.postgresql", "Data")
    assert [field["name"] for field in schema["fields"]] == ["before", "after"]
    (_, message) = harness.encoder.unregistered(0)
    assert [field["name"] for field in json.loads(message.text)["fields"]] == ["message"]
    with pytest.raises(TransientError):
        harness.records(Insert(None, OID, row("1", "a")))


@pytest.mark.parametrize("mode", MODES)
def test_a_heartbeat_is_no_event_and_has_a_schema_of_its_own(mode):
    harness = Harness(mode, heartbeat_topic="beats")
    harness.schemas.register(harness.encoder, HEARTBEATS)
    out: list[Record] = []
    harness.encoder.encode_heartbeat(17, NOW_US, out)
    topic, _, value, headers = out[-1]
    assert value is not None
    assert (topic, headers) == ("beats", [("cdcd.watermark", b"17")])
    assert harness.schemas.read(value)[1] == {"ts_ms": NOW_US // 1000}
