"""Kills in faults of tables, in pipelines that use everything else: prepared and streamed transactions, routes, …"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker
from tests.integration import created_topics
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.faults.tables import LARGE
from tests.integration.faults.trial import Trial, command
from tests.integration.test_recording import missing_in, replayed, replays, topic_records

pytestmark = [pytest.mark.postgres(only=18), pytest.mark.chaos]

TABLES = ("plain", "bad", "root", "routed", "filtered", "hidden")
STREAMED = 3000
"""Rows of a transaction that is larger than the memory for logical decoding, so that PostgreSQL streams it."""


def aside(one: Trial) -> set[str]:
    """Tables that were set aside in any of the daemon's lives, without those that came back later."""
    found: set[str] = set()
    for line in one.daemon.output(all_lives=True).splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "table.aside":
            found.add(event["table"].removeprefix("public."))
    return found


def await_aside(one: Trial, *tables: str) -> None:
    until(lambda: aside(one) == set(tables) or None, f"{tables}: {one.daemon.last_words()}", 90.0)


def restart(one: Trial) -> None:
    """Kill the daemon at this moment, and start it again."""
    one.daemon.kill()
    one.daemon.start()
    one.daemon.await_streaming()


def request(one: Trial, action: str, *tables: str) -> None:
    asked = json.dumps({"action": action, "tables": [f"public.{table}" for table in tables]})
    one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", asked)


def row(table: str, number: int, note: str) -> str:
    if table == "routed":
        return f"INSERT INTO routed VALUES ({number}, '{'eu' if number % 2 else 'us'}', '{note}')"
    if table == "hidden":
        return f"INSERT INTO hidden VALUES ({number}, 'secret {number}', '{note}')"
    return f"INSERT INTO {table} VALUES ({number}, '{note}')"


def rows(*tables: str, number: int, note: str = "a note") -> list[str]:
    return [row(table, number, note) for table in tables]


def prepare(one: Trial, gid: str, *statements: str) -> None:
    with one.connect() as connection:
        connection.autocommit = True
        for statement in ("BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'"):
            connection.execute(statement.encode())


