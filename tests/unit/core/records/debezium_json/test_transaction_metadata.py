import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
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
from cdcd.core.records.debezium_json.event_schemas import TRANSACTION_KEY, TRANSACTION_VALUE
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.stream import RecordStream
from cdcd.core.transactions.drafts import SpoolItem, without_first
from cdcd.tools.verify.record_parsing import cut
from tests.unit.core.records.formats import json_of

NOW_US = 1_700_000_000_000_000
XID = 7
TOPIC = "shop.transaction"
ITEM = Relation(None, 1, "public", "item", "d", (Column(1, "id", 23, -1), Column(0, "name", 25, -1)))
OTHER = replace(ITEM, oid=2, name='o"ther')
RELATIONS = (ITEM, OTHER)
ID = "7:1000"


def made(*, begins: bool = True, **settings: Any) -> RecordStream:
    encoder = record_stream(EncoderSettings("1", "shop", "db", transaction_topic=TOPIC, **settings))
    for relation in RELATIONS:
        encoder.define(relation, TableDescription(), {})
    if begins:
        encoder.begin(XID, 1000, 0, None)
    return encoder


def metadata_of(encoder: RecordStream) -> TransactionMetadata:
    assert encoder.metadata is not None
    return encoder.metadata


def framed(messages: Iterable[Message]) -> list[SpoolItem]:
    return [write_frame(XLogData(500, 500, 0, write_message(message))) for message in messages]


def insert(number: int, oid: int = 1, xid: int | None = None) -> Insert:
    return Insert(xid, oid, (b"%d" % number, b"x"))


def given(encoder: RecordStream, *messages: Message) -> list[Record]:
    """What the engine takes over after a step."""
    out: list[Record] = []
    size = encoder.encode_all(framed(messages), False, NOW_US, out)
    size += metadata_of(encoder).begun(out)
    assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
    return out


def ended(encoder: RecordStream) -> list[Record]:
    out: list[Record] = []
    size = metadata_of(encoder).ended(out)
    assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
    return out


def payload(record: Record, part: int = 2) -> Any:
    data = record[part]
    assert isinstance(data, bytes)
    return json.loads(data)


def places(records: list[Record]) -> list[tuple[int, int]]:
    """The places of the records in their transaction; those without a value left out."""
    found = [payload(record)["transaction"] for record in records if record[2] is not None]
    assert all(place["id"] == ID for place in found)
    return [(place["total_order"], place["data_collection_order"]) for place in found]


def test_begin_and_end_are_debeziums_records_to_the_byte():
    encoder = made()
    begin, *_ = given(encoder, insert(1), insert(2, oid=2), insert(2))
    key = b'{"id":"7:1000"}'
    assert begin == (
        TOPIC,
        key,
        b'{"status":"BEGIN","id":"7:1000","event_count":null,"data_collections":null,"ts_ms":946684800000}',
        None,
    )
    assert ended(encoder) == [
        (
            TOPIC,
            key,
            (
                b'{"status":"END","id":"7:1000","event_count":3,"data_collections":[{"data_collection":"public.item",'
                b'"event_count":2},{"data_collection":"public.o\\"ther","event_count":1}],"ts_ms":946684800000}'
            ),
            None,
        )
    ]


@pytest.mark.parametrize("writes", [True, False], ids=["written", "joined"])
def test_each_record_says_its_place_in_the_transaction_and_is_else_what_it_was(writes):
    messages: list[Message] = [
        insert(1),
        insert(2, oid=2),
        Update(None, 1, "", None, (b"1", b"b")),
        Update(None, 1, "K", (b"1", None), (b"2", b"b")),
        Delete(None, 1, "K", (b"2", None)),
        Truncate(None, False, False, (1, 2)),
    ]
    encoder, plain = made(), record_stream(EncoderSettings("1", "shop", "db"))
    for relation in RELATIONS:
        plain.define(relation, TableDescription(), {})
    plain.begin(XID, 1000, 0, None)
    json_of(encoder).writes = json_of(plain).writes = writes
    _, *records = given(encoder, *messages)
    # The delete and the create of a changed key have a place each, tombstones have none.
    assert places(records) == [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (8, 2)]
    bare: list[Record] = []
    plain.encode_all(framed(messages), False, NOW_US, bare)
    for record, wanted in zip(records, bare, strict=True):
        assert (record[0], record[1], record[3]) == (wanted[0], wanted[1], wanted[3])
        if record[2] is not None:
            found = payload(record)
            assert {**found, "transaction": None} == payload(wanted)
            assert list(found) == list(payload(wanted))


