"""Flattened records: beside those of a real Debezium (`tests/debezium/capture_modes.py`), and what they keep."""

import json
from typing import Any

import pytest

from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import EXCLUDE, ColumnRule
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.facts import Fact
from cdcd.core.facts.rules import FlatteningCollision
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Column, Delete, Insert, LogicalMessage, Relation, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import AddedField, Flattening, read_added
from cdcd.core.records.schemas import read_form
from cdcd.core.records.stream import RecordStream
from tests.debezium.capture_modes import VARIANTS
from tests.unit.core.records.debezium_json.test_debezium_modes import CAPTURED, CHANGED, LOG
from tests.unit.core.records.debezium_json.test_debezium_schemas import ORDERS
from tests.unit.core.records.formats import json_of

MODES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
NOW_US = 1_700_000_000_123_456
LSN, COMMIT_LSN = 500, 900

RUN = {"__pos", "__source_ts_ms", "__tx"}
"""Fields and headers whose values differ from run to run."""


def added(texts: str) -> tuple[AddedField, ...]:
    return tuple(read_added(each, "__") for each in texts.split(","))


def flat_settings(flattening: Flattening, prefix: str = "p", **others: Any) -> EncoderSettings:
    return EncoderSettings("1", prefix, "d", flattening=flattening, **others)


def encode(encoder: RecordStream, *messages: Any, writes: bool = False) -> list[Record]:
    json_of(encoder).writes = writes
    out: list[Record] = []
    encoder.begin(7, COMMIT_LSN, 0, 800)
    for message in messages:
        frame = write_frame(XLogData(LSN, LSN, 0, write_message(message)))
        size = encoder.encode(frame, False, NOW_US, out)
        assert size >= 0
    return out


def an_encoder(
    flattening: Flattening, *tables: tuple[Relation, tuple[str, ...]], **others: Any
) -> RecordStream:
    encoder = record_stream(flat_settings(flattening, **others))
    for relation, key in tables:
        encoder.define(relation, TableDescription(key), {})
    return encoder


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_the_records_are_debeziums(mode, writes):
    prefix = f"flat-{mode}"
    unwrap = VARIANTS[prefix]
    flattening = Flattening(
        unwrap["transforms.unwrap.delete.tombstone.handling.mode"],
        added(unwrap["transforms.unwrap.add.fields"]),
        added(unwrap["transforms.unwrap.add.headers"]),
    )
    settings = flat_settings(flattening, prefix, key_format="json_schema", value_format="json_schema")
    encoder = record_stream(settings, False, lambda _: None)
    assert isinstance(encoder, RecordStream)
    encoder.define(ORDERS, TableDescription(("Order no", "line")), {})
    encoder.define(LOG, TableDescription(), {})
    made: list[Record] = []
    for events in CHANGED:
        made += encode(encoder, *events, writes=writes)
    for table in ("orders", "log"):
        captured = CAPTURED[prefix][f"{prefix}.public.{table}"]
        assert [said(record, captured) for record in made if record[0] == f"{prefix}.public.{table}"] == [
            (each["key"], without_run(each["value"]), without_run(each.get("headers", {})))
            for each in captured["records"]
        ]


