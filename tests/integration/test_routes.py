"""Tables with routes, from a real server to the broker: each row is in the topic of its route, and in no other."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from cdcd.adapters.kafka.descriptions import SchemasTopic
from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_avro import values
from tests.integration.test_filters import by_topic, folded
from tests.integration.visible_records import await_decided
from tests.schema_registry import SchemaRegistry

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

EU: Final = "row.region == 'eu'"
BIG: Final = "row.total >= 20"


def rules(**topics: str) -> list[dict[str, str]]:
    when = {"eu": EU, "big": BIG, "even": "row.id % 2 == 0"}
    return [{"when": when[name], "topic": topic} for name, topic in topics.items()]


def routes(prefix: str) -> dict[str, Any]:
    template = "{prefix}.{schema}.{table}"
    return {
        "public.orders": {
            "rules": rules(eu=f"{prefix}.public.orders-eu", big=f"{template}-big"),
            "on_error": "next_rule",
        },
        "public.keyed": {"rules": rules(even=f"{template}-even")},
        "public.assumed": {"rules": rules(eu=f"{template}-eu", big=f"{template}-big"), "old_row": "assumed"},
    }


WHERE: Final = {
    "orders-eu": "region = 'eu'",
    "orders-big": "region IS DISTINCT FROM 'eu' AND total >= 20",
    "orders": "region IS DISTINCT FROM 'eu' AND (total < 20) IS NOT FALSE",
    "keyed-even": "id % 2 = 0",
    "keyed": "id % 2 <> 0",
    "assumed-eu": "region = 'eu'",
    "assumed-big": "region IS DISTINCT FROM 'eu' AND total >= 20",
    "assumed": "region IS DISTINCT FROM 'eu' AND (total < 20) IS NOT FALSE",
    "whole": "true",
    "emptied-even": "id % 2 = 0",
    "emptied": "id % 2 <> 0",
}
"""By what the topic has behind the schema: which rows it must have."""

TABLES: Final = ("orders", "keyed", "assumed", "whole")


def test_rows_are_in_the_topics_of_their_routes_whatever_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN tables with rows, and routes over all columns, the key, and what PostgreSQL does not send of old rows
    for table in (*TABLES, "emptied"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, region text, total int, note text)")
        database.execute(
            f"INSERT INTO {table} SELECT i, (ARRAY['eu', 'us', NULL])[1 + i % 3], nullif(i, 7), 'n' "
            "FROM generate_series(1, 60) i"
        )
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    chosen = routes(unique)
    chosen["public.emptied"] = chosen["public.keyed"]
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            postgres={"two_phase": True},
            kafka={"transaction": {"records_max": 50, "whole_bytes_max": 0}},
            snapshot={"mode": "initial", "chunk_bytes": 8192},
            topics={"transaction_metadata": True},
            routes={"tables": chosen},
        )
    )
    process.await_streaming()
    # The rows of the snapshot are delivered, if what is committed behind them is. Else a kill has them read again.
    database.execute("INSERT INTO whole VALUES (0)")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # WHEN rows go from topic to topic in small, prepared and large transactions, beside kills and another snapshot
    def change(first: int) -> list[str]:
        statements = []
        for table in TABLES:
            statements += [
                f"INSERT INTO {table} VALUES ({first}, 'eu', 20), ({first + 1}, 'us', 20), ({first + 2}, 'us', 2)",
                f"UPDATE {table} SET region = 'us' WHERE id = {first}",
                f"UPDATE {table} SET region = 'eu' WHERE id = {first + 1}",
                f"UPDATE {table} SET total = 50 WHERE id = {first + 2}",
                f"UPDATE {table} SET id = id + 5 WHERE id IN ({first}, {first + 1})",
                f"INSERT INTO {table} SELECT i, 'us', 10 + i % 20 FROM generate_series({first + 10}, {first + 300}) i",
                f"UPDATE {table} SET total = total + 5 WHERE id % 3 = 0",
                f"UPDATE {table} SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END WHERE id % 5 = 0",
                f"DELETE FROM {table} WHERE id % 7 = 0",
            ]
        return statements

    ask = json.dumps({"action": "start", "tables": ["public.orders", "public.keyed"]})
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
        database.execute(f"SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{ask}')")
        process.kill()
        database.execute(f"COMMIT PREPARED '{unique}'")
        process.start()
        process.await_streaming()
        for statement in change(3000):
            connection.execute(statement.encode())
        connection.rollback()
        for statement in change(4000):
            connection.execute(statement.encode())
        # The large value was not changed, and comes with the row into its new topic all the same.
        large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)"
        connection.execute(f"UPDATE orders SET note = {large} WHERE id IN (1, 2)".encode())
        connection.execute(
            b"UPDATE orders SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END WHERE id < 3"
        )
        connection.execute(b"TRUNCATE emptied")
        connection.execute(b"INSERT INTO emptied VALUES (1), (2)")
        connection.commit()
    process.await_event("snapshot.finished")
    process.kill()
    process.start()
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN each topic has the rows of its route, each change once
    found = by_topic(broker, unique)
    for suffix, condition in WHERE.items():
        table, _, _ = suffix.partition("-")
        rows = database.execute(f"SELECT id, region, total, note FROM {table} WHERE {condition}")
        topic = folded(found[f"{unique}.public.{suffix}"])
        assert rows
        assert {key: (row["region"], row["total"]) for key, row in topic.items()} == {
            key: (region, total) for key, region, total, _ in rows
        }, suffix
        if table == "orders":
            assert {key: row["note"] for key, row in topic.items()} == {
                key: note for key, *_, note in rows
            }, suffix

    # AND the transactions count the records of all topics
    counted: dict[str, int] = {}
    for suffix in WHERE:
        for each in found[f"{unique}.public.{suffix}"]:
            place = json.loads(each.value or b"{}").get("transaction")
            if place is not None:
                counted[place["id"]] = counted.get(place["id"], 0) + 1
    ends = [json.loads(each.value or b"{}") for each in found[f"{unique}.transaction"]]
    assert {each["id"]: each["event_count"] for each in ends if each["status"] == "END"} == counted

    # AND the descriptions name all topics of a table
    client = {"bootstrap.servers": broker.bootstrap_servers}
    schemas = SchemasTopic(f"{unique}.schemas", client, f"{unique}-test", 60.0)
    assert schemas.described_topics() == {
        f"{unique}.public.{suffix}": f"public.{suffix.partition('-')[0]}" for suffix in WHERE
    }
    assert process.stop() == 0


def test_rows_without_an_answer_and_tables_that_are_altered_end_nothing(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a rule that divides by a column
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, parts int)")
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    rule = {"when": "100 / row.parts > 10", "topic": "{prefix}.{schema}.{table}-few"}
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            routes={"tables": {"public.orders": {"rules": [rule]}, "public.misspelled": {"rules": [rule]}}},
            snapshot={"mode": "never"},
        )
    )
    process.await_streaming()

    # WHEN a row has zero in it, and then the table loses the column
    database.execute("INSERT INTO orders VALUES (1, 0), (2, 5), (3, 50)")
    database.execute("ALTER TABLE orders DROP COLUMN parts")
    database.execute("INSERT INTO orders VALUES (4)")
    database.execute("DELETE FROM orders WHERE id = 2")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN rows without an answer are in the table's own topic, a deleted one is in none, and the log tells of them
    found = by_topic(broker, unique)
    assert sorted(folded(found[f"{unique}.public.orders"])) == [1, 3, 4]
    assert sorted(folded(found[f"{unique}.public.orders-few"])) == []
    assert process.await_event("route.failed", after=0)["reason"] == "a division by zero"
    assert process.await_event("routes.unmatched", after=0)["table"] == "public.misspelled"

    # AND the next start refuses the rules, with what to do
    process.kill()
    process.start()
    assert process.wait() == 2
    failed = process.await_event("fatal")
    assert "there is no published column parts" in failed["message"]
    assert "routes.tables.public.orders.rules" in failed["hint"]


def test_each_topic_has_schemas_of_its_own_in_avro(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    servers = broker.bootstrap_servers
    own, eu = f"{unique}.public.orders", f"{unique}.public.orders-eu"
    with SchemaRegistry() as registry:
        # GIVEN a table with routes, whose records are in Avro
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, region text)")
        database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        database.execute("INSERT INTO orders VALUES (1, 'eu'), (2, 'us')")
        rule = {"when": EU, "topic": "{prefix}.{schema}.{table}-eu"}
        process = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"key": "avro", "value": "avro"},
                registry={"url": registry.url},
                snapshot={"mode": "initial"},
                topics={"tombstones": False},
                routes={"tables": {"public.orders": {"rules": [rule]}}},
            )
        )
        process.await_streaming()
        # WHEN rows go from topic to topic, beside kills and another form of the table
        database.execute("UPDATE orders SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END")
        await_flushed(database.dsn(), f"cdcd_{unique}")
        process.kill()
        database.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7")
        database.execute("INSERT INTO orders VALUES (3, 'eu')")
        process.start()
        process.await_streaming()
        await_flushed(database.dsn(), f"cdcd_{unique}")
        assert process.stop() == 0
        await_decided(servers, own)
        await_decided(servers, eu)

        # THEN each topic has its schemas in the registry, and a consumer reads the records by their ids
        assert set(registry.subjects) == {
            f"{topic}-{part}" for topic in (own, eu) for part in ("key", "value")
        }
        told = {
            topic: [
                (each["op"], (each["after"] or each["before"])["id"])
                for each in values(servers, topic, registry)
            ]
            for topic in (own, eu)
        }
        assert told == {
            own: [("r", 2), ("c", 1), ("d", 2)],
            eu: [("r", 1), ("d", 1), ("c", 2), ("c", 3)],
        }


def test_rows_of_partitions_leave_their_topics_whatever_postgresql_says_of_the_partitioned_table(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a partitioned table whose old rows are to be sent as a whole, and a partition whose are not
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, region text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (100)")
    database.execute("ALTER TABLE ONLY orders REPLICA IDENTITY FULL")
    database.execute(
        f"CREATE PUBLICATION cdcd_{unique} FOR TABLE orders WITH (publish_via_partition_root = true)"
    )
    rule = {"when": EU, "topic": "{prefix}.{schema}.{table}-eu"}

    def configured(**more: str) -> dict[str, Any]:
        return configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            routes={"tables": {"public.orders": {"rules": [rule], **more}}},
            snapshot={"mode": "never"},
        )

    # THEN rules over columns that the partition does not send are refused
    refused = daemon(configured())
    assert refused.wait() == 2
    assert "ALTER TABLE public.orders_1 REPLICA IDENTITY FULL;" in refused.await_event("fatal")["hint"]

    # AND with `assumed`, no row stays in a topic that it has left
    process = daemon(configured(old_row="assumed"))
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1, 'eu'), (2, 'eu'), (3, 'us'), (4, 'eu')")
    database.execute("UPDATE orders SET region = 'us' WHERE id = 1")
    database.execute("UPDATE orders SET id = 12, region = 'us' WHERE id = 2")
    database.execute("DELETE FROM orders WHERE id = 4")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    found = by_topic(broker, unique)
    assert sorted(folded(found[f"{unique}.public.orders-eu"])) == []
    assert sorted(folded(found[f"{unique}.public.orders"])) == [1, 3, 12]
    assert process.stop() == 0
