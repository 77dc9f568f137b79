"""Heartbeats: when they come, which LSN they name, and when the query is run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.core.engine.actions import EnsureSchemas, RunHeartbeatQuery, Ship
from cdcd.core.errors import TransientError
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.core.transactions.position import Position
from tests.unit.core.engine.test_engine import ENVELOPE, UNIX_US, Daemon, described, row, transaction
from tests.unit.core.transactions import wire

TOPIC = "__debezium-heartbeat.p"
BEATING = replace(ENVELOPE, heartbeat_topic=TOPIC)
LOST = TransientError("the lock is lost")


class Beating(Daemon):
    """A daemon with a heartbeat every five seconds."""

    def __init__(self, directory: Path, encoding: EncoderSettings = BEATING, **settings: Any) -> None:
        super().__init__(directory, encoding=encoding, **{"heartbeat_s": 5.0, **settings})

    @property
    def beats(self) -> list[tuple[int, int]]:
        """When each heartbeat was made, in milliseconds of the session, and the LSN that it names."""
        found = []
        for ship in self.shipped:
            for topic, key, value, headers in ship.batch.records:
                if topic == TOPIC:
                    assert key == b'{"serverName":"p"}'
                    assert value is not None
                    assert headers is not None
                    ((name, lsn),) = headers
                    assert name == "cdcd.watermark"
                    found.append((json.loads(value)["ts_ms"] - UNIX_US // 1000, int(lsn)))
        return found

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.idle()


@pytest.fixture
def daemon(tmp_path: Path) -> Beating:
    found = Beating(tmp_path)
    found.idle()
    return found


def test_a_quiet_stream_has_a_heartbeat_at_each_interval(daemon: Beating):
    daemon.pass_time(4.9)
    assert daemon.beats == []
    daemon.pass_time(0.1)
    daemon.pass_time(1)
    daemon.pass_time(4)
    assert daemon.beats == [(5000, 60), (10_000, 60)]
    assert daemon.engine.checkpoint.position == Position(50, 60)


def test_without_an_interval_there_are_none(tmp_path: Path):
    daemon = Beating(tmp_path, heartbeat_s=0.0)
    daemon.pass_time(100)
    assert daemon.beats == []


def test_the_shell_is_asked_when_the_next_one_is_due(tmp_path: Path):
    daemon = Beating(tmp_path, heartbeat_s=3.0, status_interval_s=1000.0)
    assert daemon.idle().until == 3.0


def test_it_names_what_the_broker_held_before_it_and_not_its_own_batch(daemon: Beating):
    daemon.take(transaction(5, 100, described(), row(1)))
    daemon.now = 5.0
    daemon.feed(transaction(6, 200, row(2)))
    ship = daemon.until(Ship)
    daemon.carry_out(ship)
    daemon.idle()
    assert daemon.beats == [(5000, 110)]
    daemon.pass_time(5)
    assert daemon.beats == [(5000, 110), (10_000, 210)]


def test_a_keepalive_moves_what_the_next_one_names(daemon: Beating):
    daemon.take([wire.keepalive(500)])
    daemon.pass_time(5)
    daemon.pass_time(5)
    assert daemon.beats == [(5000, 60), (10_000, 500)]


def test_it_waits_for_the_end_of_a_transaction(daemon: Beating):
    begin, *rest = transaction(5, 100, described(), row(1))
    daemon.take([begin, *rest[:-1]])
    daemon.now = 7.0
    wait = daemon.idle()
    assert daemon.beats == []
    assert wait.until is None or wait.until > 7.0, "the shell does not spin"
    daemon.take([rest[-1]])
    assert daemon.beats == [(7000, 60)]


def test_a_busy_stream_has_heartbeats_between_its_transactions(tmp_path: Path):
    daemon = Beating(tmp_path)
    daemon.take(transaction(5, 100, described(), row(1)))
    begin, change, commit = transaction(6, 200, row(2))
    daemon.take([begin, change])
    daemon.now = 5.0
    # Whenever the engine is asked, a transaction is open.
    daemon.take([commit, wire.begin(7, 300)])
    assert [lsn for _, lsn in daemon.beats] == [110]


def test_one_is_under_way_at_a_time_however_long_kafka_is_away(daemon: Beating):
    daemon.now = 5.0
    out = daemon.until(Ship)
    for now in (10.0, 15.0, 20.0):
        daemon.now = now
        wait = daemon.idle()
        assert wait.until is not None
        assert wait.until > now
    assert len(out.batch.records) == 1
    daemon.carry_out(out)
    daemon.idle()
    # Those that were left out are not made up for.
    assert [at for at, _ in daemon.beats] == [5000, 20_000]


def test_there_are_none_before_the_stream(tmp_path: Path):
    daemon = Beating(tmp_path, exported=[])
    assert daemon.is_reading()
    daemon.now = 20.0
    daemon.idle()
    assert daemon.beats == []


def test_none_begins_when_the_lock_is_lost(tmp_path: Path):
    daemon = Beating(tmp_path, heartbeat_query=True)
    daemon.idle()
    begin, *_ = transaction(5, 100, row(1))
    daemon.take([begin])
    daemon.engine.lock_lost(LOST, "57P01", shutting_down=True, now=4.0)
    daemon.now = 5.5
    assert not isinstance(daemon.next(), RunHeartbeatQuery)
    assert daemon.beats == []


def test_none_begins_when_the_session_is_asked_to_stop(tmp_path: Path):
    daemon = Beating(tmp_path, heartbeat_query=True)
    daemon.idle()
    daemon.engine.stop()
    daemon.now = 5.0
    assert not isinstance(daemon.next(), RunHeartbeatQuery)


def test_the_query_is_run_at_each_interval_and_not_beside_itself(tmp_path: Path):
    daemon = Beating(tmp_path, heartbeat_query=True)
    daemon.idle()
    daemon.now = 5.0
    daemon.until(RunHeartbeatQuery)
    daemon.now = 10.0
    daemon.idle()
    assert len(daemon.beats) == 2, "heartbeats do not wait for the query"
    daemon.engine.heartbeat_query_ended(daemon.now)
    daemon.until(RunHeartbeatQuery)
    daemon.engine.heartbeat_query_ended(daemon.now)
    daemon.idle()
    daemon.now = 15.0
    daemon.until(RunHeartbeatQuery)


@pytest.mark.parametrize("written", ["avro", "protobuf"])
def test_a_heartbeat_with_schemas_in_a_registry_waits_for_their_ids(tmp_path: Path, written: str):
    ids = SchemaIds()
    encoding = replace(
        BEATING, key_format=written, value_format=written, schemas_topic="schemas", schema_ids=ids
    )
    daemon = Beating(tmp_path, encoding)
    daemon.now = 5.0
    action = daemon.until(EnsureSchemas)
    assert [use.subject for use in action.schemas] == [f"{TOPIC}-key", f"{TOPIC}-value"]
    wait = daemon.idle()
    assert wait.until is None or wait.until > 5.0, "the shell does not spin"
    for number, use in enumerate(action.schemas, 1):
        ids.put(use, number)
    daemon.engine.schemas_ready(action.schemas, daemon.now)
    daemon.idle()
    (ship,) = [ship for ship in daemon.shipped if ship.batch.heartbeat_bytes]
    assert [topic for topic, *_ in ship.batch.records] == ["schemas", "schemas", TOPIC]
    daemon.pass_time(5)
    assert [topic for topic, *_ in daemon.shipped[-1].batch.records] == [TOPIC]
