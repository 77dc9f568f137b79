"""Every committed change once, in order, and nothing else, whatever happens to the daemon, PostgreSQL or Kafka.

The long version, with everything at random, is `make chaos`.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from cdcd.core.protocol.lsn import Lsn
from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.workload import Workload
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.daemon import (
    BUSY_S,
    WAIT_S,
    Daemon,
    await_released,
    configuration,
    confirmed,
    until,
    wal_end,
)
from tests.integration.visible_records import await_stored, stored, visible, watermark_consumer

pytestmark = pytest.mark.postgres(every=True)

StartDaemon = Callable[[dict[str, Any]], Daemon]

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, note text)"


def assert_equal(dsn: str, broker: KafkaBroker, name: str, *, exactly_once: bool = True) -> int:
    """Everything is delivered, the topics fold to the tables and no promise is broken; how many events that took."""
    await_flushed(dsn, f"cdcd_{name}")
    report = compare(dsn, broker.bootstrap_servers, name, exactly_once=exactly_once)
    assert report.equal, report
    return report.events


def insert(dsn: str, *ids: int) -> int:
    """One transaction with these rows; the WAL's end after it."""
    with psycopg.connect(dsn) as connection:
        for number in ids:
            connection.execute("INSERT INTO t VALUES (%s, 'one of them')", (number,))
    return wal_end(dsn)


def await_confirmed(dsn: str, slot: str, position: int) -> int:
    return until(
        lambda: found if (found := confirmed(dsn, slot)) >= position else None,
        f"{slot} is not confirmed up to {Lsn(position)}",
    )


def await_commits(process: Daemon, more: int) -> None:
    """So many Kafka transactions more are committed."""
    name = "cdcd_kafka_commit_seconds_count"
    so_far = process.metrics()[name][()]
    process.await_metric(name, lambda count: count >= so_far + more)


def test_killed_again_and_again_every_change_is_there_once(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a workload of everything that this server has, streamed as it can
    workload = Workload(database.dsn(), seed=database.version, rate=40, sessions=3)
    workload.create()
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"two_phase": database.version >= 15},
            kafka={"transaction": {"bytes_max": 65_536}},
            topics={"create": {"partitions": 2}},
            spool={"memory_bytes_max": 65_536},
        )
    )
    process.await_streaming()
    # WHEN the daemon is killed while it streams, several times
    with workload:
        for _ in range(4):
            process.await_streaming()
            await_commits(process, 2)
            process.kill()
            process.start()
        process.await_streaming()
    # THEN a reader of committed records finds each change once, in order, and nothing that was rolled back
    assert assert_equal(database.dsn(), broker, unique) > 0
    assert process.stop() == 0


@pytest.mark.postgres(only=18)
def test_a_sigterm_ends_it_at_once_with_everything_confirmed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a daemon that tells PostgreSQL its position once in a minute, if nothing happens
    database.execute(TABLE)
    process = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, postgres={"status_interval_s": 60})
    )
    process.await_streaming()
    insert(database.dsn(), 1, 2, 3)
    process.await_metric("cdcd_events_total", lambda count: count == 3, "c", "public.t")
    # WHEN it is asked to end
    began = time.monotonic()
    code = process.stop()
    # THEN it ends well, soon, and what it last knew is what the slot says
    assert code == 0
    assert time.monotonic() - began < 5 + BUSY_S
    flushed = process.await_event("shutdown.finished")["flushed_lsn"]
    # The daemon waits for a second that the server has read it.
    await_released(database.dsn(), f"cdcd_{unique}")
    assert Lsn(confirmed(database.dsn(), f"cdcd_{unique}")) == Lsn.parse(flushed)
    report = compare(database.dsn(), broker.bootstrap_servers, unique)
    assert (report.equal, report.events) == (True, 3), report


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("outage", ["frozen", pytest.param("killed", marks=pytest.mark.long)])
def test_nothing_is_confirmed_that_the_broker_has_not_acknowledged(
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    daemon: StartDaemon,
    unique: str,
    outage: str,
):
    # GIVEN a server that drops a client from which it has not heard for eight seconds
    broker = private_broker()
    dsn, slot = database.dsn(), f"cdcd_{unique}"
    database.execute(TABLE)
    database.execute(f'ALTER DATABASE "{database.name}" SET wal_sender_timeout = 8000')
    process = daemon(configuration(unique, dsn, broker.bootstrap_servers))
    process.await_streaming()
    held = await_confirmed(dsn, slot, insert(dsn, 1))
    ((walsender,),) = database.execute(
        f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    # WHEN the broker is away while changes are committed
    broker.pause() if outage == "frozen" else broker.kill()
    database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    after = insert(dsn, *range(2, 500))
    # THEN PostgreSQL hears from the daemon all the time, but never that they are safe
    ((began,),) = database.execute("SELECT clock_timestamp()")

    def twelve_seconds_later() -> bool | None:
        assert confirmed(dsn, slot) < after, "confirmed what the broker does not hold"
        ((alive, late),) = database.execute(
            f"""SELECT (SELECT count(*) FROM pg_stat_replication WHERE pid = {walsender}
                        AND (reply_time > clock_timestamp() - interval '8 s' OR backend_start > '{began}')),
                       clock_timestamp() > '{began}'::timestamptz + interval '12 s'"""
        )
        assert alive == 1, f"the walsender {walsender} hung up, or did not hear from the daemon"
        return late or None

    until(twelve_seconds_later, "the clock stands still")
    assert held <= confirmed(dsn, slot) < after
    # AND when it is back, each of them arrives once
    broker.resume() if outage == "frozen" else broker.start()
    assert assert_equal(dsn, broker, unique) == 499


@pytest.mark.postgres(only=[13, 18])
def test_an_idle_database_confirms_what_another_one_writes(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    dsn, slot = database.dsn(), f"cdcd_{unique}"
    database.execute(TABLE)
    process = daemon(configuration(unique, dsn, broker.bootstrap_servers))
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 1))
    for _ in range(3):
        database.server.execute(
            "CREATE TABLE elsewhere AS SELECT repeat('x', 500) FROM generate_series(1, 10000); DROP TABLE elsewhere"
        )
        await_confirmed(dsn, slot, wal_end(database.server.dsn()))
    assert assert_equal(dsn, broker, unique) == 1


