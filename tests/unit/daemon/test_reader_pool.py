"""Sessions that read tables: as many as questions at a time, whatever the number of roles."""

import asyncio
from typing import cast

import pytest

from cdcd.adapters.postgres.connection import Dsn
from cdcd.adapters.postgres.readers import Access
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.core.errors import TransientError
from cdcd.daemon.reader_pool import ReaderPool

A, B, C = [Access(place, role, (), lambda: Dsn(())) for place, role in enumerate(("a", "b", "c"))]


class Session:
    def __init__(self, role: str) -> None:
        self.role = role
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Opened:
    def __init__(self) -> None:
        self.all: list[Session] = []
        self.failure: Exception | None = None

    async def __call__(self, access: Access) -> SnapshotReader:
        if self.failure is not None:
            raise self.failure
        self.all.append(Session(access.role))
        return cast("SnapshotReader", self.all[-1])

    @property
    def roles(self) -> list[str]:
        return [one.role for one in self.all if not one.closed]


def test_a_session_is_used_again_for_tables_of_its_role_only():
    async def scenario() -> None:
        opened = Opened()
        pool = ReaderPool(opened, 2)
        first = await pool.take(A)
        pool.give(A, first)
        assert await pool.take(A) is first
        second = await pool.take(B)
        assert second is not first
        assert opened.roles == ["a", "b"]

    asyncio.run(scenario())


def test_a_session_of_another_role_makes_room():
    async def scenario() -> None:
        opened = Opened()
        pool = ReaderPool(opened, 2)
        for access in (A, B, C, A, B, C):
            pool.give(access, await pool.take(access))
            assert len(opened.roles) <= 2
        busy = await pool.take(A)
        pool.give(B, await pool.take(B))
        pool.give(C, await pool.take(C))
        assert len(opened.roles) == 2
        pool.drop(busy)
        pool.close()
        assert opened.roles == []

    asyncio.run(scenario())


def test_a_session_that_cannot_be_opened_takes_no_place():
    async def scenario() -> None:
        opened = Opened()
        pool = ReaderPool(opened, 1)
        opened.failure = TransientError("away")
        for _ in range(3):
            with pytest.raises(TransientError):
                await pool.take(A)
        opened.failure = None
        pool.give(A, await pool.take(A))
        pool.give(A, await pool.take(A))
        assert opened.roles == ["a"]

    asyncio.run(scenario())
