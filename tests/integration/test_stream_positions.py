"""`import cdcd`: what a slot is told, and what a reader may do meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import cdcd
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.streams import PUBLICATION, WAIT_S, confirmed, rows, soon, take


@pytest.mark.postgres(only=[13, 16, 18])
def test_a_lasting_slot_goes_on_behind_what_was_acknowledged(published: Database, unique: str):
    database = published
    slot = unique[:60]

    def connect(**more: Any) -> cdcd.Stream:
        return cdcd.connect(database.dsn(), publication=PUBLICATION, slot=slot, **more)

    async def make() -> None:
        with pytest.raises(cdcd.SourceError, match=f"There is no replication slot {slot}") as caught:
            await connect().__aenter__()
        assert "create_slot=True" in caught.value.hint
        async with connect(create_slot=True) as stream:
            assert stream.slot_created

    async def ids(count: int, acknowledge: Callable[[int], bool]) -> list[int]:
        found = []
        async with connect() as stream:
            assert not stream.slot_created
            for _ in range(count):
                transaction = await soon(anext(stream))
                ((number,),) = [
                    [change.new["id"]] async for change in transaction if isinstance(change, cdcd.Insert)
                ]
                assert isinstance(number, int)
                found.append(number)
                if acknowledge(number):
                    await stream.acknowledge(transaction)
        return found

    asyncio.run(make())
    for number in range(1, 11):
        database.execute(f"INSERT INTO t VALUES ({number})")
    assert asyncio.run(ids(5, lambda number: number <= 3)) == [1, 2, 3, 4, 5]
    # A gap among the acknowledged: what is behind it comes again
    assert asyncio.run(ids(4, lambda number: number != 5)) == [4, 5, 6, 7]
    assert asyncio.run(ids(6, lambda _: True)) == [5, 6, 7, 8, 9, 10]
    database.execute("INSERT INTO t VALUES (11)")
    assert asyncio.run(ids(1, lambda _: True)) == [11]


@pytest.mark.postgres(only=18, also=[13])
def test_a_transaction_that_is_not_read_to_its_end_is_skipped_and_says_so(published: Database, unique: str):
    database = published

    async def read() -> None:
        async with cdcd.connect(
            database.dsn(), publication=PUBLICATION, slot=unique[:60], create_slot=True
        ) as stream:
            database.execute("INSERT INTO t SELECT g FROM generate_series(1, 5000) g")
            database.execute("INSERT INTO t VALUES (-1)")
            database.execute("INSERT INTO t VALUES (-2)")
            first = await soon(anext(stream))
            change = await anext(first)
            assert rows(change) == ("insert", {"id": 1, "note": None})
            await soon(first.acknowledge())
            with pytest.raises(RuntimeError, match="rest of the transaction was skipped"):
                await anext(first)
            await soon(anext(stream))
            third = await soon(anext(stream))
            assert [rows(each) async for each in third] == [("insert", {"id": -2, "note": None})]
            # Once
            assert [each async for each in third] == []
        with pytest.raises(RuntimeError, match="closed"):
            await third.acknowledge()
        with pytest.raises(RuntimeError, match="closed"):
            await anext(stream)

    asyncio.run(read())


@pytest.mark.postgres(only=18, also=[14])
def test_a_read_that_is_cancelled_loses_nothing(published: Database):
    database = published

    async def insert() -> None:
        for number in range(60):
            await asyncio.to_thread(
                database.execute, f"CREATE TABLE n{number} (id int); INSERT INTO n{number} VALUES ({number})"
            )

    async def read() -> list[object]:
        found: list[object] = []
        async with cdcd.connect(database.dsn(), publication=PUBLICATION) as stream, asyncio.timeout(WAIT_S):
            inserting = asyncio.create_task(insert())
            delay = 0.0001
            while len(found) < 60:
                try:
                    async with asyncio.timeout(delay):
                        transaction = await anext(stream)
                except TimeoutError:
                    delay = delay * 1.5 if delay < 0.05 else 0.0001
                    continue
                found += [change.new["id"] async for change in transaction if isinstance(change, cdcd.Insert)]
            await inserting
        return found

    assert asyncio.run(read()) == list(range(60))


@pytest.mark.postgres(only=18, also=[13])
def test_a_slow_reader_keeps_its_connection(published: Database):
    database = published

    async def read() -> list[object]:
        # It asks after half of that, so a machine that stands still for five seconds does not end the session.
        dsn = database.dsn(options="-c wal_sender_timeout=12s")
        async with cdcd.connect(dsn, publication=PUBLICATION) as stream:
            database.execute("INSERT INTO t SELECT g FROM generate_series(1, 3) g")
            database.execute("INSERT INTO t VALUES (4)")
            transaction = await soon(anext(stream))
            # WHEN the reader is busy for longer than the server's timeout, in the middle of a transaction
            await asyncio.sleep(13)
            found = [rows(change) async for change in transaction]
            return found + [rows(change) for _, each in await take(stream, 1) for change in each]

    assert len(asyncio.run(read())) == 4


@pytest.mark.postgres(only=18, also=[13])
def test_an_idle_stream_lets_go_of_wal_that_others_write(published: Database, unique: str):
    database = published

    async def read() -> None:
        # As above. An idle server tells its position when it asks.
        dsn = database.dsn(options="-c wal_sender_timeout=12s")
        async with cdcd.connect(dsn, publication="few", slot=unique[:60], create_slot=True) as stream:
            reading = asyncio.ensure_future(anext(stream))
            for _ in range(5):
                database.execute("INSERT INTO t SELECT g FROM generate_series(1, 1000) g; TRUNCATE t")
            ((written,),) = database.execute("SELECT pg_current_wal_insert_lsn()::text")
            end = cdcd.Lsn.parse(written)
            await asyncio.to_thread(
                until,
                lambda: True if confirmed(database, stream.slot) >= end else None,
                "WAL of a table that is not published is held",
            )
            reading.cancel()

    database.execute("CREATE TABLE unchanged (id int)")
    database.execute("CREATE PUBLICATION few FOR TABLE unchanged")
    asyncio.run(read())


@pytest.mark.postgres(only=18, also=[13])
def test_one_task_reads(published: Database):
    database = published

    async def read() -> None:
        async with cdcd.connect(database.dsn(), publication=PUBLICATION) as stream:
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="Another task is reading this stream"):
                await anext(stream)
            database.execute("INSERT INTO t VALUES (1)")
            transaction = await soon(reading)
            async with cdcd.connect(database.dsn(), publication=PUBLICATION) as other:
                with pytest.raises(ValueError, match="another stream"):
                    await other.acknowledge(transaction)
        with pytest.raises(RuntimeError, match="entered once"):
            await stream.__aenter__()

    asyncio.run(read())