def test_both_ways_to_write_a_row_give_the_same_bytes():
    messages = [insert(number, 1 + number % 2) for number in range(5)]
    one, other = made(), made()
    json_of(one).writes, json_of(other).writes = True, False
    assert given(one, *messages) == given(other, *messages)


def test_a_transaction_without_records_has_neither_begin_nor_end():
    encoder = made(skipped=("c",))
    assert given(encoder, insert(1)) == []
    assert ended(encoder) == []


def test_skipped_operations_and_logical_messages_do_not_count():
    encoder = made(skipped=("u",))
    message = LogicalMessage(None, True, 1, "p", b"content")
    out = given(encoder, insert(1), message, Update(None, 1, "", None, (b"1", b"b")), insert(2))
    _, first, other, second = out
    assert places([first, second]) == [(1, 1), (2, 2)]
    assert payload(other)["transaction"] is None
    assert payload(ended(encoder)[0])["event_count"] == 2


def test_the_next_transaction_counts_anew():
    encoder = made()
    given(encoder, insert(1))
    ended(encoder)
    encoder.begin(8, 2000, 0, 1000)
    begin, record = given(encoder, insert(2))
    assert payload(begin)["id"] == "8:2000"
    assert payload(record)["transaction"] == {"id": "8:2000", "total_order": 1, "data_collection_order": 1}


def test_an_origin_in_the_middle_of_a_transaction_does_not_count_anew():
    encoder = made()
    given(encoder, insert(1))
    encoder.set_origin("elsewhere", 5)
    assert places(given(encoder, insert(2))) == [(2, 2)]


def test_begin_comes_once():
    encoder = made()
    assert [record[0] for record in given(encoder, insert(1))] == [TOPIC, "shop.public.item"]
    assert [record[0] for record in given(encoder, insert(2))] == ["shop.public.item"]


def test_a_transaction_that_is_delivered_in_part_goes_on_where_it_was():
    encoder = made()
    before = given(encoder, insert(1), insert(2, oid=2), insert(3))
    counts = metadata_of(encoder).counts()
    assert counts == (("public.item", 2), ('public.o"ther', 1))
    after = given(encoder, insert(4))
    again = made()
    again.skip(3)
    metadata_of(again).restore(counts)
    assert given(again, insert(4)) == after
    assert places(before[1:] + after) == [(1, 1), (2, 1), (3, 2), (4, 3)]
    assert ended(again) == ended(encoder)


def test_what_was_delivered_may_have_no_record_that_counts():
    encoder = made()
    encoder.skip(3)
    metadata_of(encoder).restore(())
    begin, record = given(encoder, insert(4))
    assert payload(begin)["status"] == "BEGIN"
    assert places([record]) == [(1, 1)]


def test_an_end_that_was_not_delivered_with_the_last_record_follows():
    encoder = made()
    given(encoder, insert(1))
    again = made()
    again.skip(1)
    metadata_of(again).restore(metadata_of(encoder).counts())
    assert ended(again) == ended(encoder) != []


def test_drafts_get_their_places_at_the_commit():
    frames = framed([insert(number, xid=XID) for number in range(4)] + [insert(9, 2, XID), insert(5, 1, XID)])
    encoder, straight = made(begins=False), made()
    kept = encoder.draft_all(frames, {one.oid: (1, one) for one in RELATIONS})
    assert not any(isinstance(item, bytes) for item in kept), "all rows are drafted"
    encoder.begin(XID, 1000, 0, None)
    out: list[Record] = []
    encoder.encode_all(kept, True, NOW_US, out)
    wanted: list[Record] = []
    straight.encode_all(frames, True, NOW_US, wanted)
    assert out == wanted
    assert places(out) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 1), (6, 5)]


