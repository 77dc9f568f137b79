"""Watermarks in the topics of tables, from a real server to the broker, and readers that pass them over."""

import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcd.core.protocol.lsn import Lsn
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration, until, wal_end
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=18)

StartDaemon = Callable[[dict[str, Any]], Daemon]

Places = dict[int, list[Raw]]
"""The records of a topic's partitions, in their order."""


def watermark(record: Raw) -> int:
    """The LSN that a watermark names; 0: the record is a change, or the tombstone of one."""
    if record.value is not None or record.key is not None:
        return 0
    ((name, lsn),) = record.headers
    assert name == "cdcd.watermark"
    return int(lsn)


def read(broker: KafkaBroker, unique: str, table: str) -> Places:
    found: Places = defaultdict(list)
    with Reader(broker.bootstrap_servers, unique) as reader:
        for raw in reader.read_all():
            if raw.topic == f"{unique}.public.{table}":
                found[raw.partition].append(raw)
    return found


def await_watermarks(broker: KafkaBroker, unique: str, table: str, partitions: int, lsn: int) -> Places:
    """Until each of so many partitions has a watermark that names the LSN, or a later one."""

    def look() -> Places | None:
        found = read(broker, unique, table)
        marked = [number for number, records in found.items() if max(map(watermark, records)) >= lsn]
        return found if len(marked) == partitions else None

    return until(look, f"no watermarks of {table} came up to {Lsn(lsn)}", 120)


def must_hold(records: Sequence[Raw]) -> None:
    """Every change that a watermark covers stands before it, at least once."""
    named, seen = 0, set()
    for record in records:
        if record.value is None:
            named = max(named, watermark(record))
            continue
        source = json.loads(record.value)["source"]
        place = (source["commit_lsn"], source["event_serial_no"])
        assert place in seen or source["commit_lsn"] >= named, f"{place} comes behind a watermark at {named}"
        seen.add(place)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_what_a_watermark_names_stands_before_it_in_its_partition_whatever_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, delivery: str
):
    # GIVEN a pipeline with watermarks, a busy table, and a quiet one
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY)")
    database.execute("CREATE TABLE never (id int PRIMARY KEY)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            kafka={"delivery": delivery, "transaction": {"bytes_max": 2_000}},
            topics={"create": {"partitions": 3}},
            heartbeat={"watermark_interval_s": 0.2},
        )
    )
    process.await_streaming()
    database.execute("INSERT INTO quiet VALUES (1)")
    for number in range(3):
        # WHEN something is committed in many transactions, and the daemon is killed meanwhile
        with database.connect() as connection:
            for row in range(100):
                connection.execute("INSERT INTO orders VALUES (%s)", (number * 100 + row,))
                if row == 50:
                    process.kill()
                    process.start()
        process.await_streaming()
        # THEN every partition of every table that has a topic gets a watermark that names all of it
        end = wal_end(database.dsn())
        for table in ("orders", "quiet"):
            for records in await_watermarks(broker, unique, table, 3, end).values():
                must_hold(records)
    # AND so do partitions that are added
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(f"{unique}.public.orders", 5)])[f"{unique}.public.orders"].result(
        WAIT_S
    )
    database.execute("INSERT INTO orders SELECT * FROM generate_series(1000, 1100)")
    found = await_watermarks(broker, unique, "orders", 5, wal_end(database.dsn()))
    for records in found.values():
        must_hold(records)
    ids = [json.loads(raw.value)["after"]["id"] for records in found.values() for raw in records if raw.value]
    assert set(ids) == {*range(300), *range(1000, 1101)}
    if delivery == "exactly_once":
        assert len(ids) == len(set(ids))
    # AND no topic was made for a table that has no changes
    assert f"{unique}.public.never" not in admin.list_topics(timeout=WAIT_S).topics
    process.await_metric("cdcd_watermarks_total", lambda count: count >= 5)
    assert process.stop() == 0


def cdcd(process: Daemon, command: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return run_cdcd(command, "--config", str(process.config_path), *options)


def test_verify_and_tail_pass_watermarks_over(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a topic with watermarks between changes
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            heartbeat={"watermark_interval_s": 0.2},
        )
    )
    process.await_streaming()
    for statement in (
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "UPDATE t SET note = 'c' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    ):
        database.execute(statement)
        found = await_watermarks(broker, unique, "t", 1, wal_end(database.dsn()))
    assert sum(1 for raw in found[0] if raw.key is None) >= 3
    # THEN the topic is equal to the table
    verified = cdcd(process, "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    # AND the changes alone are shown
    shown = cdcd(process, "tail", "--from", "topics", "--beginning", "--limit", "4", "--json")
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) == 4
    assert "records that are not changes" not in shown.stderr
    assert process.stop() == 0
