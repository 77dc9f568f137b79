"""`cdcd heal`: tables with filters, routes, protection and readers are healed by their rules; others are read again."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.core.errors import PositionError
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, drop_slot
from tests.integration.forked import run_cdcd
from tests.integration.test_avro import values as avro_values
from tests.integration.test_heal import gaps
from tests.integration.test_lost_slots import ops
from tests.schema_registry import SchemaRegistry

pytestmark = pytest.mark.postgres(only=18, also=[13])

StartDaemon = Callable[[dict[str, Any]], Daemon]

CREATED = (
    "CREATE TABLE filtered (id int PRIMARY KEY, kind text)",
    "CREATE TABLE routed (id int PRIMARY KEY, kind text)",
    "CREATE TABLE hidden (id int PRIMARY KEY, secret text, plain text)",
    "CREATE TABLE hidden_key (name text PRIMARY KEY, n int)",
    "CREATE TABLE keyless (id int, note text); ALTER TABLE keyless REPLICA IDENTITY FULL",
    "CREATE TABLE outbox (id int PRIMARY KEY, topic text, key text, payload text)",
    "CREATE TABLE part (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (100000)",
    "CREATE TABLE short (id int PRIMARY KEY, note text)",
    "CREATE TABLE again (id int PRIMARY KEY, a text, b text)",
)

FILLED = (
    "INSERT INTO filtered SELECT g, CASE g % 2 WHEN 0 THEN 'in' ELSE 'out' END FROM generate_series(1, 40) g",
    "INSERT INTO routed SELECT g, CASE g % 3 WHEN 0 THEN 'b' ELSE 'a' END FROM generate_series(1, 40) g",
    "INSERT INTO hidden SELECT g, 'secret ' || g, 'plain ' || g FROM generate_series(1, 40) g",
    "INSERT INTO hidden_key SELECT 'name ' || g, g FROM generate_series(1, 40) g",
    "INSERT INTO keyless SELECT g, 'note' FROM generate_series(1, 40) g",
    "INSERT INTO outbox VALUES (1, 'orders', 'k', 'one')",
    "INSERT INTO part SELECT g, 'note' FROM generate_series(1, 199) g",
    "INSERT INTO short SELECT g, 'note' FROM generate_series(1, 40) g",
    "INSERT INTO again SELECT g, 'a', 'b' FROM generate_series(1, 40) g",
)

CHANGED = (
    # Rows that leave the filter, that come into it, that stay and differ, and that are gone.
    "UPDATE filtered SET kind = 'out' WHERE id IN (2, 4); UPDATE filtered SET kind = 'in' WHERE id = 1",
    "DELETE FROM filtered WHERE id IN (6, 7); INSERT INTO filtered VALUES (50, 'in'), (51, 'out')",
    # Rows that go to the other topic, and rows that are gone from each.
    "UPDATE routed SET kind = 'b' WHERE id IN (1, 2); UPDATE routed SET kind = 'a' WHERE id = 3",
    "DELETE FROM routed WHERE id IN (4, 6); INSERT INTO routed VALUES (50, 'a'), (51, 'b')",
    "UPDATE hidden SET secret = 'another' WHERE id = 1; UPDATE hidden SET plain = 'another' WHERE id = 2",
    "DELETE FROM hidden WHERE id = 3; INSERT INTO hidden VALUES (50, 'new', 'new')",
    "DELETE FROM hidden_key WHERE n IN (1, 2); UPDATE hidden_key SET name = 'moved' WHERE n = 3",
    "DELETE FROM keyless WHERE id = 1; INSERT INTO outbox VALUES (2, 'orders', 'k', 'in the gap')",
    "DELETE FROM part WHERE id IN (1, 150); UPDATE part SET id = 160000 / 1000 + 300 WHERE id = 2",
    "DELETE FROM short WHERE id = 1; UPDATE short SET note = 'another' WHERE id = 2",
    # Another table with the name of the former one, whose columns stand in another order.
    "DROP TABLE again; CREATE TABLE again (id int PRIMARY KEY, b text, a text)",
    "INSERT INTO again SELECT g, 'a', 'b' FROM generate_series(1, 30) g",
)


def rows_of(broker: KafkaBroker, name: str, topic: str) -> dict[str, Any]:
    """Return the rows of a topic, by the text of their keys, as a consumer has them."""
    rows: dict[str, Any] = {}
    with Reader(broker.bootstrap_servers, name) as reader:
        found = [raw for raw in reader.read_all() if raw.topic == topic]
    for raw in found:
        if raw.value is None:
            continue
        value = json.loads(raw.value)
        if value["op"] == "t":
            rows.clear()
        elif value["op"] == "d":
            rows.pop((raw.key or b"").decode(), None)
        else:
            rows[(raw.key or b"").decode()] = value["after"]
    return rows


def delete_oldest(broker: KafkaBroker, topic: str) -> None:
    """Delete the first record of each partition that has any, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    partitions = admin.list_topics(topic, timeout=15).topics[topic].partitions
    places = [TopicPartition(topic, number, 1) for number in partitions]
    for future in admin.delete_records(places).values():
        try:
            future.result(15)
        except KafkaException as error:
            # An empty partition has no first record.
            if error.args[0].code() != KafkaError.OFFSET_OUT_OF_RANGE:
                raise


