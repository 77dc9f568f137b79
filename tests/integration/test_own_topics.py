"""Topics of one's own names, and claims on them: two pipelines never write to one topic."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from deploy.local import KafkaBroker
from tests.attacks.checkpoints import records_of
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=[18])

Start = Callable[..., Daemon]


def existing(broker: KafkaBroker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=30).topics)


def await_ids(broker: KafkaBroker, topic: str, wanted: list[int]) -> None:
    """The rows in a topic get these values in the column id. A commit is seen a moment after it."""

    def look() -> bool | None:
        records = [json.loads(value) for _, value in records_of(broker, topic) if value]
        # The record that ends former rows has none.
        found = [each["after"]["id"] for each in records if each["op"] != "t"]
        return sorted(found) == wanted or None

    until(look, f"the rows of {topic} never were {wanted}")


def claims(broker: KafkaBroker, topic: str) -> list[tuple[str, str, bool]]:
    """Pipeline, topic and whether it is claimed, of each record in the topic with the claims."""
    named = [(json.loads(key or b"{}"), value) for key, value in records_of(broker, topic)]
    return [(key["pipeline"], key["topic"], value is not None) for key, value in named]


@pytest.fixture
def pipeline(database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str) -> Start:
    """Starts a pipeline that has the table orders in the topic <unique>-orders."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")

    def begin(letter: str, **sections: Any) -> Daemon:
        topics = {"name": f"{unique}-{{table}}", "claims": f"{unique}-claims", **sections.pop("topics", {})}
        sections = {"tables": {"on_error": "set_aside"}, "snapshot": {"mode": "never"}, **sections}
        return daemon(
            configuration(
                f"{unique}{letter}", database.dsn(), broker.bootstrap_servers, topics=topics, **sections
            )
        )

    return begin


def insert(database: Database, process: Daemon, row: int) -> None:
    database.execute(f"INSERT INTO orders VALUES ({row})")
    process.await_metric("cdcd_events_total", lambda count: count >= 1, "c", "public.orders")