@pytest.mark.parametrize("kafka", ["there", "away"])
def test_a_fast_shutdown_of_postgres_is_over_soon(
    private_postgres: Callable[..., PostgresServer],
    private_broker: Callable[..., KafkaBroker],
    daemon: StartDaemon,
    unique: str,
    kafka: str,
):
    # GIVEN changes that are not confirmed yet, among them a prepared transaction that nobody has decided
    postgres, broker = private_postgres(), private_broker()
    dsn, slot = postgres.dsn(), f"cdcd_{unique}"
    postgres.execute(TABLE)
    grace_s = 2 if kafka == "away" else 60
    process = daemon(
        configuration(
            unique,
            dsn,
            broker.bootstrap_servers,
            postgres={"shutdown_grace_s": grace_s, "two_phase": True},
        )
    )
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 1))
    postgres.execute("BEGIN; INSERT INTO t VALUES (-1, 'prepared'); PREPARE TRANSACTION 'undecided'")
    if kafka == "away":
        broker.pause()
    insert(dsn, *range(2, 100))
    mark = process.mark()
    # WHEN PostgreSQL is asked to end, which waits for what was sent to be confirmed
    began = time.monotonic()
    postgres.ask_to_stop("fast")
    postgres.wait_stopped(WAIT_S)
    # THEN it does not wait for Kafka longer than the grace
    assert time.monotonic() - began < (grace_s if kafka == "away" else 10) + BUSY_S
    process.await_event("postgres.stopping")
    # AND nothing is lost
    if kafka == "away":
        broker.resume()
    postgres.start()
    process.await_event("stream.started", after=mark)
    postgres.execute("COMMIT PREPARED 'undecided'")
    assert assert_equal(dsn, broker, unique) == 100


@pytest.mark.parametrize("daemon_lives", [True, False], ids=["same daemon", "another daemon"])
def test_changes_that_come_again_after_a_crash_of_postgres_are_left_out(
    private_postgres: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: StartDaemon,
    unique: str,
    daemon_lives: bool,
):
    # GIVEN changes that are delivered and confirmed, but not in the slot's file, which is written at checkpoints
    postgres = private_postgres()
    dsn, slot = postgres.dsn(), f"cdcd_{unique}"
    postgres.execute(TABLE)
    process = daemon(configuration(unique, dsn, broker.bootstrap_servers))
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 1))
    postgres.execute("CHECKPOINT")
    _stop_background_writer(postgres)
    for number in range(2, 20):
        before = await_confirmed(dsn, slot, insert(dsn, number))
    mark = process.mark()
    # WHEN the server crashes
    if not daemon_lives:
        process.kill()
    postgres.kill()
    postgres.start()
    # THEN it sends them again, and they are left out
    if not daemon_lives:
        assert confirmed(dsn, slot) < before, "the slot did not go back"
        process.start()
    process.await_event("stream.started", after=mark)
    insert(dsn, 20)
    assert assert_equal(dsn, broker, unique) == 20


