"""Upgrades from commit 99c61843 and downgrades in the middle of work: the other version finishes it."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import yaml

from cdcd.core.records.schemas import TableForm, read_form
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, until
from tests.integration.forked import run_cdcd
from tests.integration.former import Environment, Pipeline, run_former
from tests.integration.test_exactly_once import await_commits
from tests.integration.test_handover import Servers

pytestmark = pytest.mark.upgrade

FIRST_AND_LAST: Final = pytest.mark.postgres(only=[13, 18])
DIRECTIONS: Final = pytest.mark.parametrize("to", ["upgrade", "downgrade"])
ENDS: Final = pytest.mark.parametrize("end", [Daemon.stop, Daemon.kill], ids=["stopped", "killed"])

LARGE: Final = 3000
"""Number of rows of a transaction that PostgreSQL streams before the commit."""

INSERT: Final = "INSERT INTO orders SELECT n, repeat('x', 300) FROM generate_series(%s::int, %s) n"


def change(pipeline: Pipeline, process: Daemon, to: str, **sections: Any) -> Daemon:
    """Start the version that `to` leads to in place of `process`, which has ended."""
    if to == "downgrade":
        pipeline.command(process, "downgrade", "--yes")
        assert pipeline.newest_format() == 1
    return pipeline.start(old=to == "downgrade", **sections)


@contextmanager
def open_transaction(pipeline: Pipeline, process: Daemon) -> Iterator[psycopg.Connection[Any]]:
    """Yield the connection of a transaction whose first rows, 1 to `LARGE` / 2, are in the spool of `process`.

    The caller inserts the rows up to `LARGE`. The transaction is committed at the end of the context.
    """
    with pipeline.database.connect(autocommit=False) as connection:
        connection.execute(INSERT, (1, LARGE // 2))
        connection.execute("SAVEPOINT doomed")
        connection.execute(INSERT, (100_000, 100_500))
        connection.execute("ROLLBACK TO doomed")
        process.await_metric("cdcd_spool_disk_bytes", lambda size: size > 0)
        yield connection
        pipeline.rows = LARGE
        connection.commit()


@pytest.mark.postgres(only=[14, 18])
@DIRECTIONS
@ENDS
def test_a_streamed_transaction_that_is_in_the_spool_is_delivered_by_the_other_version(
    pipeline: Pipeline, end: Callable[[Daemon], object], to: str, tmp_path: Path
):
    # GIVEN a transaction in the spool of one version
    pipeline.database.execute(f'ALTER DATABASE "{pipeline.database.name}" SET logical_decoding_work_mem = 64')
    spool = {"directory": str(tmp_path / "spool"), "memory_bytes_max": 65_536}
    process = pipeline.start(old=to == "upgrade", spool=spool)
    process.await_event("snapshot.finished")
    process.await_streaming()
    with open_transaction(pipeline, process) as connection:
        # WHEN the other version takes its place with the same spool directory
        end(process)
        other = change(pipeline, process, to, spool=spool)
        other.await_streaming()
        # PostgreSQL streams the transaction again as soon as it decodes a row after the confirmed position.
        connection.execute(INSERT, (LARGE // 2 + 1, LARGE))
        other.await_metric("cdcd_spool_disk_bytes", lambda size: size > 0)
    # THEN the topic has each row of the transaction once
    pipeline.expect()
    assert other.stop() == 0
    assert list((tmp_path / "spool").rglob("*.spool")) == []


@pytest.mark.postgres(only=[15, 18])
@DIRECTIONS
@ENDS
def test_prepared_transactions_stay_open_over_the_change(
    pipeline: Pipeline, end: Callable[[Daemon], object], to: str
):
    # GIVEN three prepared transactions that one version has received; `doomed` will be rolled back
    database = pipeline.database
    database.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = 64')
    postgres = {"two_phase": True}
    process = pipeline.start(old=to == "upgrade", postgres=postgres)
    process.await_event("snapshot.finished")
    process.await_streaming()
    for gid, first, last in (("small", 1, 2), ("large", 3, LARGE), ("doomed", 100_000, 103_000)):
        database.execute(
            f"BEGIN; INSERT INTO orders SELECT g, repeat('{gid}', 20) FROM generate_series({first}, {last}) g; "
            f"PREPARE TRANSACTION '{pipeline.name}_{gid}'"
        )
    process.await_metric("cdcd_prepared_open", lambda count: count == 3)
    # WHEN the other version takes its place, and the transactions are committed or rolled back
    end(process)
    other = change(pipeline, process, to, postgres=postgres)
    other.await_streaming()
    other.await_metric("cdcd_prepared_open", lambda count: count == 3)
    database.execute(f"COMMIT PREPARED '{pipeline.name}_large'")
    database.execute(f"ROLLBACK PREPARED '{pipeline.name}_doomed'")
    database.execute(f"COMMIT PREPARED '{pipeline.name}_small'")
    # THEN the topic has the rows of the committed transactions once
    pipeline.rows = LARGE
    pipeline.expect()
    assert other.stop() == 0


@FIRST_AND_LAST
def test_the_rest_of_a_transaction_that_is_larger_than_kafkas_is_delivered(pipeline: Pipeline):
    # GIVEN a version that was killed in the middle of a transaction
    sections: dict[str, Any] = {
        "postgres": {"streaming": "off", "messages": None},
        "kafka": {"transaction": {"bytes_max": 8192, "whole_bytes_max": 0}, "queue_bytes_max": 131_072},
    }
    process = pipeline.start(old=True, **sections)
    process.await_event("snapshot.finished")
    process.await_streaming()
    pipeline.database.execute(
        "INSERT INTO orders SELECT g, repeat('x', 900) FROM generate_series(1, 12000) g"
    )
    pipeline.rows = 12_000
    # WHEN this version takes its place and is killed, then the former version and again this version take over
    inside = []
    for to in ("upgrade", "downgrade", "upgrade"):
        process.await_event("transaction.large")
        await_commits(process, 3)
        process.kill()
        process = change(pipeline, process, to, **sections)
        inside.append(process.await_event("checkpoint.read")["position"])
    # THEN each version resumes after the last event that was delivered
    done = [int(found[1]) for position in inside if (found := re.search(r" and (\d+) events of ", position))]
    assert done == sorted(set(done)), inside
    assert len(done) == 3, inside
    pipeline.expect()
    assert process.stop() == 0


@FIRST_AND_LAST
@DIRECTIONS
def test_rows_of_a_durable_log_are_delivered_by_the_other_version(
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    unique: str,
    tmp_path: Path,
    former: Environment,
    to: str,
):
    # GIVEN a version whose durable log has the rows that it confirmed to PostgreSQL while Kafka was stopped
    broker = private_broker()
    made = Pipeline(database, broker, unique, tmp_path, former)
    folder = tmp_path / "log"
    spool = {"durable": True, "durable_directory": str(folder), "durable_after_s": 0.5}
    sections: dict[str, Any] = {"spool": spool, "postgres": {"messages": None}}
    try:
        process = made.start(old=to == "upgrade", **sections)
        process.await_event("snapshot.finished")
        process.await_streaming()
        made.insert(10)
        made.await_flushed()
        broker.stop()
        process.await_event("durable.started")
        made.insert(500)
        made.await_flushed()
        process.kill()
        made.insert(10)
        if to == "upgrade":
            # WHEN this version starts during the outage, and continues the log
            other = made.start(old=False, **sections)
            other.await_event("durable.started")
            made.insert(10)
            made.await_flushed()
            broker.start()
        else:
            # WHEN the downgrade is made after Kafka is started again
            broker.start()
            other = change(made, process, to, **sections)
        # THEN the topic has each row once, and the log's files are removed
        other.await_event("durable.delivered")
        other.await_streaming()
        made.insert(10)
        made.expect()
        assert other.stop() == 0
        assert not list(folder.glob("*.cdcdrec"))
    finally:
        for each in made.daemons:
            each.kill()


def forms_of(pipeline: Pipeline, changes: int) -> list[TableForm]:
    """Wait for the changes of `orders`; return the description that each change names, in the order of the topic."""

    def look() -> list[TableForm] | None:
        forms = dict(map(read_form, pipeline.values(f"{pipeline.name}.schemas")))
        found = [each["source"]["schema_id"] for each in pipeline.envelopes("orders")]
        return [forms[each] for each in found] if len(found) >= changes and {*found} <= {*forms} else None

    return until(look, "changes and their descriptions are missing")


@FIRST_AND_LAST
@DIRECTIONS
def test_tables_that_one_version_has_described_keep_their_descriptions_and_the_numbers_of_columns(
    pipeline: Pipeline, to: str
):
    database = pipeline.database
    database.execute("ALTER TABLE orders ADD gone int, ADD v text DEFAULT 'v', ADD u text")
    database.execute("ALTER TABLE orders DROP gone")
    # GIVEN a table that one version has described
    process = pipeline.start(old=to == "upgrade")
    process.await_event("snapshot.finished")
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1)")
    forms_of(pipeline, 2)
    assert process.stop() == 0
    # AND, while no version runs, a row in the known form, two columns that swap their names, and a new column
    database.execute("INSERT INTO orders VALUES (2)")
    database.execute("ALTER TABLE orders RENAME v TO w")
    database.execute("ALTER TABLE orders RENAME u TO v")
    database.execute("ALTER TABLE orders RENAME w TO u")
    database.execute("ALTER TABLE orders ADD x int DEFAULT 7")
    database.execute("INSERT INTO orders VALUES (3)")
    # WHEN the other version delivers these changes
    other = change(pipeline, process, to)
    other.await_streaming()
    first, second, third, fourth = forms_of(pipeline, 4)
    # THEN rows in the known form have the same description, and the new description keeps the columns' numbers
    assert first == second == third
    assert [(column.name, column.id) for column in third.columns] == [
        ("id", 1),
        ("note", 2),
        ("v", 4),
        ("u", 5),
    ]
    assert [(column.name, column.id) for column in fourth.columns] == [
        ("id", 1),
        ("note", 2),
        ("u", 4),
        ("v", 5),
        ("x", 6),
    ]
    assert fourth.columns[-1].default == "7"
    # AND the compacted topic has only these two descriptions
    ids = {read_form(value)[0] for value in pipeline.values(f"{pipeline.name}.schemas")}
    assert len(ids) == 2
    assert other.stop() == 0


@FIRST_AND_LAST
@pytest.mark.parametrize("method", ["exported", "incremental"])
@DIRECTIONS
def test_a_snapshot_goes_on_where_the_other_version_has_left_it(pipeline: Pipeline, to: str, method: str):
    # GIVEN a snapshot of two tables that is not finished
    database = pipeline.database
    database.execute("CREATE TABLE large (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO large SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g")
    sections = {
        "snapshot": {"mode": "initial", "method": method, "chunk_bytes": 16_384},
        "kafka": {"transaction": {"bytes_max": 16_384}, "queue_bytes_max": 65_536},
    }
    process = pipeline.start(old=to == "upgrade", **sections)
    process.await_metric("cdcd_snapshot_rows_total", lambda rows: rows > 1000)
    process.kill()
    assert not process.saw("snapshot.finished")
    # WHEN the other version takes its place, which also ends a Kafka transaction that the kill has left open
    other = change(pipeline, process, to, **sections)
    # THEN the other version resumes the snapshot, and delivers no row twice
    assert 0 < other.await_event("snapshot.resumed")["rows"] < 20_000
    other.await_event("snapshot.finished")
    pipeline.insert(10)
    pipeline.expect()
    found = [each["after"]["id"] for each in pipeline.envelopes("large")]
    assert sorted(found) == list(range(1, 20_001))
    assert other.stop() == 0


@pytest.mark.postgres(only=[14, 18])
@DIRECTIONS
def test_a_request_for_a_snapshot_outlives_the_change_and_one_with_a_condition_is_told(
    pipeline: Pipeline, to: str
):
    # GIVEN a paused version with requests for two tables, one of them with a condition
    database = pipeline.database
    database.execute("CREATE TABLE other (LIKE orders INCLUDING ALL)")
    database.execute("INSERT INTO other SELECT g, 'row' FROM generate_series(1, 100) g")
    snapshot = {"mode": "never", "signals": "all"}
    old = to == "upgrade"
    process = pipeline.start(old=old, snapshot=snapshot)
    process.await_streaming()
    for arguments in (
        ("pause",),
        ("start", "--table", "public.orders"),
        ("start", "--table", "public.other", "--where", "id <= 10"),
    ):
        mark = process.mark()
        pipeline.command(process, "snapshot", *arguments, old=old)
        process.await_event("snapshot.signalled", after=mark)
    pipeline.await_flushed()
    assert process.stop() == 0
    # WHEN the other version takes its place and is resumed
    other = change(pipeline, process, to, snapshot=snapshot)
    other.await_event("snapshot.resumed")
    if to == "upgrade":
        # THEN this version drops the condition, because its SQL has an unknown sender, and names a command to repeat it
        dropped = other.await_event("condition.dropped", table="public.other")
        assert "--where" in dropped["command"]
    pipeline.command(other, "snapshot", "resume", old=not old)
    other.await_event("table.read", table="public.orders", rows=1)
    if to == "downgrade":
        other.await_event("table.read", table="public.other", rows=10)
    pipeline.await_flushed()
    assert len(pipeline.envelopes("other")) == (10 if to == "downgrade" else 0)
    pipeline.expect()
    assert other.stop() == 0


@pytest.mark.postgres(only=[14, 18])
def test_no_setting_is_told_as_changed_and_messages_go_on(pipeline: Pipeline):
    # GIVEN a pipeline with the defaults of the former version, which delivered all logical messages
    message = "SELECT pg_logical_emit_message(true, 'app', 'told')"
    sections = {"postgres": {"messages": None}}
    process = pipeline.start(old=True, **sections)
    process.await_event("snapshot.finished")
    process.await_streaming()
    for number, to in enumerate(("upgrade", "upgrade", "downgrade", "upgrade"), start=1):
        pipeline.database.execute(message)
        pipeline.insert(1)
        pipeline.await_flushed()
        assert process.stop() == 0
        # WHEN the pipeline is upgraded, restarted, downgraded, and upgraded again
        process = change(pipeline, process, to, **sections)
        process.await_streaming()
        # THEN logical messages still become records
        assert len(pipeline.values(f"{pipeline.name}.message")) == number
        # AND no version reports settings as changed
        assert [each for each in process.events if each["event"] == "settings.changed"] == []
        assert not process.saw("checkpoint.ignored")
    pipeline.expect()
    assert process.stop() == 0


@pytest.mark.postgres(only=[14, 18])
def test_commands_of_this_version_see_a_running_instance_of_the_former_one_and_the_other_way_round(
    pipeline: Pipeline,
    former: Environment,
):
    process = pipeline.start(old=True)
    process.await_event("snapshot.finished")
    process.await_streaming()
    file = ("--config", str(process.config_path))
    # GIVEN an active instance of the former version, THEN commands of this version that change something are refused
    assert json.loads(run_cdcd("status", "--format", "json", *file).stdout)["active"]
    for arguments in (("downgrade", "--yes"), ("drop", "--yes"), ("reset", "--yes")):
        refused = run_cdcd(*arguments, *file)
        assert refused.returncode == 7, refused.stdout + refused.stderr
    # AND a command of this version can request a snapshot
    asked = run_cdcd("snapshot", "start", "--table", "public.orders", *file)
    assert asked.returncode == 0, asked.stderr
    process.await_event("table.read", table="public.orders")
    assert process.stop() == 0
    # GIVEN an active instance of this version, THEN the former version's commands refuse the checkpoint's format
    process = pipeline.start(old=False)
    process.await_streaming()
    file = ("--config", str(process.config_path))
    for command_line in ("drop --yes", "reset --yes", "snapshot start --table public.orders"):
        refused = run_former(former, *command_line.split(), *file)
        assert refused.returncode in {6, 7}, refused.stdout + refused.stderr
    pipeline.insert(5)
    pipeline.await_flushed()
    assert process.stop() == 0


@FIRST_AND_LAST
@pytest.mark.parametrize(
    "columns",
    [
        {"hash": ["public.orders.note"], "hash_key": "k" * 40},
        {"encrypt": ["public.orders.note"], "encryption_key": base64.b64encode(b"k" * 32).decode()},
    ],
    ids=["hashed", "encrypted"],
)
def test_protected_columns_have_the_same_values_before_and_after(pipeline: Pipeline, columns: dict[str, Any]):
    process = pipeline.start(old=True, columns=columns)
    process.await_event("snapshot.finished")
    process.await_streaming()
    pipeline.insert(1)
    pipeline.expect()
    for to in ("upgrade", "upgrade", "downgrade"):
        assert process.stop() == 0
        process = change(pipeline, process, to, columns=columns)
        process.await_streaming()
        assert not process.saw("settings.changed")
        pipeline.insert(1)
        pipeline.expect()
    notes = [each["after"]["note"] for each in pipeline.envelopes("orders")][1:]
    assert "x" * 10 not in notes
    assert len(set(notes)) == 1
    assert process.stop() == 0


@DIRECTIONS
def test_a_handover_that_one_version_has_prepared_is_finished_by_the_other(
    private_postgres: Callable[..., PostgresServer],
    broker: KafkaBroker,
    unique: str,
    tmp_path: Path,
    former: Environment,
    daemon: Callable[[dict[str, Any]], Daemon],
    to: str,
):
    pair = Servers(private_postgres, broker, unique, tmp_path)

    def settings(server: PostgresServer) -> dict[str, Any]:
        """The pair's settings without those that the former version does not know."""
        found = pair.settings(server)
        del found["snapshot"]["signals_from"]
        del found["tables"]["on_error"]
        return found

    pair.to.write_text(yaml.safe_dump(settings(pair.new), sort_keys=False))
    environments = (former, None) if to == "upgrade" else (None, former)
    # GIVEN a pipeline that one version has sealed
    process = Daemon(tmp_path / "first", settings(pair.former), environment=environments[0])
    try:
        process.start()
        process.await_event("snapshot.finished")
        process.await_streaming()
        prepare = [
            *(sys.executable, "-m", "cdcd.cli", "handover", "prepare"),
            *("--config", str(process.config_path), "--to", str(pair.to)),
        ]
        with subprocess.Popen(
            prepare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environments[0]
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                if line.startswith("Stop all instances"):
                    assert process.stop() == 0
        assert running.returncode == 0
    finally:
        process.kill()
    if to == "downgrade":
        assert run_cdcd("downgrade", "--yes", "--config", str(process.config_path)).returncode == 0
    # WHEN the other version adopts the new server
    arguments = ("handover", "adopt", "--config", str(pair.to))
    done = run_cdcd(*arguments) if environments[1] is None else run_former(former, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    # THEN it continues on the new server
    pair.new.execute("INSERT INTO t VALUES (-1, 'on the new server')")
    process = Daemon(tmp_path / "second", settings(pair.new), environment=environments[1])
    try:
        process.start()
        process.await_streaming()
        pair.new.execute("UPDATE t SET note = 'again' WHERE id <= 10")
        pair.assert_equal()
        assert process.stop() == 0
    finally:
        process.kill()
