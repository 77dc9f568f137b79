"""A snapshot that says "complete" has delivered every row and every value, whatever happened to its tables."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from deploy.demo.fold import await_flushed, compare
from deploy.local import KafkaBroker
from tests.integration.changing_docs import CHANGES, SWAP, Writers, fill
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration

StartDaemon = Callable[[dict[str, Any]], Daemon]


def settings(name: str, database: Database, broker: KafkaBroker, **snapshot: Any) -> dict[str, Any]:
    return configuration(
        name,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "chunk_bytes": 131_072, "parallelism": 2, **snapshot},
        kafka={"transaction": {"bytes_max": 262_144}, "queue_bytes_max": 524_288},
    )


def assert_equal(database: Database, broker: KafkaBroker, name: str, *tables: str) -> None:
    await_flushed(database.dsn(), f"cdcd_{name}")
    report = compare(database.dsn(), broker.bootstrap_servers, name, rows_before=True, tables=list(tables))
    assert report.equal, str(report)


def await_rows(process: Daemon, least: int) -> None:
    process.await_metric("cdcd_snapshot_rows_total", lambda rows: rows > least)


@pytest.mark.postgres(only=18, also=[13])
@pytest.mark.parametrize("method", ["exported", pytest.param("incremental", marks=pytest.mark.long)])
def test_values_that_updates_leave_alone_are_delivered_though_it_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    # GIVEN a table with values out of line, and sessions that update its rows without them
    fill(database.server, database.name)
    process = daemon(settings(unique, database, broker, method=method))
    with Writers(database.dsn()):
        # WHEN the daemon is killed three times while it reads
        for number in range(3):
            process.await_event("snapshot.started" if number == 0 else "snapshot.resumed")
            await_rows(process, number * 800)
            process.kill()
            process.start()
        process.await_event("snapshot.finished")
    # THEN each value is in the topic, and nothing in it stands for one that never came
    assert_equal(database, broker, unique, "public.docs")
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_changes_while_it_is_read_is_read_as_it_is_now(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, change: str
):
    fill(database.server, database.name)
    process = daemon(settings(unique, database, broker, method="incremental"))
    with Writers(database.dsn()) as writers:
        await_rows(process, 1000)
        # WHEN the table changes in the middle, and its rows after that
        for statement in CHANGES[change]:
            database.execute(statement)
        so_far = writers.commits
        process.await_event("snapshot.finished")
        while writers.commits < so_far + 50:
            process.await_metric("cdcd_streaming", lambda value: value == 1)
    assert_equal(database, broker, unique, "public.docs")
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("method", ["exported", pytest.param("incremental", marks=pytest.mark.long)])
def test_tables_that_swap_their_names_while_they_are_read_are_told_apart(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    # GIVEN a table and the one that is to take its place
    fill(database.server, database.name)
    *prepare, swap = SWAP
    for statement in prepare:
        database.execute(statement)
    process = daemon(settings(unique, database, broker, method=method))
    await_rows(process, 1000)
    # WHEN they swap their names, which no row tells
    database.execute(swap)
    # THEN it is noticed, the rows of the former table are ended, and those of the new one are read
    replaced = process.await_event("table.replaced", table="public.docs")
    process.await_event("table.read", after=process.events.index(replaced), table="public.docs")
    database.execute("UPDATE docs SET n = n + 1 WHERE id < 10")
    assert_equal(database, broker, unique, "public.docs")
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("method", ["exported", "incremental"])
def test_a_table_that_is_added_while_the_slot_is_made_is_read_with_the_first_snapshot(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    fill(database.server, database.name)
    database.execute("CREATE TABLE late (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO late SELECT g, 'l' FROM generate_series(1, 500) g")
    database.execute(f"CREATE PUBLICATION {unique} FOR TABLE docs")
    config = settings(unique, database, broker, method=method, added_tables=False)
    config["postgres"]["publication"] = unique
    # GIVEN a slot whose creation waits for an open transaction
    with psycopg.connect(database.dsn()) as open_transaction:
        open_transaction.execute("UPDATE docs SET n = 1 WHERE id = 1")
        process = daemon(config)
        process.await_event("slot.waiting")
        # WHEN a table with rows is added to the publication
        database.execute(f"ALTER PUBLICATION {unique} ADD TABLE late")
    # THEN it belongs to the tables that are there at the first start
    process.await_event("table.read", table="public.late")
    process.await_event("snapshot.finished")
    assert not process.saw("table.added")
    database.execute("UPDATE late SET note = 'changed' WHERE id < 10")
    assert_equal(database, broker, unique, "public.docs", "public.late")
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("added", [True, False])
def test_a_table_that_is_added_while_the_first_snapshot_is_read_is_read_or_told(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, added: bool
):
    fill(database.server, database.name)
    database.execute(f"CREATE PUBLICATION {unique} FOR TABLE docs")
    config = settings(unique, database, broker, method="exported", added_tables=added)
    config["postgres"]["publication"] = unique
    process = daemon(config)
    process.await_event("snapshot.started")
    # WHEN a table with rows is added during the first snapshot
    database.execute("CREATE TABLE late (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO late SELECT g, 'l' FROM generate_series(1, 500) g")
    database.execute(f"ALTER PUBLICATION {unique} ADD TABLE late")
    # THEN its rows are read where the configuration says so, and else a fact says which command reads them
    told = process.await_event("table.added", table="public.late")
    assert told["read"] is added
    if not added:
        assert told["rows"] > 0
        assert told["command"] == "cdcd snapshot start --table public.late"
        database.execute(
            "SELECT pg_logical_emit_message(true, 'cdcd.snapshot', "
            """'{"action": "start", "tables": ["public.late"]}')"""
        )
    process.await_event("table.read", table="public.late")
    database.execute("UPDATE late SET note = 'changed' WHERE id < 10")
    assert_equal(database, broker, unique, "public.docs", "public.late")
    assert process.stop() == 0
