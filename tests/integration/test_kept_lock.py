"""The advisory lock in its own thread, against real servers: an event loop that stands still does not lose it."""

import asyncio
import time

import pytest

from cdcd.adapters.postgres import kept_lock
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.postgres.lock import LockHeld
from cdcd.core.errors import FencedError, TransientError
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S

LEASE_S = 1.0


async def opened(dsn: str, slot: str, name: str = "test") -> KeptLock:
    return await KeptLock.open(parse_dsn(dsn), slot, application_name=name, lease_s=LEASE_S)


def test_a_step_of_the_event_loop_that_is_longer_than_the_lease_keeps_the_lock(
    database: Database, unique: str
):
    async def run() -> None:
        first = await opened(database.dsn(), unique, "first")
        second = await opened(database.dsn(), unique, "second")
        try:
            await first.acquire()
            keep = asyncio.create_task(first.keep())
            waiting = asyncio.create_task(second.acquire())
            await asyncio.sleep(LEASE_S)
            time.sleep(4 * LEASE_S)  # noqa: ASYNC251  the step that is tested
            assert not first.lapsed
            await asyncio.sleep(LEASE_S)
            assert not waiting.done()
            await first.verify(WAIT_S)
            keep.cancel()
            waiting.cancel()
        finally:
            first.close()
            second.close()

    asyncio.run(run())


def test_an_event_loop_that_never_comes_back_loses_the_lock(
    database: Database, unique: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_lock, "STANDSTILL_S", 1.0)

    async def run() -> None:
        first = await opened(database.dsn(), unique, "first")
        second = await opened(database.dsn(), unique, "second")
        ended: list[float] = []
        try:
            await first.acquire()
            keep = asyncio.create_task(first.keep())
            await asyncio.sleep(LEASE_S)
            # The tasks of this loop stand still, and the other lock is in a thread that does not.
            waiting = asyncio.create_task(second.acquire(on_ended=lambda _, silent_s: ended.append(silent_s)))
            await asyncio.sleep(0.1)
            time.sleep(5 * LEASE_S)  # noqa: ASYNC251  the step that is tested
            await asyncio.wait_for(waiting, WAIT_S)
            assert ended
            assert first.lapsed
            await asyncio.wait_for(first.wait_lost(), WAIT_S)
            keep.cancel()
        finally:
            first.close()
            second.close()

    asyncio.run(run())


def test_what_a_callback_raises_ends_the_waiting(database: Database, unique: str):
    def refuse(_: LockHeld) -> None:
        raise FencedError("another one took over")

    async def run() -> None:
        first = await opened(database.dsn(), unique, "first")
        second = await opened(database.dsn(), unique, "second")
        try:
            await first.acquire()
            with pytest.raises(FencedError, match="took over"):
                await second.acquire(refuse)
        finally:
            first.close()
            second.close()

    asyncio.run(run())


def test_after_close_every_method_says_that_the_connection_is_closed(database: Database, unique: str):
    async def run() -> None:
        lock = await opened(database.dsn(), unique)
        await lock.acquire()
        verified = asyncio.create_task(lock.wait_lost())
        await asyncio.sleep(0.05)
        lock.close()
        lock.close()
        with pytest.raises(TransientError, match="closed"):
            await lock.verify(WAIT_S)
        verified.cancel()
        await asyncio.gather(verified, return_exceptions=True)

    asyncio.run(run())
