"""Debezium's events at the ends of topics."""

import json

from cdcd.tools.adopt.events import Tails
from cdcd.tools.adopt.overlap import Written


def record(xid: int | None, lsn: int | None, *, schema: bool = False, snapshot: str = "false") -> bytes:
    envelope = {"op": "c", "source": {"txId": xid, "lsn": lsn, "snapshot": snapshot}}
    return json.dumps({"schema": {}, "payload": envelope} if schema else envelope).encode()


def test_events_of_the_transactions_are_taken_with_a_schema_and_without() -> None:
    tails = Tails(frozenset({7, 8}))
    for value in (
        record(7, 1),
        record(8, 2, schema=True),
        record(9, 3),
        None,
        record(7, 4, snapshot="incremental"),
    ):
        tails.take(value)
    assert tails.events == [Written(7, 1), Written(8, 2)]
    assert tails.unreadable == 0


def test_what_is_not_debezium_s_json_is_counted() -> None:
    tails = Tails(frozenset({7}))
    for value in (b"\x00\x00\x00\x00\x01avro", b'{"id": 1}', b"[1]"):
        tails.take(value)
    assert (tails.events, tails.unreadable) == ([], 3)


def test_reading_goes_on_until_another_transaction_is_first() -> None:
    tails = Tails(frozenset({7}))
    assert not tails.reach_before([record(7, 1), record(9, 2)])
    assert not tails.reach_before([None, record(3, 1, snapshot="incremental"), record(7, 1)])
    assert tails.reach_before([record(9, 2), record(7, 1)])
    # Nothing but tombstones or rows says nothing; what cannot be read ends it.
    assert not tails.reach_before([None])
    assert not tails.reach_before([record(3, 1, snapshot="true")])
    assert tails.reach_before([b"avro", None])


def test_cloudevents_name_their_transaction_in_attributes() -> None:
    tails = Tails(frozenset({7, 8}))
    event = {"specversion": "1.0", "iodebeziumlsn": "5", "iodebeziumsnapshot": "false", "data": {}}
    for more in (
        {"iodebeziumtxId": "7", "iodebeziumtxid": "9:1"},
        {"iodebeziumsourcetxid": "8"},
        {"iodebeziumtxId": "7", "iodebeziumsnapshot": "true"},
        {"iodebeziumtxId": "9"},
    ):
        tails.take(json.dumps({**event, **more}).encode())
    assert tails.events == [Written(7, 5), Written(8, 5)]
    tails.take(b'{"specversion": "1.0", "id": "1", "data": {}}')
    assert tails.unreadable == 1
