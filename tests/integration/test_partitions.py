"""Partitions that columns choose, from a real server to the broker: a row is in one partition, whatever is killed."""

import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcd.core.records.shaping.partitioning import positive_murmur2
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.faults.trial import Trial
from tests.integration.forked import PACES, run_cdcd

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

PARTITIONS: Final = 5
LARGE: Final = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)"


def partition_of(*texts: str) -> int:
    return positive_murmur2(",".join(texts).encode()) % PARTITIONS


def by_topic(broker: KafkaBroker, prefix: str) -> dict[str, list[Raw]]:
    """What a `read_committed` reader has of each topic."""
    found: dict[str, list[Raw]] = {}
    with Reader(broker.bootstrap_servers, prefix) as reader:
        for each in reader.read_all():
            found.setdefault(each.topic, []).append(each)
    return found


def folded(records: list[Raw], chosen: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    """The rows by id that consumers have which read one partition each. No change may be there twice."""
    partitions: dict[int, dict[bytes, dict[str, Any]]] = {}
    places: list[tuple[int, int, str]] = []
    for each in records:
        assert "cdcd.partition" not in dict(each.headers)
        assert each.key is not None
        rows = partitions.setdefault(each.partition, {})
        if each.value is None:
            assert each.key not in rows
            continue
        envelope = json.loads(each.value)
        source, op = envelope["source"], envelope["op"]
        places.append((source["commit_lsn"], source["event_serial_no"], op))
        row = envelope["before"] if op == "d" else envelope["after"]
        texts = ["" if row[name] is None else str(row[name]) for name in chosen]
        assert each.partition == partition_of(*texts), each
        if op == "d":
            del rows[each.key]
        else:
            assert (each.key in rows) == (op == "u"), "a row comes by an insert and stays by updates"
            rows[each.key] = row
    assert len(places) == len(set(places)), "a record came twice"
    found = [row for rows in partitions.values() for row in rows.values()]
    by_id = {row["id"]: row for row in found}
    assert len(by_id) == len(found), "a row is in two partitions"
    return by_id


def test_a_row_is_in_the_partition_of_its_values_and_in_no_other_one_whatever_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN two tables: customer chooses the partition of orders, and tenant, a part of the key, that of line
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int, note text)")
    database.execute("CREATE TABLE line (id int, tenant text, note text, PRIMARY KEY (tenant, id))")
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    database.execute("INSERT INTO orders SELECT i, nullif(i % 7, 0), 'n' FROM generate_series(1, 40) i")
    database.execute("INSERT INTO line SELECT i, 't,' || i % 7, 'n' FROM generate_series(1, 40) i")
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            postgres={"two_phase": True},
            kafka={"transaction": {"records_max": 50, "whole_bytes_max": 0}},
            topics={"create": {"partitions": PARTITIONS}},
            snapshot={"mode": "initial"},
            partitioner={
                "columns": {"public.orders": ["customer"], "*.line": ["tenant"], "public.none": ["id"]}
            },
        )
    )
    assert process.await_event("partitioner.moves")["table"] == "public.orders"
    assert "public.none" in process.await_event("partitioner.unmatched")["rule"]
    process.await_streaming()
    # The rows of the snapshot are delivered, if what is committed behind them is. Else a kill has them read again.
    database.execute("INSERT INTO orders VALUES (0)")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # WHEN rows move in small, prepared and large transactions, beside kills
    def change(first: int) -> list[str]:
        return [
            f"INSERT INTO orders VALUES ({first}, 1, {LARGE}), ({first + 1}, NULL, 'n')",
            f"UPDATE orders SET customer = 2 WHERE id = {first}",
            f"UPDATE orders SET customer = NULL WHERE id = {first}",
            f"UPDATE orders SET note = 'o' WHERE id = {first + 1}",
            f"UPDATE orders SET id = id + 5, customer = 3 WHERE id = {first + 1}",
            f"INSERT INTO orders SELECT i, i % 9, 'n' FROM generate_series({first + 10}, {first + 300}) i",
            f"UPDATE orders SET customer = customer + 1 WHERE id >= {first}",
            f"DELETE FROM orders WHERE id >= {first} AND id % 7 = 0",
            f"INSERT INTO line SELECT i, 'a', 'n' FROM generate_series({first}, {first + 50}) i",
            f"UPDATE line SET tenant = 'b' WHERE id >= {first} AND id % 3 = 0",
            f"UPDATE line SET note = 'o' WHERE id >= {first}",
            f"DELETE FROM line WHERE id >= {first} AND id % 5 = 0",
        ]

    with database.connect(autocommit=False) as connection:
        for statement in change(1000):
            connection.execute(statement.encode())
        connection.commit()
        for statement in change(2000):
            connection.execute(statement.encode())
        connection.execute(f"PREPARE TRANSACTION '{unique}'".encode())
        process.kill()
        process.start()
        process.await_streaming()
        process.kill()
        database.execute(f"COMMIT PREPARED '{unique}'")
        process.start()
        process.await_streaming()
        for statement in change(3000):
            connection.execute(statement.encode())
        connection.rollback()
        for statement in change(4000):
            connection.execute(statement.encode())
        connection.commit()
    process.kill()
    process.start()
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN consumers of single partitions have each row once, and together all of them
    found = by_topic(broker, unique)
    for table, chosen in (("orders", "customer"), ("line", "tenant")):
        rows = folded(found[f"{unique}.public.{table}"], (chosen,))
        expected = database.execute(f"SELECT id, {chosen}, note FROM {table}")
        assert {key: (row[chosen], row["note"]) for key, row in rows.items()} == {
            key: (value, note) for key, value, note in expected
        }, table
        assert len({each.partition for each in found[f"{unique}.public.{table}"]}) > 2

    # AND a row that moved with its key tells where it has gone
    headers = [dict(each.headers) for each in found[f"{unique}.public.orders"]]
    assert b'{"id":1000}' in {each.get("__debezium.newkey") for each in headers}

    # AND cdcd verify compares what has its order in one partition
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert "public.line" in verified.stdout
    assert "columns that are not of the key choose the partitions" in verified.stdout
    assert "no difference found" in verified.stdout
    assert verified.returncode == 12, verified.stdout
    assert process.stop() == 0


