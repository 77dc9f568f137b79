"""Replication slots of real servers: made, read, refused, waited for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg
import pytest

from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.refusals import SlotActiveError
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import (
    SlotState,
    SlotWait,
    check_slot,
    create_slot,
    drop_slot,
    end_two_phase,
    read_slot,
)
from cdcd.core.errors import ConfigError, PositionError, SourceError, TransientError
from cdcd.core.protocol.frames import StatusUpdate, write_frame
from cdcd.core.protocol.messages import Commit, Prepare
from cdcd.core.protocol.reader import read_message
from tests.integration.conftest import VERSIONS, Database
from tests.integration.daemon import WAIT_S

pytestmark = pytest.mark.postgres(every=True)


@contextlib.asynccontextmanager
async def both(dsn: str) -> AsyncIterator[tuple[Connection, ReplicationStream]]:
    connection = await connect(parse_dsn(dsn), application_name="test")
    try:
        stream = await ReplicationStream.open(parse_dsn(dsn), application_name="test")
        try:
            yield connection, stream
        finally:
            stream.close()
    finally:
        await connection.close()


async def existing(connection: Connection, name: str) -> SlotState:
    state = await read_slot(connection, name)
    assert state is not None
    return state


def test_a_slot_is_created_read_and_dropped(database: Database, unique: str):
    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            assert await read_slot(connection, unique) is None
            created = await create_slot(stream, unique, observer=connection)
            state = await existing(connection, unique)
            check_slot(state, database.name)
            assert state.confirmed_flush_lsn == created.consistent_point
            assert state.restart_lsn is not None
            assert state.restart_lsn <= created.consistent_point <= state.current_lsn
            assert (state.plugin, state.database, state.active, state.two_phase, state.failover) == (
                "pgoutput",
                database.name,
                False,
                False,
                False,
            )
            assert state.wal_status == "reserved"
            database.execute("CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
            assert (await existing(connection, unique)).retained_bytes > 1_000_000
            with pytest.raises(TransientError, match="already exists"):
                await create_slot(stream, unique)
            with pytest.raises(SourceError, match="belongs to database"):
                check_slot(state, "another")
            assert await drop_slot(connection, unique)
            assert not await drop_slot(connection, unique)

    asyncio.run(run())


@pytest.mark.postgres(since=15)
def test_a_slot_can_be_made_for_prepared_transactions(database: Database, unique: str):
    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            await create_slot(stream, unique, two_phase=True, failover=database.version >= 17)
            state = await existing(connection, unique)
            assert state.two_phase
            assert state.failover == (database.version >= 17)

    asyncio.run(run())


@pytest.mark.postgres(since=15)
def test_a_slot_that_is_rid_of_two_phase_sends_a_confirmed_prepare_whole_at_its_commit(
    database: Database, unique: str
):
    # GIVEN a transaction that was sent at PREPARE, and confirmed
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    options = [("proto_version", "3"), ("publication_names", '"p"')]

    async def receive(until: type[Commit | Prepare], *, confirm: bool) -> list[str]:
        names: list[str] = []
        async with both(database.dsn()) as (_, stream):
            await stream.start(unique, 0, options, publication="p")
            while True:
                for frame in await stream.receive(1 << 20):
                    message = read_message(frame, 25) if frame[:1] == b"w" else None
                    if message is not None:
                        names.append(type(message).__name__)
                    if isinstance(message, until):
                        assert isinstance(message, Commit | Prepare)
                        end = message.end_lsn if confirm else 0
                        await stream.send(write_frame(StatusUpdate(end, end, end, 0, False)))
                        assert await stream.finish(WAIT_S)
                        return names

    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            await create_slot(stream, unique, two_phase=True)
            with psycopg.connect(database.dsn(), autocommit=True) as writer:
                for command in ("BEGIN", "INSERT INTO t VALUES (1)", "PREPARE TRANSACTION 'x'"):
                    writer.execute(command)
            assert "Insert" in await receive(Prepare, confirm=True)
            confirmed = (await existing(connection, unique)).confirmed_flush_lsn
            # WHEN the slot loses the flag
            if database.version < 18:
                with pytest.raises(ConfigError, match="needs PostgreSQL 18"):
                    await end_two_phase(stream, unique)
                return
            await end_two_phase(stream, unique)
            state = await existing(connection, unique)
            assert (state.two_phase, state.confirmed_flush_lsn) == (False, confirmed)
            # THEN it comes with its rows
            database.execute("COMMIT PREPARED 'x'")
            received = await receive(Commit, confirm=False)
            assert received == ["Begin", "Relation", "Insert", "Commit"]

    asyncio.run(run())
    for (gid,) in database.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        database.execute(f"ROLLBACK PREPARED '{gid}'")


def test_what_the_server_lacks_is_an_error_of_the_configuration(database: Database, unique: str):
    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            if database.version < 15:
                with pytest.raises(ConfigError, match="two_phase needs PostgreSQL 15"):
                    await create_slot(stream, unique, two_phase=True)
            if database.version < 17:
                with pytest.raises(ConfigError, match="failover needs PostgreSQL 17"):
                    await create_slot(stream, unique, failover=True)
            assert await read_slot(connection, unique) is None

    asyncio.run(run())


def test_a_slots_creation_says_which_transactions_it_waits_for(database: Database, unique: str):
    waits: list[SlotWait] = []
    holder = database.connect(autocommit=False)
    holder.execute("SELECT txid_current()")
    pid = holder.info.backend_pid

    def heard(wait: SlotWait) -> None:
        waits.append(wait)
        if wait.pid == pid:
            holder.execute(f"PREPARE TRANSACTION '{unique}'")
            holder.close()
        elif wait.gid == unique:
            database.execute(f"ROLLBACK PREPARED '{unique}'")

    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            await create_slot(stream, unique, observer=connection, notice_s=0.2, on_wait=heard)

    asyncio.run(run())
    assert [(wait.pid, wait.gid) for wait in waits][:2] == [(pid, None), (None, unique)]
    assert [wait.waited_s for wait in waits] == sorted(wait.waited_s for wait in waits)


def test_a_slots_creation_that_is_cancelled_leaves_no_slot_behind(database: Database, unique: str):
    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await create_slot(stream, unique)
            assert await read_slot(connection, unique) is None

    with database.connect(autocommit=False) as holder:
        holder.execute("SELECT txid_current()")
        asyncio.run(run())


def test_slots_that_are_not_for_us_are_refused(database: Database, unique: str):
    database.execute(f"SELECT pg_create_physical_replication_slot('{unique}_p')")
    database.execute(f"SELECT pg_create_logical_replication_slot('{unique}_t', 'test_decoding')")

    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            with pytest.raises(SourceError, match="physical"):
                check_slot(await existing(connection, f"{unique}_p"), database.name)
            with pytest.raises(SourceError, match="test_decoding"):
                check_slot(await existing(connection, f"{unique}_t"), database.name)
            await stream.query(
                f"CREATE_REPLICATION_SLOT {unique}_x TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT", "creating"
            )
            with pytest.raises(SourceError, match="temporary"):
                check_slot(await existing(connection, f"{unique}_x"), database.name)

    try:
        asyncio.run(run())
    finally:
        database.execute(f"SELECT pg_drop_replication_slot('{unique}_p')")


def test_a_slot_that_is_still_being_created_is_waited_for(database: Database, unique: str):
    async def run() -> None:
        async with both(database.dsn()) as (connection, stream):
            creation = asyncio.create_task(create_slot(stream, unique))
            while (state := await read_slot(connection, unique)) is None:
                assert not creation.done()
                await asyncio.sleep(0.01)
            with pytest.raises(SlotActiveError, match=f"PID {stream.backend_pid}"):
                check_slot(state, database.name)
            creation.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await creation

    with database.connect(autocommit=False) as holder:
        holder.execute("SELECT txid_current()")
        asyncio.run(run())


@pytest.mark.parametrize("version", VERSIONS)
def test_an_invalidated_slot_is_a_gap_by_catalog_and_by_stream(version: int, private_postgres):
    server = private_postgres(
        version, settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    )

    async def run() -> None:
        async with both(server.dsn()) as (connection, stream):
            await create_slot(stream, "lost")
            assert (await existing(connection, "lost")).safe_wal_size is not None
            for _ in range(8):
                server.execute("SELECT pg_switch_wal(), txid_current()")
                server.execute("CHECKPOINT")
            state = await existing(connection, "lost")
            assert state.invalidation_reason == "wal_removed"
            with pytest.raises(PositionError, match="invalidated"):
                check_slot(state, "postgres")
            with pytest.raises(PositionError) as caught:
                await stream.start("lost", 0, [("proto_version", "1"), ("publication_names", '"p"')])
            assert "pg_drop_replication_slot('lost')" in caught.value.hint

    asyncio.run(run())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_cannot_have_the_slot_says_what_to_change(version: int, private_postgres):
    server = private_postgres(version, settings={"max_replication_slots": "1"})
    server.execute("SELECT pg_create_physical_replication_slot('taken')")

    async def refused(name: str) -> SourceError:
        async with both(server.dsn()) as (_, stream):
            with pytest.raises(SourceError) as caught:
                await create_slot(stream, name)
        return caught.value

    error = asyncio.run(refused("one_too_many"))
    assert "all replication slots are in use" in error.message
    assert "max_replication_slots" in error.hint

    server.settings |= {"wal_level": "replica"}
    server.restart()
    error = asyncio.run(refused("no_level"))
    assert "wal_level" in error.message
    assert "ALTER SYSTEM SET wal_level" in error.hint