def test_drafts_that_were_rolled_back_or_are_delivered_take_no_place():
    frames = framed([insert(number, xid=XID + number // 2) for number in range(6)])
    encoder = made(begins=False)
    first, _aborted, last = encoder.draft_all(frames, {ITEM.oid: (1, ITEM)})
    assert not isinstance(first, bytes)
    encoder.begin(XID, 1000, 0, None)
    encoder.skip(1)
    metadata_of(encoder).restore((("public.item", 1),))
    out: list[Record] = []
    encoder.encode_all([without_first(first, 1), last], True, NOW_US, out)
    assert [payload(record)["after"]["id"] for record in out] == [1, 4, 5]
    assert places(out) == [(2, 2), (3, 3), (4, 4)]


def test_rows_of_snapshots_and_ends_of_former_rows_are_in_no_transaction():
    encoder = record_stream(EncoderSettings("1", "shop", "db", transaction_topic=TOPIC))
    encoder.define(ITEM, TableDescription(), BUILTIN_TYPES)
    out: list[Record] = []
    position = SnapshotPosition(1, 2, "first", "last", "true")
    encoder.encode_rows(1, [b"1\ta\n", b"2\tb\n"], position, NOW_US, out, set())
    encoder.encode_end_of_rows(1, (5, 6), NOW_US, out)
    streamed = made()
    given(streamed, insert(1))
    streamed.encode_end_of_rows(1, (5, 6), NOW_US, out)
    assert [payload(record)["transaction"] for record in out] == [None] * 4


def test_the_end_of_former_rows_inside_a_transaction_counts():
    encoder = made()
    out: list[Record] = []
    encoder.encode_end_of_rows(1, None, NOW_US, out)
    assert places(out) == [(1, 1)]


def test_with_schemas_the_records_are_what_their_schemas_say():
    encoder = made(key_format="json_schema", value_format="json_schema")
    begin, record = given(encoder, insert(1))
    (end,) = ended(encoder)
    for each in (begin, end):
        key, value = payload(each, 1), payload(each)
        assert (key["schema"], value["schema"]) == (TRANSACTION_KEY, TRANSACTION_VALUE)
        assert [field["field"] for field in value["schema"]["fields"]] == list(value["payload"])
    (counts,) = [one for one in TRANSACTION_VALUE["fields"] if one["field"] == "data_collections"]
    assert [field["field"] for field in counts["items"]["fields"]] == list(
        payload(end)["payload"]["data_collections"][0]
    )
    (block,) = [one for one in payload(record)["schema"]["fields"] if one["field"] == "transaction"]
    assert [field["field"] for field in block["fields"]] == list(payload(record)["payload"]["transaction"])


def test_verify_reads_records_with_their_place():
    _, record = given(made(), insert(1))
    assert record[2] is not None
    found = cut(record[2], [])
    assert (found.commit_lsn, found.serial, found.xid) == (1000, 1, XID)


def test_without_a_topic_records_are_as_ever():
    encoder = record_stream(EncoderSettings("1", "shop", "db"))
    assert encoder.metadata is None


@pytest.mark.parametrize("writes", [True, False], ids=["written", "joined"])
def test_a_row_that_is_written_again_for_a_value_without_a_form_counts_once(writes: bool):
    price = replace(
        ITEM, oid=3, name="price", columns=(ITEM.columns[0], Column(0, "price", 1700, 4 + (9 << 16) + 2))
    )
    encoder = made(begins=False, modes=Modes(decimal="precise"))
    json_of(encoder).writes = writes
    encoder.define(price, TableDescription(), {})
    encoder.begin(XID, 1000, 0, None)
    nan, moved = Insert(None, 3, (b"1", b"NaN")), Update(None, 3, "K", (b"1", None), (b"2", b"NaN"))
    _, *records = given(encoder, nan, moved, insert(1))
    assert places(records) == [(1, 1), (2, 2), (3, 3), (4, 1)]
