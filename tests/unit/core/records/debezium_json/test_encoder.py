import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.catalog.routing import TOPIC_LENGTH_MAX
from cdcd.core.catalog.table_rules import KeyRule
from cdcd.core.errors import ConfigError, ProtocolError, SinkError, SourceError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    POSTGRES_EPOCH_US,
    UNCHANGED,
    Begin,
    Binary,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    TupleData,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schemas import read_form

OID = 16384
LSN = 500
NOW_US = 1_700_000_000_123_456
COMMIT_TIME = 1_600_000_000_000_000 - POSTGRES_EPOCH_US
UNAVAILABLE = "__debezium_unavailable_value"

INT, TEXT, BYTEA, INTS = 23, 25, 17, 1007


def relation(
    *columns: Column, oid: int = OID, schema: str = "public", name: str = "t", identity: str = "d"
) -> Relation:
    return Relation(None, oid, schema, name, identity, columns)


def column(name: str, oid: int = TEXT, *, key: bool = False) -> Column:
    return Column(int(key), name, oid, -1)


ID_AND_NAME = relation(column("id", INT, key=True), column("name"))
WITH_NOTE = (column("id", INT, key=True), column("name"), column("note"))


class Harness:
    """An encoder in a transaction, which is given messages."""

    def __init__(
        self,
        *relations: Relation,
        table: TableDescription | None = None,
        types: Iterable[TypeDescription] = (),
        **settings: Any,
    ) -> None:
        self.encoder = record_stream(EncoderSettings("0.1", "shop", "db", **settings))
        for one in relations:
            self.encoder.define(one, table or TableDescription(), {kind.oid: kind for kind in types})
        self.encoder.begin(7, 1000, COMMIT_TIME, 900)

    def give(
        self, message: Message, *, in_stream: bool = False, now_us: int = NOW_US, lsn: int = LSN
    ) -> list[Record]:
        out: list[Record] = []
        frame = write_frame(XLogData(lsn, lsn, 0, write_message(message)))
        size = self.encoder.encode(frame, in_stream, now_us, out)
        assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
        return out


def value_of(record: Record) -> dict[str, Any]:
    assert record[2] is not None
    value: dict[str, Any] = json.loads(record[2])
    return value


def row(*values: str | None) -> TupleData:
    return tuple([None if value is None else value.encode() for value in values])


def test_an_insert_is_debeziums_record_to_the_byte():
    (record,) = Harness(ID_AND_NAME).give(Insert(None, OID, row("1", 'say "hä"')))
    assert record == (
        "shop.public.t",
        b'{"id":1}',
        (
            '{"before":null,"after":{"id":1,"name":"say \\"hä\\""},"source":{"version":"0.1","connector":"postgresql",'
            '"name":"shop","ts_ms":1600000000000,"snapshot":"false","db":"db","sequence":"[\\"900\\",\\"500\\"]",'
            '"ts_us":1600000000000000,"ts_ns":1600000000000000000,"schema":"public","table":"t","txId":7,"lsn":500,'
            '"xmin":null,"origin":null,"origin_lsn":null,"commit_lsn":1000,"event_serial_no":1},"transaction":null,'
            '"op":"c","ts_ms":1700000000123,"ts_us":1700000000123456,"ts_ns":1700000000123456000}'
        ).encode(),
        None,
    )


def test_the_fields_of_every_envelope_stand_in_debeziums_order():
    order = ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    harness = Harness(ID_AND_NAME)
    events: list[Message] = [
        Insert(None, OID, row("1", "a")),
        Update(None, OID, "", None, row("1", "b")),
        Update(None, OID, "K", row("1", None), row("2", "b")),
        Delete(None, OID, "K", row("2", None)),
        Truncate(None, False, False, (OID,)),
    ]
    seen = [record for event in events for record in harness.give(event)]
    values = [value_of(record) for record in seen if record[2] is not None]
    assert [value["op"] for value in values] == ["c", "u", "d", "c", "d", "t"]
    assert all(list(value) == order for value in values)


def test_in_a_stream_the_xid_after_the_tag_is_passed_over():
    harness = Harness(ID_AND_NAME)
    plain = harness.give(Insert(None, OID, row("1", "a")))
    other = Harness(ID_AND_NAME)
    assert other.give(Insert(12345, OID, row("1", "a")), in_stream=True) == plain


