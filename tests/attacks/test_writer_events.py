"""Rows that somebody inserts into an outbox table: they fill neither the registry nor the cluster, and end nothing."""

import json
from typing import Any

import pytest

from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.attacks.measured import MB, StartDaemon, allowed, await_passed
from tests.integration.conftest import Database
from tests.integration.daemon import configuration
from tests.schema_registry import SchemaRegistry

pytestmark = pytest.mark.postgres(only=18)

TABLE = "CREATE TABLE outbox (id serial PRIMARY KEY, aggregatetype text, aggregateid text, payload text)"
SECRET = "correct-horse-battery"


def inserts(*payloads: str, kind: str = "a") -> str:
    """A statement that inserts events."""
    rows = ", ".join([f"('{kind}', 'k', $cdcd${payload}$cdcd$)" for payload in payloads])
    return f"INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES {rows}"


@pytest.mark.attack(gains="a registry that is full of schemas, or a daemon that ends", before="withstood")
def test_payloads_of_many_forms_and_of_no_form_fill_no_registry_and_end_nothing(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute(TABLE)
    topic = f"{unique}.a"
    table: dict[str, Any] = {
        "topic": topic,
        "event_id": None,
        "payload_form": "avro_record",
        "schemas_max": 20,
    }
    with SchemaRegistry() as registry:
        process = daemon(
            configuration(
                unique,
                database.dsn(),
                broker.bootstrap_servers,
                postgres={"slot": unique},
                format={"value": "avro"},
                registry={"url": registry.url},
                outbox={"topics": [topic], "tables": {"public.outbox": table}},
            )
        )
        process.await_streaming()
        # WHEN 500 payloads have 500 schemas, and others are deep, wide, or no JSON
        database.execute(inserts(*[json.dumps({f"{SECRET}{number}": number}) for number in range(500)]))
        wide = json.dumps({f"f{number}": 1 for number in range(6_000)})
        numbers = "[" + "9" * 5_000 + "]"
        database.execute(
            inserts(
                "{" * 100_000,
                "[" * 100_000 + "]" * 100_000,
                wide,
                numbers,
                '{"a":"\\ud800"}',
                "[{},",
                "\u00fc",
            )
        )
        objects = json.dumps([{f"f{number % 4_000}": number} for number in range(40_000)])
        database.execute(inserts(objects))
        database.execute(inserts(json.dumps({f"{SECRET}0": 5})))
        await_passed(process, database, unique)
        # THEN the subject has as many schemas as it may have, and the daemon has told why without the payloads
        assert len(registry.subjects[f"{topic}-value"]) == 20
        assert process.peak_memory_bytes() < allowed(20 * MB) + 100 * MB
        process.await_metric("cdcd_events_total", lambda count: count == 21, "published", "public.outbox")
        process.await_metric("cdcd_events_total", lambda count: count == 488, "refused", "public.outbox")
        assert "is outbox.tables' schemas_max" in process.await_event("outbox.refused", after=0)["reason"]
        assert SECRET not in process.output()
        # A restart gives the subject no further schemas.
        process.kill()
        process.start()
        process.await_streaming()
        database.execute(inserts('{"other": 1}', json.dumps({f"{SECRET}1": 7})))
        await_passed(process, database, unique)
        assert len(registry.subjects[f"{topic}-value"]) == 20
        process.await_metric("cdcd_events_total", lambda count: count == 1, "published", "public.outbox")
        assert process.stop() == 0


@pytest.mark.attack(
    gains="a cluster that is full of topics, or the topics of another pipeline", before="withstood"
)
def test_rows_with_many_topics_fill_no_cluster_and_take_no_topic_of_another_one(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute(TABLE)
    table: dict[str, Any] = {"topic": f"made-{unique}.{{value}}", "event_id": None, "topics_max": 5}
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"slot": unique},
            topics={"claims": f"made-{unique}.claims"},
            outbox={"tables": {"public.outbox": table}},
        )
    )
    process.await_streaming()
    # WHEN rows name topics that are too long, empty, of the pipeline itself, and 300 others
    for kind in ("x" * 5_000, "", "claims", "../..", "\u00fc" * 300, "a\nb"):
        database.execute(inserts("p", kind=kind))
    database.execute("".join([inserts("p", kind=f"t{number}") + ";" for number in range(300)]))
    await_passed(process, database, unique)
    # THEN five topics are made, and all other rows are records of the table
    with Reader(broker.bootstrap_servers, f"made-{unique}") as reader:
        made = {each.topic for each in reader.read_all()} - {f"made-{unique}.claims"}
    assert len(made) == 5
    process.await_metric("cdcd_events_total", lambda count: count == 306 - 5, "refused", "public.outbox")
    assert process.stop() == 0
