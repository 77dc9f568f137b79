"""`LockWatch` reports which session holds the lock on a table, on real servers."""

import queue
import time

import psycopg
import pytest

from cdcd.adapters.postgres import tables
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.tables import LockWatch
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, until

pytestmark = pytest.mark.postgres(only=[13, 18])

Told = queue.SimpleQueue[tuple[str, str, float]]


@pytest.fixture
def watched(database: Database) -> Database:
    for name in ("t", "other"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t, other")
    return database


def watch(database: Database, told: Told, *tables: str) -> LockWatch:
    return LockWatch(parse_dsn(database.dsn()), "p", tables, lambda *what: told.put(what))


@pytest.mark.parametrize("prepared", [False, True], ids=["session", "prepared"])
def test_the_holder_of_a_lock_is_named_again_and_again_until_it_is_gone(
    watched: Database, unique: str, monkeypatch: pytest.MonkeyPatch, prepared: bool
):
    monkeypatch.setattr(tables, "LOOK_S", 0.1)
    told: Told = queue.SimpleQueue()
    with psycopg.connect(watched.dsn(application_name="the owner's session")) as session:
        session.execute("LOCK TABLE t")
        pid = session.info.backend_pid
        if prepared:
            session.execute(f"PREPARE TRANSACTION '{unique}'".encode())
        with watch(watched, told, "public.t", "public.other"):
            (table, who, first), (_, _, second) = told.get(timeout=WAIT_S), told.get(timeout=WAIT_S)
            assert table == "public.t"
            assert second > first > 0
            words = (
                ["a prepared transaction"] if prepared else [f"server process {pid}", "the owner's session"]
            )
            assert all(word in who for word in words), who
        if prepared:
            session.rollback()
    if prepared:
        watched.execute(f"ROLLBACK PREPARED '{unique}'")


def test_of_other_tables_and_locks_that_let_others_read_nothing_is_told(
    watched: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "LOOK_S", 0.05)
    told: Told = queue.SimpleQueue()
    with psycopg.connect(watched.dsn()) as session:
        session.execute("LOCK TABLE other; LOCK TABLE t IN EXCLUSIVE MODE")
        with watch(watched, told, "public.t"):
            looked = "SELECT FROM pg_stat_activity WHERE application_name = %s AND state = 'idle'"
            with psycopg.connect(watched.dsn(), autocommit=True) as sql:
                until(lambda: sql.execute(looked, (tables.APPLICATION,)).fetchall() or None, "no look")
                time.sleep(0.5)  # Long enough for several queries, none of which finds a lock to report.
    assert told.empty()


def test_a_server_that_is_away_is_told_by_whoever_reads(unique: str):
    with LockWatch(parse_dsn("host=127.0.0.1 port=1"), "p", ["public.t"], lambda *_: None):
        pass
