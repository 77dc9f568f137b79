"""Who can write into the topic with the claims, and who can create published tables where names choose topics."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cdcd.core.catalog.claims import Claimant
from cdcd.core.table_names import table_text
from deploy.local import KafkaBroker
from tests.attacks.checkpoints import records_of, write
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

pytestmark = pytest.mark.postgres(only=[18])

Start = Callable[[Mapping[str, Any]], Daemon]


def own_names(database: Database, broker: KafkaBroker, unique: str) -> dict[str, Any]:
    return configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        topics={"name": f"{unique}-{{table}}", "claims": f"{unique}-claims"},
        tables={"on_error": "set_aside"},
        snapshot={"mode": "initial"},
    )


def rows(broker: KafkaBroker, topic: str) -> set[int]:
    values = [json.loads(value) for _, value in records_of(broker, topic) if value]
    return {value["after"]["id"] for value in values if value["op"] != "t"}


@pytest.mark.attack(gains="one table stands still, and rows are lost or mixed in silence", before="withstood")
def test_forged_claims_stop_the_table_by_name_and_lose_nothing(
    database: Database, broker: KafkaBroker, daemon: Start, unique: str
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE lines (id int PRIMARY KEY)")
    process = daemon(own_names(database, broker, unique))
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1); INSERT INTO lines VALUES (1)")
    until(lambda: rows(broker, f"{unique}-orders") == {1} or None, "the first row")
    # WHEN somebody releases the claim in the pipeline's name, and claims the topic for a pipeline that does not exist
    mine, forged = Claimant(unique, f"{unique}.checkpoint"), Claimant("\u202enobody\n", "x")
    topic = f"{unique}-orders"
    write(broker, f"{unique}-claims", [(mine.key(topic), None), (forged.key(topic), forged.value("", 0))])
    # THEN the daemon that runs goes on
    database.execute("INSERT INTO orders VALUES (2)")
    until(lambda: rows(broker, topic) == {1, 2} or None, "the second row")
    assert process.stop() == 0
    # AND the next one sets the table aside, by the forged name without its hidden characters, and delivers the other.
    process.start()
    database.execute("INSERT INTO orders VALUES (3); INSERT INTO lines VALUES (2)")
    reason = process.await_event("table.aside", table="public.orders")["reason"]
    assert "nobody" in reason
    assert reason.isprintable()
    until(lambda: rows(broker, f"{unique}-lines") == {1, 2} or None, "the other table")
    assert rows(broker, topic) == {1, 2}
    # WHEN the forged claim is released, the table comes back with every row.
    write(broker, f"{unique}-claims", [(forged.key(topic), None)])
    process.await_event("table.returned", table="public.orders")
    until(lambda: rows(broker, topic) == {1, 2, 3} or None, "all rows")
    assert process.stop() == 0


@pytest.mark.attack(gains="rows in a topic of Kafka's, of a registry or among the claims", before="withstood")
def test_a_table_cannot_choose_a_topic_of_kafkas_or_of_cdcd(
    database: Database, broker: KafkaBroker, daemon: Start, unique: str
) -> None:
    config = own_names(database, broker, unique)
    config["topics"]["name"] = "{table}"
    process = daemon(config)
    process.await_streaming()
    bad = ("__consumer_offsets", "_schemas", f"{unique}-claims", f"{unique}.checkpoint")
    for name in bad:
        database.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY); INSERT INTO "{name}" VALUES (1)')
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY); INSERT INTO "{unique}" VALUES (1)')
    for name in bad:
        assert process.await_event("table.aside", table=table_text("public", name))["fault"] == "name"
    until(lambda: rows(broker, unique) == {1} or None, "the table with a harmless name")
    assert not any(b'"after"' in (value or b"") for _, value in records_of(broker, f"{unique}-claims"))
