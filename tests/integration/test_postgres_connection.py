"""Connections to real servers: pinned text output, refusals with hints, no secret in any message."""

import asyncio
import socket
import time

import pytest

from cdcd.adapters.postgres import connection
from cdcd.adapters.postgres.connection import connect, open_session, parse_dsn
from cdcd.adapters.postgres.session import Session
from cdcd.core.errors import CdcdError, SourceError, TransientError
from tests.integration.conftest import VERSIONS, Database
from tests.integration.daemon import BUSY_S, WAIT_S

SECRET = "c0rrect-horse"

HOSTILE = (
    "datestyle = 'German, DMY'",
    "intervalstyle = 'iso_8601'",
    "timezone = 'Asia/Kathmandu'",
    "bytea_output = 'escape'",
    "extra_float_digits = 0",
    "search_path = 'public, pg_catalog'",
    "quote_all_identifiers = on",
    "statement_timeout = '1ms'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "client_min_messages = 'error'",
)

SAMPLE = (
    "SELECT '2024-02-29 12:00+00'::timestamptz::text, '1 day 2 hours'::interval::text, '\\x00ff'::bytea::text, "
    "0.1::float8::text, '0.3'::float4::text, 'pg_catalog.pg_class'::regclass::text, 'public.t'::regclass::text, "
    "1.5::money::text"
)
EXPECTED = (
    "2024-02-29 12:00:00+00",
    "1 day 02:00:00",
    "\\x00ff",
    "0.1",
    "0.3",
    "pg_class",
    "public.t",
    "$1.50",
)


@pytest.mark.parametrize("replication", [False, True])
def test_settings_of_role_and_database_do_not_change_what_is_sent(database: Database, replication: bool):
    role = f"r_{database.name[-8:]}"
    database.execute("CREATE TABLE public.t (id int)")
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    for setting in HOSTILE:
        database.server.execute(f"ALTER ROLE {role} SET {setting}")
        database.server.execute(f"ALTER DATABASE {database.name} SET {setting}")
    if database.version >= 14:
        database.server.execute(f"ALTER ROLE {role} SET idle_session_timeout = '500ms'")

    async def sample() -> tuple[str | None, ...]:
        dsn = parse_dsn(database.dsn(user=role))
        session = await open_session(dsn, application_name="test", replication=replication)
        try:
            await asyncio.sleep(0.7)
            ((row,),) = await session.query(SAMPLE, "sampling")
        finally:
            session.close()
        return row

    try:
        assert asyncio.run(sample()) == EXPECTED
    finally:
        database.server.execute(f"DROP ROLE {role}")
        database.server.execute(f"ALTER DATABASE {database.name} RESET ALL")


@pytest.mark.postgres(since=14)
@pytest.mark.parametrize("replication", [False, True])
def test_a_session_that_ends_before_its_settings_are_made_is_opened_with_them(
    database: Database, monkeypatch: pytest.MonkeyPatch, replication: bool
):
    role = f"r_{database.name[-8:]}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    database.server.execute(f"ALTER ROLE {role} SET idle_session_timeout = '20ms'")
    pin = connection._pin_newer
    pinned: list[bool] = []

    async def slowly(session: Session, what: str) -> bool:
        await asyncio.sleep(0.5)
        pinned.append(await pin(session, what))
        return pinned[-1]

    monkeypatch.setattr(connection, "_pin_newer", slowly)

    async def settings() -> tuple[str | None, ...]:
        dsn = parse_dsn(database.dsn(user=role, options="-c work_mem=77MB"))
        session = await open_session(dsn, application_name="test", replication=replication)
        try:
            await asyncio.sleep(0.2)
            ((row,),) = await session.query(
                "SELECT current_setting('idle_session_timeout'), current_setting('work_mem'), "
                "current_setting('datestyle')",
                "reading settings",
            )
        finally:
            session.close()
        return row

    try:
        assert asyncio.run(settings()) == ("0", "77MB", "ISO, YMD")
        assert pinned == [False]
    finally:
        database.server.execute(f"DROP ROLE {role}")


def test_the_options_of_the_dsn_are_kept_unless_they_change_text_output(database: Database):
    async def show(*names: str) -> list[object]:
        dsn = parse_dsn(database.dsn(options="-c work_mem=77MB -c datestyle=German"))
        connection = await connect(dsn, application_name="test")
        try:
            values = []
            for name in names:
                row = await (await connection.execute(f"SHOW {name}".encode())).fetchone()
                assert row is not None
                values.append(row[0])
            return values
        finally:
            await connection.close()

    assert asyncio.run(show("work_mem", "datestyle", "application_name")) == ["77MB", "ISO, YMD", "test"]


