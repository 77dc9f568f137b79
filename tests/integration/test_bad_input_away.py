"""A side that is away: told when it never was there, waited for when it was, and no reason not to stop in time."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import KafkaBroker, PostgresServer
from deploy.local.process import free_port
from tests.integration.conftest import Database
from tests.integration.created_topics import delete_topic
from tests.integration.daemon import BUSY_S, until
from tests.integration.faults.trial import SECRET, Trial

newest = pytest.mark.postgres(only=18)


@pytest.fixture(scope="module")
def _stopped_broker(scratch: Path) -> Iterator[KafkaBroker]:
    # One that would create topics by itself, if it were let to.
    server = KafkaBroker(scratch / "kafka-away", settings={"auto.create.topics.enable": "true"})
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def kafka(_stopped_broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """A broker to stop, freeze and kill."""
    if not _stopped_broker.is_running():
        _stopped_broker.start()
    yield _stopped_broker
    _stopped_broker.resume()


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker) -> Trial:
    """A pipeline that never ran."""
    return trial(database.dsn(), broker.bootstrap_servers)


def deliver_one(one: Trial) -> None:
    one.start()
    one.insert(1)
    one.expect(1)


# PostgreSQL.


@newest
def test_no_server_at_the_address_is_told_when_the_start_took_too_long(one: Trial):
    port = free_port()
    dsn = f"postgresql://cdcd:{SECRET}@127.0.0.1:{port}/shop"
    one.configure(postgres={"dsn": dsn})
    one.await_another_try()
    one.configure(startup_timeout_s=2)
    said = one.fail()
    assert said.code == 3
    assert f"shop at 127.0.0.1:{port} as cdcd" in said.message
    assert "Connection refused" in said.message
    assert "given up after startup_timeout_s: 2" in said.message
    assert "Check that PostgreSQL runs there" in said.hint
    fatal = one.daemon.await_event("fatal")
    assert (fatal["exit_code"], fatal["error"]) == (3, "TransientError")
    check = one.check()
    assert check.code == 3
    assert check.error("Connection refused")


def test_a_server_that_is_away_is_waited_for_longer_than_at_the_start(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18)
    one = trial(server.dsn(), broker.bootstrap_servers, startup_timeout_s=3)
    deliver_one(one)
    stops: list[Callable[[], None]] = [server.stop, lambda: server.stop("immediate"), server.kill]
    for row, stop in enumerate(stops, 2):
        mark = one.daemon.mark()
        down = time.monotonic()
        stop()
        while time.monotonic() - down < (4 if row == 2 else 1):
            mark = one.daemon.events.index(one.daemon.await_event("reconnect.scheduled", after=mark)) + 1
        server.start()
        one.daemon.await_event("stream.started", after=mark)
        one.insert(row)
        one.expect(row)
    one.stop()


# Kafka.


@newest
def test_no_broker_at_the_address_is_told_when_the_start_took_too_long(one: Trial):
    port = free_port()
    one.configure(kafka={"bootstrap_servers": f"127.0.0.1:{port}"}, startup_timeout_s=1)
    said = one.fail()
    assert said.code == 4
    assert f"127.0.0.1:{port}" in said.message
    assert "Check that the broker runs" in said.hint
    assert one.daemon.await_event("fatal")["exit_code"] == 4
    check = one.check()
    assert check.code == 4
    assert check.error("kafka.bootstrap_servers")
    assert not one.has_slot()


@pytest.mark.long
@newest
def test_a_broker_that_is_away_holds_everything_up_and_loses_nothing(
    trial: Callable[..., Trial], database: Database, kafka: KafkaBroker
):
    dsn = database.dsn(password=SECRET, options="-c wal_sender_timeout=10s")
    one = trial(dsn, kafka.bootstrap_servers)
    # As long as librdkafka tries to send a record; then kafka.retry tells, and the sink begins again.
    one.configure(kafka={"transaction": {"timeout_s": 20}})
    deliver_one(one)
    kafka.kill()
    before = one.insert(2, 3)
    walsender = one.walsender()
    told = "SELECT reply_time, flush_lsn - '0/0'::pg_lsn FROM pg_stat_replication WHERE pid = %s"

    def reply(after: Any) -> Any:
        """The next status update that PostgreSQL saw after that one."""

        def look() -> Any:
            rows = one.execute(told, walsender)
            assert rows, "PostgreSQL dropped the connection"
            return rows[0] if rows[0] != after else None

        return until(look, "no status update came")

    # Longer than the server waits for a sign of life: status updates go on, with the same position.
    first = last = reply(None)
    while (last[0] - first[0]).total_seconds() < 12:
        last = reply(last)
        assert last[1] <= before
    one.daemon.await_event("kafka.retry")
    assert not one.daemon.saw("reconnect.scheduled")
    assert one.confirmed() <= before
    # The connection outlasts the outage. Once a record was given up, a session may begin again when the broker is back.
    assert one.walsender() == walsender, one.daemon.last_words()
    kafka.start()
    one.expect(2, 3)
    one.stop()


def test_a_server_that_shuts_down_is_not_kept_waiting_for_kafka(
    trial: Callable[..., Trial], kafka: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18)
    one = trial(server.dsn(), kafka.bootstrap_servers)
    one.configure(postgres={"shutdown_grace_s": 1})
    deliver_one(one)
    # A reader sees a record before the daemon has the answer to its commit, and a batch waits for that answer.
    one.daemon.await_metric("cdcd_caught_up", bool)
    kafka.pause()
    before = one.insert(2)
    one.daemon.await_metric("cdcd_sent_lsn", lambda lsn: lsn > before)
    asked = time.monotonic()
    # A fast shutdown waits until the walsender's client has confirmed everything, which it cannot.
    server.stop("fast")
    assert time.monotonic() - asked < 1 + BUSY_S
    assert one.daemon.await_event("postgres.stopping")["grace_s"] == 1
    server.start()
    assert one.confirmed() <= before
    kafka.resume()
    one.expect(2)
    one.stop()


@newest
def test_a_topic_that_went_away_is_not_made_by_the_broker_behind_our_back(
    trial: Callable[..., Trial], database: Database, kafka: KafkaBroker
):
    # For so long librdkafka takes a topic that it does not find for one that has only just been created.
    quick = {"topic.metadata.propagation.max.ms": 500}
    one = trial(database.dsn(), kafka.bootstrap_servers)
    one.configure(kafka={"properties": quick, "transaction": {"timeout_s": 5}})
    deliver_one(one)
    delete_topic(kafka.bootstrap_servers, one.topic)
    before = one.insert(2)
    said = one.fail()
    assert said.code == 4
    assert one.topic in said.message
    assert "Create the topic that the error names" in said.hint
    assert one.topic not in one.topics()
    assert one.confirmed() <= before
    # Switched off, cdcd's own creation is not replaced by the broker's either.
    one.configure(topics={"create": {"enabled": False}})
    said = one.fail()
    assert said.code == 4
    assert f"Topic {one.topic} does not exist, and topics.create is off" in said.message
    assert one.topic not in one.topics()
    one.configure(topics={"create": {"enabled": True}})
    one.delivered = []
    one.deliver(2)


# Told to stop.


@newest
@pytest.mark.parametrize("signals", [1, 2])
def test_it_stops_in_time_and_at_once_when_told_twice_although_kafka_stands_still(
    signals: int, trial: Callable[..., Trial], database: Database, kafka: KafkaBroker
):
    one = trial(database.dsn(), kafka.bootstrap_servers, shutdown_timeout_s=3)
    deliver_one(one)
    # A reader sees a record before the daemon has the answer to its commit, and a batch waits for that answer.
    one.daemon.await_metric("cdcd_caught_up", bool)
    kafka.pause()
    before = one.insert(2)
    one.daemon.await_metric("cdcd_sent_lsn", lambda lsn: lsn > before)
    asked = time.monotonic()
    one.daemon.terminate()
    one.daemon.await_event("shutdown.requested")
    if signals == 2:
        one.daemon.terminate()
        assert one.daemon.wait() == 128 + 15
    else:
        assert one.daemon.wait() == 0
        assert one.daemon.saw("shutdown.finished") or one.daemon.saw("shutdown.forced")
    assert time.monotonic() - asked < (2 if signals == 2 else 3) + BUSY_S
    assert one.confirmed() <= before
    kafka.resume()
    one.deliver(2)


@newest
def test_it_stops_in_time_although_kafka_never_answers(one: Trial):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        one.configure(kafka={"bootstrap_servers": servers}, shutdown_timeout_s=3)
        one.daemon.start()
        with silent.accept()[0]:
            asked = time.monotonic()
            assert one.daemon.stop() == 0
            assert time.monotonic() - asked < 3 + BUSY_S
