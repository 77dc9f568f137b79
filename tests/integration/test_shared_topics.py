"""Several tables in one topic, by `topics.shared`: keys, kills, and a fault of one of the tables."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.attacks.checkpoints import records_of
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=[18])

Start = Callable[..., Daemon]

FIELD = "__dbz__physicalTableIdentifier"


@pytest.fixture
def pipeline(database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str) -> Start:
    """Starts a pipeline in which orders_eu and orders_us share the topic <unique>.orders."""
    for region in ("eu", "us"):
        database.execute(f"CREATE TABLE orders_{region} (id int PRIMARY KEY, note text)")

    def begin(shared: dict[str, Any] | None = None, **sections: Any) -> Daemon:
        given = {"tables": ["public.orders_*"], **(shared or {})}
        topics = {"shared": {f"{unique}.orders": given}, **sections.pop("topics", {})}
        sections = {"tables": {"on_error": "set_aside"}, "snapshot": {"mode": "initial"}, **sections}
        return daemon(
            configuration(unique, database.dsn(), broker.bootstrap_servers, topics=topics, **sections)
        )

    return begin


def folded(broker: KafkaBroker, topic: str) -> dict[tuple[str, int], str]:
    """The rows that a reader has who applies the records of a shared topic, by table and id."""
    rows: dict[tuple[str, int], str] = {}
    for _, value in records_of(broker, topic):
        if value is None:
            continue
        event = json.loads(value)
        table = event["source"]["table"]
        if event["op"] == "t":
            rows = {key: note for key, note in rows.items() if key[0] != table}
        elif event["op"] == "d":
            rows.pop((table, event["before"]["id"]), None)
        else:
            rows[table, event["after"]["id"]] = event["after"]["note"]
    return rows


def await_rows(broker: KafkaBroker, topic: str, wanted: dict[tuple[str, int], str]) -> None:
    until(
        lambda: folded(broker, topic) == wanted or None,
        f"the rows never were {wanted}",
    )


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_two_tables_share_a_topic_through_kills_and_keep_their_keys_apart(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str, delivery: str
) -> None:
    # GIVEN rows with the same keys in both tables, before the start and after it
    topic = f"{unique}.orders"
    database.execute("INSERT INTO orders_eu VALUES (1, 'a'), (2, 'b'); INSERT INTO orders_us VALUES (1, 'c')")
    process = pipeline(kafka={"delivery": delivery})
    process.await_streaming()
    wanted = {("orders_eu", 1): "a", ("orders_eu", 2): "b", ("orders_us", 1): "c"}
    await_rows(broker, topic, wanted)
    # WHEN it is killed again and again while both tables change in the same transactions
    for number in range(3, 9):
        database.execute(
            f"BEGIN; INSERT INTO orders_eu VALUES ({number}, 'e'); INSERT INTO orders_us VALUES ({number}, 'u'); "
            f"UPDATE orders_eu SET note = 'v{number}' WHERE id = 1; COMMIT"
        )
        if number % 2:
            process.kill()
            process.start()
            process.await_streaming()
        wanted |= {("orders_eu", number): "e", ("orders_us", number): "u", ("orders_eu", 1): f"v{number}"}
    database.execute(
        "DELETE FROM orders_us WHERE id = 1; TRUNCATE orders_eu; INSERT INTO orders_eu VALUES (1, 'z')"
    )
    wanted = {key: note for key, note in wanted.items() if key[0] == "orders_us" and key[1] != 1}
    await_rows(broker, topic, wanted | {("orders_eu", 1): "z"})
    # THEN each key names its table, and nothing came twice.
    records = records_of(broker, topic)
    events = [(key, json.loads(value)) for key, value in records if value]
    for key, event in events:
        if event["op"] != "t":
            table = f"{unique}.public.{event['source']['table']}"
            assert list(json.loads(key or b"{}").items()) == [("id", _id(event)), (FIELD, table)]
    if delivery == "exactly_once":
        places = Counter(
            (event["source"]["commit_lsn"], event["source"]["event_serial_no"], event["op"])
            for _, event in events
            if event["op"] != "r"
        )
        assert max(places.values()) == 1, places
    # AND commands know the topic: verify leaves both tables out by name, check is content.
    file = str(process.config_path)
    compared = run_cdcd("verify", "--config", file)
    assert compared.returncode != 0
    assert f"share topic {topic}" in " ".join((compared.stdout + compared.stderr).split())
    tail = run_cdcd(
        "tail",
        "--config",
        file,
        "--from",
        "topics",
        "--beginning",
        "--limit",
        "1",
        "--table",
        "public.orders_us",
    )
    assert "public.orders_us" in tail.stdout, tail.stderr
    checked = run_cdcd("check", "--config", file, "--format", "json")
    findings = json.loads(checked.stdout)["findings"]
    assert not [each for each in findings if each["level"] == "error" or each["code"] == "topics.unmatched"]
    # AND check reports a pattern that matches no table.
    shared = process.config["topics"]["shared"][topic]
    shared["tables"] = [*shared["tables"], "public.orderz_*"]
    process.write_config()
    checked = run_cdcd("check", "--config", file, "--format", "json")
    (said,) = [each for each in json.loads(checked.stdout)["findings"] if each["code"] == "topics.unmatched"]
    assert (
        said["found"]
        == f"public.orderz_* matches no published table, so no record goes to {topic} because of it"
    )
    assert process.stop() == 0


def _id(event: dict[str, Any]) -> int:
    found = event["after"] or event["before"]
    return int(found["id"])


def test_a_fault_of_one_table_leaves_the_other_in_the_topic_and_its_return_ends_its_own_rows_only(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    topic = f"{unique}.orders"
    database.execute("INSERT INTO orders_eu VALUES (1, 'a'); INSERT INTO orders_us VALUES (1, 'b')")
    # GIVEN a topic that takes no large record, which the broker says and the producer does not foresee
    create_topics(broker.bootstrap_servers, topic, config={"max.message.bytes": "4000"})
    process = pipeline(kafka={"properties": {"compression.type": "none"}})
    process.await_streaming()
    await_rows(broker, topic, {("orders_eu", 1): "a", ("orders_us", 1): "b"})
    # WHEN a row of one table is refused, in a transaction with a row of the other
    database.execute(
        "BEGIN; INSERT INTO orders_us VALUES (2, 'c'); "
        "INSERT INTO orders_eu VALUES (2, repeat('x', 20000)); INSERT INTO orders_us VALUES (3, 'd'); COMMIT"
    )
    aside = process.await_event("table.aside")
    assert (aside["table"], aside["topic"]) == ("public.orders_eu", topic)
    database.execute("INSERT INTO orders_us VALUES (4, 'e'); UPDATE orders_eu SET note = 'short'")
    others = {("orders_us", number): note for number, note in [(1, "b"), (2, "c"), (3, "d"), (4, "e")]}
    await_rows(broker, topic, others | {("orders_eu", 1): "a"})
    # THEN it comes back with its rows, and the rows of the other table stay.
    process.await_event("table.returned", table="public.orders_eu")
    await_rows(broker, topic, others | {("orders_eu", 1): "short", ("orders_eu", 2): "short"})
    ends = [
        json.loads(value)["source"]["table"]
        for _, value in records_of(broker, topic)
        if value and json.loads(value)["op"] == "t"
    ]
    assert set(ends) == {"orders_eu"}
    lines = [json.loads(line) for line in process.output().splitlines() if line.startswith("{")]
    assert {each["table"] for each in lines if each.get("event") == "table.aside"} == {"public.orders_eu"}
    assert process.stop() == 0


def test_without_a_field_in_keys_a_compacted_topic_is_refused_by_name(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    topic = f"{unique}.orders"
    create_topics(broker.bootstrap_servers, topic, config={"cleanup.policy": "compact"})
    database.execute("INSERT INTO orders_eu VALUES (1, 'a')")
    process = pipeline({"key_field": None})
    aside = process.await_event("table.aside", table="public.orders_eu")
    assert "topics.shared" in aside["reason"]
    assert f"set key_field of topics.shared.{topic}" in aside["hint"]
    checked = run_cdcd("check", "--config", str(process.config_path), "--format", "json")
    codes = {each["code"] for each in json.loads(checked.stdout)["findings"] if each["level"] == "error"}
    assert "topic.keyless" in codes
    assert process.stop() == 0
