"""A role that may connect takes what says which instance runs: locks, names, prepared transactions."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
import pytest

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.lock import AdvisoryLock, announcement_class, lock_key
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, await_released, configuration, until
from tests.integration.forked import run_cdcd

Start = Callable[[], Daemon]

NAMED_S: Final = 10.0
"""Within this time, the log names who has the lock."""

KEEPS_OUT: Final = "no instance starts any more, and the log says nothing"
BLOCKS_REMOVAL: Final = "cdcd drop and reset believe that an instance runs"


@pytest.fixture
def start(
    database: Database, broker: KafkaBroker, daemon: Callable[[Mapping[str, Any]], Daemon], unique: str
) -> Start:
    """Starts the pipeline."""
    return lambda: daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))


@contextmanager
def connected(database: Database, role: str, name: str = "x") -> Iterator[psycopg.Connection]:
    with psycopg.connect(database.dsn(user=role, application_name=name), autocommit=True) as connection:
        yield connection


def key_of(name: str) -> int:
    return lock_key(f"cdcd_{name}")


def take_lock(connection: psycopg.Connection, name: str) -> None:
    connection.execute(f"SELECT pg_advisory_lock({key_of(name)})")


def take_shared(connection: psycopg.Connection, name: str) -> None:
    connection.execute(f"SELECT pg_advisory_lock_shared({key_of(name)})")


def take_in_transaction(connection: psycopg.Connection, name: str) -> None:
    connection.execute("BEGIN")
    connection.execute(f"SELECT pg_advisory_xact_lock({key_of(name)})")


def take_announcements(connection: psycopg.Connection, name: str) -> None:
    """The lock, and many numbers of the class by which instances announce themselves."""
    take_lock(connection, name)
    chosen = announcement_class(f"cdcd_{name}")
    connection.execute(
        f"SELECT count(pg_advisory_lock({chosen}, number)) FROM generate_series(0, 500) AS number"
    )


def take_many_times(connection: psycopg.Connection, name: str) -> None:
    connection.execute(f"SELECT count(pg_advisory_lock({key_of(name)})) FROM generate_series(1, 1000)")


WAYS: Final = {
    "exclusive": take_lock,
    "shared": take_shared,
    "in an open transaction": take_in_transaction,
    "with announcements": take_announcements,
    "a thousand times": take_many_times,
}


@pytest.mark.attack(gains=KEEPS_OUT, before="failed")
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("take", WAYS.values(), ids=WAYS)
def test_a_stranger_who_has_the_lock_keeps_no_instance_out_and_is_named(
    database: Database, start: Start, unique: str, stranger: str, take
):
    with connected(database, stranger, f"{unique} lock") as connection:
        take(connection, unique)
        process = start()
        named = process.await_event("lock.foreign", timeout_s=NAMED_S + 20)
        assert (named["role"], named["pid"]) == (stranger, connection.info.backend_pid)
        assert named["level"] == "warning"
        process.await_streaming()
        assert process.stop() == 0


@pytest.mark.worst
@pytest.mark.attack(gains=KEEPS_OUT, before="failed")
@pytest.mark.postgres(only=[13, 18])
def test_a_stranger_who_queues_for_the_lock_does_not_get_the_pipeline(
    database: Database, start: Start, unique: str, stranger: str
):
    process = start()
    process.await_streaming()
    with connected(database, stranger) as connection:
        connection.pgconn.send_query(f"SELECT pg_advisory_lock({key_of(unique)})".encode())
        until(lambda: waiting(database, stranger), "nobody queues for the lock")
        # WHEN the instance ends, the stranger has the lock at once.
        assert process.stop() == 0
        await_released(database.dsn(), f"cdcd_{unique}")
        process.start()
        began = time.monotonic()
        named = process.await_event("lock.foreign")
        assert named["role"] == stranger
        assert time.monotonic() - began < NAMED_S + 20
        process.await_streaming()
        assert process.stop() == 0
        connection.pgconn.get_result()
        connection.pgconn.get_result()


def waiting(database: Database, role: str) -> bool | None:
    return (
        bool(
            database.execute(
                "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
                f"WHERE l.locktype = 'advisory' AND NOT l.granted AND a.usename = '{role}'"
            )
        )
        or None
    )


@pytest.mark.attack(gains=KEEPS_OUT, before="failed")
@pytest.mark.postgres(only=[13, 18])
def test_a_prepared_transaction_that_has_the_lock_keeps_no_instance_out(
    private_postgres: Callable[..., PostgresServer], unique: str
):
    server = private_postgres(settings={"max_prepared_transactions": "5"})
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE ROLE stranger LOGIN")
    with psycopg.connect(server.dsn(user="stranger"), autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"SELECT pg_advisory_xact_lock({key_of(unique)})")
        connection.execute("PREPARE TRANSACTION 'held'")

    async def run() -> None:
        lock = await AdvisoryLock.open(parse_dsn(server.dsn()), f"cdcd_{unique}", application_name="one")
        other = await AdvisoryLock.open(parse_dsn(server.dsn()), f"cdcd_{unique}", application_name="two")
        strangers: list[Any] = []
        try:
            await asyncio.wait_for(lock.acquire(on_stranger=strangers.append), NAMED_S)
            ((held),) = strangers
            assert (held.pid, held.role, held.application_name) == (
                None, "stranger", "prepared transaction held",
            )  # fmt: skip
            await lock.verify(NAMED_S)
            found = await other.acquire_at_once()
            assert found is not None
            assert found.application_name == "one"
        finally:
            lock.close()
            other.close()

    asyncio.run(run())


@pytest.mark.attack(gains="two instances of the pipeline are active at once", before="withstood")
@pytest.mark.postgres(only=[13, 18])
def test_with_the_lock_taken_instances_still_exclude_each_other(
    database: Database, unique: str, stranger: str
):
    """Many instances start at once, again and again, while the stranger takes and leaves the lock."""
    slot = f"cdcd_{unique}"
    active: list[int] = []
    most = 0

    async def instance(number: int) -> None:
        nonlocal most
        for _ in range(6):
            lock = await AdvisoryLock.open(parse_dsn(database.dsn()), slot, application_name=f"{number}")
            try:
                await asyncio.wait_for(lock.acquire(), 120)
                active.append(number)
                most = max(most, len(active))
                await lock.verify(30)
                await asyncio.sleep(0.02)
                active.remove(number)
            finally:
                lock.close()

    async def take_and_leave() -> None:
        connection = await psycopg.AsyncConnection.connect(database.dsn(user=stranger), autocommit=True)
        try:
            while True:
                await connection.execute(f"SELECT pg_try_advisory_lock({lock_key(slot)})")
                await asyncio.sleep(0.03)
                await connection.execute("SELECT pg_advisory_unlock_all()")
                await asyncio.sleep(0.01)
        finally:
            await connection.close()

    async def run() -> None:
        attack = asyncio.create_task(take_and_leave())
        try:
            await asyncio.gather(*[instance(number) for number in range(4)])
        finally:
            attack.cancel()

    asyncio.run(run())
    assert most == 1


@pytest.mark.attack(gains=BLOCKS_REMOVAL, before="failed")
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("command", ["drop", "reset"])
@pytest.mark.parametrize("way", ["a name", "the lock", "both"])
def test_a_stranger_does_not_make_it_look_as_if_an_instance_ran(
    database: Database, start: Start, stranger: str, command: str, way: str
):
    process = start()
    unique = str(process.config["name"])
    process.await_streaming()
    assert process.stop() == 0
    await_released(database.dsn(), f"cdcd_{unique}")
    with connected(database, stranger, "x" if way == "the lock" else f"{unique} lock") as connection:
        if way != "a name":
            take_lock(connection, unique)
        status = run_cdcd("status", "--config", str(process.config_path), "--format", "json")
        shown = json.loads(status.stdout)
        assert (shown["active"], shown["standbys"]) == (None, [])
        done = run_cdcd(command, "--config", str(process.config_path), "--yes")
        assert done.returncode == 0, done.stderr


@pytest.mark.attack(gains="the active instance loses its lock", before="withstood")
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_terminate_backend({pid})",
        "SELECT pg_cancel_backend({pid})",
        "SELECT pg_advisory_unlock({key})",
        "SELECT pg_advisory_unlock_all()",
        "SELECT pg_drop_replication_slot('{slot}')",
        "SELECT pg_create_physical_replication_slot('{slot}_lock', true, true)",
        "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())",
        "SELECT count(*) FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)",
        "ALTER ROLE postgres CONNECTION LIMIT 0",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
    ],
)
def test_a_stranger_cannot_end_what_runs(
    database: Database, start: Start, unique: str, stranger: str, statement: str
):
    process = start()
    process.await_streaming()
    slot = f"cdcd_{unique}"
    ((pid,),) = database.execute(f"SELECT pid FROM pg_stat_activity WHERE application_name = '{unique} lock'")
    with connected(database, stranger) as connection, suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.format(pid=pid, key=lock_key(slot), slot=slot))
    assert database.execute(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'") == [
        (True,)
    ]
    assert not process.saw("lock.lost")
    assert process.is_running()