def create(one: Trial, database: Database) -> None:
    database.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = 64')
    one.execute("DROP TABLE t")
    for table in ("plain", "bad", "filtered"):
        one.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
    one.execute("CREATE TABLE root (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    one.execute("CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (1000)")
    one.execute("CREATE TABLE root_2 PARTITION OF root DEFAULT")
    one.execute("CREATE TABLE routed (id int PRIMARY KEY, region text, note text)")
    one.execute("CREATE TABLE hidden (id int PRIMARY KEY, secret text, note text)")
    for table in ("routed", "filtered"):
        one.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    for number in range(1, 5):
        for statement in rows(*TABLES, number=number):
            one.execute(statement)
    one.execute("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)")
    created_topics.create_topics(
        one.reader_servers, f"{one.name}.public.routed-eu", config={"max.message.bytes": "20000"}
    )


def verify(one: Trial) -> str:
    done = command("verify", "--config", str(one.daemon.config_path))
    return "" if done.returncode == 0 else f"{done.returncode}: {done.stdout} {done.stderr}"


@pytest.mark.parametrize("kind", ["recorded", "protected", "at_least_once"])
def test_kills_in_faults_lose_and_repeat_nothing_with_prepared_and_streamed_transactions_and_routes(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, scratch: Path, kind: str
):
    # GIVEN a pipeline with routes, filters, a partitioned table, and prepared and streamed transactions
    one = trial(database.dsn(), broker.bootstrap_servers)
    folder = scratch / f"recording-{one.name}"
    create(one, database)
    topic = f"{one.name}.public.routed-eu"
    extra: dict[str, Any] = {}
    if kind == "recorded":
        extra["record"] = {"directory": str(folder), "segment_bytes": 1 << 20}
    if kind == "protected":
        extra["columns"] = {"exclude": ["public.hidden.secret"]}
    one.configure(
        postgres={"publication": "everything", "two_phase": True},
        kafka={
            "delivery": "at_least_once" if kind == "at_least_once" else "exactly_once",
            "properties": {"message.max.bytes": 150_000},
        },
        snapshot={"mode": "initial"},
        tables={"on_error": "set_aside"},
        filters={"tables": {"public.filtered": {"keep": "row.note != 'gone'"}}},
        routes={"tables": {"public.routed": {"rules": [{"when": "row.region == 'eu'", "topic": topic}]}}},
        **extra,
    )
    one.start()
    one.daemon.await_event("snapshot.finished")

    # WHEN a prepared transaction has faults of two tables, and the daemon is killed before and after its commit
    faults = [row(table, 10, LARGE * 2) for table in ("bad", "root")]
    prepare(one, f"one_{one.name}", *rows(*TABLES, number=9), *faults, *rows(*TABLES, number=11))
    restart(one)
    one.execute(f"COMMIT PREPARED 'one_{one.name}'")
    restart(one)

    # THEN both are set aside
    await_aside(one, "bad", "root")

    # WHEN a streamed transaction has a row that Kafka refuses in the topic of a route, and the daemon is killed
    with one.connect() as connection:
        for table in ("plain", "bad", "routed", "filtered"):
            values = "'eu', 'streamed'" if table == "routed" else "'streamed'"
            connection.execute(
                f"INSERT INTO {table} SELECT g, {values} FROM generate_series(10001, {10000 + STREAMED}) g".encode()
            )
        connection.execute(b"SAVEPOINT a")
        connection.execute(b"UPDATE plain SET note = 'undone'")
        connection.execute(b"ROLLBACK TO a")
        connection.execute(f"INSERT INTO routed VALUES (13, 'eu', '{LARGE}')".encode())
        connection.execute(b"UPDATE filtered SET note = 'gone' WHERE id % 2 = 0")
        restart(one)
        connection.commit()
    restart(one)

    # THEN the table is set aside, too
    await_aside(one, "bad", "root", "routed")

    # WHEN prepared transactions change all tables while three are set aside, with kills in between
    prepare(one, f"two_{one.name}", *rows(*TABLES, number=21))
    prepare(one, f"three_{one.name}", *rows(*TABLES, number=22))
    restart(one)
    one.execute(f"COMMIT PREPARED 'two_{one.name}'")
    one.execute(f"ROLLBACK PREPARED 'three_{one.name}'")
    restart(one)

    # AND the causes are removed, somebody asks for the tables, and the daemon is killed while they come back
    one.execute("DELETE FROM bad WHERE id = 10")
    one.execute("UPDATE root SET note = 'short' WHERE id = 10")
    created_topics.set_topic(one.reader_servers, topic, {"max.message.bytes": "300000"})
    request(one, "resume_tables", "bad", "root", "routed")
    one.daemon.await_event("table.returned")
    restart(one)
    for statement in rows(*TABLES, number=31):
        one.execute(statement)

    # THEN all tables are equal, and the others had each change once
    until(lambda: verify(one) == "" or None, f"{verify(one)} {one.daemon.last_words()}", 120.0)
    assert aside(one) == {"bad", "root", "routed"}
    await_flushed(one.dsn, one.slot)
    assert one.daemon.stop() == 0
    created = Counter(
        json.loads(key)["id"]
        for key, value, _ in one.records(f"{one.name}.public.plain")
        if value is not None and json.loads(value)["op"] == "c"
    )
    wanted = {9, 11, 21, 31, *range(10001, 10001 + STREAMED)}
    assert set(created) == wanted
    if kind != "at_least_once":
        assert set(created.values()) == {1}

    # AND a recording has the same bytes
    if kind == "recorded":
        found, notes = replayed(folder)
        gaps = missing_in(notes)
        for name, written in topic_records(one.reader_servers, one.name).items():
            assert replays(found.get(name, []), written, gaps), name


def test_a_durable_log_holds_faults_of_tables_over_kills_while_kafka_is_away(
    trial: Callable[..., Trial],
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    tmp_path: Path,
):
    # GIVEN a pipeline with a durable log, and a table that is set aside
    broker = private_broker()
    one = trial(database.dsn(), broker.bootstrap_servers)
    for table in ("plain", "bad", "late"):
        one.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        one.execute(row(table, 1, "before"))
    one.configure(
        kafka={"properties": {"message.max.bytes": 20_000}},
        snapshot={"mode": "initial"},
        tables={"on_error": "set_aside"},
        spool={"durable": True, "durable_directory": str(tmp_path / "log"), "durable_after_s": 0.5},
    )
    one.start()
    one.daemon.await_event("snapshot.finished")
    one.execute(row("bad", 2, LARGE))
    await_aside(one, "bad")

    # WHEN Kafka is away, tables change, another one fails, somebody asks for the first, and the daemon is killed
    broker.stop()
    one.daemon.await_event("durable.started")
    for statement in rows("plain", "bad", "late", number=3):
        one.execute(statement)
    one.execute(row("late", 4, LARGE))
    one.execute("DELETE FROM bad WHERE id = 2")
    request(one, "resume_tables", "bad")
    one.daemon.kill()
    for statement in rows("plain", "bad", "late", number=5):
        one.execute(statement)
    one.daemon.start()
    one.daemon.await_event("durable.started")
    for statement in rows("plain", "bad", "late", number=6):
        one.execute(statement)

    # THEN the log is delivered when Kafka is back: one table comes back, the other one is set aside
    broker.start()
    one.daemon.await_event("durable.delivered")
    one.daemon.await_streaming()
    await_aside(one, "bad", "late")
    restart(one)

    # WHEN its cause is gone, THEN all are equal, and the healthy table had each change once
    one.execute("UPDATE late SET note = 'short' WHERE id = 4")
    request(one, "resume_tables", "bad", "late")
    for statement in rows("plain", "bad", "late", number=7):
        one.execute(statement)
    until(lambda: verify(one) == "" or None, f"{verify(one)} {one.daemon.last_words()}", 120.0)
    ids = [json.loads(key)["id"] for key, _, _ in one.records(f"{one.name}.public.plain")]
    assert ids == [1, 3, 5, 6, 7]
    assert one.daemon.stop() == 0
