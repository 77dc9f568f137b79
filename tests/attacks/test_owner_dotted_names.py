"""Who owns a schema with a dot in its name: the table `t` of `crm.x` is not the table `x.t` of `crm`."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from deploy.local import KafkaBroker
from tests.attacks.checkpoints import records_of
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration, until
from tests.integration.forked import run_cdcd

Start = Callable[[Mapping[str, Any]], Daemon]


def operations(broker: KafkaBroker, topic: str) -> list[tuple[str, int]]:
    """The operations of a topic's records with the ids of their rows; 0: the record has no row."""
    values = [json.loads(value) for _, value in records_of(broker, topic) if value]
    return [(value["op"], (value.get("after") or {"id": 0})["id"]) for value in values if "op" in value]


def run(process: Daemon, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_cdcd(*words, "--config", str(process.config_path), environment={**os.environ})


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.worst
@pytest.mark.attack(gains="a topic, without the protection of its columns", before="failed")
def test_a_schema_with_a_dot_is_not_among_the_tables_that_the_operator_includes(
    database: Database, broker: KafkaBroker, daemon: Start, unique: str
) -> None:
    # GIVEN a pipeline with the tables of one schema, whose columns are protected
    database.execute("CREATE SCHEMA crm; CREATE TABLE crm.orders (id int PRIMARY KEY, ssn text)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            tables={"include": ["crm.*"], "on_error": "set_aside"},
            columns={"exclude": ["crm.*.ssn"]},
            snapshot={"mode": "initial"},
        )
    )
    process.await_streaming()
    # WHEN a stranger's schema begins with the name of that one and a dot
    database.execute('CREATE SCHEMA "crm.x"; CREATE TABLE "crm.x".t (id int PRIMARY KEY, ssn text)')
    database.execute(
        """INSERT INTO "crm.x".t VALUES (666, 'in clear'); INSERT INTO crm.orders VALUES (1, 's')"""
    )
    # THEN the stranger's table has no topic, neither in the stream nor by a snapshot.
    until(lambda: operations(broker, f"{unique}.crm.orders") == [("c", 1)] or None, "the row beside it")
    asked = run(process, "snapshot", "start", "--table", '"crm.x".t')
    assert asked.returncode == 2, asked.stdout + asked.stderr
    assert process.stop() == 0
    topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=WAIT_S).topics
    assert f"{unique}.crm.x.t" not in topics


@pytest.mark.postgres(only=[18])
@pytest.mark.worst
@pytest.mark.attack(gains="the end of another table's rows in its topic, and its requests", before="failed")
def test_a_table_with_the_same_name_but_for_the_place_of_the_dot_takes_nothing_from_another_one(
    database: Database, broker: KafkaBroker, daemon: Start, unique: str
) -> None:
    # GIVEN a table with a dot in its name, and a topic of its own
    topic = f"{unique}.payments"
    database.execute(
        'CREATE SCHEMA crm; CREATE TABLE crm."x.t" (id int PRIMARY KEY); INSERT INTO crm."x.t" VALUES (1)'
    )
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            tables={"on_error": "set_aside"},
            topics={"names": {'crm."x.t"': topic}},
            snapshot={"mode": "initial", "added_tables": True},
        )
    )
    process.await_event("table.read", table='crm."x.t"')
    process.await_streaming()
    # WHEN a stranger makes a table whose schema and name, joined by a dot, are the same text
    database.execute('CREATE SCHEMA "crm.x"; CREATE TABLE "crm.x".t (id int PRIMARY KEY)')
    database.execute('INSERT INTO "crm.x".t VALUES (666); INSERT INTO crm."x.t" VALUES (2)')
    process.await_event("table.read", table='"crm.x".t')
    # AND the operator asks for the former table
    asked = run(process, "snapshot", "start", "--wait", "--table", 'crm."x.t"')
    assert asked.returncode == 0, asked.stdout + asked.stderr
    # THEN that table is read, and its topic has no other record: the rows of the table did not end.
    until(
        lambda: operations(broker, topic)[2:] == [("r", 1), ("r", 2)] or None, "the rows that were asked for"
    )
    assert operations(broker, topic)[:2] == [("r", 1), ("c", 2)]
    # AND the tables are compared each with its own topic.
    verified = run(process, "verify", "--format", "json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert {'crm."x.t"', '"crm.x".t'} <= {each["table"] for each in json.loads(verified.stdout)["tables"]}
    assert process.stop() == 0


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.attack(gains="a command for another table, which an operator pastes", before="failed")
def test_a_command_that_cdcd_prints_names_the_table_of_the_schema_with_the_dot(
    database: Database, broker: KafkaBroker, daemon: Start, unique: str
) -> None:
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    database.execute('CREATE SCHEMA crm; CREATE TABLE crm."x.t" (id int PRIMARY KEY)')
    database.execute('CREATE SCHEMA "crm.x"; CREATE TABLE "crm.x".t (id int PRIMARY KEY)')
    for table in ('crm."x.t"', '"crm.x".t'):
        told = process.await_event("table.added", table=table)
        assert told["command"] == f"cdcd snapshot start --table '{table}'"