def test_a_topic_with_further_partitions_is_used_whole_after_a_restart(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a topic of one partition, to which others are added
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int)")
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            partitioner={"columns": {"public.orders": ["customer"]}},
        )
    )
    process.await_streaming()
    database.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 20) i")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(f"{unique}.public.orders", PARTITIONS)])[
        f"{unique}.public.orders"
    ].result(30)

    # WHEN rows come before and after a restart
    database.execute("INSERT INTO orders SELECT i, i FROM generate_series(21, 40) i")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    process.kill()
    process.start()
    process.await_streaming()
    database.execute("INSERT INTO orders SELECT i, i FROM generate_series(41, 60) i")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN the rows after the restart are in all of them
    places = {
        json.loads(each.key or b"")["id"]: each.partition
        for each in by_topic(broker, unique)[f"{unique}.public.orders"]
    }
    assert {places[each] for each in range(1, 41)} == {0}
    assert all(places[each] == partition_of(str(each)) for each in range(41, 61))
    assert len({places[each] for each in range(41, 61)}) > 1
    assert process.stop() == 0


@pytest.mark.parametrize("choice", ["warn", "stop"])
def test_partitions_that_somebody_adds_are_told_and_stop_the_daemon_by_choice(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, choice: str
):
    one = trial(database.dsn(), broker.bootstrap_servers, topics={"on_added_partitions": choice})
    one.start()
    one.insert(1)
    one.expect(1)
    # The number of partitions is known from the first look on.
    time.sleep(PACES["cdcd.daemon.kafka_watch", "COUNT_S"] + 2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(one.topic, 3)])[one.topic].result(30)
    told = one.daemon.await_event("topic.partitions")
    assert (told["topic"], told["before"], told["partitions"]) == (one.topic, 1, 3)
    assert told["level"] == "warning"
    if choice == "warn":
        assert one.daemon.stop() == 0
        return
    said = one.fail()
    assert said.code == 4
    assert f"{one.topic} (1 to 3)" in said.message
    # The next start goes on.
    one.start()
    assert one.daemon.stop() == 0