def _stop_background_writer(postgres: PostgresServer) -> None:
    """It logs running transactions now and then, for which the slot's position is saved."""
    ((pid,),) = postgres.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'")
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize("two_phase", [True, False], ids=["at PREPARE", "at COMMIT PREPARED"])
def test_prepared_transactions_stay_open_over_restarts_of_everything(
    private_postgres: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: StartDaemon,
    unique: str,
    two_phase: bool,
):
    # GIVEN a small, a large (streamed) and a doomed prepared transaction, and others that commit meanwhile
    postgres = private_postgres()
    dsn, slot = postgres.dsn(), f"cdcd_{unique}"
    postgres.execute(TABLE)
    process = daemon(configuration(unique, dsn, broker.bootstrap_servers, postgres={"two_phase": two_phase}))
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 1))
    held = wal_end(dsn)
    for gid, first, last in (("small", 10, 11), ("large", 1000, 3000), ("doomed", 5000, 7000)):
        postgres.execute(
            f"""BEGIN; INSERT INTO t SELECT g, repeat('{gid}', 20) FROM generate_series({first}, {last}) g;
                PREPARE TRANSACTION '{gid}'"""
        )
    insert(dsn, 2)

    # WHEN everything is restarted while they are open
    def kill_daemon() -> None:
        process.kill()
        process.start()

    def stop_daemon() -> None:
        process.stop()
        process.start()

    def kill_postgres() -> None:
        postgres.kill()
        postgres.start()

    for number, restart in enumerate((kill_daemon, postgres.restart, stop_daemon, kill_postgres)):
        mark = process.mark()
        restart()
        process.await_event("stream.started", after=mark)
        end = insert(dsn, 3 + number)
        if two_phase:
            process.await_metric("cdcd_prepared_open", lambda count: count == 3)
            process.await_metric("cdcd_events_total", lambda count: count >= 1, "c", "public.t")
            assert confirmed(dsn, slot) <= held, "confirmed past an undecided PREPARE"
        else:
            await_confirmed(dsn, slot, end)

    # THEN nothing of them is visible, and after their decision the committed ones are, once
    def six_events() -> Report | None:
        found = compare(dsn, broker.bootstrap_servers, unique)
        return found if found.events >= 6 else None

    report = until(six_events, "the topic has less than six events")
    assert (report.equal, report.events) == (True, 6), report
    postgres.execute("COMMIT PREPARED 'large'")
    postgres.execute("ROLLBACK PREPARED 'doomed'")
    postgres.execute("COMMIT PREPARED 'small'")
    # AND a gid may be used again
    postgres.execute("BEGIN; INSERT INTO t VALUES (12, 'again'); PREPARE TRANSACTION 'small'")
    postgres.execute("COMMIT PREPARED 'small'")
    assert assert_equal(dsn, broker, unique) == 6 + 2 + 2001 + 1
    process.kill()
    process.start()
    process.await_streaming()
    insert(dsn, 99)
    assert assert_equal(dsn, broker, unique) == 6 + 2 + 2001 + 1 + 1


@pytest.mark.postgres(only=[15, 17, 18])
def test_a_prepared_transaction_that_only_locked_rows_is_passed_over(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a PREPARE that PostgreSQL 15 to 17 do not send, though they send its COMMIT PREPARED
    dsn, slot = database.dsn(), f"cdcd_{unique}"
    database.execute(TABLE)
    process = daemon(configuration(unique, dsn, broker.bootstrap_servers, postgres={"two_phase": True}))
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 1))
    for gid, end in (("locks", "COMMIT"), ("locks again", "ROLLBACK")):
        database.execute(f"BEGIN; SELECT * FROM t FOR UPDATE; PREPARE TRANSACTION '{unique} {gid}'")
        # WHEN it is decided, over a restart
        process.kill()
        process.start()
        process.await_streaming()
        database.execute(f"{end} PREPARED '{unique} {gid}'")
        # THEN it holds nothing up, and a commit that came without its PREPARE is said
        await_confirmed(dsn, slot, wal_end(dsn))
        if end == "COMMIT" and database.version < 18:
            process.await_event("prepare.missing", gid=f"{unique} {gid}")
    await_confirmed(dsn, slot, insert(dsn, 2))
    said = [event for event in process.events if event["event"] == "prepare.missing"]
    assert len(said) == (database.version < 18)
    assert assert_equal(dsn, broker, unique) == 2


