"""Combines questions of one kind: all questions that arrive while a query is running share the next query.

The engine looks up tables one by one, and a query for 30 tables takes PostgreSQL hardly longer than a query for one.
No question is delayed to wait for others: if no query is running, it is sent at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from cdcd.adapters.postgres.refusals import TableBusyError

Q = TypeVar("Q")
A = TypeVar("A")


class Coalesced(Generic[Q, A]):
    """Asks by `ask_all`, which gives one answer for each question, in their order.

    Args:
        ask_all: one query for all questions. Where it raises TableBusyError, each question is asked alone, because
            somebody has locked the table of one of them only.
    """

    def __init__(self, ask_all: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]) -> None:
        self._ask_all = ask_all
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._turn = asyncio.Lock()

    async def ask(self, question: Q) -> A:
        """The answer. Raises what `ask_all` raises for the question."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        async with self._turn:
            if not answer.done():
                asked, self._waiting = self._waiting, []
                await self._answer(asked)
        return await answer

    async def _answer(self, asked: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            found = await self._ask_all([question for question, _ in asked])
        except TableBusyError as error:
            if len(asked) == 1:
                asked[0][1].set_exception(error)
                return
            for each in asked:
                await self._answer([each])
        except Exception as error:  # noqa: BLE001  each of those who ask raises it
            for _, answer in asked:
                answer.set_exception(error)
        except BaseException:
            # The session ends, and with it everybody who asks.
            for _, answer in asked:
                answer.cancel()
            raise
        else:
            for (_, answer), given in zip(asked, found, strict=True):
                answer.set_result(given)
