"""The advisory lock against real servers: one holder, and how its end is told."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import pytest

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.lock import AdvisoryLock, LockHeld, LostLock
from cdcd.core.errors import TransientError
from deploy.local import PostgresServer
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S


async def opened(dsn: str, slot: str, name: str = "test") -> AdvisoryLock:
    return await AdvisoryLock.open(parse_dsn(dsn), slot, application_name=name)


def test_a_second_instance_waits_names_the_holder_and_takes_over(database: Database, unique: str):
    async def run() -> None:
        first = await opened(database.dsn(), unique, "first")
        second = await opened(database.dsn(), unique, "second")
        held: list[LockHeld] = []
        told = asyncio.Event()

        def note(holder: LockHeld) -> None:
            held.append(holder)
            told.set()

        try:
            await first.acquire()
            waiting = asyncio.create_task(second.acquire(note))
            await asyncio.wait_for(told.wait(), WAIT_S)
            assert not waiting.done()
            assert held == [LockHeld(first.backend_pid, "first", "127.0.0.1", "postgres")]
            await first.verify(WAIT_S)
            first.close()
            await asyncio.wait_for(waiting, WAIT_S)
            await second.verify(WAIT_S)
        finally:
            first.close()
            second.close()

    asyncio.run(run())


def test_waiting_can_be_cancelled_and_other_slots_are_free(database: Database, unique: str):
    async def run() -> None:
        locks = [await opened(database.dsn(), slot) for slot in (unique, unique, f"{unique}_other")]
        try:
            await locks[0].acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(locks[1].acquire(), 0.3)
            await asyncio.wait_for(locks[2].acquire(), WAIT_S)
            with pytest.raises(TransientError, match="not held"):
                await locks[1].verify(WAIT_S)
        finally:
            for lock in locks:
                lock.close()

    asyncio.run(run())


def test_the_same_slot_name_in_another_database_is_another_lock(
    postgres: PostgresServer, database: Database, unique: str
):
    async def run() -> None:
        here, there = await opened(database.dsn(), unique), await opened(postgres.dsn(), unique)
        try:
            await here.acquire()
            await asyncio.wait_for(there.acquire(), WAIT_S)
        finally:
            here.close()
            there.close()

    asyncio.run(run())


@pytest.mark.postgres(only=[13, 18])
def test_the_watch_goes_on_through_round_trips_and_can_be_cancelled(database: Database, unique: str):
    async def run() -> LostLock:
        lock = await opened(database.dsn(), unique)
        try:
            await lock.acquire()
            watch = asyncio.create_task(lock.wait_lost())
            for _ in range(20):
                await lock.verify(WAIT_S)
                await asyncio.sleep(0.005)
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await lock.verify(WAIT_S)
            watch = asyncio.create_task(lock.wait_lost())
            await asyncio.gather(*(lock.verify(WAIT_S) for _ in range(5)))
            assert not watch.done()
            database.execute(f"SELECT pg_terminate_backend({lock.backend_pid})")
            lost = await asyncio.wait_for(watch, WAIT_S)
            assert await lock.wait_lost() == lost
            with pytest.raises(TransientError):
                await lock.verify(WAIT_S)
            return lost
        finally:
            lock.close()

    lost = asyncio.run(run())
    assert (lost.sqlstate, lost.admin_shutdown) == ("57P01", True)


def _fast(server: PostgresServer, lock: AdvisoryLock) -> None:
    server.ask_to_stop("fast")


def _immediate(server: PostgresServer, lock: AdvisoryLock) -> None:
    server.ask_to_stop("immediate")


def _terminate(server: PostgresServer, lock: AdvisoryLock) -> None:
    server.execute(f"SELECT pg_terminate_backend({lock.backend_pid})")


def _kill_another_backend(server: PostgresServer, lock: AdvisoryLock) -> None:
    ((pid,),) = server.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(pid, signal.SIGKILL)


def _kill_its_backend(server: PostgresServer, lock: AdvisoryLock) -> None:
    os.kill(lock.backend_pid, signal.SIGKILL)


@pytest.mark.parametrize("version", [13, 15, 18])
@pytest.mark.parametrize(
    ("end", "sqlstates", "admin_shutdown"),
    [
        (_fast, {"57P01"}, True),
        # 13 says at an immediate shutdown what it says after a crash.
        (_immediate, {"57P01", "57P02"}, True),
        (_terminate, {"57P01"}, True),
        (_kill_another_backend, {"57P02"}, True),
        (_kill_its_backend, {""}, False),
    ],
)
def test_the_end_of_the_session_is_told_with_the_servers_last_word(
    version: int,
    end: Callable[[PostgresServer, AdvisoryLock], None],
    sqlstates: set[str],
    admin_shutdown: bool,
    private_postgres,
):
    server = private_postgres(version)

    async def run() -> LostLock:
        lock = await opened(server.dsn(), "s")
        try:
            await lock.acquire()
            watch = asyncio.create_task(lock.wait_lost())
            await asyncio.sleep(0.05)
            end(server, lock)
            return await asyncio.wait_for(watch, WAIT_S)
        finally:
            lock.close()

    lost = asyncio.run(run())
    assert lost.sqlstate in sqlstates
    assert lost.admin_shutdown == admin_shutdown
    assert lost.message


def test_a_server_that_stands_still_fails_the_round_trip_in_time(private_postgres):
    server = private_postgres()

    async def run() -> None:
        lock = await opened(server.dsn(), "s")
        try:
            await lock.acquire()
            watch = asyncio.create_task(lock.wait_lost())
            os.kill(lock.backend_pid, signal.SIGSTOP)
            with pytest.raises(TransientError, match="did not answer"):
                await lock.verify(0.3)
            os.kill(lock.backend_pid, signal.SIGCONT)
            assert (await asyncio.wait_for(watch, WAIT_S)).admin_shutdown is False
        finally:
            lock.close()

    asyncio.run(run())


def test_a_standby_notices_a_server_that_stands_still(private_postgres, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cdcd.adapters.postgres.lock.LOOK_S", 0.5)
    server = private_postgres()

    async def run() -> None:
        first = await opened(server.dsn(), "s")
        standby = await opened(server.dsn(), "s")
        told = asyncio.Event()
        try:
            await first.acquire()
            waiting = asyncio.create_task(standby.acquire(lambda _: told.set()))
            await asyncio.wait_for(told.wait(), WAIT_S)
            os.kill(standby.backend_pid, signal.SIGSTOP)
            with pytest.raises(TransientError, match=r"did not answer in 0\.5 s"):
                await asyncio.wait_for(waiting, WAIT_S)
        finally:
            os.kill(standby.backend_pid, signal.SIGCONT)
            first.close()
            standby.close()

    asyncio.run(run())