@pytest.mark.long
def test_every_command_knows_topics_that_rules_have_renamed(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    rename = [{"regex": f"{unique}-(.*)s", "replacement": f"{unique}-$1"}]
    process = pipeline("a", topics={"rename": rename}, snapshot={"mode": "initial"})
    process.await_streaming()
    insert(database, process, 1)
    topic = f"{unique}-order"
    await_ids(broker, topic, [1])
    assert claims(broker, f"{unique}-claims") == [(f"{unique}a", topic, True)]
    file = str(process.config_path)
    tail = run_cdcd("tail", "--config", file, "--from", "topics", "--beginning", "--limit", "1")
    assert "public.orders" in tail.stdout, tail.stderr
    compared = run_cdcd("verify", "--config", file)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    checked = run_cdcd("check", "--config", file, "--format", "json")
    codes = {each["code"]: each for each in json.loads(checked.stdout)["findings"]}
    assert codes["topic.claims"]["level"] == "ok", checked.stdout
    assert process.stop() == 0
    # WHEN it is dropped without its topics, the topic stays, and another pipeline may have it.
    done = run_cdcd("drop", "--config", file, "--topics", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"the claim on topic {topic}" in " ".join(done.stdout.split())
    until(lambda: topic not in existing(broker) or None, "the topic is still there")
    assert claims(broker, f"{unique}-claims")[-1] == (f"{unique}a", topic, False)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_second_of_two_pipelines_sets_its_table_aside_until_the_first_is_dropped(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str, order: str
) -> None:
    topic = f"{unique}-orders"
    first = pipeline(order[0])
    first.await_streaming()
    insert(database, first, 1)
    second = pipeline(order[1])
    second.await_streaming()
    insert(database, first, 2)
    aside = second.await_event("table.aside")
    assert (aside["fault"], aside["by_itself"]) == ("claimed", True)
    assert f"{unique}{order[0]}" in aside["reason"]
    await_ids(broker, topic, [1, 2])
    # WHEN the second one is dropped with its topics, the first one's topic and claim stay.
    assert second.stop() == 0
    shown = run_cdcd("drop", "--config", str(second.config_path), "--topics", "--yes")
    assert shown.returncode == 0, shown.stderr
    assert f"{topic}: pipeline {unique}{order[0]} has claimed it" in " ".join(shown.stdout.split())
    assert topic in existing(broker)
    assert claims(broker, f"{unique}-claims") == [(f"{unique}{order[0]}", topic, True)]
    database.execute("INSERT INTO orders VALUES (3)")
    await_ids(broker, topic, [1, 2, 3])
    assert first.stop() == 0
    # AND after the first one has gone, a new one may have it.
    gone = run_cdcd("drop", "--config", str(first.config_path), "--yes")
    assert gone.returncode == 0, gone.stderr
    third = pipeline("c")
    third.await_streaming()
    insert(database, third, 4)
    await_ids(broker, topic, [1, 2, 3, 4])


def test_a_pipeline_that_was_killed_between_claim_and_first_record_has_its_topic_again(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    # GIVEN a topic that the first pipeline claims, and cannot write to because nobody has created it
    topic = f"{unique}-orders"
    create = {"create": {"enabled": False}}
    own = [f"{unique}{letter}.{what}" for letter in "ab" for what in ("checkpoint", "schemas", "message")]
    create_topics(broker.bootstrap_servers, *own, f"{unique}-claims", config={"cleanup.policy": "compact"})
    first = pipeline("a", topics=create, snapshot={"mode": "initial"})
    first.await_streaming()
    database.execute("INSERT INTO orders VALUES (1)")
    assert first.await_event("table.aside")["fault"] == "topic"
    first.kill()
    assert claims(broker, f"{unique}-claims") == [(f"{unique}a", topic, True)]
    # WHEN the second one starts meanwhile, it does not get the topic.
    second = pipeline("b", topics=create)
    second.await_streaming()
    database.execute("INSERT INTO orders VALUES (2)")
    assert second.await_event("table.aside")["fault"] == "claimed"
    # AND the first one has it, after the topic was created.
    create_topics(broker.bootstrap_servers, topic)
    first.start()
    await_ids(broker, topic, [1, 2])
    assert claims(broker, f"{unique}-claims") == [(f"{unique}a", topic, True)]


def test_a_topic_below_the_prefix_of_another_pipeline_is_refused_in_both_orders(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    # GIVEN a pipeline with a prefix, and another one whose names begin with it
    default = {"name": "{prefix}.{schema}.{table}"}
    first = pipeline("a", topics=default)
    first.await_streaming()
    second = pipeline("b", topics={"name": f"{unique}a.{{schema}}.{{table}}"})
    second.await_streaming()
    insert(database, first, 1)
    assert f"topic {unique}a.checkpoint shows" in second.await_event("table.aside")["reason"]
    await_ids(broker, f"{unique}a.public.orders", [1])
    # WHEN the names are claimed before the pipeline with that prefix comes
    third = pipeline("c", topics={"name": f"{unique}d.{{schema}}.{{table}}"})
    third.await_streaming()
    insert(database, third, 2)
    fourth = pipeline("d", topics=default)
    fourth.await_streaming()
    database.execute("INSERT INTO orders VALUES (3)")
    assert f"{unique}c" in fourth.await_event("table.aside", fault="claimed")["reason"]


def test_strangers_records_among_the_claims_are_told_and_take_no_topic_away(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    create_topics(broker.bootstrap_servers, f"{unique}-claims", config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value in [
        (b"[" * 3000, b"x"),
        (b"\xff", None),
        (b'{"topic":"x"}', b"{}"),
        (b"a", b"1" * 90_000),
    ]:
        producer.produce(f"{unique}-claims", key=key, value=value)
    producer.flush(60)
    process = pipeline("a")
    process.await_streaming()
    insert(database, process, 1)
    assert process.await_event("claims.ignored")["count"] == 4
    await_ids(broker, f"{unique}-orders", [1])
    assert process.stop() == 0


def test_a_table_that_is_removed_releases_its_claim_at_the_next_start(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    process = pipeline("a")
    process.await_streaming()
    insert(database, process, 1)
    assert process.stop() == 0
    database.execute("DROP TABLE orders")
    database.execute("CREATE TABLE lines (id int PRIMARY KEY)")
    process.start()
    assert process.await_event("topics.released")["topics"] == [f"{unique}-orders"]
    assert claims(broker, f"{unique}-claims")[-1] == (f"{unique}a", f"{unique}-orders", False)


def test_a_table_with_a_dot_in_its_name_keeps_its_claim_at_the_next_start(
    database: Database, broker: KafkaBroker, pipeline: Start, unique: str
) -> None:
    database.execute('ALTER TABLE orders RENAME TO "or.ders"')
    topic = f"{unique}-or.ders"
    process = pipeline("a", topics={"names": {'public."or.ders"': topic}})
    process.await_streaming()
    database.execute('INSERT INTO "or.ders" VALUES (1)')
    await_ids(broker, topic, [1])
    assert process.stop() == 0
    process.start()
    process.await_streaming()
    database.execute('INSERT INTO "or.ders" VALUES (2)')
    await_ids(broker, topic, [1, 2])
    assert claims(broker, f"{unique}-claims") == [(f"{unique}a", topic, True)]