def settings(unique: str, database: Database, broker: KafkaBroker, **sections: Any) -> dict[str, Any]:
    return configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "chunk_bytes": 16_384},
        outbox={
            "tables": {"public.outbox": {"event_id": "id", "key": "key", "route_by": "topic"}},
            "topics": [f"outbox.event.{unique}"],
        },
        columns={
            "hash": ["public.hidden.secret", "public.hidden_key.name"],
            "hash_key": "correct horse battery staple",
        },
        filters={"tables": {"public.filtered": {"keep": "row.kind == 'in'", "old_row": "assumed"}}},
        routes={
            "tables": {
                "public.routed": {
                    "rules": [{"when": "row.kind == 'b'", "topic": f"{unique}.public.routed_b"}],
                    "old_row": "assumed",
                }
            }
        },
        **sections,
    )


@pytest.mark.parametrize("delivery", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_each_kind_of_table_is_healed_by_its_rules_or_read_again_by_name(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, delivery: str
) -> None:
    # GIVEN a pipeline with tables of all kinds, all of whose rows were delivered
    for statement in (*CREATED, *FILLED):
        database.execute(statement)
    database.execute(
        f'CREATE PUBLICATION "cdcd_{unique}" FOR ALL TABLES WITH (publish_via_partition_root = true)'
    )
    process = daemon(settings(unique, database, broker, kafka={"delivery": delivery}))
    process.await_event("snapshot.finished")
    process.await_streaming()
    database.execute(
        "UPDATE filtered SET kind = 'out' WHERE id = 10; UPDATE routed SET kind = 'b' WHERE id = 11"
    )
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    delete_oldest(broker, f"{unique}.public.short")
    before = ops(broker, unique)
    # WHEN rows change, the slot is lost, and the topics are healed by the command
    for statement in CHANGED:
        database.execute(statement)
    drop_slot(database.dsn(), f"cdcd_{unique}")
    plan = run_cdcd("heal", "--config", str(process.config_path))
    assert (plan.returncode, f"cdcd_{unique}" in plan.stdout) == (0, True), plan
    healed = run_cdcd("heal", "--yes", "--config", str(process.config_path))
    assert healed.returncode == 0, healed.stderr
    events = [json.loads(line) for line in (healed.stdout + healed.stderr).splitlines() if line[:1] == "{"]
    events_of = {event["table"]: event for event in events if event["event"] == "table.healed"}
    # THEN these tables got a record for each difference
    numbers = {
        name.removeprefix("public."): (event["deletes"], event["updates"], event["inserts"])
        for name, event in events_of.items()
    }
    assert numbers == {
        "filtered": (3, 0, 2),
        "routed": (5, 0, 5),
        "hidden": (1, 2, 1),
        "hidden_key": (3, 0, 1),
        "part": (3, 0, 1),
    }
    # AND the others are named with the reason
    reasons = {event["table"]: event["reason"] for event in events if event["event"] == "table.unhealed"}
    assert {name: reason.split()[0] for name, reason in reasons.items()}.keys() == {
        "public.keyless",
        "public.short",
        "public.again",
        "public.outbox",
    }
    assert "no key" in reasons["public.keyless"]
    assert "retention" in reasons["public.short"]
    assert "outbox.tables" in reasons["public.outbox"]
    after = ops(broker, unique)
    truncated = {
        topic for topic, counted in after.items() if counted["t"] > before.get(topic, Counter())["t"]
    }
    assert truncated == {"keyless", "short", "again"}
    # AND the daemon goes on, and every topic has the rows that its rules say
    process.start()
    process.await_streaming()
    database.execute("INSERT INTO filtered VALUES (60, 'in'); INSERT INTO routed VALUES (60, 'b')")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    def ids(topic: str) -> list[int]:
        return sorted(row["id"] for row in rows_of(broker, unique, f"{unique}.public.{topic}").values())

    def wanted(query: str) -> list[Any]:
        return [row[0] for row in database.execute(query)]

    assert ids("filtered") == wanted("SELECT id FROM filtered WHERE kind = 'in' ORDER BY 1")
    assert ids("routed") == wanted("SELECT id FROM routed WHERE kind <> 'b' ORDER BY 1")
    assert ids("routed_b") == wanted("SELECT id FROM routed WHERE kind = 'b' ORDER BY 1")
    for table in ("part", "short", "again"):
        rows = rows_of(broker, unique, f"{unique}.public.{table}").values()
        told = wanted(f"SELECT to_jsonb(t) FROM {table} t ORDER BY id")
        assert sorted(rows, key=lambda row: row["id"]) == told
    hidden = rows_of(broker, unique, f"{unique}.public.hidden")
    assert {row["id"]: row["plain"] for row in hidden.values()} == dict(
        database.execute("SELECT id, plain FROM hidden")
    )
    hidden_keys = rows_of(broker, unique, f"{unique}.public.hidden_key")
    assert sorted(row["n"] for row in hidden_keys.values()) == wanted("SELECT n FROM hidden_key ORDER BY 1")
    assert not any("name" in key.partition(":")[2] for key in hidden_keys)
    assert len(gaps(broker, unique)) == 1
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
def test_rows_that_were_repeated_behind_their_truncate_record_do_not_stay(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a table that was truncated, and a session that was killed while it repeated the records before that
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            kafka={"delivery": "at_least_once"},
            topics={"create": {"partitions": 1}},
        )
    )
    process.await_streaming()
    for statement in (
        "INSERT INTO t VALUES (1, 'former')",
        "TRUNCATE t",
        "INSERT INTO t VALUES (2, 'present')",
    ):
        database.execute(statement)
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    topic = f"{unique}.public.t"
    with Reader(broker.bootstrap_servers, unique) as reader:
        first = next(raw for raw in reader.read_all() if raw.topic == topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, key=first.key, value=first.value)
    assert producer.flush(30) == 0
    assert len(rows_of(broker, unique, topic)) == 2
    # WHEN the slot is lost and the topics are healed
    drop_slot(database.dsn(), f"cdcd_{unique}")
    healed = run_cdcd("heal", "--yes", "--config", str(process.config_path))
    assert healed.returncode == 0, healed.stderr
    # THEN a consumer that applies the records in their order has the rows of the table
    assert [row["id"] for row in rows_of(broker, unique, topic).values()] == [2]
    events = [json.loads(line) for line in (healed.stdout + healed.stderr).splitlines() if line[:1] == "{"]
    (unhealed,) = [event for event in events if event["event"] == "table.unhealed"]
    assert "repeated records" in unhealed["reason"]


