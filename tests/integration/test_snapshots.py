"""Rows that exist: read at the slot's snapshot or beside the stream, each once, whatever is killed meanwhile."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.moving_tables import QUIET, ROWS, TABLES, Writers, fill
from tests.integration.visible_records import await_readable

StartDaemon = Callable[[dict[str, Any]], Daemon]


def assert_equal(database: Database, broker: KafkaBroker, name: str, *, rows_before: bool = True) -> Report:
    await_flushed(database.dsn(), f"cdcd_{name}")
    report = compare(database.dsn(), broker.bootstrap_servers, name, rows_before=rows_before, tables=TABLES)
    assert report.equal, str(report)
    return report


def settings(name: str, database: Database, broker: KafkaBroker, **snapshot: Any) -> dict[str, Any]:
    return configuration(
        name,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "chunk_bytes": 65_536, **snapshot},
        kafka={"transaction": {"bytes_max": 262_144}, "queue_bytes_max": 524_288},
    )


def rows_read(broker: KafkaBroker, name: str) -> list[dict[str, Any]]:
    """The envelopes with op r, in each partition's order."""
    with Reader(broker.bootstrap_servers, name) as reader:
        envelopes = [json.loads(raw.value) for raw in reader.read_all() if raw.value is not None]
    return [envelope for envelope in envelopes if envelope.get("op") == "r"]


def await_rows(process: Daemon, least: int) -> None:
    """So many rows are read, or all that there are."""
    process.await_metric("cdcd_snapshot_rows_total", lambda rows: rows > least)


def test_rows_that_exist_come_first_each_once_and_then_the_changes(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN tables with rows, and sessions that change them all the time
    fill(database.server, database.name)
    process = daemon(settings(unique, database, broker))
    with Writers(database.dsn()) as writers:
        # WHEN a new pipeline starts
        finished = process.await_event("snapshot.finished")
        process.await_streaming()
        so_far = writers.commits
        while writers.commits < so_far + 50:
            process.await_metric("cdcd_streaming", lambda value: value == 1)
    # THEN the topics are the tables, and what was read came once, before every change of it
    report = assert_equal(database, broker, unique, rows_before=False)
    assert sum(table.ops["r"] for table in report.tables) == finished["rows"]
    sources = [envelope["source"] for envelope in rows_read(broker, unique)]
    markers = Counter(source["snapshot"] for source in sources)
    assert markers["first"] == markers["last"] == 1
    assert markers["last_in_data_collection"] == 3
    assert {source["txId"] for source in sources} == {None}
    assert process.stop() == 0


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("method", ["exported", "incremental"])
def test_who_kills_it_when_the_snapshot_is_finished_finds_every_row(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    database.execute("INSERT INTO t SELECT id, repeat('x', 100) FROM generate_series(1, 5000) id")
    process = daemon(settings(unique, database, broker, method=method))
    process.await_event("snapshot.finished", rows=5000)
    process.kill()
    await_readable(broker.bootstrap_servers, f"{unique}.public.t", 5000)


# PostgreSQL 14 is the first that reads a range of pages alone (TID range scan).
@pytest.mark.postgres(only=18, also=[13, 14])
@pytest.mark.parametrize("method", ["exported", "incremental"])
def test_killed_in_the_middle_of_a_snapshot_it_goes_on_where_it_was(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    fill(database.server, database.name)
    process = daemon(settings(unique, database, broker, method=method))
    with Writers(database.dsn()):
        for number in range(3):
            process.await_event("snapshot.started" if number == 0 else "snapshot.resumed")
            await_rows(process, number * 3000)
            process.kill()
            process.start()
        process.await_event("snapshot.finished")
    report = assert_equal(database, broker, unique)
    # THEN nothing was read that had been delivered: a row comes twice only if it moved meanwhile
    times = Counter(envelope["after"]["id"] for envelope in rows_read(broker, unique) if is_item(envelope))
    assert {times[row] for row in range(0, ROWS, QUIET)} == {1}
    assert report.tables[0].ops["r"] < ROWS * 1.2
    assert process.stop() == 0


def is_item(envelope: dict[str, Any]) -> bool:
    return bool(envelope["source"]["table"] == "items")
