"""From the entries of postgres.readers to DSNs."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from cdcd.adapters.postgres.connection import Dsn
from cdcd.adapters.postgres.readers import Access
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.config.loading import Config, parse_config
from cdcd.config.reference import effective_yaml
from cdcd.core.errors import ConfigError, SourceError, TransientError
from cdcd.daemon.readers import Coalesced, ReaderPool, readers_of

MAIN = "postgresql://cdcd:main-secret@db.example:5433/shop?sslmode=require"


def config(*readers: dict[str, Any], dsn: str = MAIN) -> Config:
    given = {
        "name": "shop",
        "postgres": {"dsn": dsn, "readers": list(readers)},
        "kafka": {"bootstrap_servers": "127.0.0.1:9092"},
    }
    return parse_config(yaml.safe_dump(given), {})


def test_a_reader_with_a_user_connects_where_the_main_role_does_and_without_its_password():
    readers = readers_of(config({"tables": ["crm.*"], "user": "crm_reader", "password": "p'w d"}))
    dsn = readers.of("crm", "people").dsn()
    assert dict(dsn.parameters) == {
        "host": "db.example",
        "port": "5433",
        "dbname": "shop",
        "sslmode": "require",
        "user": "crm_reader",
        "password": "p'w d",
    }
    assert readers.of("shop", "orders").dsn().get("user") == "cdcd"


def test_a_reader_without_a_password_never_sends_the_password_of_the_main_role():
    dsn = readers_of(config({"tables": ["crm.*"], "user": "crm_reader"})).of("crm", "a").dsn()
    assert dsn.get("password") == ""


def test_the_database_of_a_dsn_without_one_is_named_after_the_main_role():
    readers = readers_of(config({"tables": ["crm.*"], "user": "r"}, dsn="postgresql://cdcd@127.0.0.1"))
    assert readers.of("crm", "a").dsn().get("dbname") == "cdcd"


def test_a_reader_may_have_a_dsn_of_its_own():
    own = "host=10.0.0.1 dbname=shop user=reader sslcert=/r.pem"
    access = readers_of(config({"tables": ["crm.*"], "dsn": own, "password": "x"})).of("crm", "a")
    assert access.role == "reader"
    assert dict(access.dsn().parameters)["sslcert"] == "/r.pem"
    assert access.dsn().get("password") == "x"


def test_the_file_of_a_password_is_read_at_each_connection(tmp_path: Path):
    file = tmp_path / "password"
    file.write_text("first\n")
    access = readers_of(config({"tables": ["crm.*"], "user": "r", "password_file": str(file)})).of("crm", "a")
    assert access.dsn().get("password") == "first"
    file.write_text("second\n")
    assert access.dsn().get("password") == "second"
    file.unlink()
    with pytest.raises(ConfigError, match=r"postgres\.readers\[0\]\.password_file: cannot read"):
        access.dsn()


def test_a_command_prints_the_password_of_its_reader():
    reader = {"tables": ["crm.*"], "user": "r", "password_command": ["token", "--for", "r"]}
    access = readers_of(config(reader)).of("crm", "a")
    assert access.dsn().password_command == ("token", "--for", "r")
    assert access.text()[1] == ("token", "--for", "r")


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        ({"tables": ["a.b"]}, "needs either user or dsn"),
        ({"tables": ["a.b"], "user": "r", "dsn": "host=x"}, "needs either user or dsn"),
        ({"tables": ["a.b"], "user": "r", "password": "x", "password_file": "/f"}, "give one of them"),
        ({"tables": [], "user": "r"}, "must not be empty"),
        ({"tables": ["b"], "user": "r"}, "<schema>.<table>"),
        ({"user": "r"}, "is required"),
        ({"tables": ["a.b"], "user": "r", "role": "x"}, "unknown key"),
    ],
)
def test_what_a_reader_lacks_is_told_by_its_place(reader: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=r"postgres\.readers\[0\]") as raised:
        config(reader)
    assert said in str(raised.value)


def test_no_secret_of_a_reader_is_shown():
    own = "postgresql://r:own-secret@127.0.0.1/shop"
    shown = config(
        {"tables": ["a.*"], "user": "r", "password": "given-secret"}, {"tables": ["b.*"], "dsn": own}
    )
    readers = readers_of(shown)
    texts = [effective_yaml(shown), repr(shown), repr(readers.others), str(readers.of("b", "t").dsn())]
    for secret in ("given-secret", "own-secret", "main-secret"):
        assert not any(secret in text for text in texts)
    assert "***" in texts[0]


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
        async with asyncio.timeout(60):
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
