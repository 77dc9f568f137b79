"""An outage of Kafka or PostgreSQL is an event, a metric and a reason, at once; and so is its end. A reload says what
it did."""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import BUSY_S, Daemon, configuration, until
from tests.integration.faults.proxy import Proxy, kafka_frame

OUTAGE_S = 5.0
"""Seconds within which an outage is told."""


def ready(daemon: Daemon) -> dict[str, Any]:
    """What /readyz says."""
    started = daemon.await_event("daemon.started")
    try:
        with urllib.request.urlopen(f"http://{started['http']}/readyz", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as refused:
        found = json.load(refused)
    return found


class Load:
    """Inserts a row every few milliseconds until it is ended. It waits while PostgreSQL is away."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.005):
                connection.execute("INSERT INTO t (note) VALUES ('a note')")


def prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text)")


def assert_json(daemon: Daemon) -> None:
    """Every line that the daemon wrote is an event."""
    for line in daemon.output().splitlines():
        assert {"timestamp", "level", "event"} <= json.loads(line).keys()


@pytest.mark.postgres(only=18)
def test_a_broker_that_stops_under_load_is_told_with_what_waits_and_so_is_its_return(
    unique: str,
    database: Any,
    private_broker: Callable[..., KafkaBroker],
    daemon: Callable[[Any], Daemon],
):
    broker = private_broker()
    dsn = database.dsn()
    prepare(dsn)
    streaming = daemon(configuration(unique, dsn, broker.bootstrap_servers))
    streaming.await_streaming()
    load = Load(dsn)
    streaming.await_metric("cdcd_events_total", lambda count: count > 50, "c", "public.t")
    streaming.await_metric("cdcd_kafka_up", lambda up: up == 1)
    streaming.await_metric("cdcd_postgres_up", lambda up: up == 1)
    until(lambda: ready(streaming)["ready"] or None, "it was never ready")

    broker.stop()
    told = streaming.await_event("kafka.unreachable", timeout_s=OUTAGE_S + BUSY_S)
    # A broker that is asked to end gives its partitions up first.
    assert re.search("Connection refused|Disconnected|no leader", told["message"]), told["message"]
    assert broker.bootstrap_servers in told["message"]
    assert told["records"] > 0
    assert told["bytes"] > told["records"]
    streaming.await_metric("cdcd_kafka_up", lambda up: up == 0)
    assert streaming.metrics()["cdcd_postgres_up"][()] == 1
    said = ready(streaming)
    assert said["ready"] is False
    assert any(reason.startswith("Kafka is unreachable: ") for reason in said["reasons"])

    broker.start()
    back = streaming.await_event("kafka.reachable")
    assert back["seconds"] > 0
    assert back["records"] > told["records"]
    streaming.await_metric("cdcd_kafka_up", lambda up: up == 1)
    load.end()
    streaming.await_metric("cdcd_lag_bytes", lambda lag: lag == 0)
    streaming.await_metric("cdcd_lag_seconds", lambda lag: lag == 0)
    until(lambda: ready(streaming)["ready"] or None, "it was never ready again")

    assert streaming.stop() == 0
    assert_json(streaming)
    noise = [event for event in streaming.events if event["event"] == "dependency.log"]
    assert len(noise) < 40, "librdkafka repeats itself"


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_a_broker_that_freezes_beside_an_idle_daemon_is_told(
    unique: str,
    database: Any,
    private_broker: Callable[..., KafkaBroker],
    daemon: Callable[[Any], Daemon],
):
    broker = private_broker()
    streaming = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    streaming.await_streaming()
    streaming.await_metric("cdcd_kafka_up", lambda up: up == 1)
    broker.pause()
    try:
        told = streaming.await_event("kafka.unreachable", timeout_s=OUTAGE_S + BUSY_S)
    finally:
        broker.resume()
    assert broker.bootstrap_servers in told["message"]
    assert (told["records"], told["bytes"]) == (0, 0)
    streaming.await_event("kafka.reachable")
    assert streaming.stop() == 0


def test_a_restart_of_postgres_is_told_with_the_time_that_it_took(
    unique: str,
    private_postgres: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: Callable[[Any], Daemon],
):
    server = private_postgres(settings={"wal_level": "logical"})
    prepare(server.dsn())
    streaming = daemon(configuration(unique, server.dsn(), broker.bootstrap_servers))
    streaming.await_streaming()
    streaming.await_metric("cdcd_kafka_up", lambda up: up == 1)
    streaming.await_metric("cdcd_postgres_up", lambda up: up == 1)
    server.stop()
    told = streaming.await_event("postgres.unreachable", timeout_s=OUTAGE_S + BUSY_S)
    assert told["message"]
    streaming.await_metric("cdcd_postgres_up", lambda up: up == 0)
    assert streaming.metrics()["cdcd_kafka_up"][()] == 1
    said = ready(streaming)
    assert any(reason.startswith("PostgreSQL is unreachable: ") for reason in said["reasons"])
    after = streaming.mark()
    server.start()
    back = streaming.await_event("postgres.reachable")
    assert back["seconds"] > 0
    streaming.await_event("stream.started", after=after)
    streaming.await_metric("cdcd_postgres_up", lambda up: up == 1)
    until(lambda: ready(streaming)["ready"] or None, "it was never ready again")
    assert streaming.stop() == 0
    assert_json(streaming)


@pytest.mark.postgres(only=18)
def test_the_last_words_of_a_daemon_that_must_end_are_json_too(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon]
):
    config = configuration(unique, database.dsn(), broker.bootstrap_servers)
    config["kafka"]["properties"] = {"compression.type": "brotli"}
    ended = daemon(config)
    assert ended.wait() == 2
    assert ended.events[-1]["event"] == "fatal"
    assert_json(ended)


@pytest.mark.postgres(only=18)
def test_sighup_changes_what_may_change_and_names_what_needs_a_restart(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon]
):
    config = configuration(
        unique, database.dsn(), broker.bootstrap_servers, ready={"lag_s_max": 300}, log={"level": "info"}
    )
    running = daemon(config)
    running.await_streaming()

    running.config["log"] = {"level": "debug"}
    running.config["ready"] = {"lag_s_max": 7}
    running.config["topics"] = {"prefix": "other"}
    running.reload()
    told = running.await_event("config.reloaded")
    assert told["at_once"] == ["ready.lag_s_max", "log.level"]
    assert told["next_session"] == []
    assert "topics.prefix" in told["needs_restart"]

    after = running.mark()
    running.reload()
    again = running.await_event("config.reloaded", after=after)
    assert again["at_once"] == []
    assert again["needs_restart"] == told["needs_restart"]

    running.config["ready"] = {"lag_s_max": "soon"}
    running.reload()
    refused = running.await_event("config.refused")
    assert "ready.lag_s_max" in refused["message"]
    assert running.stop() == 0
    assert_json(running)


PRODUCE = 0
LIST_OFFSETS = 2
"""The kind of request that only the leader of a partition answers."""


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_a_leader_that_is_silent_is_told_although_others_still_name_it(
    unique: str, database: Any, scratch: Path, daemon: Callable[[Any], Daemon], request: pytest.FixtureRequest
):
    prepare(database.dsn())
    # GIVEN a broker that answers everything but what is asked of it as a leader
    broker = KafkaBroker(scratch / f"kafka-{unique}")
    request.addfinalizer(broker.destroy)
    with Proxy(broker.port, kafka_frame, requests=True) as proxy:
        broker.settings["advertised.listeners"] = (
            f"CLIENT://127.0.0.1:{proxy.port},ADMIN://{broker.admin_bootstrap_servers}"
        )
        broker.start()
        streaming = daemon(configuration(unique, database.dsn(), f"127.0.0.1:{proxy.port}"))
        streaming.await_streaming()
        streaming.await_metric("cdcd_kafka_up", lambda up: up == 1)

        def swallow(message: bytes) -> bytes | None:
            return b"" if int.from_bytes(message[4:6], "big") == LIST_OFFSETS else None

        proxy.spoil(swallow, times=1000)
        told = streaming.await_event("kafka.unreachable", timeout_s=OUTAGE_S + BUSY_S)
        assert "which leads partition 0" in told["message"]
        proxy.spoil(None)
        streaming.await_event("kafka.reachable")
        # AND one that is silent only as the leader of a table's topic
        mark = len(streaming.events)
        topic = f"{unique}.public.t".encode()

        def swallow_of_topic(message: bytes) -> bytes | None:
            kind = int.from_bytes(message[4:6], "big")
            return b"" if kind in {PRODUCE, LIST_OFFSETS} and topic in message else None

        proxy.spoil(swallow_of_topic, times=1000)
        with psycopg.connect(database.dsn(), autocommit=True) as connection:
            connection.execute("INSERT INTO t (note) VALUES ('a note')")
        told = streaming.await_event("kafka.unreachable", after=mark, timeout_s=OUTAGE_S + BUSY_S)
        assert f"which leads partition 0 of topic {unique}.public.t" in told["message"]
        proxy.spoil(None)
        streaming.await_event("kafka.reachable", after=mark)
        assert streaming.stop() == 0
