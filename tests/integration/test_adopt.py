"""`cdcd adopt` on a real connector of Debezium's in Kafka Connect: takeover, kills of either side, and the way back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.takeovers import Found, Scene, Writer, await_true

RATE = 100.0


@pytest.fixture
def scene(database: Database, broker: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path, database.server, database.name, broker, unique)
    yield found
    found.close()


def assert_nothing_lost(found: Found, last: int, said: dict[str, Any]) -> None:
    """All rows up to `last` are there, those of cdcd once, and the command said how many both wrote."""
    assert found.missing(last) == []
    assert set(found.cdcd.values()) == {1}
    assert found.twice == said["takeover"]["twice"]["events"]


@pytest.mark.long
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
    # THEN nothing is missing, and what came twice is what the command said
    assert_nothing_lost(scene.read(), writer.last, said)
    assert said["takeover"]["gap"] is None
    # AND the table that the connector leaves out has no topic
    assert said["publication"]["left_out"] == ["public.secrets"]


@pytest.mark.long
@pytest.mark.postgres(only=[18])
def test_a_connector_that_drops_its_slot_is_followed_by_a_slot_of_cdcds_own(
    database: Database, scene: Scene, daemon
):
    # GIVEN a connector that drops its slot when it stops
    scene.start_worker(slot__drop__on__stop="true")
    with Writer(database.dsn(), RATE) as writer:
        scene.await_records(200)
        # AND takeovers that are killed when they create the slot, and when the connector has begun to stop
        scene.adopt_and_kill("creating slot")
        scene.adopt_and_kill("stopping")
        # WHEN the same command is run again
        code, said = scene.adopt("--takeover")
        assert code == 0, said
        # THEN the connector's slot is gone, and cdcd goes on from its own
        slots = database.execute(
            "SELECT slot_name, plugin FROM pg_replication_slots WHERE database = current_database()"
        )
        assert slots == [(f"cdcd_{scene.name}", "pgoutput")]
        assert said["takeover"]["slot"] == f"cdcd_{scene.name}"
        assert said["takeover"]["left_slot"] is None
        daemon(scene.configuration()).await_event("stream.started")
        scene.await_records(100)
    scene.await_row(writer.last)
    # THEN nothing is missing, and what came twice is what the command said
    assert_nothing_lost(scene.read(), writer.last, said)


@pytest.mark.long
@pytest.mark.postgres(only=[18])
def test_a_connector_that_confirms_nothing_comes_twice_as_a_whole_and_a_moved_slot_is_refused(
    database: Database, scene: Scene
):
    # GIVEN a connector that captures all tables of its publication, and never confirms
    scene.start_worker(table__include__list=r"public\\..*", lsn__flush__mode="manual")
    with Writer(database.dsn(), RATE) as writer:
        scene.await_records(200)
    scene.await_row(writer.last)
    # WHEN it is stopped, and its slot is moved past its offset by somebody else in between
    scene.ask("PUT", "/stop")
    await_true(lambda: not scene.is_read(), "the slot is still read")
    name = f"of_{scene.name}"[:60]
    database.execute(f"SELECT pg_copy_logical_replication_slot('{scene.name}', '{name}')")
    database.execute("INSERT INTO orders VALUES (0)")
    database.execute(f"SELECT pg_replication_slot_advance('{scene.name}', pg_current_wal_lsn())")
    refused = scene.run("--takeover", "--accept", "all")
    # THEN the takeover is refused, and names the two positions
    assert refused.returncode == 6, refused.stderr
    assert "somebody else has moved it" in refused.stderr
    # WHEN the slot is where it was
    database.execute(f"SELECT pg_drop_replication_slot('{scene.name}')")
    database.execute(f"SELECT pg_copy_logical_replication_slot('{name}', '{scene.name}')")
    with scene.running("--takeover", "--accept", "all", "--run") as process:
        # THEN cdcd runs in the same process, and each row comes twice, as the command says
        await_true(lambda: 0 in scene.read().cdcd, "the last row does not come")
    assert process.returncode == 0
    said = scene.said()
    found = scene.read()
    assert found.missing(writer.last) == []
    assert found.twice == writer.last
    assert said["takeover"]["twice"]["events"] == found.twice + writer.others
