"""`cdcd adopt` on a real connector of Debezium's in Kafka Connect: takeover, kills of either side, and the way back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.takeovers import Scene, Writer

RATE = 100.0


@pytest.fixture
def scene(database: Database, broker: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path, database.server, database.name, broker, unique)
    yield found
    found.close()


@pytest.mark.postgres(only=[18])
def test_a_takeover_misses_nothing_and_says_what_comes_twice(database: Database, scene: Scene, daemon):
    # GIVEN a connector that is killed while rows are written, and started again
    scene.start_worker()
    with Writer(database.dsn(), RATE) as writer:
        scene.await_records(200)
        scene.kill_worker()
        scene.start_worker()
        scene.await_records(100)
        # AND a takeover that is killed when it has begun to stop the connector
        scene.adopt_and_kill("stopping")
        # WHEN the same command is run again
        code, said = scene.adopt("--takeover")
        assert code == 0, said
        # THEN the connector is stopped, and cdcd goes on from the slot, also if it is killed
        assert scene.ask("GET", "/status")["connector"]["state"] == "STOPPED"
        process = daemon(scene.configuration())
        process.await_event("stream.started")
        scene.await_records(100)
        process.kill()
        process.start()
        process.await_event("stream.started")
        scene.await_records(100)
    scene.await_row(writer.last)
    found = scene.read()
    # THEN nothing is missing, and what came twice is what the command said
    assert found.missing(writer.last) == []
    assert set(found.cdcd.values()) == {1}
    assert found.twice == said["takeover"]["twice"]["events"]
    assert said["takeover"]["gap"] is None
    # AND the table that the connector leaves out has no topic
    assert said["publication"]["left_out"] == ["public.secrets"]