async def _refusal(dsn: str, *, replication: bool = False, timeout_s: float = WAIT_S) -> CdcdError:
    try:
        session = await open_session(
            parse_dsn(dsn), application_name="test", connect_timeout_s=timeout_s, replication=replication
        )
    except CdcdError as error:
        return error
    session.close()
    pytest.fail("the connection was not refused")


async def _exhaust(dsn: str) -> CdcdError:
    """Open connections until one is refused."""
    held: list[Session] = []
    try:
        while len(held) < 9:
            held.append(await open_session(parse_dsn(dsn), application_name="test"))
    except TransientError as error:
        return error
    finally:
        for session in held:
            session.close()
    pytest.fail("no connection was refused")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refused_connection_is_an_error_with_a_hint_and_without_the_password(
    version: int, private_postgres
):
    server = private_postgres(
        version,
        hba=[
            "host all postgres 127.0.0.1/32 trust",
            "host all secretive,plain,locked 127.0.0.1/32 scram-sha-256",
        ],
        settings={"max_connections": "5", "superuser_reserved_connections": "1", "max_wal_senders": "2"},
    )
    server.execute(f"CREATE ROLE secretive LOGIN PASSWORD '{SECRET}'")
    server.execute(f"CREATE ROLE plain LOGIN REPLICATION PASSWORD '{SECRET}'")
    server.execute(f"CREATE ROLE locked NOLOGIN PASSWORD '{SECRET}'")
    server.execute("CREATE DATABASE closed")
    server.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    port = server.port
    uri = f"postgresql://{{}}:{SECRET}@127.0.0.1:{port}/{{}}"
    full = uri.format("plain", "postgres")
    bare = f"host=127.0.0.1 port={port} user=plain dbname=postgres"
    wrong = f"host=127.0.0.1 port={port} dbname=postgres user=plain password=wrong-{SECRET}"
    cases = [
        (wrong, False, SourceError, "password authentication failed", "password"),
        (
            uri.format("plain", "missing"),
            False,
            SourceError,
            'database "missing" does not exist',
            "Correct the database",
        ),
        (
            uri.format("plain", "closed"),
            False,
            SourceError,
            "permission denied for database",
            "GRANT CONNECT",
        ),
        (uri.format("stranger", "postgres"), False, SourceError, "no pg_hba.conf entry", "pg_hba.conf"),
        (uri.format("secretive", "postgres"), True, SourceError, "", "ALTER ROLE secretive REPLICATION"),
        (
            uri.format("locked", "postgres"),
            False,
            SourceError,
            "not permitted to log in",
            "ALTER ROLE locked LOGIN",
        ),
        (
            bare,
            False,
            SourceError,
            "no password supplied",
            "password",
        ),
        (
            uri.format("plain", "postgres") + "?sslmode=require",
            False,
            SourceError,
            "does not support SSL",
            "ssl",
        ),
    ]

    async def check() -> None:
        for dsn, replication, kind, text, hint in cases:
            error = await _refusal(dsn, replication=replication)
            assert (type(error), text in error.message, hint in error.hint) == (kind, True, True), error
            assert SECRET not in str(error)
        assert "max_connections" in (await _exhaust(full)).hint

    asyncio.run(check())


def test_a_server_that_starts_up_or_is_away_is_a_passing_failure(private_postgres):
    server = private_postgres()
    dsn = server.dsn()

    async def connect_once() -> object:
        connection = await connect(parse_dsn(dsn), application_name="test")
        row = await (await connection.execute("SELECT 1")).fetchone()
        await connection.close()
        return row

    assert asyncio.run(connect_once()) == (1,)
    server.stop()
    error = asyncio.run(_refusal(dsn))
    assert type(error) is TransientError
    assert "Connection refused" in error.message


def test_of_several_hosts_the_one_that_answers_is_taken(database: Database):
    async def run() -> object:
        dsn = parse_dsn(f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{database.server.port}/{database.name}")
        connection = await connect(dsn, application_name="test")
        row = await (await connection.execute("SELECT current_database()")).fetchone()
        await connection.close()
        return row

    assert asyncio.run(run()) == (database.name,)


def test_a_host_that_accepts_and_says_nothing_is_given_up_in_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        began = time.monotonic()
        error = asyncio.run(_refusal(f"host=127.0.0.1 port={port} user=u dbname=d", timeout_s=0.3))
    assert type(error) is TransientError
    assert time.monotonic() - began < 0.3 + BUSY_S
