"""An active and a standby instance with the default lease: a large value does not make the active one lose its lock.

`CDCD_TEST_LARGE_MB` is the size of the value in MB. The run that docs/evidence.md shows had 400 MB.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.config.sections.postgres import PostgresConfig
from deploy.demo.fold import await_flushed
from deploy.local.kafka_broker import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration

MB = 1_000_000
SIZE = int(os.environ.get("CDCD_TEST_LARGE_MB", "48")) * MB
TIMEOUT_S = 300.0

TEXT = f"repeat(md5('a'), {SIZE // 32})"
MESSAGE = f"SELECT pg_logical_emit_message(false, 'x', {TEXT})"
ROW = f"INSERT INTO large VALUES (1, {TEXT})"


@pytest.fixture
def pair(database: Database, broker: KafkaBroker, scratch: Path, unique: str) -> Iterator[list[Daemon]]:
    """Three instances of one pipeline that deliver messages and large values. The test starts them."""
    if database.version == 13:
        pytest.skip("PostgreSQL 13 has no logical messages, and the rows of 18 show the same")
    folder = scratch / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    database.execute("CREATE TABLE large (id int PRIMARY KEY, body text)")
    database.execute("ALTER TABLE large ALTER body SET STORAGE EXTERNAL")
    settings: dict[str, Any] = {
        "postgres": {"lease_s": PostgresConfig.model_fields["lease_s"].default, "messages": True},
        "kafka": {"oversized": "claim_check", "claim_check_directory": str(folder)},
    }
    instances = [
        Daemon(
            scratch / f"instance{number}",
            configuration(unique, database.dsn(), broker.bootstrap_servers, **settings),
            environment={**os.environ, "PYTHONASYNCIODEBUG": "0"},
        )
        for number in range(3)
    ]
    yield instances
    for each in instances:
        each.kill()


def with_policy(pair: list[Daemon], policy: str) -> None:
    for each in pair:
        each.config["kafka"]["oversized"] = policy


def met(instances: list[Daemon]) -> int:
    """Return how often the large value was received: more than once if a session ended before it was delivered."""
    events = [event["event"] for each in instances for event in each.events]
    assert "lock.lost" not in events, events
    return events.count("message.large")


@pytest.mark.timeout(900)
@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("statement", [MESSAGE, ROW], ids=["message", "row"])
def test_the_active_instance_delivers_a_large_value_and_stays_the_active_one(
    database: Database, pair: list[Daemon], unique: str, statement: str
):
    # GIVEN an active instance and a standby
    active, standby, _ = pair
    active.start()
    active.await_streaming()
    standby.start()
    standby.await_event("standby.waiting")
    # WHEN a large value is written
    database.execute(statement)
    await_flushed(database.dsn(), f"cdcd_{unique}", TIMEOUT_S)
    # THEN the large value was received once, and no lock was lost
    assert met(pair) == 1
    assert active.saw("message.large")
    assert active.stop() == standby.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.postgres(only=18)
def test_the_active_instance_stays_the_active_one_while_it_converts_many_small_elements(
    database: Database, pair: list[Daemon], unique: str
):
    # GIVEN a server that ends a connection without status updates, an active instance and a standby
    database.execute(f"ALTER DATABASE \"{database.name}\" SET wal_sender_timeout = '5s'")
    database.execute("CREATE TABLE many (id int PRIMARY KEY, body text[])")
    active, standby, _ = pair
    active.start()
    active.await_streaming()
    standby.start()
    standby.await_event("standby.waiting")
    # WHEN an array is written whose conversion takes longer than the lease
    database.execute(f"INSERT INTO many VALUES (1, array_fill('a'::text, ARRAY[{SIZE // 12}]))")
    await_flushed(database.dsn(), f"cdcd_{unique}", TIMEOUT_S)
    # THEN the connection and the lock have lasted
    events = [event["event"] for each in pair for event in each.events]
    assert "lock.lost" not in events
    assert "reconnect.scheduled" not in events
    assert events.count("stream.started") == 1
    assert active.stop() == standby.stop() == 0


@pytest.mark.timeout(900)
@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("statement", [MESSAGE, ROW], ids=["message", "row"])
def test_a_standby_that_takes_over_and_meets_a_large_value_stays_the_active_one(
    database: Database, pair: list[Daemon], unique: str, statement: str
):
    # GIVEN an active instance and two standbys
    active, *waiting = pair
    active.start()
    active.await_streaming()
    for each in waiting:
        each.start()
        each.await_event("standby.waiting")
    # WHEN the active instance is killed, and a large value is written
    active.kill()
    database.execute(statement)
    await_flushed(database.dsn(), f"cdcd_{unique}", TIMEOUT_S)
    # THEN the large value was received once, and no lock was lost
    assert met(pair) == 1
    assert [each.stop() for each in waiting] == [0, 0]


@pytest.mark.timeout(900)
@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("first_meets", ["active", "standby"])
def test_a_row_that_fail_refuses_ends_each_instance_once_and_by_name(
    database: Database, pair: list[Daemon], first_meets: str
):
    # GIVEN an active instance and a standby, under `oversized: fail`
    with_policy(pair, "fail")
    active, standby, _ = pair
    active.start()
    active.await_streaming()
    standby.start()
    standby.await_event("standby.waiting")
    # WHEN a row that is too large is written
    if first_meets == "standby":
        active.kill()
    database.execute(ROW)
    # THEN each instance that receives the row ends with the exit code of a sink error, and no lock was lost
    ended = [active, standby] if first_meets == "active" else [standby]
    for each in ended:
        assert each.wait(TIMEOUT_S) == 4
        assert "A record of at least" in each.last_words()
    assert met(pair) == len(ended)