@pytest.mark.postgres(only=[18])
def test_a_topic_in_avro_is_read_again_and_the_format_is_named(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO t SELECT g, 'note' FROM generate_series(1, 20) g")
    with SchemaRegistry() as registry:
        process = daemon(
            configuration(
                unique,
                database.dsn(),
                broker.bootstrap_servers,
                format={"key": "avro", "value": "avro"},
                registry={"url": registry.url},
                snapshot={"mode": "initial"},
            )
        )
        process.await_event("snapshot.finished")
        process.await_streaming()
        assert process.stop() == 0
        database.execute("DELETE FROM t WHERE id = 1; UPDATE t SET note = 'another' WHERE id = 2")
        drop_slot(database.dsn(), f"cdcd_{unique}")
        healed = run_cdcd("heal", "--yes", "--config", str(process.config_path))
        assert healed.returncode == 0, healed.stderr
        events = [
            json.loads(line) for line in (healed.stdout + healed.stderr).splitlines() if line[:1] == "{"
        ]
        (unhealed,) = [event for event in events if event["event"] == "table.unhealed"]
        assert "avro" in unhealed["reason"]
        rows: dict[int, str] = {}
        for value in avro_values(broker.bootstrap_servers, f"{unique}.public.t", registry):
            if value["op"] == "t":
                rows.clear()
            else:
                rows[value["after"]["id"]] = value["after"]["note"]
    assert rows == dict(database.execute("SELECT id, note FROM t"))


def test_a_pipeline_that_has_delivered_nothing_is_not_healed(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    process = Daemon(tmp_path, configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.write_config()
    refused = run_cdcd("heal", "--yes", "--config", str(process.config_path))
    assert refused.returncode == PositionError.exit_code, refused.stderr
    assert "has no checkpoint" in refused.stdout + refused.stderr
    assert not database.execute(f"SELECT FROM pg_replication_slots WHERE slot_name = 'cdcd_{unique}'")


@pytest.mark.postgres(only=[18])
def test_values_that_the_topic_lacks_are_sent_and_flattened_tables_are_named(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a topic without the records that had a large value, as after compaction
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, large text)")
    database.execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t SELECT g, 0, repeat('x', 9000) FROM generate_series(1, 3) g")
    topics = {"truncate": False, "create": {"config": {"cleanup.policy": "compact"}}}
    snapshot = {"mode": "never"}
    process = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, topics=topics, snapshot=snapshot)
    )
    process.await_streaming()
    database.execute("UPDATE t SET n = 1")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    # WHEN the slot is lost
    drop_slot(database.dsn(), f"cdcd_{unique}")
    healed = run_cdcd("heal", "--yes", "--config", str(process.config_path))
    assert healed.returncode == 0, healed.stderr
    # THEN the values are sent
    rows = rows_of(broker, unique, f"{unique}.public.t").values()
    assert [len(row["large"]) for row in rows] == [9000] * 3
    # AND a pipeline that flattens is told which rows stay
    process.config = {**process.config, "event_flattening": {"enabled": True}}
    process.write_config()
    told = run_cdcd("heal", "--yes", "--config", str(process.config_path))
    assert told.returncode == 0, told.stderr
    events = [json.loads(line) for line in (told.stdout + told.stderr).splitlines() if line[:1] == "{"]
    (unhealed,) = [event for event in events if event["event"] == "table.unhealed"]
    assert unhealed["table"] == "public.t"
    assert "flattened" in unhealed["reason"]
    (needed,) = [event for event in events if event["event"] == "snapshot.needed"]
    assert "stay in the topic" in needed["hint"]