def said(record: Record, captured: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Key, value and headers, whose schemas are looked at here."""
    _, key, value, headers = record
    parts: list[Any] = []
    for name, data in (("key", key), ("value", value)):
        found = None if data is None else json.loads(data)
        if found is not None:
            assert found["schema"] == captured[name]
            found = found["payload"]
        parts.append(found)
    texts = {}
    for name, text in headers or []:
        # Debezium's goldens have keys in headers without their schema.
        is_key = name.startswith("__debezium.")
        texts[name] = (
            json.dumps(json.loads(text)["payload"], separators=(",", ":")) if is_key else text.decode()
        )
    return parts[0], without_run(parts[1]), without_run(texts)


def without_run(values: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else {name: None if name in RUN else values[name] for name in values}


ALL = (
    "op,ts_ms,ts_us,ts_ns,version,connector,name,source.ts_ms,source.ts_us,source.ts_ns,snapshot,db,sequence,schema,"
    "table,txId,lsn,xmin,origin,origin_lsn,commit_lsn,event_serial_no,schema_id"
)
FIELDS = Flattening("rewrite", added(ALL), added(ALL))


def test_every_field_has_the_value_that_the_envelope_has():
    encoder = an_encoder(FIELDS, (ORDERS, ("Order no", "line")), schemas_topic="p.schemas")
    plain = record_stream(EncoderSettings("1", "p", "d", schemas_topic="p.schemas"))
    plain.define(ORDERS, TableDescription(("Order no", "line")), {})
    for run in (encoder, plain):
        run.begin(7, COMMIT_LSN, 0, 800)
        run.set_origin('up"stream', 77)
        run.skip(4)
    message = Update(None, ORDERS.oid, "K", row(1, 2, None), row(1, 2, "b"))
    frame = write_frame(XLogData(LSN, LSN, 0, write_message(message)))
    ours: list[Record] = []
    theirs: list[Record] = []
    encoder.encode(frame, False, NOW_US, ours)
    plain.encode(frame, False, NOW_US, theirs)
    envelope = json.loads(theirs[-1][2] or b"")
    value = json.loads(ours[-1][2] or b"")
    expected: dict[str, Any] = {"__deleted": "false"}
    for each in added(ALL):
        place, _, name = each.field.rpartition(".")
        expected[each.name] = envelope["source"][name] if place else envelope[name]
    # A description of flattened records is another one, so that it has another name.
    assert value["__schema_id"] != expected["__schema_id"]
    value["__schema_id"] = expected["__schema_id"]
    assert value == {**envelope["after"], **expected}
    headers = dict(ours[-1][3] or [])
    del expected["__deleted"], expected["__schema_id"], headers["__schema_id"]
    assert headers == {name: str(value).encode() for name, value in expected.items() if value is not None}


def row(*values: Any) -> tuple[Any, ...]:
    return tuple(value if value is None or value is UNCHANGED else str(value).encode() for value in values)


@pytest.mark.parametrize("writes", [False, True])
def test_each_kind_of_row_message_gives_the_row_alone(writes):
    encoder = an_encoder(Flattening(), (ORDERS, ("Order no", "line")), (LOG, ()))
    full = Relation(None, 9, "public", "full", "f", (Column(1, "id", 23, -1), Column(1, "note", 25, -1)))
    encoder.define(full, TableDescription(("id",)), {})
    made = encode(
        encoder,
        Insert(None, 9, row(1, '}"')),
        Update(None, 9, "O", row(1, "},"), row(1, ',"after":{')),
        Update(None, 9, "O", row(1, "b"), row(2, None)),
        Delete(None, 9, "O", row(2, None)),
        Delete(None, LOG.oid, "O", row("x")),
        writes=writes,
    )
    assert [(key, value, [name for name, _ in headers or []]) for _, key, value, headers in made] == [
        (b'{"id":1}', b'{"id":1,"note":"}\\""}', []),
        (b'{"id":1}', b'{"id":1,"note":",\\"after\\":{"}', []),
        (b'{"id":1}', None, ["__debezium.newkey"]),
        (b'{"id":2}', b'{"id":2,"note":null}', ["__debezium.oldkey"]),
        (b'{"id":2}', None, []),
    ]
    # The delete in a table without a key has nothing left that a record could have.
    assert encoder.counts == {("public.full", "c"): 2, ("public.full", "u"): 1, ("public.full", "d"): 2}


@pytest.mark.parametrize(
    ("mode", "tombstones", "values"),
    [
        ("drop", True, []),
        ("tombstone", True, [None]),
        ("tombstone", False, []),
        ("delete-to-tombstone", False, [None]),
        ("rewrite", True, [{"Order no": 1, "line": 2, "note": None, "__deleted": "true"}]),
        (
            "rewrite-with-tombstone",
            True,
            [{"Order no": 1, "line": 2, "note": None, "__deleted": "true"}, None],
        ),
        (
            "rewrite-with-tombstone",
            False,
            [{"Order no": 1, "line": 2, "note": None, "__deleted": "true"}],
        ),
    ],
)
def test_what_a_delete_becomes_is_the_modes_and_topics_tombstones(mode, tombstones, values):
    encoder = an_encoder(Flattening(mode), (ORDERS, ("Order no", "line")), tombstones=tombstones)
    made = encode(encoder, Delete(None, ORDERS.oid, "K", row(1, 2, None)))
    assert [None if value is None else json.loads(value) for _, _, value, _ in made] == values


@pytest.mark.parametrize("value_format", ["json", "json_schema"])
def test_a_rewritten_delete_may_come_without_the_field_that_names_it(value_format: str):
    settings = Flattening("rewrite", names_deletes=False)
    encoder = an_encoder(settings, (ORDERS, ("Order no", "line")), value_format=value_format)
    made = encode(encoder, Delete(None, ORDERS.oid, "K", row(1, 2, None)))
    found = json.loads(made[0][2] or b"")
    if value_format == "json_schema":
        assert "__deleted" not in [each["field"] for each in found["schema"]["fields"]]
        found = found["payload"]
    assert found == {"Order no": 1, "line": 2, "note": None}


def test_a_value_that_was_not_sent_is_the_placeholder_with_its_header():
    encoder = an_encoder(Flattening(headers=added("op")), (ORDERS, ("Order no", "line")))
    (made,) = encode(encoder, Update(None, ORDERS.oid, "", None, row(1, 2, UNCHANGED)), writes=True)
    assert json.loads(made[2] or b"")["note"] == "__debezium_unavailable_value"
    assert made[3] == [("cdcd.unchanged", b'["note"]'), ("__op", b"u")]


def test_a_protected_column_stays_protected_and_a_skipped_operation_skipped():
    rules = (ColumnRule(parse_column_pattern("public.orders.note", "columns"), EXCLUDE),)
    encoder = an_encoder(
        Flattening("rewrite"), (ORDERS, ("Order no", "line")), column_rules=rules, skipped=("u",)
    )
    made = encode(
        encoder,
        Insert(None, ORDERS.oid, row(1, 2, "secret")),
        Update(None, ORDERS.oid, "", None, row(1, 2, "secret")),
        Delete(None, ORDERS.oid, "K", row(1, 2, None)),
    )
    assert [value for _, _, value, _ in made] == [
        b'{"Order no":1,"line":2,"__deleted":"false"}',
        b'{"Order no":1,"line":2,"__deleted":"true"}',
    ]


def test_rows_of_a_snapshot_are_flattened_too():
    fields = added("op,source.snapshot,source.txId,commit_lsn,event_serial_no,lsn")
    encoder = an_encoder(
        Flattening("rewrite", fields, added("op,snapshot,event_serial_no")), (ORDERS, ("Order no",))
    )
    out: list[Record] = []
    lines = [b"1\t2\ta}%b\n", b"2\t2\t\\N\n", b"3\t2\tc\\td\n"]
    position = SnapshotPosition(40, 50, "first", "last", "true", 6)
    encoded = encoder.encode_rows(ORDERS.oid, lines, position, NOW_US, out, {b'{"Order no":2,"line":2}'})
    assert [json.loads(value or b"") for _, _, value, _ in out] == [
        {
            "Order no": number, "line": 2, "note": note, "__deleted": "false", "__op": "r",
            "__source_snapshot": marker, "__source_txId": None, "__commit_lsn": 50, "__event_serial_no": event_no,
            "__lsn": 40,
        }
        for number, note, marker, event_no in [(1, "a}%b", "first", 7), (3, "c\td", "last", 8)]
    ]  # fmt: skip
    assert [headers for _, _, _, headers in out] == [
        [("__op", b"r"), ("__snapshot", marker), ("__event_serial_no", event_no)]
        for marker, event_no in [(b"first", b"7"), (b"last", b"8")]
    ]
    assert (encoded.rows, encoded.keys) == (2, [key for _, key, _, _ in out])
    assert encoded.bytes == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)


def test_the_schema_of_a_row_to_which_nothing_is_added_is_not_optional():
    encoder = an_encoder(Flattening(), (ORDERS, ("Order no", "line")), value_format="json_schema")
    (made,) = encode(encoder, Insert(None, ORDERS.oid, row(1, 2, "a")))
    found = json.loads(made[2] or b"")
    assert found["payload"] == {"Order no": 1, "line": 2, "note": "a"}
    assert (found["schema"]["name"], found["schema"]["optional"]) == ("p.public.orders.Value", False)


def test_a_table_without_columns_has_records_of_what_is_added():
    bare = Relation(None, 5, "public", "bare", "d", ())
    encoder = an_encoder(Flattening("rewrite", added("op")), (bare, ()))
    (made,) = encode(encoder, Insert(None, 5, ()))
    assert made[2] == b'{"__deleted":"false","__op":"c"}'
    out: list[Record] = []
    encoder.encode_rows(5, [b"\n"], SnapshotPosition(1, 2, "a", "b", "c"), NOW_US, out, set())
    assert out[0][2] == b'{"__deleted":"false","__op":"r"}'


@pytest.mark.parametrize("value_format", ["json", "json_schema"])
def test_an_added_field_with_the_name_of_a_column_is_left_out_and_told_once(value_format):
    facts: list[Fact] = []
    columns = (Column(1, "__op", 25, -1), Column(0, "__deleted", 16, -1), Column(0, "v", 25, -1))
    encoder = record_stream(
        flat_settings(Flattening("rewrite", added("op,table")), value_format=value_format),
        False,
        facts.append,
    )
    for identity in "ddn":
        encoder.define(Relation(None, 5, "public", "t", identity, columns), TableDescription(("__op",)), {})
    (made,) = encode(encoder, Insert(None, 5, row("mine", "t", "x")))
    found = json.loads(made[2] or b"")
    if value_format == "json_schema":
        assert [each["field"] for each in found["schema"]["fields"]] == list(found["payload"])
        found = found["payload"]
    assert list(found.items()) == [("__op", "mine"), ("__deleted", True), ("v", "x"), ("__table", "t")]
    assert facts == [FlatteningCollision("public.t", "__op, __deleted", "p.public.t")]


def test_a_description_says_that_records_are_flattened():
    encoder = an_encoder(Flattening(), (ORDERS, ("Order no", "line")), schemas_topic="p.schemas")
    made = encode(encoder, Insert(None, ORDERS.oid, row(1, 2, "a")))
    assert [topic for topic, *_ in made] == ["p.schemas", "p.public.orders"]
    assert read_form(made[0][2] or b"")[1].flattened


def test_a_logical_message_is_as_without():
    message = LogicalMessage(None, True, LSN, "prefix", b"content")
    (made,) = encode(an_encoder(Flattening("rewrite", added("op"))), message)
    assert json.loads(made[2] or b"")["message"] == {"prefix": "prefix", "content": "Y29udGVudA=="}


def test_the_end_of_another_tables_rows_has_no_record():
    encoder = an_encoder(Flattening(), (ORDERS, ("Order no", "line")))
    out: list[Record] = []
    assert encoder.encode_end_of_rows(ORDERS.oid, (5, 1), NOW_US, out) == 0
    assert out == []


def test_rows_of_an_open_transaction_stay_frames():
    encoder = an_encoder(Flattening(), (ORDERS, ("Order no", "line")))
    frame = write_frame(XLogData(LSN, LSN, 0, write_message(Insert(4, ORDERS.oid, row(1, 2, "a")))))
    assert encoder.draft_all([frame], {ORDERS.oid: (0, ORDERS)}) == [frame]


def test_a_value_without_a_form_is_null_with_a_header_here_too():
    prices = Relation(None, 5, "public", "prices", "d", (Column(1, "id", 23, -1), Column(0, "n", 1700, -1)))
    encoder = an_encoder(Flattening("rewrite"), (prices, ("id",)), modes=Modes(decimal="precise"))
    (made,) = encode(encoder, Insert(None, 5, row(1, "NaN")))
    out: list[Record] = []
    encoder.encode_rows(5, [b"1\tNaN\n"], SnapshotPosition(1, 2, "a", "b", "c"), NOW_US, out, set())
    for _, key, value, headers in (made, *out):
        assert (key, value) == (b'{"id":1}', b'{"id":1,"n":null,"__deleted":"false"}')
        assert headers == [("cdcd.unwritable", b'["n"]')]
    assert encoder.unwritable == {("public.prices", "n"): 2}


def test_a_header_of_a_table_that_is_called_null_is_there():
    named = Relation(None, 5, "null", "null", "d", (Column(1, "id", 23, -1),))
    encoder = an_encoder(Flattening(headers=added("table,origin")), (named, ("id",)))
    (made,) = encode(encoder, Insert(None, 5, row(1)))
    assert made[3] == [("__table", b"null")]
