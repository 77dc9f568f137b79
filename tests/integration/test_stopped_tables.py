"""Tables that are stopped and come back, as operators see it: commands, HTTP, status, metrics and page."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cdcd.config.loading import load_config
from cdcd.core.catalog.partitions import recalled
from cdcd.daemon.partition_watch import PARTITIONS_S
from cdcd.tools.operations.sides import peek
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration, until
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=18, also=[14])

TOKEN = "0123456789abcdef0123456789abcdef"


def post(process: Daemon, path: str, body: bytes, token: str) -> int:
    """The status of the answer to an action."""
    address = process.await_event("daemon.started")["http"]
    request = urllib.request.Request(f"http://{address}{path}", body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_table_is_stopped_and_comes_back_by_command_and_by_http(
    database: Database,
    broker: KafkaBroker,
    daemon: Callable[[Mapping[str, Any]], Daemon],
    unique: str,
    tmp_path: Path,
):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    for name in ("orders", "items"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            http={"token_file": str(token)},
            snapshot={"mode": "initial", "signals_from": "authorized"},
        )
    )
    process.await_streaming()
    config = ("--config", str(process.config_path))

    def listed() -> dict[str, dict[str, Any]]:
        answer = json.loads(run_cdcd("tables", *config, "--format", "json").stdout)
        return {each["table"]: each for each in answer["tables"]}

    assert run_cdcd("tables", *config).returncode == 0

    # WHEN a table is stopped
    done = run_cdcd("tables", "stop", "public.orders", *config)
    assert done.returncode == 0, done.stderr
    aside = process.await_event("table.aside", table="public.orders", fault="request")
    database.execute("INSERT INTO orders VALUES (2); INSERT INTO items VALUES (2)")

    # THEN it is shown everywhere, with the command that helps, and the other table goes on
    process.await_metric("cdcd_tables_set_aside", lambda value: value == 1, "request")
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.items")
    until(lambda: listed()["public.orders"]["state"] == "set aside" or None, "the checkpoint does not say so")
    orders = listed()["public.orders"]
    assert orders["command"].startswith("cdcd tables resume public.orders")
    assert listed()["public.items"]["state"] == "published"
    assert run_cdcd("tables", *config).returncode == 13
    status = run_cdcd("status", *config, "--format", "json")
    assert status.returncode == 13, status.stdout
    assert [each["code"] for each in json.loads(status.stdout)["problems"]].count("table.set_aside") == 1
    own = json.loads(process.page("/v1/status"))
    assert own["set_aside"][0]["table"] == "public.orders"
    assert own["ready"]
    assert "cdcd tables resume public.orders" in process.page("/")
    assert aside["command"] == "cdcd tables resume public.orders"

    # WHEN it is asked for without the token, nothing happens; with the token, it comes back and is read
    body = b'{"tables": ["public.orders"]}'
    assert post(process, "/v1/tables/resume", body, "wrong" * 8) == 401
    assert post(process, "/v1/tables/resume", body, TOKEN) == 202
    process.await_event("table.returned", table="public.orders")
    process.await_event("table.read", table="public.orders", rows=2)
    until(lambda: listed()["public.orders"]["state"] == "published" or None, "the checkpoint does not say so")
    assert run_cdcd("status", *config).returncode == 0

    # AND names that are no published table are refused
    refused = run_cdcd("tables", "stop", "public.nothing", *config)
    assert refused.returncode == 2
    assert "There is no table public.nothing" in refused.stderr
    assert process.stop() == 0


def test_tables_whose_partition_lost_its_rows_unseen_are_read_again_by_choice(
    database: Database,
    broker: KafkaBroker,
    daemon: Callable[[Mapping[str, Any]], Daemon],
    unique: str,
):
    changes = {
        "detached": "ALTER TABLE detached DETACH PARTITION detached_0",
        "emptied": "TRUNCATE emptied_0",
        # The server's statistics know nothing of these rows yet.
        "attached": "CREATE TABLE attached_7 (id int PRIMARY KEY); INSERT INTO attached_7 VALUES (7); "
        "ALTER TABLE attached ATTACH PARTITION attached_7 FOR VALUES FROM (7) TO (8)",
        # Rows of a table that was created as a partition are in the stream.
        "grown": "CREATE TABLE grown_7 PARTITION OF grown FOR VALUES FROM (7) TO (8); INSERT INTO grown VALUES (7)",
    }
    left = {"detached": {1}, "emptied": {1}, "attached": {0, 1, 7}, "grown": {0, 1, 7}}
    for name in changes:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        for number in range(2):
            database.execute(
                f"CREATE TABLE {name}_{number} PARTITION OF {name} "
                f"FOR VALUES FROM ({number}) TO ({number + 1})"
            )
        database.execute(f"INSERT INTO {name} VALUES (0), (1)")
    database.execute(
        f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE {", ".join(changes)} '
        "WITH (publish_via_partition_root = true)"
    )
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"mode": "initial", "signals_from": "authorized", "changed_partitions": "read"},
        )
    )
    for name in changes:
        process.await_event("table.read", table=f"public.{name}", rows=2)
    process.await_streaming()
    process.await_metric("cdcd_retained_wal_bytes", lambda value: value >= 0)

    # WHEN rows are gone of which PostgreSQL sends nothing
    after = process.mark()
    for change in changes.values():
        database.execute(change)

    # THEN the former rows end in the topics, and those that are left are read
    for name in changes.keys() - {"grown"}:
        table = f"public.{name}"
        process.await_event("table.returned", after=after, table=table, timeout_s=PARTITIONS_S + WAIT_S)
        process.await_event("table.read", after=after, table=table, rows=len(left[name]))
    process.await_metric("cdcd_snapshot_tables", lambda value: value == 0)
    told = {
        event["partition"]: (event["rows"] > 0, event["command"])
        for event in process.events[after:]
        if event["event"] == "table.attached"
    }
    assert told == {
        "public.attached_7": (True, "cdcd snapshot start --table public.attached"),
        "public.grown_7": (False, ""),
    }
    assert process.stop() == 0
    assert folded(broker, unique) == left


CHANGED_WHILE_STOPPED = {
    "detached": ("ALTER TABLE detached DETACH PARTITION detached_0", {1}),
    "dropped": ("DROP TABLE dropped_0", {1}),
    # The server has counted the pages of the new file before anybody looks.
    "emptied": ("TRUNCATE emptied_0; INSERT INTO emptied VALUES (0); VACUUM ANALYZE emptied_0", {0, 1}),
    "attached": (
        (
            "CREATE TABLE attached_7 (id int PRIMARY KEY); INSERT INTO attached_7 VALUES (7); "
            "ALTER TABLE attached ATTACH PARTITION attached_7 FOR VALUES FROM (7) TO (8)"
        ),
        {0, 1, 7},
    ),
    "grown": (
        (
            "CREATE TABLE grown_7 PARTITION OF grown FOR VALUES FROM (7) TO (8); INSERT INTO grown VALUES (7); "
            "CREATE TABLE grown_8 PARTITION OF grown FOR VALUES FROM (8) TO (9)"
        ),
        {0, 1, 7},
    ),
    "still": ("INSERT INTO still VALUES (-1)", {-1, 0, 1}),
}


@pytest.mark.parametrize("choice", ["read", "tell"])
def test_partitions_that_changed_while_nothing_ran_are_told_and_read_again_by_choice(
    database: Database,
    broker: KafkaBroker,
    daemon: Callable[[Mapping[str, Any]], Daemon],
    unique: str,
    choice: str,
):
    # GIVEN a daemon that has read the partitions of its tables, and was killed
    for name in CHANGED_WHILE_STOPPED:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        for number, first in enumerate(("-9", "1")):
            database.execute(
                f"CREATE TABLE {name}_{number} PARTITION OF {name} FOR VALUES FROM ({first}) TO ({number + 1})"
            )
        database.execute(f"INSERT INTO {name} VALUES (0), (1)")
    database.execute(
        f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE {", ".join(CHANGED_WHILE_STOPPED)} '
        "WITH (publish_via_partition_root = true)"
    )
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"mode": "initial", "signals_from": "authorized", "changed_partitions": choice},
        )
    )
    process.await_event("snapshot.finished")
    process.await_streaming()
    await_remembered(process, 2 * len(CHANGED_WHILE_STOPPED))
    process.kill()

    # WHEN partitions change, and the daemon starts
    for change, _ in CHANGED_WHILE_STOPPED.values():
        for statement in change.split("; "):
            database.execute(statement)
    process.start()

    # THEN each change is told, once over all starts
    told = {
        ("table.detached", "public.detached_0"),
        ("table.truncated", "public.emptied_0"),
        ("table.attached", "public.attached_7"),
        ("table.attached", "public.grown_7"),
    }
    for event, partition in told:
        process.await_event(event, partition=partition)
    gone = process.await_event("table.detached", table="public.dropped")
    assert gone["partition"].startswith("a partition that was dropped (oid ")
    # AND by choice the tables whose rows are others are read again
    read = {"detached", "dropped", "emptied", "attached"} if choice == "read" else set()
    for name in read:
        process.await_event("table.read", table=f"public.{name}")
    process.await_metric("cdcd_snapshot_tables", lambda value: value == 0)
    await_flushed(database.dsn(), f"cdcd_{unique}")
    rows = folded(broker, unique)
    assert {name for name, (_, left) in CHANGED_WHILE_STOPPED.items() if rows[name] == left} == {
        "grown", "still", *(read or {"emptied"}),
    }  # fmt: skip
    found = {event["event"] for event in process.events}
    assert ("table.returned" in found) == bool(read)
    # Two partitions went, three came.
    await_remembered(process, 2 * len(CHANGED_WHILE_STOPPED) + 1)
    assert process.stop() == 0
    after = process.mark()
    process.start()
    process.await_event("stream.started", after=after)
    process.await_metric("cdcd_retained_wal_bytes", lambda value: value >= 0)
    again = {event["event"] for event in process.events[after:]}
    assert not again & {"table.detached", "table.attached", "table.truncated"}
    assert process.stop() == 0


def await_remembered(process: Daemon, partitions: int) -> None:
    """Return when the checkpoint has this number of partitions."""

    def found() -> bool | None:
        checkpoint = peek(load_config(process.config_path, os.environ))
        progress = None if checkpoint is None else checkpoint.snapshot
        return (progress is not None and len(recalled(progress.partitions).leaves) == partitions) or None

    until(found, "the partitions in the checkpoint")


def folded(broker: KafkaBroker, pipeline: str) -> dict[str, set[int]]:
    """The ids of the rows that a reader of the topics has, by table."""
    found: dict[str, set[int]] = {}
    with Reader(broker.bootstrap_servers, pipeline) as reader:
        for raw in reader.read_all():
            if raw.value is None:
                continue
            value = json.loads(raw.value)
            rows = found.setdefault(value["source"]["table"], set())
            if value["op"] == "t":
                rows.clear()
            elif value["op"] == "d":
                rows.discard(value["before"]["id"])
            else:
                rows.add(value["after"]["id"])
    return found