@pytest.mark.postgres(only=[15, 18])
def test_a_slot_that_somebody_moved_past_an_undecided_prepare_is_refused(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN an undecided PREPARE, and a delivered transaction behind it
    dsn, slot = database.dsn(), f"cdcd_{unique}"
    database.execute(TABLE)
    process = daemon(configuration(unique, dsn, broker.bootstrap_servers, postgres={"two_phase": True}))
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 1))
    database.execute(f"BEGIN; INSERT INTO t VALUES (2, 'lost'); PREPARE TRANSACTION '{unique}'")
    behind = insert(dsn, 3)
    process.await_metric("cdcd_events_total", lambda count: count == 2, "c", "public.t")
    assert process.stop() == 0
    # WHEN somebody moves the slot, not even past what Kafka holds
    await_released(dsn, slot)
    database.execute(f"SELECT pg_replication_slot_advance('{slot}', '{Lsn(behind)}')")
    database.execute(f"COMMIT PREPARED '{unique}'")
    process.start()
    # THEN the transaction would be lost in silence; so it is refused
    assert process.wait() == 6
    said = process.await_event("fatal")
    assert "before a PREPARE that was not decided: the slot was moved by somebody else" in said["message"]
    # AND who accepts it goes on, once and for all
    process.start("--accept-gap")
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 4))
    assert process.stop() == 0
    process.start()
    process.await_streaming()
    await_confirmed(dsn, slot, insert(dsn, 5))


@pytest.mark.postgres(only=18)
def test_at_least_once_delivers_everything(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    workload = Workload(database.dsn(), seed=11, rate=40, sessions=3)
    workload.create()
    process = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, kafka={"delivery": "at_least_once"})
    )
    process.await_streaming()
    with workload:
        for _ in range(3):
            process.await_streaming()
            await_commits(process, 3)
            process.kill()
            process.start()
        process.await_streaming()
    assert_equal(database.dsn(), broker, unique, exactly_once=False)
    assert process.stop() == 0


@pytest.mark.again
@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("kind", ["whole", "streamed", "prepared"])
def test_a_restart_goes_on_inside_a_transaction_that_is_larger_than_kafkas(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, kind: str
):
    # GIVEN one transaction of 24 MB, which takes many Kafka transactions, so that a slow test also kills the daemon
    # between two of them
    dsn = database.dsn()
    database.execute(TABLE)
    process = daemon(
        configuration(
            unique,
            dsn,
            broker.bootstrap_servers,
            postgres={"streaming": "off" if kind == "whole" else "parallel", "two_phase": kind == "prepared"},
            kafka={"transaction": {"bytes_max": 8192, "whole_bytes_max": 0}, "queue_bytes_max": 65_536},
            spool={"memory_bytes_max": 65_536},
        )
    )
    process.await_streaming()
    insert(dsn, 1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        for start in range(1000, 25_000, 1000):
            connection.execute("SAVEPOINT part")
            connection.execute(
                "INSERT INTO t SELECT g, repeat('x', 900) FROM generate_series(%s::int, %s) g",
                (start, start + 999),
            )
            connection.execute("SAVEPOINT doomed")
            connection.execute("INSERT INTO t SELECT g, 'doomed' FROM generate_series(90000, 90300) g")
            connection.execute("ROLLBACK TO doomed")
        if kind == "prepared":
            connection.execute("PREPARE TRANSACTION 'large'")
            connection.execute("COMMIT PREPARED 'large'")
        else:
            connection.execute("COMMIT")
    # WHEN the daemon is killed in the middle of it, again and again
    inside = []
    for _ in range(2):
        process.await_event("transaction.large")
        await_commits(process, 3)
        process.kill()
        process.start()
        inside.append(process.await_event("checkpoint.read")["position"])
    # THEN each life goes on where the one before it was, and every row is there once
    done = [int(found[1]) for position in inside if (found := re.search(r" and (\d+) events of ", position))]
    assert len(done) == 2, inside
    assert done == sorted(set(done)), inside
    assert assert_equal(dsn, broker, unique) == 24_001
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[14])
@pytest.mark.parametrize("streaming", [pytest.param("off", marks=pytest.mark.long), "on"])
def test_a_large_transaction_is_seen_as_a_whole_or_not_at_all_whenever_it_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, streaming: str
):
    # GIVEN a transaction many times larger than a batch and the queue, but not than a Kafka transaction may be
    dsn = database.dsn()
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    process = daemon(
        configuration(
            unique,
            dsn,
            broker.bootstrap_servers,
            postgres={"streaming": streaming},
            kafka={"transaction": {"bytes_max": 65_536}, "queue_bytes_max": 262_144},
        )
    )
    process.await_streaming()
    insert(dsn, 1)
    process.await_metric("cdcd_events_total", lambda count: count >= 1, "c", "public.t")
    topic = f"{unique}.public.t"
    watermarks = watermark_consumer(broker.bootstrap_servers)
    before = stored(watermarks, topic)
    database.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1001, 101000) g")
    # WHEN the daemon is killed in the middle of it, again and again
    for least in (10, 1000, 3000):
        await_stored(watermarks, topic, before + least)
        process.kill()
        # THEN a reader sees all of it, or nothing
        assert visible(broker.bootstrap_servers, topic) in (1, 100_001)
        before = stored(watermarks, topic)
        process.start()
    watermarks.close()
    assert assert_equal(dsn, broker, unique) == 100_001
    assert not process.saw("transaction.large")
    assert process.stop() == 0
