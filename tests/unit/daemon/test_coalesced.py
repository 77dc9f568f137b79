"""Questions that are asked together: one query for those that came while another one was under way."""

import asyncio
from collections.abc import Sequence

import pytest

from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.core.errors import SourceError
from cdcd.daemon.coalesced import Coalesced


class Server:
    """Answers numbers by their squares. `queries` are the questions of each query."""

    def __init__(self, *, locked: int = 0, broken: int = 0) -> None:
        self.queries: list[list[int]] = []
        self._locked = locked
        self._broken = broken
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def ask_all(self, numbers: Sequence[int]) -> list[int]:
        self.queries.append(list(numbers))
        self.asked.set()
        await self.go.wait()
        if self._locked in numbers:
            raise TableBusyError("locked")
        if self._broken in numbers:
            raise SourceError("broken", hint="")
        return [number * number for number in numbers]


async def ask(server: Server, numbers: Sequence[int]) -> list[int | BaseException]:
    """The answers to all questions, which come one right after the other."""
    together = Coalesced(server.ask_all)
    asked = [asyncio.create_task(together.ask(number)) for number in numbers]
    await asyncio.sleep(0)
    server.go.set()
    return await asyncio.gather(*asked, return_exceptions=True)


def test_questions_that_wait_share_the_next_query():
    async def run() -> None:
        server = Server(locked=-1, broken=-1)
        assert await ask(server, [1, 2, 3, 4]) == [1, 4, 9, 16]
        # The first one waited for nobody.
        assert server.queries in ([[1], [2, 3, 4]], [[1, 2, 3, 4]])

    asyncio.run(run())


def test_a_question_is_never_answered_by_a_query_that_began_before_it():
    async def run() -> None:
        server = Server(locked=-1, broken=-1)
        together = Coalesced(server.ask_all)
        first = asyncio.create_task(together.ask(1))
        await server.asked.wait()
        second = asyncio.create_task(together.ask(1))
        await asyncio.sleep(0)
        server.go.set()
        assert list(await asyncio.gather(first, second)) == [1, 1]
        assert server.queries == [[1], [1]]

    asyncio.run(run())


def test_a_locked_table_holds_up_no_other_one():
    async def run() -> None:
        found = await ask(Server(locked=3, broken=-1), [1, 2, 3, 4])
        assert [each for each in found if not isinstance(each, BaseException)] == [1, 4, 16]
        assert isinstance(found[2], TableBusyError)

    asyncio.run(run())


def test_everybody_who_asked_hears_of_a_failure():
    async def run() -> None:
        found = await ask(Server(locked=-1, broken=2), [2, 2, 2])
        assert [type(each) for each in found] == [SourceError] * 3

    asyncio.run(run())


def test_a_session_that_ends_leaves_nobody_waiting():
    async def run() -> None:
        server = Server()
        together = Coalesced(server.ask_all)
        asked = [asyncio.create_task(together.ask(number)) for number in range(1, 4)]
        await server.asked.wait()
        for task in asked:
            task.cancel()
        async with asyncio.timeout(5):
            found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in found)

    asyncio.run(run())


@pytest.mark.parametrize("cancelled", [0, 1])
def test_one_who_gives_up_does_not_take_the_others_along(cancelled: int):
    async def run() -> None:
        server = Server(locked=-1, broken=-1)
        together = Coalesced(server.ask_all)
        before = asyncio.create_task(together.ask(7))
        await server.asked.wait()
        asked = [asyncio.create_task(together.ask(number)) for number in (2, 3)]
        await asyncio.sleep(0)
        asked[cancelled].cancel()
        await asyncio.sleep(0)
        server.go.set()
        assert await before == 49
        assert await asked[1 - cancelled] == (2, 3)[1 - cancelled] ** 2

    asyncio.run(run())
