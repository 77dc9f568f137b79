"""`import cdcd`: what cannot be is a typed error with a hint, and leaves nothing behind."""

import asyncio
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

import cdcd
from cdcd.stream.settings import StreamSettings
from deploy.local import PostgresServer
from tests.integration.conftest import Database
from tests.integration.streams import (
    PUBLICATION,
    SMALL_WORK_MEM,
    rows,
    slots,
    soon,
    take,
)

SECRET = "sEcReT-%2F-word"


@pytest.fixture
def role(published: Database, unique: str) -> Iterator[str]:
    name = f"r_{unique[-12:]}"
    published.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    yield name
    published.execute(f"DROP ROLE {name}")


@pytest.mark.postgres(only=[13, 16, 18])
def test_what_cannot_be_is_a_typed_error_with_a_hint(published: Database, unique: str, role: str):
    database = published
    dsn = f"postgresql://postgres:{SECRET}@127.0.0.1:{database.server.port}/{database.name}"
    database.execute(f"SELECT pg_create_physical_replication_slot('{role}')")
    taken = role

    cases: list[tuple[str, dict[str, Any], type[cdcd.CdcdError], str, str]] = [
        ("postgresql://u:sEcReT@h:x/d", {}, cdcd.ConfigError, "the DSN cannot be read", "postgresql://"),
        (f"{dsn}?sslmod=x", {}, cdcd.ConfigError, "did you mean sslmode", ""),
        (
            dsn,
            {"publication": "none"},
            cdcd.SourceError,
            "There is no publication none",
            "CREATE PUBLICATION",
        ),
        (dsn, {"slot": "none"}, cdcd.SourceError, "There is no replication slot none", "create_slot=True"),
        (dsn, {"slot": taken}, cdcd.SourceError, "is a physical one", "Pass another name as slot"),
        (dsn.replace(database.name, "no_such"), {}, cdcd.SourceError, "no_such", "the DSN"),
        (dsn.replace("postgres:", f"{role}:", 1), {}, cdcd.SourceError, "", f"ALTER ROLE {role} REPLICATION"),
        (dsn.replace("postgres:", "no_such_role:", 1), {}, cdcd.SourceError, "no_such_role", "CREATE ROLE"),
        (
            dsn.replace(str(database.server.port), "1"),
            {"connect_timeout_s": 2.0},
            cdcd.TransientError,
            "refused",
            "Check that PostgreSQL runs",
        ),
    ]

    async def fails(dsn: str, parameters: dict[str, Any]) -> cdcd.CdcdError:
        try:
            await cdcd.connect(dsn, **{"publication": PUBLICATION, **parameters}).__aenter__()
        except cdcd.CdcdError as error:
            return error
        raise AssertionError(parameters)

    try:
        for address, parameters, kind, said, hint in cases:
            error = asyncio.run(fails(address, parameters))
            text = str(error)
            assert isinstance(error, kind), (text, kind)
            assert said in error.message, text
            assert hint in error.hint, text
            shown = text + repr(error) + repr(error.__cause__) + repr(error.__context__)
            assert not re.search("sEcReT", shown), shown
            assert not re.search(r"postgres\.(dsn|slot)|cdcd run", text), text
    finally:
        database.execute(f"SELECT pg_drop_replication_slot('{role}')")
    # Nothing holds WAL
    assert slots(database) == []


@pytest.mark.postgres(only=[13, 18])
def test_a_slot_that_another_reads_is_named(published: Database, unique: str, monkeypatch):
    from cdcd.stream import source

    monkeypatch.setattr(source, "SLOT_WAIT_S", 0.3)
    database = published

    async def read() -> None:
        connect = cdcd.connect(database.dsn(), publication=PUBLICATION, slot=unique[:60], create_slot=True)
        async with connect:
            again = cdcd.connect(database.dsn(), publication=PUBLICATION, slot=unique[:60])
            with pytest.raises(cdcd.SourceError, match="is active for PID") as caught:
                await again.__aenter__()
            assert "pg_stat_replication" in caught.value.hint

    asyncio.run(read())


