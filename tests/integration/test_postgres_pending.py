"""What a slot would send is counted without being taken from it."""

import asyncio

import pytest

from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.adapters.postgres.slot import PendingTransaction, current_lsn, read_pending
from cdcd.core.protocol.lsn import Lsn
from tests.integration.conftest import Database


def pending(database: Database, slot: str) -> tuple[list[PendingTransaction], bool]:
    async def ask() -> tuple[list[PendingTransaction], bool]:
        connection = await connect(parse_dsn(database.dsn()), application_name="test")
        try:
            return await read_pending(connection, slot, "p", await current_lsn(connection))
        finally:
            await connection.close()

    return asyncio.run(ask())


@pytest.mark.postgres(only=[13, 14, 18])
def test_transactions_are_in_the_order_of_their_ends_with_their_events(published: Database, unique: str):
    # GIVEN a slot, and two transactions of which the first one ends last, one that rolls back, and one of another table
    published.execute(f"SELECT pg_create_logical_replication_slot('{unique}', 'pgoutput')")
    with published.connect(autocommit=False) as first:
        first.execute("INSERT INTO t SELECT generate_series(1, 5)")
        (first_xid,) = first.execute("SELECT txid_current()").fetchone() or (0,)
        published.execute("UPDATE t SET note = 'x'; INSERT INTO t VALUES (10)")
    with published.connect(autocommit=False) as undone:
        undone.execute("DELETE FROM t")
        undone.rollback()
    # WHEN the slot is looked at, twice
    found, is_all = pending(published, unique)
    assert pending(published, unique) == (found, is_all)
    # THEN all events are there, and the slot has not moved
    assert is_all
    assert [sum(each.events.values()) for each in found] == [1, 5]
    assert found[1].xid == first_xid
    assert found[0].end_lsn < found[1].end_lsn
    assert all(max(each.events) < each.end_lsn for each in found)
    ((confirmed,),) = published.execute(
        f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{unique}'"
    )
    assert Lsn.parse(confirmed) <= min(min(each.events) for each in found)


@pytest.mark.postgres(only=[14, 18])
def test_logical_messages_are_events_also_outside_of_transactions(published: Database, unique: str):
    published.execute(f"SELECT pg_create_logical_replication_slot('{unique}', 'pgoutput')")
    published.execute("SELECT pg_logical_emit_message(false, 'a', 'b')")
    # Its commit also flushes the message before it.
    published.execute("SELECT pg_logical_emit_message(true, 'a', 'b')")
    found, _ = pending(published, unique)
    assert [(bool(each.xid), sum(each.events.values())) for each in found] == [(False, 1), (True, 1)]
