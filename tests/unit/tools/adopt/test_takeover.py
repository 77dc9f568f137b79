"""What comes twice, and what may not come at all.

Debezium's events at the ends of topics.
"""

import json
from dataclasses import replace

import pytest

from cdcd.adapters.postgres.slot import PendingTransaction
from cdcd.config.loading import parse_config
from cdcd.core.errors import TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.tools.adopt.connect_api import Connector
from cdcd.tools.adopt.takeover import TakeoverPlan, take_over
from cdcd.tools.adopt.written_events import (
    OffsetGap,
    Tails,
    WrittenEvent,
    gap,
    twice,
    unfinished_snapshot,
    unfinished_tables,
)


def test_events_that_slot_and_topics_have_come_twice() -> None:
    pending = [
        PendingTransaction(1, 110, {101: 1, 102: 1}),
        PendingTransaction(2, 120, {103: 3}),
        PendingTransaction(3, 130, {125: 1}),
    ]
    # The connector was killed in the second one, and has written an event of the first one twice by itself.
    written = [
        WrittenEvent(1, 101),
        WrittenEvent(1, 102),
        WrittenEvent(1, 102),
        WrittenEvent(2, 103),
        WrittenEvent(2, 103),
        WrittenEvent(9, 1),
    ]
    found = twice(pending, written)
    assert (found.events, found.transactions) == (4, 2)
    assert (found.first, found.last, found.partly) == (Lsn(110), Lsn(120), Lsn(120))


def test_nothing_comes_twice_where_the_slot_has_nothing_or_the_topics_have_none_of_it() -> None:
    for pending, written in (
        ([], [WrittenEvent(1, 1)]),
        ([PendingTransaction(1, 5, {1: 1})], [WrittenEvent(2, 1), WrittenEvent(1, 2)]),
    ):
        found = twice(pending, written)
        assert (found.events, found.transactions, found.first, found.partly) == (0, 0, None, None)


def test_a_transaction_of_which_a_part_is_skipped_in_the_middle_is_not_partly_if_a_later_one_is_there() -> (
    None
):
    pending = [PendingTransaction(1, 10, {1: 2}), PendingTransaction(2, 20, {2: 1})]
    assert twice(pending, [WrittenEvent(1, 1), WrittenEvent(2, 2)]).partly is None


def test_a_slot_behind_the_offset_has_a_gap() -> None:
    offset = {"lsn": 100, "lsn_proc": 100, "lsn_commit": 90, "txId": 7}
    assert gap(offset, 100) is None
    assert gap(offset, 95) is None
    assert gap(offset, 101) == OffsetGap(Lsn(100), Lsn(101))
    assert gap({}, 101) is None


def test_a_snapshot_that_is_not_complete_is_seen() -> None:
    assert not unfinished_snapshot({"lsn": 1})
    assert unfinished_snapshot({"lsn": 1, "snapshot": "INITIAL", "snapshot_completed": False})
    assert not unfinished_snapshot({"lsn": 1, "snapshot": "INITIAL", "snapshot_completed": True})
    assert unfinished_tables({"incremental_snapshot_collections": '[{"id": "a"}]'})
    assert not unfinished_tables({"lsn": 1})


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
    assert tails.events == [WrittenEvent(7, 1), WrittenEvent(8, 2)]
    assert tails.unreadable == 0


def test_what_is_not_debezium_s_json_is_counted() -> None:
    tails = Tails(frozenset({7}))
    for value in (b"\x00\x00\x00\x00\x01avro", b'{"id": 1}', b"[1]"):
        tails.take(value)
    assert (tails.events, tails.unreadable) == ([], 3)
    foreign = (
        {"lsn": "one"},
        {"lsn": [1]},
        {"lsn": 1, "txId": {}},
        {"lsn": "9" * 5000},
        {"lsn": 1.5},
        {"lsn": "²"},
    )
    for source in foreign:
        tails.take(json.dumps({"source": source}).encode())
    tails.take(b'{"source": {"a": ' + b"[" * 9_000 + b"]" * 9_000 + b"}}")
    tails.take(b'{"specversion": "1.0", "iodebeziumlsn": {}}')
    assert (tails.events, tails.unreadable) == ([], 3 + len(foreign) + 2)


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
    assert tails.events == [WrittenEvent(7, 5), WrittenEvent(8, 5)]
    tails.take(b'{"specversion": "1.0", "id": "1", "data": {}}')
    assert tails.unreadable == 1


# A port of the loopback at which nobody listens.
CONFIG = parse_config(
    "name: shop\npostgres: {dsn: 'postgresql://cdcd@127.0.0.1:1/shop'}\nkafka: {bootstrap_servers: '127.0.0.1:1'}\n",
    {},
)
PLAN = TakeoverPlan(
    CONFIG,
    Connector("http://127.0.0.1:1/connectors/shop"),
    None,
    connector_slot="cdcd_shop",
    driver_confirms=False,
    accept_gap=False,
)


def test_cdcd_has_a_slot_of_its_own_if_the_connector_reads_another_one() -> None:
    assert replace(PLAN, connector_slot="debezium").has_own_slot
    assert not replace(PLAN, connector_slot=CONFIG.postgres.slot).has_own_slot


def test_the_connector_is_not_stopped_while_postgresql_cannot_be_asked() -> None:
    said: list[str] = []
    with pytest.raises(TransientError):
        take_over(PLAN, said.append)
    assert said == []
