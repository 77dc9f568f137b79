"""The descriptions of tables, from a real catalog to the topic, in step with the changes that name them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cdcd.records.schemas import TableForm, read_form
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

Found = tuple[dict[str, TableForm], list[dict[str, Any]]]


def read(broker: KafkaBroker, name: str, changes: int) -> Found:
    """The descriptions by fingerprint, and the changes of `public.t`, when there are as many."""

    def look() -> Found | None:
        with Reader(broker.bootstrap_servers, name) as reader:
            reader._leave_out = frozenset({f"{name}.checkpoint"})
            records = list(reader.read_all())
        forms = dict(read_form(one.value or b"") for one in records if one.topic == f"{name}.schemas")
        found = [json.loads(one.value or b"") for one in records if one.topic == f"{name}.public.t"]
        return (forms, found) if len(found) >= changes else None

    return until(look, f"{changes} changes")


@pytest.mark.postgres(since=13)
def test_each_change_names_a_description_that_fits_it(
    database: Database, broker: KafkaBroker, daemon: Callable[[dict[str, Any]], Daemon], unique: str
) -> None:
    # GIVEN a table that changes its columns between its rows, in ways that rows do not show
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, price numeric(9,2))")
    config = configuration(unique, database.dsn(), broker.bootstrap_servers)
    process = daemon(config)
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (1, 1, 1)")
    read(broker, unique, 1)
    database.execute("ALTER TABLE t RENAME a TO b")
    database.execute("INSERT INTO t VALUES (2, 2, 2)")
    read(broker, unique, 2)
    database.execute("ALTER TABLE t DROP b, ADD b int DEFAULT 7")
    database.execute("INSERT INTO t VALUES (3, 3, 3)")
    read(broker, unique, 3)
    # AND a second life of the daemon
    assert process.stop() == 0
    process = daemon(config)
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (4, 4, 4)")

    # WHEN the topics are read
    forms, changes = read(broker, unique, 4)

    # THEN each change names the description of its time, with the columns' own numbers
    fitting = [forms[change["source"]["schema_id"]] for change in changes]
    assert [[(one.name, one.id, one.default) for one in form.columns] for form in fitting[:3]] == [
        [("id", 1, None), ("a", 2, None), ("price", 3, None)],
        [("id", 1, None), ("b", 2, None), ("price", 3, None)],
        [("id", 1, None), ("price", 3, None), ("b", 4, "7")],
    ]
    assert fitting[3] == fitting[2]
    assert fitting[0].columns[2].form == "decimal(9,2)"
    assert (fitting[0].topic, fitting[0].key) == (f"{unique}.public.t", ("id",))


@pytest.mark.postgres(only=18)
def test_descriptions_can_be_switched_off(
    database: Database, broker: KafkaBroker, daemon: Callable[[dict[str, Any]], Daemon], unique: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    process = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, topics={"schemas": False})
    )
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (1)")
    forms, (change,) = read(broker, unique, 1)
    assert forms == {}
    assert "schema_id" not in change["source"]