def test_the_same_frames_give_the_same_bytes():
    events: list[Message] = [
        Insert(None, OID, row("1", "a")),
        Update(None, OID, "K", row("1", None), row("2", "b")),
    ]
    once, again = Harness(ID_AND_NAME), Harness(ID_AND_NAME)
    assert [once.give(event) for event in events] == [again.give(event) for event in events]


def test_events_are_numbered_from_one_in_each_transaction():
    harness = Harness(ID_AND_NAME)
    numbers = [
        value_of(harness.give(Insert(None, OID, row("1", "a")))[0])["source"]["event_serial_no"]
        for _ in "123"
    ]
    assert numbers == [1, 2, 3]
    harness.encoder.begin(8, 2000, COMMIT_TIME + 1, 1000)
    source = value_of(harness.give(Insert(None, OID, row("1", "a")))[0])["source"]
    assert (source["event_serial_no"], source["txId"], source["commit_lsn"]) == (1, 8, 2000)
    assert source["sequence"] == '["1000","500"]'
    assert source["ts_us"] == 1_600_000_000_000_001


def test_skipped_events_keep_their_numbers():
    harness = Harness(ID_AND_NAME)
    harness.encoder.skip(41)
    assert value_of(harness.give(Insert(None, OID, row("1", "a")))[0])["source"]["event_serial_no"] == 42


def test_an_origin_is_in_the_source_of_its_transaction():
    harness = Harness(ID_AND_NAME)
    harness.give(Insert(None, OID, row("1", "a")))
    harness.encoder.set_origin("upstream", 77)
    source = value_of(harness.give(Insert(None, OID, row("1", "a")))[0])["source"]
    assert (source["origin"], source["origin_lsn"], source["event_serial_no"]) == ("upstream", 77, 2)
    harness.encoder.set_origin("upstream", 0)
    assert value_of(harness.give(Insert(None, OID, row("1", "a")))[0])["source"]["origin_lsn"] is None
    harness.encoder.begin(8, 2000, COMMIT_TIME, 1000)
    assert value_of(harness.give(Insert(None, OID, row("1", "a")))[0])["source"]["origin"] is None


