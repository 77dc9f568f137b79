"""Tables with filters, from a real server to the broker: the topics have the rows that match, and no others."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

FILTERS: Final = {
    "public.orders": {
        "keep": "row.status == 'open' && row.total >= 10 && row.placed > timestamp('2020-01-01T00:00:00Z')"
    },
    "public.keyed": {"keep": "row.id % 2 == 0"},
    "public.assumed": {"keep": "row.status in ['open', 'held']", "old_row": "assumed"},
}
LARGE: Final = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)"


def by_topic(broker: KafkaBroker, prefix: str) -> dict[str, list[Raw]]:
    """What a `read_committed` reader has of each topic."""
    found: dict[str, list[Raw]] = {}
    with Reader(broker.bootstrap_servers, prefix) as reader:
        for each in reader.read_all():
            found.setdefault(each.topic, []).append(each)
    return found


def folded(records: list[Raw]) -> dict[int, dict[str, Any]]:
    """The rows that a consumer has, by id. No event may be there twice."""
    rows: dict[int, dict[str, Any]] = {}
    places: list[tuple[int, int, str]] = []
    for each in records:
        if each.value is None:
            continue
        envelope = json.loads(each.value)
        source = envelope["source"]
        places.append((source["commit_lsn"], source["event_serial_no"], envelope["op"]))
        if envelope["op"] == "t":
            rows.clear()
        elif envelope["op"] == "d":
            rows.pop(json.loads(each.key or b"")["id"], None)
        else:
            rows[envelope["after"]["id"]] = envelope["after"]
    assert len(places) == len(set(places)), "a record came twice"
    return rows


def test_topics_have_the_rows_that_match_whatever_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN tables with rows, and filters over all columns, the key, and what PostgreSQL does not send of old rows
    columns = "id int PRIMARY KEY, status text, total numeric, placed timestamptz DEFAULT now(), note text"
    for table in ("orders", "keyed", "assumed", "whole"):
        database.execute(f"CREATE TABLE {table} ({columns})")
        database.execute(
            f"INSERT INTO {table} SELECT i, (ARRAY['open', 'draft', NULL])[1 + i % 3], i, now(), 'n' "
            "FROM generate_series(1, 30) i"
        )
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            postgres={"two_phase": True},
            kafka={"transaction": {"records_max": 50, "whole_bytes_max": 0}},
            snapshot={"mode": "initial"},
            filters={"tables": FILTERS},
        )
    )
    process.await_streaming()
    # The rows of the snapshot are delivered, if what is committed behind them is. Else a kill has them read again.
    database.execute("INSERT INTO whole VALUES (0)")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # WHEN rows enter and leave the filters in small, prepared and large transactions, beside kills
    def change(first: int) -> list[str]:
        statements = []
        for table in ("orders", "keyed", "assumed", "whole"):
            statements += [
                f"INSERT INTO {table} VALUES ({first}, 'open', 20, now(), {LARGE})",
                f"INSERT INTO {table} VALUES ({first + 1}, 'draft', 20)",
                f"UPDATE {table} SET status = 'draft' WHERE id = {first}",
                f"UPDATE {table} SET status = 'open' WHERE id = {first + 1}",
                f"UPDATE {table} SET id = id + 5 WHERE id IN ({first}, {first + 1})",
                f"INSERT INTO {table} SELECT i, 'open', 5 + i % 10 FROM generate_series({first + 10}, {first + 400}) i",
                f"UPDATE {table} SET total = total + 5 WHERE id % 3 = 0",
                f"DELETE FROM {table} WHERE id % 7 = 0",
            ]
        return statements

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
        # The large value was not changed, and is in the record of a row that enters all the same.
        connection.execute(f"UPDATE orders SET note = {LARGE} WHERE id = 1".encode())
        connection.execute(b"UPDATE orders SET status = 'open', total = 20 WHERE id = 1")
        connection.commit()
    process.await_metric("cdcd_events_total", lambda count: count > 0, "filtered", "public.orders")
    process.kill()
    process.start()
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN a consumer has the rows that match, each change once
    found = by_topic(broker, unique)
    for table, condition in {
        "orders": "status = 'open' AND total >= 10",
        "keyed": "id % 2 = 0",
        "assumed": "status IN ('open', 'held')",
        "whole": "true",
    }.items():
        rows = database.execute(f"SELECT id, status, total::text, note FROM {table} WHERE {condition}")
        topic = folded(found[f"{unique}.public.{table}"])
        assert {key: (row["status"], row["total"]) for key, row in topic.items()} == {
            key: (status, total) for key, status, total, _ in rows
        }, table
        if table == "orders":
            assert {key: row["note"] for key, row in topic.items()} == {
                key: note for key, *_, note in rows
            }, table

    # AND the snapshot had the rows that match
    ops = [
        json.loads(each.value)["op"] for each in found[f"{unique}.public.orders"] if each.value is not None
    ]
    assert ops.count("r") == len([i for i in range(10, 31) if i % 3 == 0])
    assert process.stop() == 0


def test_a_row_without_an_answer_ends_nothing(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a filter that divides by a column
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, parts int)")
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    filters = {"public.orders": {"keep": "100 / row.parts > 10"}, "public.misspelled": {"keep": "row.id > 1"}}
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            filters={"tables": filters},
            snapshot={"mode": "never"},
        )
    )
    process.await_streaming()

    # WHEN a row has zero in it, and then loses the column
    database.execute("INSERT INTO orders VALUES (1, 0), (2, 5), (3, 50)")
    database.execute("ALTER TABLE orders DROP COLUMN parts")
    database.execute("INSERT INTO orders VALUES (4)")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN the rows without an answer are kept, and the log tells of them
    rows = folded(by_topic(broker, unique)[f"{unique}.public.orders"])
    assert sorted(rows) == [1, 2, 4]
    assert process.await_event("filter.failed", after=0)["reason"] == "a division by zero"
    assert process.await_event("filters.unmatched", after=0)["table"] == "public.misspelled"

    # AND the next start refuses the filter, with what to do
    process.kill()
    process.start()
    assert process.wait() == 2
    failed = process.await_event("fatal")
    assert "there is no published column parts" in failed["message"]
    assert "filters.tables.public.orders.keep" in failed["hint"]


@pytest.mark.parametrize("old_row", ["required", "assumed"])
def test_rows_of_a_partition_with_a_replica_identity_of_its_own_leave_a_filter(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, old_row: str
):
    # GIVEN a partitioned table with REPLICA IDENTITY FULL, which does not reach a partition that comes later
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, note text) PARTITION BY RANGE (id)"
    )
    database.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL")
    publication = (
        f"CREATE PUBLICATION cdcd_{unique} FOR TABLE orders WITH (publish_via_partition_root = true)"
    )
    database.execute(publication)
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            filters={"tables": {"public.orders": {"keep": "row.status == 'open'", "old_row": old_row}}},
        )
    )
    process.await_streaming()
    database.execute("CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (100)")

    # WHEN rows leave and enter the filter, are deleted and get another key
    database.execute(f"INSERT INTO orders SELECT i, 'open', {LARGE} FROM generate_series(1, 4) i")
    database.execute("INSERT INTO orders VALUES (5, 'draft')")
    database.execute("UPDATE orders SET status = 'draft' WHERE id = 1")
    database.execute("DELETE FROM orders WHERE id = 2")
    database.execute("UPDATE orders SET id = 30 WHERE id = 3")
    database.execute("UPDATE orders SET status = 'open' WHERE id = 5")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN consumers have the rows that match, and no large value became NULL
    rows = folded(by_topic(broker, unique)[f"{unique}.public.orders"])
    assert sorted(rows) == [4, 5, 30]
    assert rows[30]["note"] == "__debezium_unavailable_value"
    assert process.saw("filter.failed", after=0) is (old_row == "required")
