"""The descriptions of tables, from a real catalog to the topic, in step with the changes that name them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cdcd.core.records.schemas import TableForm, read_form
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

Found = tuple[dict[str, TableForm], list[dict[str, Any]]]


def read(broker: KafkaBroker, name: str, changes: int) -> Found:
    """The descriptions by fingerprint, and the changes of `public.t`.

    It waits until there are as many changes and the descriptions that they name. The topics are not read as of one
    moment, so a change may be there before its description is.
    """

    def look() -> Found | None:
        with Reader(broker.bootstrap_servers, name) as reader:
            reader._leave_out = frozenset({f"{name}.checkpoint"})
            records = list(reader.read_all())
        forms = dict(read_form(one.value or b"") for one in records if one.topic == f"{name}.schemas")
        found = [json.loads(one.value or b"") for one in records if one.topic == f"{name}.public.t"]
        described = all(one["source"].get("schema_id") in {None, *forms} for one in found)
        return (forms, found) if len(found) >= changes and described else None

    return until(look, f"{changes} changes and their descriptions")


@pytest.mark.postgres(only=18, also=[13, 14, 15, 16, 17])
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
def test_columns_that_got_other_names_while_the_daemon_was_away_keep_their_numbers(
    database: Database, broker: KafkaBroker, daemon: Callable[[dict[str, Any]], Daemon], unique: str
) -> None:
    # GIVEN a table of which a column was dropped once, described by a run of the daemon
    database.execute("CREATE TABLE t (id int PRIMARY KEY, gone int, v text, u text)")
    database.execute("ALTER TABLE t DROP gone")
    config = configuration(unique, database.dsn(), broker.bootstrap_servers)
    process = daemon(config)
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (1, 'v', 'u')")
    read(broker, unique, 1)
    assert process.stop() == 0
    # AND a row from while it is away, after which columns swap names, one is renamed, and one is added
    database.execute("INSERT INTO t VALUES (2, 'v', 'u')")
    database.execute("ALTER TABLE t RENAME v TO w")
    database.execute("INSERT INTO t VALUES (3, 'v', 'u')")
    database.execute("ALTER TABLE t RENAME w TO a")
    database.execute("ALTER TABLE t RENAME u TO v")
    database.execute("ALTER TABLE t RENAME a TO u")
    database.execute("ALTER TABLE t ADD x int")
    database.execute("INSERT INTO t VALUES (4, 'v', 'u', 5)")

    # WHEN another run delivers them, when the catalog has but the last names
    process = daemon(config)
    process.await_streaming()
    forms, changes = read(broker, unique, 4)

    # THEN each description has the numbers, and the relation's oid
    fitting = [forms[change["source"]["schema_id"]] for change in changes]
    assert [[(column.name, column.id) for column in form.columns] for form in fitting] == [
        [("id", 1), ("v", 3), ("u", 4)],
        [("id", 1), ("v", 3), ("u", 4)],
        [("id", 1), ("w", 3), ("u", 4)],
        [("id", 1), ("u", 3), ("v", 4), ("x", 5)],
    ]
    ((oid,),) = database.execute("SELECT 't'::regclass::oid::int8")
    assert {form.oid for form in fitting} == {oid}


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


@pytest.mark.postgres(only=18, also=[13, 14, 15, 16, 17])
def test_labels_of_enums_are_described_when_they_change_though_no_row_does(
    database: Database, broker: KafkaBroker, daemon: Callable[[dict[str, Any]], Daemon], unique: str
) -> None:
    # GIVEN a table with an enum, a domain over it and an array of it, and one row
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.execute("CREATE DOMAIN feeling AS mood")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, one mood, many mood[], felt feeling)")
    config = configuration(unique, database.dsn(), broker.bootstrap_servers)
    process = daemon(config)
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (1, 'sad', '{ok}', 'sad')")
    read(broker, unique, 1)

    def described(*labels: str) -> bool | None:
        forms, _ = read(broker, unique, 1)
        newest = list(forms.values())[-1]
        assert newest.columns[0].labels == ()
        found = [[label for _, label in column.labels] for column in newest.columns[1:]]
        return found == [list(labels)] * 3 or None

    # WHEN a label is renamed, and another one while the daemon is away
    database.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    # THEN the table is described with them, though nothing else happened
    until(lambda: described("blue", "ok"), "the renamed label")
    assert process.stop() == 0
    database.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    process = daemon(config)
    process.await_streaming()
    until(lambda: described("blue", "fine"), "the label that was renamed meanwhile")
    # AND the next change names that description
    database.execute("INSERT INTO t VALUES (2, 'fine', '{}', NULL)")
    forms, changes = read(broker, unique, 2)
    assert [label for _, label in forms[changes[1]["source"]["schema_id"]].columns[1].labels] == [
        "blue",
        "fine",
    ]