def test_the_time_of_processing_is_that_of_each_call():
    harness = Harness(ID_AND_NAME)
    for now_us in (5_000, 6_000, 6_000, 5_000):
        value = value_of(harness.give(Insert(None, OID, row("1", "a")), now_us=now_us)[0])
        assert (value["ts_ms"], value["ts_us"], value["ts_ns"]) == (now_us // 1000, now_us, now_us * 1000)


# Updates, deletes and replica identities.


def test_an_update_without_an_old_row_has_no_before():
    (record,) = Harness(ID_AND_NAME).give(Update(None, OID, "", None, row("1", "b")))
    value = value_of(record)
    assert (value["op"], value["before"], value["after"]) == ("u", None, {"id": 1, "name": "b"})
    assert record[1] == b'{"id":1}'
    assert record[3] is None


def test_under_full_the_whole_old_row_is_before():
    full = relation(column("id", INT, key=True), column("name", key=True), identity="f")
    (record,) = Harness(full, table=TableDescription(("id",))).give(
        Update(None, OID, "O", row("1", None), row("1", "b"))
    )
    value = value_of(record)
    assert (value["op"], value["before"], value["after"]) == (
        "u",
        {"id": 1, "name": None},
        {"id": 1, "name": "b"},
    )
    assert record[1] == b'{"id":1}'


def test_an_old_key_that_is_the_same_is_no_change_of_key():
    """The server sends it when the key is TOASTed."""
    (record,) = Harness(ID_AND_NAME).give(Update(None, OID, "K", row("1", None), row("1", "b")))
    value = value_of(record)
    assert (value["op"], value["before"]) == ("u", {"id": 1, "name": None})


@pytest.mark.parametrize("kind", ["K", "O"])
def test_a_changed_key_is_delete_tombstone_and_create_that_name_each_other(kind):
    identity = "f" if kind == "O" else "d"
    described = relation(column("id", INT, key=True), column("name", key=kind == "O"), identity=identity)
    old = row("1", "a" if kind == "O" else None)
    records = Harness(described, table=TableDescription(("id",))).give(
        Update(None, OID, kind, old, row("2", "b"))
    )
    deleted, tombstone, created = records
    assert [record[0] for record in records] == ["shop.public.t"] * 3
    assert [record[1] for record in records] == [b'{"id":1}', b'{"id":1}', b'{"id":2}']
    assert tombstone[2] is None
    assert deleted[3] == tombstone[3] == [("__debezium.newkey", b'{"id":2}')]
    assert created[3] == [("__debezium.oldkey", b'{"id":1}')]
    gone, come = value_of(deleted), value_of(created)
    assert (gone["op"], gone["after"]) == ("d", None)
    assert gone["before"] == {"id": 1, "name": "a" if kind == "O" else None}
    assert (come["op"], come["before"], come["after"]) == ("c", None, {"id": 2, "name": "b"})
    assert gone["source"] == come["source"]


def test_without_tombstones_a_changed_key_is_delete_and_create():
    harness = Harness(ID_AND_NAME, tombstones=False)
    records = harness.give(Update(None, OID, "K", row("1", None), row("2", "b")))
    assert [value_of(record)["op"] for record in records] == ["d", "c"]
    assert len(harness.give(Delete(None, OID, "K", row("2", None)))) == 1


def test_a_delete_is_followed_by_a_tombstone():
    deleted, tombstone = Harness(ID_AND_NAME).give(Delete(None, OID, "K", row("1", None)))
    value = value_of(deleted)
    assert (value["op"], value["before"], value["after"]) == ("d", {"id": 1, "name": None}, None)
    assert tombstone == ("shop.public.t", b'{"id":1}', None, None)


def test_a_delete_under_full_has_the_whole_row():
    full = relation(column("id", INT, key=True), column("name", key=True), identity="f")
    deleted, _ = Harness(full, table=TableDescription(("id",))).give(Delete(None, OID, "O", row("1", "a")))
    assert value_of(deleted)["before"] == {"id": 1, "name": "a"}
    assert deleted[1] == b'{"id":1}'


def test_a_key_of_several_columns_has_them_in_the_tables_order_whatever_the_identity():
    flagged = relation(column("b", key=True), column("x"), column("a", INT, key=True))
    (record,) = Harness(flagged).give(Insert(None, OID, row("y", None, "1")))
    assert record[1] == b'{"b":"y","a":1}'
    full = relation(column("b", key=True), column("x", key=True), column("a", INT, key=True), identity="f")
    (record,) = Harness(full, table=TableDescription(("a", "b"))).give(Insert(None, OID, row("y", None, "1")))
    assert record[1] == b'{"b":"y","a":1}'


def test_a_key_that_is_chosen_moves_rows_like_any_other_key():
    full = relation(column("id", INT, key=True), column("name", key=True), identity="f")
    harness = Harness(
        full,
        table=TableDescription(primary_key=("id",)),
        key_rules=(KeyRule("public.t", ("name",)),),
    )
    (created,) = harness.give(Insert(None, OID, row("1", "a")))
    (updated,) = harness.give(Update(None, OID, "O", row("1", "a"), row("2", "a")))
    deleted, tombstone, moved = harness.give(Update(None, OID, "O", row("2", "a"), row("2", None)))
    assert [record[1] for record in (created, updated, deleted, tombstone, moved)] == [
        b'{"name":"a"}',
        b'{"name":"a"}',
        b'{"name":"a"}',
        b'{"name":"a"}',
        b'{"name":null}',
    ]
    assert [value_of(record)["op"] for record in (updated, deleted, moved)] == ["u", "d", "c"]
    assert tombstone[2] is None
    assert moved[3] == [("__debezium.oldkey", b'{"name":"a"}')]


def test_a_key_that_is_chosen_and_cannot_be_made_is_refused_where_the_table_is_described():
    with pytest.raises(ConfigError, match="does not send its former value"):
        Harness(ID_AND_NAME, key_rules=(KeyRule("public.t", ("name",)),))


def test_null_in_an_identity_by_index_is_null_in_the_key():
    by_index = relation(column("code", key=True), column("name"), identity="i")
    harness = Harness(by_index)
    (created,) = harness.give(Insert(None, OID, row(None, "a")))
    assert created[1] == b'{"code":null}'
    deleted, tombstone, created = harness.give(Update(None, OID, "K", row(None, None), row("x", "a")))
    assert (deleted[1], tombstone[1], created[1]) == (b'{"code":null}', b'{"code":null}', b'{"code":"x"}')


@pytest.mark.parametrize("identity", ["d", "f", "n"])
def test_a_table_without_a_key_has_records_without_one_and_no_tombstones(identity):
    keyless = relation(column("id", INT, key=identity == "f"), identity=identity)
    harness = Harness(keyless)
    assert harness.give(Insert(None, OID, row("1")))[0][1] is None
    (updated,) = harness.give(Update(None, OID, "O", row("1"), row("2")))
    assert (updated[1], value_of(updated)["op"], value_of(updated)["before"]) == (None, "u", {"id": 1})
    (deleted,) = harness.give(Delete(None, OID, "O", row("2")))
    assert (deleted[1], value_of(deleted)["op"]) == (None, "d")


def test_a_table_without_columns_has_empty_rows():
    harness = Harness(relation(identity="f"))
    (created,) = harness.give(Insert(None, OID, ()))
    assert (created[1], value_of(created)["after"]) == (None, {})
    (deleted,) = harness.give(Delete(None, OID, "O", ()))
    assert (value_of(deleted)["before"], value_of(deleted)["after"]) == ({}, None)


# Unchanged TOAST.


def unchanged_header(record: Record) -> list[str] | None:
    headers = dict(record[3] or [])
    return json.loads(headers["cdcd.unchanged"]) if "cdcd.unchanged" in headers else None


def test_a_value_that_was_not_sent_is_a_placeholder_and_named():
    columns = (*WITH_NOTE, column("photo", BYTEA), column("numbers", INTS))
    new = (b"1", b"a", UNCHANGED, UNCHANGED, UNCHANGED)
    (record,) = Harness(relation(*columns)).give(Update(None, OID, "", None, new))
    value = value_of(record)
    assert value["before"] is None
    assert value["after"] == {
        "id": 1,
        "name": "a",
        "note": UNAVAILABLE,
        "photo": b64encode(UNAVAILABLE.encode()).decode(),
        "numbers": list(UNAVAILABLE.encode()),
    }
    assert unchanged_header(record) == ["note", "photo", "numbers"]


def test_the_placeholder_can_be_chosen():
    harness = Harness(relation(*WITH_NOTE), unavailable="n/a")
    (record,) = harness.give(Update(None, OID, "", None, (b"1", b"a", UNCHANGED)))
    assert value_of(record)["after"]["note"] == "n/a"


def test_an_old_row_that_has_the_value_fills_it_in():
    full = relation(*[column(one.name, one.type_oid, key=True) for one in WITH_NOTE], identity="f")
    harness = Harness(full, table=TableDescription(("id",)))
    (record,) = harness.give(Update(None, OID, "O", row("1", "a", "long"), (b"1", b"b", UNCHANGED)))
    assert value_of(record)["after"] == {"id": 1, "name": "b", "note": "long"}
    assert record[3] is None
    _, _, created = harness.give(Update(None, OID, "O", row("1", "a", "long"), (b"2", b"b", UNCHANGED)))
    assert value_of(created)["after"] == {"id": 2, "name": "b", "note": "long"}
    assert unchanged_header(created) is None
    # PostgreSQL sends old rows by the replica identity of the partition, with NULL for all other columns.
    _, _, created = harness.give(Update(None, OID, "O", row("1", None, None), (b"2", b"b", UNCHANGED)))
    assert value_of(created)["after"] == {"id": 2, "name": "b", "note": UNAVAILABLE}
    assert unchanged_header(created) == ["note"]


def test_an_old_key_fills_in_the_key_but_not_the_rest():
    """Its other columns are NULL there because they are not part of it."""
    described = relation(column("id", INT, key=True), column("code", key=True), column("note"))
    harness = Harness(described)
    old, new = row("1", "long code", None), (b"2", UNCHANGED, UNCHANGED)
    deleted, _, created = harness.give(Update(None, OID, "K", old, new))
    assert deleted[1] == b'{"id":1,"code":"long code"}'
    assert created[1] == b'{"id":2,"code":"long code"}'
    assert value_of(created)["after"] == {"id": 2, "code": "long code", "note": UNAVAILABLE}
    assert unchanged_header(created) == ["note"]
    assert unchanged_header(deleted) is None
    assert created[3] is not None
    assert created[3][0][0] == "__debezium.oldkey"


def test_a_value_missing_in_the_old_row_too_is_named_in_each_record_that_lacks_it():
    full = relation(*[column(one.name, one.type_oid, key=True) for one in WITH_NOTE], identity="f")
    harness = Harness(full, table=TableDescription(("id",)))
    old = (b"1", b"a", UNCHANGED)
    (record,) = harness.give(Update(None, OID, "O", old, (b"1", b"b", UNCHANGED)))
    assert value_of(record)["before"]["note"] == value_of(record)["after"]["note"] == UNAVAILABLE
    assert unchanged_header(record) == ["note"]
    (record,) = harness.give(Update(None, OID, "O", old, row("1", "b", "new")))
    assert unchanged_header(record) == ["note"]
    deleted, tombstone, created = harness.give(Update(None, OID, "O", old, (b"2", b"b", UNCHANGED)))
    assert [unchanged_header(one) for one in (deleted, tombstone, created)] == [["note"]] * 3
    deleted, _ = harness.give(Delete(None, OID, "O", old))
    assert unchanged_header(deleted) == ["note"]


def test_an_insert_with_a_value_that_was_not_sent_is_never_null():
    (record,) = Harness(relation(*WITH_NOTE)).give(Insert(None, OID, (b"1", b"a", UNCHANGED)))
    assert value_of(record)["after"]["note"] == UNAVAILABLE
    assert unchanged_header(record) == ["note"]


@pytest.mark.parametrize(
    "message",
    [
        Update(None, OID, "", None, (UNCHANGED, b"a")),
        Insert(None, OID, (UNCHANGED, b"a")),
        Delete(None, OID, "K", (UNCHANGED, None)),
    ],
)
def test_a_key_that_was_not_sent_stops_rather_than_goes_to_a_wrong_place(message):
    with pytest.raises(SourceError, match=r"column 'id' of public\.t, which is TOASTed and part of the key"):
        Harness(ID_AND_NAME).give(message)


# Names.


def test_names_may_have_any_character_and_differ_only_in_case():
    names = ["Größe", 'say "x"', "back\\slash", "a.b", "id", "ID", "\U0001f418", "tab\t"]
    described = relation(
        *[column(name, key=name == 'say "x"') for name in names], schema="Sché ma", name='t"able'
    )
    harness = Harness(described)
    (record,) = harness.give(Insert(None, OID, row(*names)))
    value = value_of(record)
    assert value["after"] == {name: name for name in names}
    assert list(value["after"]) == names
    assert (value["source"]["schema"], value["source"]["table"]) == ("Sché ma", 't"able')
    assert record[0] == "shop.Sch__ma.t_able"
    assert json.loads(record[1] or b"") == {'say "x"': 'say "x"'}
    new = tuple([UNCHANGED if name == "Größe" else b"" for name in names])
    assert unchanged_header(harness.give(Update(None, OID, "", None, new))[0]) == ["Größe"]


def test_pg_catalog_has_its_name_though_the_wire_leaves_it_out():
    (record,) = Harness(relation(column("a"), schema="")).give(Insert(None, OID, row("1")))
    assert record[0] == "shop.pg_catalog.t"
    assert value_of(record)["source"]["schema"] == "pg_catalog"


# Truncate.


def other(name: str, oid: int) -> Relation:
    return relation(column("id", INT, key=True), oid=oid, name=name)


def test_a_truncate_is_a_record_for_each_table_in_the_servers_order():
    harness = Harness(other("a", 1), other("b", 2), other("c", 3))
    records = harness.give(Truncate(None, True, True, (3, 1)))
    assert [record[:2] for record in records] == [("shop.public.c", None), ("shop.public.a", None)]
    for record in records:
        value = value_of(record)
        assert (value["op"], value["before"], value["after"]) == ("t", None, None)
        assert value["source"]["event_serial_no"] == 1
    assert value_of(records[0])["source"]["table"] == "c"


def test_a_truncate_that_is_left_out_is_an_event_all_the_same():
    harness = Harness(other("a", 1), truncate=False)
    assert harness.give(Truncate(None, False, False, (1,))) == []
    assert value_of(harness.give(Insert(None, 1, row("1")))[0])["source"]["event_serial_no"] == 2


@pytest.mark.parametrize("truncate", [True, False])
def test_a_truncate_of_an_undefined_relation_is_refused(truncate):
    with pytest.raises(ProtocolError, match="oid 9"):
        Harness(other("a", 1), truncate=truncate).give(Truncate(None, False, False, (1, 9)))


# Logical messages.

MESSAGE = LogicalMessage(None, True, 640, "my prefix", b"\x00content\xff")


def test_a_logical_message_has_debeziums_fields_in_its_order():
    harness = Harness(ID_AND_NAME)
    harness.give(Insert(None, OID, row("1", "a")))
    (record,) = harness.give(MESSAGE)
    topic, key, _, headers = record
    assert (topic, key, headers) == ("shop.message", b'{"prefix":"my prefix"}', None)
    value = value_of(record)
    assert list(value) == ["op", "ts_ms", "source", "transaction", "message"]
    assert (value["op"], value["ts_ms"], value["transaction"]) == ("m", NOW_US // 1000, None)
    assert value["message"] == {"prefix": "my prefix", "content": b64encode(MESSAGE.content).decode()}
    source = value["source"]
    assert (source["schema"], source["table"], source["txId"], source["lsn"]) == ("", "", 7, 640)
    assert (source["commit_lsn"], source["event_serial_no"]) == (1000, 2)


def test_a_message_in_a_stream_is_the_same():
    streamed = LogicalMessage(99, True, 640, "my prefix", b"\x00content\xff")
    assert Harness().give(streamed, in_stream=True) == Harness().give(MESSAGE)


def test_a_message_outside_any_transaction_has_no_xid_and_its_own_place():
    harness = Harness()
    out: list[Record] = []
    message = LogicalMessage(None, False, 640, "ä", b"")
    frame = write_frame(XLogData(640, 640, 0, write_message(message)))
    size = harness.encoder.encode_message(frame, False, 900, NOW_US, out)
    (record,) = out
    assert size == len(record[1] or b"") + len(record[2] or b"")
    assert record[1] == '{"prefix":"ä"}'.encode()
    source = value_of(record)["source"]
    # 640 is the end of its record, where the next commit record may begin.
    assert (source["txId"], source["lsn"], source["commit_lsn"]) == (None, 640, 639)
    assert source["event_serial_no"] == 0
    assert (source["sequence"], source["ts_us"]) == ('["900","640"]', NOW_US)
    assert value_of(record)["message"] == {"prefix": "ä", "content": ""}


def test_messages_go_to_the_topic_that_is_set():
    (record,) = Harness(message_topic="audit").give(MESSAGE)
    assert record[0] == "audit"


# Definitions.


def test_a_relation_that_is_described_anew_has_its_new_columns_at_once():
    harness = Harness(ID_AND_NAME)
    harness.give(Insert(None, OID, row("1", "a")))
    harness.encoder.define(relation(column("id", INT, key=True), column("size", INT)), TableDescription(), {})
    (record,) = harness.give(Insert(None, OID, row("1", "2")))
    assert value_of(record)["after"] == {"id": 1, "size": 2}


def test_a_renamed_table_goes_to_its_new_topic():
    harness = Harness(ID_AND_NAME)
    harness.encoder.define(relation(*ID_AND_NAME.columns, name="renamed"), TableDescription(), {})
    assert harness.give(Insert(None, OID, row("1", "a")))[0][0] == "shop.public.renamed"
    assert harness.encoder.tables.topic_of(OID) == "shop.public.renamed"


def test_types_come_from_the_catalog():
    mood = TypeDescription(70_000, "public", "mood", "e", "E", 0, 0, -1)
    (record,) = Harness(relation(column("m", 70_000)), types=[mood]).give(
        Insert(None, OID, (Binary(b"so-so"),))
    )
    assert value_of(record)["after"] == {"m": "so-so"}


def test_what_is_no_event_is_our_own_mistake():
    with pytest.raises(AssertionError):
        Harness().give(Begin(1, 2, 3))


# Counting.


def test_records_are_counted_by_table_and_op_without_tombstones():
    harness = Harness(ID_AND_NAME, other("b", 2))
    assert harness.encoder.counts == {}
    harness.give(Insert(None, OID, row("1", "a")))
    harness.give(Insert(None, OID, row("2", "a")))
    harness.give(Update(None, OID, "", None, row("1", "b")))
    harness.give(Update(None, OID, "K", row("1", None), row("3", "b")))
    harness.give(Delete(None, OID, "K", row("3", None)))
    harness.give(Truncate(None, False, False, (OID, 2)))
    harness.give(MESSAGE)
    harness.encoder.define(ID_AND_NAME, TableDescription(), {})
    harness.give(Insert(None, OID, row("1", "a")))
    assert harness.encoder.counts == {
        ("public.t", "c"): 4,
        ("public.t", "u"): 1,
        ("public.t", "d"): 2,
        ("public.t", "t"): 1,
        ("public.b", "t"): 1,
        ("", "m"): 1,
    }


# Descriptions.


def described(*relations: Relation) -> Harness:
    return Harness(*relations, schemas_topic="shop.schemas")


def insert_frame() -> bytes:
    return write_frame(XLogData(LSN, LSN, 0, write_message(Insert(None, OID, row("1", "x")))))


def test_a_table_is_described_once_before_its_first_change_which_names_the_description():
    harness = described(ID_AND_NAME)
    out: list[Record] = []
    for _ in range(2):
        harness.encoder.encode(insert_frame(), False, NOW_US, out)
    harness.encoder.begin(8, 2000, COMMIT_TIME, 1000)
    harness.encoder.encode(insert_frame(), False, NOW_US, out)
    (topic, _, description, _), *changes = out
    assert topic == "shop.schemas"
    fingerprint, form = read_form(description or b"")
    assert [column.name for column in form.columns] == ["id", "name"]
    assert [value_of(change)["source"]["schema_id"] for change in changes] == [fingerprint] * 3
    assert list(value_of(changes[0])["source"])[-3:] == ["commit_lsn", "event_serial_no", "schema_id"]


def test_a_table_is_described_anew_when_its_description_changed_and_only_then():
    harness = described(ID_AND_NAME)
    out: list[Record] = []
    harness.encoder.encode(insert_frame(), False, NOW_US, out)
    harness.encoder.define(replace(ID_AND_NAME, xid=77), TableDescription(), {})
    harness.encoder.encode(insert_frame(), False, NOW_US, out)
    assert [topic for topic, *_ in out] == ["shop.schemas", "shop.public.t", "shop.public.t"]
    number = CatalogColumn("name", 9, "text", TEXT, 0, None)
    harness.encoder.define(ID_AND_NAME, TableDescription(columns=(number,)), {})
    harness.encoder.encode(insert_frame(), False, NOW_US, out)
    assert [topic for topic, *_ in out[3:]] == ["shop.schemas", "shop.public.t"]
    ids = [value_of(record)["source"]["schema_id"] for record in out if record[0] == "shop.public.t"]
    assert ids[0] == ids[1] != ids[2]


def test_deletes_updates_and_truncates_name_the_description_too():
    harness = described(ID_AND_NAME)
    out: list[Record] = []
    for message in (
        Update(None, OID, "", None, row("1", "b")),
        Delete(None, OID, "K", row("2", None)),
        Truncate(None, False, False, (OID,)),
    ):
        frame = write_frame(XLogData(LSN, LSN, 0, write_message(message)))
        harness.encoder.encode(frame, False, NOW_US, out)
    ids = {value_of(record)["source"]["schema_id"] for record in out[1:] if record[2] is not None}
    assert ids == {read_form(out[0][2] or b"")[0]}
    assert [value_of(record)["op"] for record in out[1:] if record[2] is not None] == ["u", "d", "t"]


def test_a_relation_that_is_only_described_has_no_record_and_claims_no_topic():
    """pgoutput describes the leaves of a partitioned table that is published as a whole; their rows are the root's."""
    root = relation(column("id", INT, key=True), name="measure.day")
    leaf = replace(root, oid=OID + 1, name="measure_day")
    long = replace(root, oid=OID + 2, name="x" * TOPIC_LENGTH_MAX)
    encoder = Harness(leaf, root, long, schemas_topic="shop.schemas").encoder
    out: list[Record] = []
    frame = write_frame(XLogData(LSN, LSN, 0, write_message(Insert(None, OID, row("1")))))
    encoder.encode(frame, False, NOW_US, out)
    assert [topic for topic, *_ in out] == ["shop.schemas", "shop.public.measure.day"]


def test_a_topic_that_is_taken_or_too_long_is_refused_at_the_first_record():
    names = ["t", "a.b", "a_b", "x" * TOPIC_LENGTH_MAX]
    harness = Harness(
        *[relation(column("id", INT), oid=OID + at, name=name) for at, name in enumerate(names)]
    )
    harness.give(Insert(None, OID + 2, row("1")))
    for _ in range(2):
        with pytest.raises(SinkError, match=r'shop\.public\.a\.b of table "public"\."a\.b" collides with'):
            harness.give(Insert(None, OID + 1, row("1")))
    with pytest.raises(SinkError, match="Kafka allows 249"):
        harness.give(Insert(None, OID + 3, row("1")))
