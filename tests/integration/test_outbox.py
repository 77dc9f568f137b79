"""Events of an outbox, from a real server to the broker: once each, in commit order, none of what was rolled back."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_avro import values
from tests.integration.test_drop_and_reset import await_topics, cdcd
from tests.schema_registry import SchemaRegistry

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

TABLE: Final = (
    "CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)"
)


def emit(topic: str, number: int) -> str:
    """A statement that publishes an event by a logical message."""
    content = json.dumps({"topic": topic, "key": "k", "payload": {"n": number}})
    return f"SELECT pg_logical_emit_message(true, 'cdcd.publish', '{content}')"


def insert(number: int, kind: str = "events") -> str:
    """A statement that publishes an event by a row."""
    return f"INSERT INTO outbox VALUES ({number}, '{kind}', 'k', 'Happened', '{{\"n\": {number}}}')"


def by_topic(broker: KafkaBroker, prefix: str) -> dict[str, list[Raw]]:
    """What a `read_committed` reader has of each topic."""
    found: dict[str, list[Raw]] = {}
    with Reader(broker.bootstrap_servers, prefix) as reader:
        for each in reader.read_all():
            found.setdefault(each.topic, []).append(each)
    return found


def test_each_event_is_published_once_whatever_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN an outbox with rows from before, and a daemon that cuts transactions into small parts
    database.execute(TABLE)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute(insert(-1))
    topic = f"{unique}.events"
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            postgres={"two_phase": True},
            kafka={"transaction": {"records_max": 50, "whole_bytes_max": 0}},
            snapshot={"mode": "initial"},
            outbox={
                "topics": [topic],
                "messages": True,
                "tables": {
                    "public.outbox": {"topic": f"{unique}.{{value}}", "headers": {"eventType": "type"}}
                },
            },
        )
    )
    process.await_streaming()

    # WHEN events of both kinds come in small, rolled back, prepared and large transactions, beside kills
    with database.connect(autocommit=False) as connection:
        connection.execute(f"{emit(topic, 1)}; {insert(2)}".encode())
        connection.commit()
        connection.execute(f"{emit(topic, -2)}; {insert(-3)}".encode())
        connection.rollback()
        connection.execute(f"{emit(topic, 3)}; SAVEPOINT s; {emit(topic, -4)}".encode())
        connection.execute(f"ROLLBACK TO s; {insert(4)}; DELETE FROM outbox; {emit('unknown', -5)}".encode())
        connection.execute(f"{insert(-6, 'unknown')}; UPDATE outbox SET type = 'x'".encode())
        connection.commit()
        connection.execute(f"{insert(5)}; {emit(topic, 6)}; PREPARE TRANSACTION '{unique}'".encode())
        for number in range(7, 3007):
            connection.execute((emit(topic, number) if number % 2 else insert(number)).encode())
            if number % 100 == 0:
                connection.execute(f"INSERT INTO orders VALUES ({number})".encode())
        process.kill()
        process.start()
        process.await_streaming()
        connection.commit()
    process.await_metric("cdcd_events_total", lambda count: count > 100, "published", "public.outbox")
    process.kill()
    process.start()
    process.await_streaming()
    database.execute(f"COMMIT PREPARED '{unique}'")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN each is there once, in the order of the commits
    found = by_topic(broker, unique)
    events = found[topic]
    numbers = [json.loads(each.value or b"")["n"] for each in events]
    assert numbers == [*range(1, 5), *range(7, 3007), 5, 6]
    assert {each.key for each in events} == {b"k"}
    rows = [each for each, number in zip(events, numbers, strict=True) if dict(each.headers).get("id")]
    assert all(dict(each.headers)["eventType"] == b"Happened" for each in rows)
    assert [dict(each.headers)["id"] for each in rows[:2]] == [b"2", b"4"]

    # AND what could not be published is an ordinary record, and was told
    (message,) = found[f"{unique}.message"]
    assert json.loads(message.value or b"")["message"]["prefix"] == "cdcd.publish"
    (row,) = found[f"{unique}.public.outbox"]
    envelope = json.loads(row.value or b"")
    assert (envelope["op"], envelope["after"]["id"]) == ("c", -6)
    assert process.await_event("outbox.refused", after=0)["reason"].endswith(
        "does not have the topic unknown"
    )
    assert len(found[f"{unique}.public.orders"]) == 30
    assert process.stop() == 0


def test_fields_beside_the_payload_stand_in_the_value(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN an outbox whose events have columns beside the payload
    database.execute(TABLE)
    database.execute("ALTER TABLE outbox ADD at timestamptz")
    topic = f"{unique}.events"
    table = {"topic": topic, "envelope": {"eventType": "type", "at": "at"}}
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"mode": "initial"},
            outbox={"topics": [topic], "tables": {"public.outbox": table}},
        )
    )
    process.await_streaming()
    # WHEN rows are inserted, one of them without values
    database.execute(
        "INSERT INTO outbox VALUES (1, 'e', 'k', 'Happened', '{\"n\": 1}', '2024-01-01 10:00:00.5+00'); "
        "INSERT INTO outbox (id, aggregatetype, aggregateid) VALUES (2, 'e', 'k')"
    )
    await_flushed(database.dsn(), f"cdcd_{unique}")
    # THEN the values are the objects that Debezium's event router makes
    values = [json.loads(each.value or b"null") for each in by_topic(broker, unique)[topic]]
    assert values == [
        {"payload": '{"n": 1}', "eventType": "Happened", "at": "2024-01-01T10:00:00.500000Z"},
        {"payload": None, "eventType": None, "at": None},
    ]


def _registrations(registry: SchemaRegistry, topic: str) -> int:
    return len([each for each in registry.asked if each == f"POST /subjects/{topic}-value/versions"])


def test_json_payloads_are_records_in_avro_and_one_that_the_registry_refuses_goes_to_the_tables_topic(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN an outbox whose payloads are records in Avro
    database.execute(TABLE)
    topic = f"{unique}.events"
    table = {"topic": topic, "payload_form": "avro_record"}
    with SchemaRegistry() as registry:
        process = daemon(
            configuration(
                unique,
                database.dsn(),
                broker.bootstrap_servers,
                format={"key": "avro", "value": "avro"},
                registry={"url": registry.url},
                outbox={"topics": [topic], "tables": {"public.outbox": table}},
            )
        )
        process.await_streaming()
        # WHEN events of two forms come, the daemon is killed, and the registry refuses a third form
        payloads = ('{"n": 1}', '{"n": 2, "lines": [{"sku": "a"}, {"sku": "b", "n": 3}]}')
        for number, payload in enumerate(payloads):
            database.execute(f"INSERT INTO outbox VALUES ({number}, 'e', 'k', 'Happened', '{payload}')")
        await_flushed(database.dsn(), f"cdcd_{unique}")
        process.kill()
        asked = _registrations(registry, topic)
        process.start()
        process.await_streaming()
        database.execute(insert(2))
        await_flushed(database.dsn(), f"cdcd_{unique}")
        assert _registrations(registry, topic) == asked == 2
        registry.refusing.add(f"{topic}-value")
        database.execute(
            "INSERT INTO outbox VALUES (3, 'e', 'k', 'Happened', '{\"n\": \"secret\"}'), "
            "(4, 'e', 'k', 'Happened', '{\"n\": 4}')"
        )
        await_flushed(database.dsn(), f"cdcd_{unique}")
        # THEN the records have the values, and what was refused is a row and was told without its value
        assert values(broker.bootstrap_servers, topic, registry) == [
            {"n": 1},
            {"n": 2, "lines": [{"sku": "a", "n": None}, {"sku": "b", "n": 3}]},
            {"n": 2},
            {"n": 4},
        ]
        (row,) = values(broker.bootstrap_servers, f"{unique}.public.outbox", registry)
        assert (row["op"], row["after"]["id"]) == ("c", 3)
        reason = process.await_event("outbox.refused", after=0)["reason"]
        assert f"the registry refuses the schema of subject {topic}-value" in reason
        assert "secret" not in process.output()


def test_topics_that_rows_make_are_claimed_counted_over_kills_and_dropped(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN an outbox whose rows may make two topics, and a third one that another pipeline has claimed
    database.execute(TABLE)
    database.execute(TABLE.replace("outbox", "second"))
    table = {"topic": f"made-{unique}.{{value}}", "topics_max": 2}
    below = {"topic": f"{unique}.made-{{value}}", "topics_max": 2}
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        topics={"claims": f"{unique}-claims"},
        outbox={"tables": {"public.outbox": table, "public.second": below}},
    )
    process = daemon(config)
    process.await_streaming()
    # WHEN rows name two topics, the daemon is killed, and rows name a third one
    database.execute(insert(1, "a"))
    database.execute(insert(2, "b"))
    database.execute(insert(3, "c").replace("outbox", "second"))
    await_flushed(database.dsn(), f"cdcd_{unique}")
    process.kill()
    process.start()
    process.await_streaming()
    database.execute(insert(3, "c"))
    database.execute(insert(4, "a"))
    await_flushed(database.dsn(), f"cdcd_{unique}")
    # THEN the events are in the two topics, and the third one is not made
    found = by_topic(broker, f"made-{unique}")
    assert {
        topic: [json.loads(each.value or b"")["n"] for each in raws] for topic, raws in found.items()
    } == {
        f"made-{unique}.a": [1, 4],
        f"made-{unique}.b": [2],
    }
    (row,) = by_topic(broker, f"{unique}.public")[f"{unique}.public.outbox"]
    assert json.loads(row.value or b"")["after"]["id"] == 3
    assert "topics_max, 2" in process.await_event("outbox.refused", after=0)["reason"]
    # AND another pipeline does not get the claimed topics: its event is a row
    other = daemon(
        {
            **config,
            "outbox": {"tables": {"public.outbox": table}},
            "name": f"{unique}_2",
            "postgres": {**config["postgres"], "slot": f"cdcd_{unique}_2"},
            "topics": {**config["topics"], "prefix": f"{unique}-2"},
        }
    )
    other.await_streaming()
    database.execute(insert(5, "a"))
    await_flushed(database.dsn(), f"cdcd_{unique}_2")
    reason = other.await_event("outbox.refused", after=0)["reason"]
    assert f"made-{unique}.a is refused" in reason
    assert unique in reason
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert len(by_topic(broker, f"made-{unique}")[f"made-{unique}.a"]) == 3
    assert other.stop() == 0
    assert process.stop() == 0
    # AND `cdcd check` knows the topics, and `cdcd drop --topics` removes them
    checked = cdcd(process.config_path, "check", "--format", "json")
    assert f"made-{unique}.b" in checked.stdout
    dropped = cdcd(process.config_path, "drop", "--topics", "--yes")
    assert dropped.returncode == 0, dropped.stdout + dropped.stderr
    await_topics(broker, f"made-{unique}", set())
    assert f"{unique}.made-c" in dropped.stdout
    await_topics(broker, unique, set())
