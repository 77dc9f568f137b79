"""Renamed and constant fields through a daemon: snapshot, changes of each kind, a kill, and tables that are altered."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.forked import run_cdcd

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

FIELDS = {
    "public.orders": {"rename": {"cust": "customer", "id": "number"}, "constants": {"region": "eu"}},
    "public.none": {"rename": {"a": "b"}},
}


def records(broker: KafkaBroker, prefix: str, topic: str) -> list[Raw]:
    with Reader(broker.bootstrap_servers, prefix) as reader:
        # Descriptions too.
        reader._leave_out = frozenset({f"{prefix}.checkpoint"})
        return [each for each in reader.read_all() if each.topic == f"{prefix}.{topic}"]


def test_rows_keys_and_descriptions_have_the_fields_over_a_kill_and_an_altered_table(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a table with a row, whose columns have other names in records
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, cust text, note text)")
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    database.execute("INSERT INTO orders VALUES (0, 'a', 'n')")
    settings = configuration(
        unique,
        database.dsn(options="-c logical_decoding_work_mem=64kB"),
        broker.bootstrap_servers,
        snapshot={"mode": "initial"},
        fields={"tables": FIELDS},
        filters={"tables": {"public.orders": {"keep": "row.cust != 'hidden'"}}},
    )
    process = daemon(settings)
    assert "public.none" in process.await_event("fields.unmatched")["reason"]
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1, 'a', 'n')")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # WHEN rows change in small and large transactions, beside a kill
    database.execute("UPDATE orders SET cust = 'b' WHERE id = 1")
    database.execute("UPDATE orders SET id = 2 WHERE id = 1")
    database.execute("INSERT INTO orders VALUES (3, 'hidden', NULL)")
    with database.connect(autocommit=False) as connection:
        connection.execute(
            b"INSERT INTO orders SELECT i, 'c', repeat('x', 100) FROM generate_series(10, 3000) i"
        )
        process.kill()
        process.start()
        process.await_streaming()
        connection.commit()
    database.execute("DELETE FROM orders WHERE id = 2")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN each record has the fields, once
    found = records(broker, unique, "public.orders")
    envelopes = [json.loads(each.value) for each in found if each.value is not None]
    assert [each["op"] for each in envelopes[:5]] == ["r", "c", "u", "d", "c"]
    assert len(envelopes) == 5 + 2991 + 1
    for each in envelopes:
        for row in (each["before"], each["after"]):
            assert row is None or list(row) == ["region", "number", "customer", "note"]
            assert row is None or row["region"] == "eu"
    assert envelopes[2]["before"]["customer"] == "a"
    assert [each.key for each in found[:3]] == [b'{"number":0}', b'{"number":1}', b'{"number":1}']
    described = json.loads(records(broker, unique, "schemas")[-1].value or b"")
    assert described["key"] == ["number"]
    assert [(each["name"], each["id"]) for each in described["columns"]] == [
        ("number", 1), ("customer", 2), ("note", 3)
    ]  # fmt: skip
    assert described["constants"] == {"region": "eu"}

    # WHEN a column is added under the name of a field
    database.execute("ALTER TABLE orders ADD region text DEFAULT 'us'")
    database.execute("INSERT INTO orders VALUES (5000, 'd', 'n', 'us')")

    # THEN the daemon ends before the change, and goes on from there with another name for the column
    assert process.wait() == 2
    assert "two fields region: the constant region and column region" in process.output()
    assert len(records(broker, unique, "public.orders")) == len(found)
    named = {"cust": "customer", "id": "number", "region": "region_2"}
    tables = {"public.orders": {"rename": named, "constants": {"region": "eu"}}}
    process.config = {**process.config, "fields": {"tables": tables}}
    process.start()
    process.await_streaming()
    await_flushed(database.dsn(), f"cdcd_{unique}")
    last = json.loads(records(broker, unique, "public.orders")[-1].value or b"")["after"]
    assert last == {"region": "eu", "number": 5000, "customer": "d", "note": "n", "region_2": "us"}
    assert process.stop() == 0


def test_cdcd_verify_compares_renamed_fields_and_leaves_constants_alone(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a pipeline with renamed and constant fields, whose source's columns change
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, cust text, note text)")
    database.execute("INSERT INTO orders VALUES (0, 'a', 'n')")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"mode": "initial"},
            fields={"tables": {"public.orders": FIELDS["public.orders"]}},
        )
    )
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1, 'b', 'n')")
    database.execute("ALTER TABLE orders RENAME note TO text")
    database.execute("ALTER TABLE orders ADD more int DEFAULT 7")
    database.execute("UPDATE orders SET id = 3 WHERE id = 1")
    database.execute("DELETE FROM orders WHERE id = 0")
    database.execute("INSERT INTO orders VALUES (4, NULL, 'n')")

    # THEN the topic is equal to the table
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert process.stop() == 0
