"""Records that a table's topic cannot have go to the dead letters, by choice, and the table goes on."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd
from tests.integration.test_avro import ids
from tests.integration.visible_records import messages
from tests.schema_registry import SchemaRegistry

pytestmark = pytest.mark.postgres(only=[18])

Letter = tuple[dict[str, str], Any, Any]
"""Headers, key and value of a dead letter."""


def letters(broker: KafkaBroker, topic: str) -> list[Letter]:
    """The dead letters in JSON that a `read_committed` reader finds in the topic's only partition."""
    found: list[Letter] = []
    for message in messages(broker.bootstrap_servers, topic):
        pairs: Any = message.headers() or ()
        headers = {name: value.decode() for name, value in pairs}
        found.append((headers, json.loads(message.key() or b"null"), json.loads(message.value() or b"null")))
    return found


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_records_of_a_refused_schema_are_dead_letters_until_a_start_finds_it_accepted(
    database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str, delivery: str
) -> None:
    topic, dead = f"{unique}.public.orders", f"{unique}.dead_letter"
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE other (id int PRIMARY KEY)"
    )
    database.execute("INSERT INTO orders VALUES (1, 'before')")
    with SchemaRegistry() as registry:
        process = daemon(
            configuration(
                unique,
                database.dsn(),
                broker.bootstrap_servers,
                format={"value": "avro"},
                registry={"url": registry.url},
                kafka={"dead_letters": ["schemas"], "delivery": delivery},
                snapshot={"mode": "initial"},
                tables={"on_error": "set_aside"},
            )
        )
        process.await_streaming()
        until(lambda: ids(broker.bootstrap_servers, topic, registry) == [1] or None, "the first row")
        # WHEN the registry refuses the schema of the table as it was altered
        registry.refusing.add(f"{topic}-value")
        database.execute(
            "BEGIN; ALTER TABLE orders ADD more int; INSERT INTO orders VALUES (2, 'a', 3); "
            "INSERT INTO other VALUES (2); UPDATE orders SET note = 'b' WHERE id = 1; COMMIT"
        )
        told = process.await_event("table.refused")
        assert (told["table"], f"{topic}-value" in told["reason"]) == ("public.orders", True)
        until(lambda: len(letters(broker, dead)) == 2 or None, "two dead letters")
        # AND it is killed: the next process asks again, and goes on in the same way.
        process.kill()
        process.start()
        process.await_streaming()
        database.execute("DELETE FROM orders WHERE id = 2; INSERT INTO other VALUES (3)")
        until(lambda: len(letters(broker, dead)) >= 4 or None, "the delete, and its tombstone")
        until(
            lambda: ids(broker.bootstrap_servers, f"{unique}.public.other", registry) == [2, 3] or None,
            "other",
        )
        found = letters(broker, dead)
        assert [
            value and (value["op"], (value["after"] or value["before"])["id"]) for _, _, value in found
        ] == [
            ("c", 2),
            ("u", 1),
            ("d", 2),
            None,
        ]
        assert [key for _, key, _ in found] == [{"id": 2}, {"id": 1}, {"id": 2}, {"id": 2}]
        assert {headers["cdcd.topic"] for headers, _, _ in found} == {topic}
        assert all(headers["cdcd.reason"].startswith("schemas: ") for headers, _, _ in found)
        assert process.metrics()["cdcd_events_total"]["dead_letter", "public.orders"] >= 1
        assert not process.saw("table.aside")
        # WHEN the registry accepts the schema, a start goes on in the table's topic, without those in between.
        assert process.stop() == 0
        registry.refusing.clear()
        process.start()
        process.await_streaming()
        database.execute("INSERT INTO orders VALUES (4, 'd', 4)")
        until(lambda: ids(broker.bootstrap_servers, topic, registry) == [1, 4] or None, "the new row")
        assert len(letters(broker, dead)) == 4
        assert process.stop() == 0


def test_a_record_with_a_value_that_has_no_form_is_a_dead_letter_and_verify_does_not_say_equal(
    database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
) -> None:
    topic, dead = f"{unique}.public.prices", f"{unique}.dead_letter"
    database.execute("CREATE TABLE prices (id int PRIMARY KEY, price numeric(6,2))")
    database.execute("INSERT INTO prices VALUES (1, 1), (2, 'NaN')")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            format={"decimal_handling_mode": "precise"},
            kafka={"dead_letters": ["values"]},
            snapshot={"mode": "initial"},
        )
    )
    process.await_streaming()
    database.execute(
        "INSERT INTO prices VALUES (3, 'NaN'), (4, 4); UPDATE prices SET price = 'NaN' WHERE id = 1"
    )
    until(lambda: len(letters(broker, dead)) == 3 or None, "three dead letters")
    found = letters(broker, dead)
    assert [(value["op"], value["after"]) for _, _, value in found] == [
        ("r", {"id": 2, "price": None}),
        ("c", {"id": 3, "price": None}),
        ("u", {"id": 1, "price": None}),
    ]
    assert {headers["cdcd.unwritable"] for headers, _, _ in found} == {'["price"]'}
    assert {headers["cdcd.topic"] for headers, _, _ in found} == {topic}
    until(lambda: [row["id"] for row in rows(broker, topic)] == [1, 4] or None, "the rows of the table")
    compared = run_cdcd("verify", "--config", str(process.config_path))
    assert compared.returncode == 10, compared.stdout + compared.stderr
    assert process.stop() == 0


def rows(broker: KafkaBroker, topic: str) -> list[dict[str, Any]]:
    return [value["after"] for _, _, value in letters(broker, topic) if value]
