"""What can befall a snapshot in the middle: what becomes of it is clear, and no row is lost."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from deploy.demo.fold import await_flushed, compare
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

StartDaemon = Callable[[dict[str, Any]], Daemon]

ROWS = 20_000
FITS = """
CREATE FUNCTION fits(id int, until int) RETURNS bool LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF id > until THEN
        RAISE EXCEPTION 'no' USING ERRCODE = '72000';
    END IF;
    RETURN true;
END $$
"""
READERS = "application_name LIKE '% snapshot'"
STILL_S = 1.0


def settings(name: str, dsn: str, broker: KafkaBroker, **snapshot: Any) -> dict[str, Any]:
    """So little at a time that a broker that answers nothing soon stops the reading."""
    return configuration(
        name,
        dsn,
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "chunk_bytes": 65_536, "parallelism": 2, "signals": "all", **snapshot},
        kafka={"transaction": {"bytes_max": 131_072}, "queue_bytes_max": 262_144},
    )


def create(server: PostgresServer, database: str, *tables: str, key: str = " PRIMARY KEY") -> None:
    for table in tables:
        server.execute(f"CREATE TABLE {table} (id int{key}, note text)", database)
        server.execute(
            f"INSERT INTO {table} SELECT g, repeat('r', g % 90) FROM generate_series(1, {ROWS}) g", database
        )


def stall(process: Daemon, broker: KafkaBroker, *, least: int = 2000) -> None:
    """Stop the broker when so many rows are delivered; returns when nothing is read any more."""
    process.await_metric("cdcd_snapshot_rows_total", lambda rows: rows > least)
    broker.pause()
    seen, since = 0.0, time.monotonic()

    def still() -> bool | None:
        # The daemon keeps an answer for a moment.
        nonlocal seen, since
        now, rows = time.monotonic(), process.metrics()["cdcd_snapshot_rows_total"][()]
        if rows != seen:
            seen, since = rows, now
        return True if now - since > STILL_S else None

    until(still, "the reading stands still")
    assert not process.saw("snapshot.finished")


def assert_equal(server: PostgresServer, database: str, broker: KafkaBroker, name: str) -> None:
    await_flushed(server.dsn(database), f"cdcd_{name}")
    report = compare(server.dsn(database), broker.bootstrap_servers, name, rows_before=True)
    assert report.equal, str(report)


@pytest.mark.postgres(only=18, also=[13])
@pytest.mark.parametrize("method", ["exported", "incremental"])
def test_readers_that_are_ended_and_a_role_with_short_timeouts_cost_no_row(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    # GIVEN a role whose statements may take a millisecond, and wait for nothing
    create(database.server, database.name, "t")
    role = f"r{unique}"[:60]
    database.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        database.execute(f"ALTER ROLE {role} SET {name} = '1ms'")
    process = daemon(settings(unique, database.dsn(user=role), broker, method=method))
    # WHEN somebody ends the sessions that read, while there is something left to read
    with database.connect() as somebody:
        process.await_metric("cdcd_snapshot_rows_total", lambda rows: rows > 1000)
        process.pause()
        query = f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {READERS}"
        if database.version < 14:
            query = query.replace(", 60000", "")
        ended = somebody.execute(query.encode()).fetchall()
        process.resume()
    # THEN the rest is read: in a new session where the slot's snapshot went with them, else in the same one
    assert ended
    if method == "exported":
        process.await_event("reconnect.scheduled")
        process.await_event("snapshot.resumed")
    process.await_event("snapshot.finished")
    assert process.saw("reconnect.scheduled") is (method == "exported")
    assert_equal(database.server, database.name, broker, unique)
    assert "statement timeout" not in process.output()
    assert process.stop() == 0
    database.execute(f"DROP OWNED BY {role}")
    database.execute(f"DROP ROLE {role}")


@pytest.mark.postgres(only=18, also=[14])
@pytest.mark.parametrize("sqlstate", ["P0001", "72000", "57P01"])
def test_a_condition_that_fails_on_a_row_ends_its_request_and_nothing_else(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, sqlstate: str
):
    # GIVEN a condition that raises what it likes
    create(database.server, database.name, "t")
    database.execute(FITS.replace("72000", sqlstate))
    process = daemon(settings(unique, database.dsn(), broker, mode="never"))
    process.await_streaming()
    pid = process.pid
    ask = {"action": "start", "tables": ["public.t"], "where": f"public.fits(id, {ROWS // 2})"}
    database.execute(f"SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{json.dumps(ask)}')")
    # THEN the request fails, and the same process goes on in the same session
    assert sqlstate in process.await_event("table.failed", table="public.t")["error"]
    database.execute("INSERT INTO t VALUES (-1, 'after')")
    process.await_metric("cdcd_events_total", lambda count: count >= 1, "c", "public.t")
    assert process.pid == pid
    assert not process.saw("reconnect.scheduled")
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[13])
def test_a_table_can_be_dropped_altered_or_emptied_while_the_slots_snapshot_is_read(
    database: Database, private_broker: Callable[..., KafkaBroker], daemon: StartDaemon, unique: str
):
    # GIVEN four tables, of which some are read in part and some not at all
    broker = private_broker()
    create(database.server, database.name, "a", "b", "c", "d")
    process = daemon(settings(unique, database.dsn(), broker))
    stall(process, broker)
    # WHEN their definitions change, THEN nobody waits for the end of the snapshot
    with database.connect() as connection:
        connection.execute("SET lock_timeout = '60s'")
        connection.execute("ALTER TABLE a ALTER id TYPE bigint")
        connection.execute("TRUNCATE b")
        connection.execute("INSERT INTO b VALUES (-1, 'new')")
        connection.execute("DROP TABLE c")
        connection.execute("ALTER TABLE d DROP note, ADD more int DEFAULT 7")
    broker.resume()
    # AND the topics are the tables that are there
    process.await_event("table.gone", table="public.c")
    process.await_event("snapshot.finished")
    assert_equal(database.server, database.name, broker, unique)
    assert process.stop() == 0


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_without_truncate_records_a_table_without_a_key_that_is_interrupted_stops_the_daemon(
    database: Database, private_broker: Callable[..., KafkaBroker], daemon: StartDaemon, unique: str
):
    broker = private_broker()
    create(database.server, database.name, "t", key="")
    chosen = settings(unique, database.dsn(), broker)
    chosen["topics"] = {**chosen.get("topics", {}), "truncate": False}
    process = daemon(chosen)
    stall(process, broker)
    # WHEN its snapshot is lost
    process.kill()
    broker.resume()
    process.start()
    # THEN the daemon ends, and says why and what can be done
    assert process.wait() == 3
    said = process.await_event("fatal")
    assert "has no key" in said["message"]
    assert "snapshot.mode: never" in said["hint"]
    # AND with a key it goes on where it was
    database.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    process.start()
    process.await_event("snapshot.finished")
    assert_equal(database.server, database.name, broker, unique)
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[13])
def test_a_table_without_a_key_that_is_interrupted_is_read_again_behind_a_truncate_record(
    database: Database, private_broker: Callable[..., KafkaBroker], daemon: StartDaemon, unique: str
):
    broker = private_broker()
    create(database.server, database.name, "t", key="")
    process = daemon(settings(unique, database.dsn(), broker))
    stall(process, broker)
    # WHEN its snapshot is lost
    process.kill()
    database.execute("INSERT INTO t SELECT 0, 'same' FROM generate_series(1, 30)")
    broker.resume()
    process.start()
    # THEN all rows come once more, behind a record that ends the former ones
    process.await_event("snapshot.finished")
    assert_equal(database.server, database.name, broker, unique)
    assert process.stop() == 0


def test_a_standby_is_no_source_and_the_daemon_says_so(
    private_postgres: Callable[..., PostgresServer], broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a standby that could decode (16 and later can), with the publication that came from the primary
    primary = private_postgres(18)
    create(primary, "postgres", "t")
    primary.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE t')
    primary.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    primary.stop()
    standby = primary.make_standby(primary.data_dir.with_name(f"{primary.data_dir.name}-standby"))
    primary.start()
    try:
        standby.start()
        process = daemon({**settings(unique, standby.dsn(), broker), "startup_timeout_s": 1})
        # THEN it ends before it makes anything, when nobody has promoted it
        assert process.wait() == 3
        said = process.await_event("fatal")
        assert "standby" in f"{said['message']} {said['hint']}"
        assert "primary" in said["hint"]
        assert standby.execute("SELECT FROM pg_replication_slots WHERE slot_type = 'logical'") == []
    finally:
        standby.destroy()


def waiting_for_locks(database: Database) -> set[tuple[str, str]]:
    """The sessions that wait for a lock, and since when: a session that gives up and tries again is in it twice."""
    return set(
        database.execute(
            "SELECT application_name, query_start::text FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    )


@pytest.mark.long
@pytest.mark.postgres(only=18, also=[16])
@pytest.mark.parametrize("asked_by", ["the configuration", "somebody"])
def test_a_table_that_is_locked_for_hours_holds_up_no_change_of_another(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, asked_by: str
):
    # GIVEN a table of which nothing is read yet, and that somebody alters and does not finish
    create(database.server, database.name, "a", "b")
    database.execute("CREATE SCHEMA late; ALTER TABLE a SET SCHEMA late")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE b')
    add = f'ALTER PUBLICATION "cdcd_{unique}" ADD TABLES IN SCHEMA late'
    if asked_by == "somebody":
        database.execute(add)
    process = daemon(settings(unique, database.dsn(), broker, added_tables=True, mode="never"))
    process.await_streaming()
    pid = process.pid
    with database.connect(autocommit=False) as writer:
        writer.execute("LOCK TABLE late.a")
        # WHEN it is to be read beside the stream, THEN it is said that this waits
        if asked_by == "somebody":
            ask = json.dumps({"action": "start", "tables": ["late.a"]})
            database.execute(f"SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{ask}')")
            process.await_event("snapshot.signalled")
        else:
            database.execute(add)
            process.await_event("table.added", table="late.a")
        process.await_event("snapshot.waiting", table="late.a")
        until(lambda: waiting_for_locks(database) or None, "nobody waits for the lock")
        # AND a table that the stream meets for the first time is looked up and delivered, as are those it knows
        database.execute("CREATE TABLE late.fresh (id int PRIMARY KEY)")
        database.execute("INSERT INTO late.fresh VALUES (1)")
        database.execute("UPDATE b SET note = 'new' WHERE id <= 3")
        process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "late.fresh")
        process.await_metric("cdcd_events_total", lambda count: count == 3, "u", "public.b")
        # AND only the sessions of snapshots have waited, which give up and try again
        seen: set[tuple[str, str]] = set()

        def tried_again() -> bool | None:
            seen.update(waiting_for_locks(database))
            return True if len(seen) > 1 else None

        until(tried_again, "nobody waits for the lock again")
        # (A name in pg_stat_activity has 63 characters.)
        assert all(name.startswith(f"{unique} snapshot"[:63]) for name, _ in seen)
    # AND it is read when the lock is gone
    process.await_event("table.read", table="late.a")
    assert not process.saw("reconnect.scheduled")
    assert process.pid == pid
    await_flushed(database.dsn(), f"cdcd_{unique}")
    report = compare(database.dsn(), broker.bootstrap_servers, unique, rows_before=True, tables=["late.a"])
    assert report.equal, str(report)
    assert process.stop() == 0


@pytest.mark.postgres(only=[13, 18])
def test_a_table_that_is_locked_while_the_slots_snapshot_is_read_is_told_of_and_read_afterwards(
    database: Database, private_broker: Callable[..., KafkaBroker], daemon: StartDaemon, unique: str
):
    # GIVEN an initial snapshot that has read a part of a table
    broker = private_broker()
    create(database.server, database.name, "a", "b")
    process = daemon(settings(unique, database.dsn(), broker))
    stall(process, broker)
    with database.connect(autocommit=False) as writer:
        # WHEN somebody locks one of the tables
        writer.execute("LOCK TABLE b")
        broker.resume()
        # THEN that is said, with who it is; the other is read, and the stream begins
        said = process.await_event("snapshot.postponed", table="public.b")
        assert str(writer.info.backend_pid) in said["reason"]
        assert "pg_terminate_backend" in said["hint"]
        process.await_event("table.read", table="public.a")
        process.await_streaming()
        database.execute("UPDATE a SET note = 'new' WHERE id <= 3")
        process.await_metric("cdcd_events_total", lambda count: count == 3, "u", "public.a")
        assert not any(
            event["event"] == "table.read" and event["table"] == "public.b" for event in process.events
        )
    # AND it is read beside the stream when the lock is free, and nothing is started over
    process.await_event("snapshot.finished")
    assert not process.saw("reconnect.scheduled")
    assert_equal(database.server, database.name, broker, unique)
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[13])
def test_a_daemon_that_starts_while_a_table_is_locked_streams_the_others(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database.server, database.name, "a", "b")
    process = daemon(settings(unique, database.dsn(), broker, mode="never"))
    process.await_streaming()
    assert process.stop() == 0
    with database.connect(autocommit=False) as writer:
        writer.execute("LOCK TABLE a")
        # WHEN it starts again (or its connection was lost), THEN it does not wait for the lock
        process.start()
        process.await_streaming()
        database.execute("UPDATE b SET note = 'new' WHERE id <= 3")
        process.await_metric("cdcd_events_total", lambda count: count == 3, "u", "public.b")
        assert not process.saw("reconnect.scheduled")
    assert process.stop() == 0
