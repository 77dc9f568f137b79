"""Sessions that read tables: the readers of the configuration (`postgres.readers`), a pool of sessions, each with the
role of its tables, and questions that share a query.

Passwords of readers are read from their files at each connection, because a secret may change while the daemon
runs.

The rule: there are never more sessions than questions that the engine asks at a time. A session is kept for the
next table of its role; a session of another role is closed to make room. So the number of readers and tables does
not add connections.

The engine looks up tables one by one, and a query for 30 tables takes PostgreSQL hardly longer than a query for one.
No question is delayed to wait for others: if no query is running, it is sent at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from cdcd.adapters.postgres.connection import Dsn, parse_dsn
from cdcd.adapters.postgres.readers import Access, Readers, as_role, with_password
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.config.loading import Config
from cdcd.config.sections.postgres import ReaderConfig
from cdcd.config.sources import read_secret
from cdcd.core.errors import ConfigError
from cdcd.core.snapshot.reading import KEY


def readers_of(config: Config) -> Readers:
    """Return the choice of the role that reads each table. ConfigError: a DSN cannot be read."""
    main = parse_dsn(*config.postgres.access())
    return Readers(
        Access(
            None,
            main.get("user"),
            (),
            lambda: main,
            tuple(config.postgres.trusted_owners) if config.security.strict else None,
        ),
        [_access(main, place, reader) for place, reader in enumerate(config.postgres.readers)],
    )


def _access(main: Dsn, place: int, reader: ReaderConfig) -> Access:
    own = None if reader.dsn is None else _own_dsn(place, reader.dsn.get_secret_value())

    def dsn() -> Dsn:
        password, command = _password(place, reader), reader.password_command or ()
        if own is not None:
            return with_password(own, password, command)
        return as_role(main, reader.user or "", password, command)

    return Access(place, reader.user or (own.get("user") if own else ""), reader.tables, dsn)


def _own_dsn(place: int, text: str) -> Dsn:
    try:
        return parse_dsn(text)
    except ConfigError as error:
        raise ConfigError(
            error.message.replace("postgres.dsn", f"{KEY}[{place}].dsn"), hint=error.hint
        ) from None


def _password(place: int, reader: ReaderConfig) -> str | None:
    if reader.password_file is not None:
        text, wrong = read_secret(str(reader.password_file))
        if wrong:
            raise ConfigError(f"{KEY}[{place}].password_file: {wrong}.")
        return text
    return None if reader.password is None else reader.password.get_secret_value()


Open = Callable[[Access], Awaitable[SnapshotReader]]


class ReaderPool:
    """The pool; call `take`, and then `give` or `drop`.

    Args:
        open_reader: opens a session with the given access. `take` passes its errors on.
        limit: maximum number of sessions.
    """

    def __init__(self, open_reader: Open, limit: int) -> None:
        self._open = open_reader
        self._limit = limit
        self._idle: list[tuple[Access, SnapshotReader]] = []
        self._taken = 0

    async def take(self, access: Access) -> SnapshotReader:
        """Return a session with this access, which the caller returns to the pool."""
        for place, (owner, reader) in enumerate(self._idle):
            if owner is access:
                del self._idle[place]
                self._taken += 1
                return reader
        if self._idle and self._taken + len(self._idle) >= self._limit:
            _, other = self._idle.pop(0)
            other.close()
        self._taken += 1
        try:
            return await self._open(access)
        except BaseException:
            self._taken -= 1
            raise

    def give(self, access: Access, reader: SnapshotReader) -> None:
        """Return a session to the pool for reuse."""
        self._taken -= 1
        self._idle.append((access, reader))

    def drop(self, reader: SnapshotReader) -> None:
        """Close a session that cannot be reused."""
        self._taken -= 1
        reader.close()

    def add(self, access: Access, reader: SnapshotReader) -> None:
        """Add a session that was opened elsewhere."""
        self._idle.append((access, reader))

    def close(self) -> None:
        """Close the idle sessions."""
        while self._idle:
            self._idle.pop()[1].close()


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
