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


@pytest.mark.attack(gains="secrets in the dead letters or in the log", before="withstood")
def test_values_without_a_form_show_no_protected_value_and_are_one_dead_letter_each(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, secret text, n numeric)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"slot": unique},
            format={"decimal_handling_mode": "precise"},
            columns={"mask": {"public.t.secret": "***"}},
            kafka={"dead_letters": ["values"]},
        )
    )
    process.await_streaming()
    # WHEN rows have values that the format cannot represent, beside a protected value, and change and go
    database.execute(f"INSERT INTO t SELECT i, '{SECRET}' || i, 'NaN' FROM generate_series(1, 2000) i")
    database.execute(
        f"UPDATE t SET secret = '{SECRET}!', n = 'Infinity' WHERE id <= 1000; DELETE FROM t WHERE id > 1500"
    )
    database.execute(f"INSERT INTO t VALUES (5000, '{SECRET}', 1)")
    await_passed(process, database, unique)
    # THEN each row has one dead letter for each record, none shows the value, and the log stays short
    with Reader(broker.bootstrap_servers, unique) as reader:
        found = list(reader.read_all())
    dead = [each for each in found if each.topic == f"{unique}.dead_letter"]
    assert len([each for each in dead if each.value is not None]) == 2000 + 1000
    assert len([each for each in found if each.topic == f"{unique}.public.t" and each.value]) == 1 + 500
    everything = b"".join(
        [b"".join([each.key or b"", each.value or b"", *dict(each.headers).values()]) for each in found]
    )
    assert SECRET.encode() not in everything
    assert SECRET not in process.output()
    assert len(process.output().splitlines()) < 100
    assert process.stop() == 0


@pytest.mark.attack(gains="records of one row under the key of another one", before="withstood")
def test_bare_keys_of_any_text_stay_those_of_their_rows(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    keys = ["a", "a ", '"a"', '{"id":"a"}', "ab", "null", "", " ", "a\nb", "\u00e4", "a\u0308", "\\u0061"]
    database.execute("CREATE TABLE t (id text PRIMARY KEY, n int)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"slot": unique},
            format={"key": "text"},
            key={"forms": {"public.t": {"bare": True}}},
        )
    )
    process.await_streaming()
    with database.connect() as connection:
        for number, key in enumerate(keys):
            connection.execute(f"INSERT INTO t VALUES ($k${key}$k$, {number})".encode())
    await_passed(process, database, unique)
    # THEN a reader that keeps the last value of each key has every row
    with Reader(broker.bootstrap_servers, unique) as reader:
        rows = [each for each in reader.read_all() if each.topic == f"{unique}.public.t"]
    assert {each.key: json.loads(each.value or b"")["after"]["n"] for each in rows} == {
        key.encode(): number for number, key in enumerate(keys)
    }
    assert process.stop() == 0
