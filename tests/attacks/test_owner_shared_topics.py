"""Who owns a schema whose tables share a topic: other names than those of the patterns do not get into the topic."""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from cdcd.core.table_names import table_text
from deploy.local import KafkaBroker
from tests.attacks.checkpoints import records_of
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=[18])

Start = Callable[[Mapping[str, Any]], Daemon]


def rows(broker: KafkaBroker, topic: str) -> set[tuple[str, int]]:
    values = [json.loads(value) for _, value in records_of(broker, topic) if value]
    return {(value["source"]["table"], value["after"]["id"]) for value in values if value["op"] != "t"}


@pytest.mark.attack(
    gains="rows in a topic that other tables share, or a key of another table there", before="withstood"
)
def test_a_table_gets_into_a_shared_topic_by_no_name_that_the_patterns_lack(
    database: Database, broker: KafkaBroker, daemon: Start, unique: str
) -> None:
    # GIVEN two tables in one topic, and a rule that would rename the topics of others to it
    topic = f"{unique}.public.all_orders"
    for name in ("orders_eu", "orders_us"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        tables={"on_error": "set_aside"},
        snapshot={"mode": "initial"},
        topics={
            "shared": {topic: {"tables": ["public.orders_eu", "public.orders_us"]}},
            "rename": [{"regex": ".*renamed.*", "replacement": topic}],
            "claims": f"{unique}-claims",
        },
    )
    process = daemon(config)
    process.await_streaming()
    # WHEN tables have the topic by their names, by the rule, or one that is the same to Kafka
    bad = ("all_orders", "all.orders", "renamed")
    for name in bad:
        database.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY); INSERT INTO "{name}" VALUES (666)')
    # AND tables have names that look like shares of the topic, or that of another schema
    odd = ("all_orders/public.orders_eu", "orders_eu/x", "orders_*")
    for name in odd:
        database.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY); INSERT INTO "{name}" VALUES (667)')
    database.execute("CREATE SCHEMA evil; CREATE TABLE evil.orders_eu (id int PRIMARY KEY)")
    database.execute("INSERT INTO evil.orders_eu VALUES (668)")
    database.execute("INSERT INTO orders_eu VALUES (1); INSERT INTO orders_us VALUES (1)")

    def found(topic: str, wanted: set[tuple[str, int]]) -> bool | None:
        return rows(broker, topic) == wanted or None

    # THEN they are set aside by name, or have topics of their own, and the topic has the rows of its tables only.
    for name in bad:
        assert process.await_event("table.aside", table=table_text("public", name))["fault"] == "name"
    until(lambda: rows(broker, topic) == {("orders_eu", 1), ("orders_us", 1)} or None, "the two rows")
    until(
        lambda: rows(broker, f"{unique}.evil.orders_eu") == {("orders_eu", 668)} or None, "the other schema"
    )
    for name in odd:
        own = f"{unique}.public.{name}".replace("/", "_").replace("*", "_")
        until(partial(found, own, {(name, 667)}), f"the rows of {name}")
    assert rows(broker, topic) == {("orders_eu", 1), ("orders_us", 1)}
    # AND an owner of a table that the patterns name cannot leave the others without their fates.
    database.execute("DROP TABLE orders_us; ALTER TABLE all_orders RENAME TO orders_us")
    database.execute("INSERT INTO orders_us VALUES (2); INSERT INTO orders_eu VALUES (2)")
    until(lambda: ("orders_eu", 2) in rows(broker, topic) or None, "the table beside it")
    assert process.stop() == 0


@pytest.mark.attack(
    gains="no comparison of any table, by a table with the topic of another one", before="failed"
)
def test_verify_compares_the_others_where_a_table_would_have_the_topic_of_another_one(
    database: Database, broker: KafkaBroker, daemon: Start, unique: str
) -> None:
    # GIVEN a table, and another one whose name is first in the alphabet and the same to Kafka
    for name in ("orders_eu", "orders.eu", "others"):
        database.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY); INSERT INTO "{name}" VALUES (1)')
    settings = {"tables": {"on_error": "set_aside"}, "snapshot": {"mode": "initial"}}
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers, **settings))
    process.await_event("table.aside", table='public."orders.eu"')
    process.await_event("snapshot.finished")
    # WHEN the topics are compared with the tables
    compared = run_cdcd(
        "verify", "--config", str(process.config_path), "--format", "json", environment={**os.environ}
    )
    # THEN both other tables are equal, and the report says why this one is not compared
    assert compared.returncode == 12, compared.stderr
    found = {each["table"]: each for each in json.loads(compared.stdout)["tables"]}
    assert [
        len(found[f"public.{name}"]["not_compared"]) for name in ("orders_eu", "others", '"orders.eu"')
    ] == [
        0,
        0,
        1,
    ]
    assert "cdcd tables resume" in found['public."orders.eu"']["not_compared"][0]
    assert process.stop() == 0