@pytest.mark.postgres(only=18)
def test_a_start_that_fails_leaves_no_slot_behind(published: Database, unique: str, monkeypatch):
    """The server refuses the stream when the slot is made already: with PostgreSQL 13's options for 18, say."""
    from cdcd.stream import source

    def options(settings: StreamSettings, server_version: int) -> Any:
        return replace(ordinary(settings, server_version), options=(("no_such_option", "1"),))

    ordinary = source._options
    monkeypatch.setattr(source, "_options", options)

    async def read() -> None:
        with pytest.raises(cdcd.FatalError, match="no_such_option"):
            await cdcd.connect(
                published.dsn(), publication=PUBLICATION, slot=unique[:60], create_slot=True
            ).__aenter__()

    asyncio.run(read())
    assert slots(published) == []


def test_a_server_that_goes_away_is_a_transient_error_and_is_not_held_up(
    private_postgres: Callable[..., PostgresServer],
):
    """A fast shutdown waits for what a reader has not confirmed. A program that is busy must not keep it waiting."""
    server = private_postgres(18)
    database = Database(server, "postgres")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")

    async def read() -> cdcd.TransientError:
        stream = cdcd.connect(database.dsn(), publication=PUBLICATION, slot="lasting", create_slot=True)
        try:
            async with stream:
                database.execute("INSERT INTO t VALUES (1)")
                database.execute("INSERT INTO t VALUES (2)")
                first = await soon(anext(stream))
                second = await soon(anext(stream))
                await first.acknowledge()
                await soon(asyncio.to_thread(server.stop))
                with pytest.raises(cdcd.TransientError):
                    await second.acknowledge()
                await anext(stream)
        except cdcd.TransientError as error:
            return error
        raise AssertionError("the stream went on")

    error = asyncio.run(read())
    assert error.hint
    server.start()

    async def again() -> list[object]:
        async with cdcd.connect(database.dsn(), publication=PUBLICATION, slot="lasting") as stream:
            return [rows(change) for _, each in await take(stream, 1) for change in each]

    # The one that was not acknowledged, and not the other
    assert asyncio.run(again()) == [("insert", {"id": 2})]


def test_a_wrong_password_is_told_and_not_shown(private_postgres: Callable[..., PostgresServer]):
    server = private_postgres(
        18, hba=("host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")
    )
    server.execute("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'right'")
    address = f"127.0.0.1:{server.port}/postgres"
    # A traceback quotes this file too
    wrong = token_hex()

    async def read(password: str) -> None:
        async with cdcd.connect(f"postgresql://reader:{password}@{address}", publication=PUBLICATION):
            raise AssertionError("it is let in, and there is a publication")

    with pytest.raises(cdcd.SourceError, match="password authentication failed") as caught:
        asyncio.run(read(wrong))
    assert "Check role and password: in the DSN" in caught.value.hint
    shown = "".join(traceback.format_exception(caught.value))
    assert wrong not in shown
    with pytest.raises(cdcd.SourceError, match="There is no publication p"):
        asyncio.run(read("right"))


@pytest.mark.postgres(only=[16, 18])
def test_a_spool_that_is_full_is_an_error_that_names_the_parameter(published: Database, tmp_path: Path):
    database = published

    async def read(**limits: Any) -> cdcd.LimitError:
        dsn = database.dsn(options=SMALL_WORK_MEM)
        async with cdcd.connect(dsn, publication=PUBLICATION, spool_memory_bytes=100_000, **limits) as stream:
            database.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 3000) g")
            database.execute("TRUNCATE t")
            with pytest.raises(cdcd.LimitError) as caught:
                await soon(anext(stream))
            # It stays so
            with pytest.raises(cdcd.LimitError):
                await anext(stream)
        return caught.value

    full = asyncio.run(read(spool_disk_bytes_max=300_000))
    assert "spool_disk_bytes_max is 300000" in full.message
    assert "Raise spool_disk_bytes_max" in full.hint
    assert "streaming='off'" in full.hint
    gone = asyncio.run(read(spool_directory=str(tmp_path / "none")))
    assert "Cannot write the spool" in gone.message
    assert "point spool_directory at a larger one" in gone.hint
