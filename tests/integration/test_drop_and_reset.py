"""`cdcd drop` and `cdcd reset` against real servers: what they remove, what they leave, and when they refuse."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration, drop_slot, until
from tests.integration.forked import run_cdcd
from tests.integration.kafka_rights import allow
from tests.integration.visible_records import await_readable


def cdcd(file: Path, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run_cdcd(command, "--config", str(file), *options, environment={**os.environ, "COLUMNS": "200"})


def topics(broker: KafkaBroker, prefix: str) -> set[str]:
    listed = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=30).topics
    return {name for name in listed if name.startswith(f"{prefix}.")}


def await_topics(broker: KafkaBroker, prefix: str, wanted: set[str]) -> None:
    """The broker's list follows some milliseconds after the answer to a deletion (KIP-500)."""
    until(lambda: topics(broker, prefix) == wanted or None, f"the topics never were {wanted}")


def slots(database: Database, name: str) -> list[tuple[object, ...]]:
    return database.execute(f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = '{name}'")


def ops(broker: KafkaBroker, topic: str) -> list[str]:
    with Reader(broker.bootstrap_servers, topic.split(".", maxsplit=1)[0]) as reader:
        return [json.loads(raw.value)["op"] for raw in reader.read_all() if raw.topic == topic and raw.value]


@pytest.fixture
def stopped(database: Database, broker: KafkaBroker, daemon, unique: str) -> Daemon:
    """A pipeline that has delivered three rows and a change, and was stopped."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("INSERT INTO orders VALUES (1), (2), (3)")
    process: Daemon = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot={"mode": "initial"})
    )
    process.await_event("table.read", table="public.orders", rows=3)
    database.execute("INSERT INTO orders VALUES (4)")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.orders")
    # WHILE it runs, nothing is taken from it.
    for command in ("drop", "reset"):
        refused = cdcd(process.config_path, command, "--yes")
        assert refused.returncode == 7, refused.stderr
        assert "An instance of the pipeline is active" in refused.stderr
    assert process.stop() == 0
    return process


@pytest.mark.postgres(only=18, also=[13])
def test_what_is_dropped_is_shown_first_and_gone_then(
    database: Database, broker: KafkaBroker, stopped: Daemon, unique: str
):
    before = topics(broker, unique)
    shown = cdcd(stopped.config_path, "drop")
    assert shown.returncode == 0, shown.stderr
    assert f"slot cdcd_{unique}" in shown.stdout
    assert shown.stdout.endswith("Nothing was changed. Run the same command with --yes to do it.\n")
    assert len(slots(database, f"cdcd_{unique}")) == 1
    assert topics(broker, unique) == before
    # WHEN it is done
    done = cdcd(stopped.config_path, "drop", "--yes")
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("done: ")] == [
        "slot",
        "the",
        "topic",
        "publication",
    ]
    assert slots(database, f"cdcd_{unique}") == []
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    await_topics(broker, unique, before - {f"{unique}.checkpoint"})
    # AND once more, there is nothing.
    again = cdcd(stopped.config_path, "drop", "--yes")
    assert (again.returncode, "There is nothing of pipeline" in again.stdout) == (0, True)


@pytest.mark.postgres(only=18)
def test_what_somebody_else_made_stays(database: Database, broker: KafkaBroker, daemon, unique: str):
    # GIVEN a publication of a DBA, and a topic of another pipeline with a similar prefix
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE orders')
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1)")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.orders")
    process.stop()
    other = f"{unique}.eu.public.orders"
    create_topics(broker.bootstrap_servers, other)
    done = cdcd(process.config_path, "drop", "--topics", "--yes")
    assert done.returncode == 0, done.stderr
    await_topics(broker, unique, {other})
    assert database.execute("SELECT count(*) FROM pg_publication") == [(1,)]
    assert f"{other}: it is not known whether pipeline" in done.stdout
    assert "it is not known whether cdcd created it" in done.stdout


@pytest.mark.postgres(only=18, also=[13])
def test_what_may_not_be_removed_is_named_before_and_the_rest_is_removed(
    database: Database, private_broker, daemon, unique: str
):
    # GIVEN a pipeline with the documented rights, without the right to delete topics
    password = "5asl-5ecret"
    broker = private_broker(users={"cdcd": password})
    rights = [
        (ResourceType.TOPIC, f"{unique}.", ResourcePatternType.PREFIXED, AclOperation.WRITE),
        (ResourceType.TOPIC, f"{unique}.", ResourcePatternType.PREFIXED, AclOperation.CREATE),
        (ResourceType.TOPIC, f"{unique}.", ResourcePatternType.PREFIXED, AclOperation.READ),
        (ResourceType.TRANSACTIONAL_ID, f"cdcd-{unique}", ResourcePatternType.LITERAL, AclOperation.WRITE),
    ]
    allow(
        broker.admin_bootstrap_servers,
        [
            AclBinding(kind, name, pattern, "User:cdcd", "*", operation, AclPermissionType.ALLOW)
            for kind, name, pattern, operation in rights
        ],
    )
    role = f"drops_{unique}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        database.execute(
            f"GRANT CREATE ON DATABASE {database.name} TO {role}; GRANT CREATE ON SCHEMA public TO {role}"
        )
        database.execute(f"CREATE TABLE orders (id int PRIMARY KEY); ALTER TABLE orders OWNER TO {role}")
        config = configuration(unique, database.dsn(user=role), broker.bootstrap_servers)
        config["postgres"]["tables"] = ["public.orders"]
        config["kafka"]["properties"] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "cdcd",
            "sasl.password": password,
        }
        process = daemon(config)
        process.await_streaming()
        database.execute("INSERT INTO orders VALUES (1)")
        process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.orders")
        assert process.stop() == 0
        # AND WHEN somebody gave the publication to another role
        database.execute(f'ALTER PUBLICATION "cdcd_{unique}" OWNER TO CURRENT_USER')
        shown = cdcd(process.config_path, "drop", "--topics")
        assert shown.returncode == 0, shown.stderr
        plan = " ".join(shown.stdout.split())
        for why in ("it belongs to role postgres", "this principal may not delete them"):
            assert why in plan
        # THEN the rest is removed, and the command does not fail at its end
        done = cdcd(process.config_path, "drop", "--topics", "--yes")
        assert done.returncode == 0, done.stderr
        assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("done: ")] == [
            "slot",
            "the",
        ]
        assert slots(database, f"cdcd_{unique}") == []
        assert database.execute("SELECT count(*) FROM pg_publication") == [(1,)]
        # AND the commands that the plan names remove what is left
        database.execute(plan.partition("As that role or a superuser: ")[2].partition(";")[0])
        assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    finally:
        database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.mark.postgres(only=[13, 18])
def test_a_reset_pipeline_begins_anew_in_the_same_topics(
    database: Database, broker: KafkaBroker, stopped: Daemon, unique: str
):
    done = cdcd(stopped.config_path, "reset", "--yes")
    assert done.returncode == 0, done.stderr
    assert slots(database, f"cdcd_{unique}") == []
    stopped.start()
    stopped.await_event("table.read", table="public.orders", rows=4)
    stopped.await_streaming()
    topic, wanted = f"{unique}.public.orders", ["r"] * 3 + ["c"] + ["r"] * 4
    await_readable(broker.bootstrap_servers, topic, len(wanted))
    assert stopped.stop() == 0
    assert ops(broker, topic) == wanted


@pytest.mark.postgres(only=18)
def test_a_reset_that_stopped_in_the_middle_is_run_again(
    database: Database, broker: KafkaBroker, stopped: Daemon, unique: str
):
    # GIVEN that only the slot was dropped: the daemon refuses to go on
    drop_slot(database.dsn(), f"cdcd_{unique}")
    stopped.start()
    assert stopped.wait() == 6
    # WHEN the command is run again, THEN it does the rest
    done = cdcd(stopped.config_path, "reset", "--yes")
    assert done.returncode == 0, done.stderr
    assert "done: the checkpoint" in done.stdout
    stopped.start()
    stopped.await_event("table.read", table="public.orders", rows=4)


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_where_kafka_is_away_nothing_is_taken_away(
    database: Database, stopped: Daemon, unique: str, tmp_path: Path
):
    file = tmp_path / "away.yaml"
    file.write_text(
        f"name: {unique}\npostgres: {{dsn: '{database.dsn()}'}}\nkafka: {{bootstrap_servers: '127.0.0.1:1'}}\n"
    )
    refused = cdcd(file, "drop", "--yes")
    assert refused.returncode == 4
    assert "Nothing was removed" in refused.stderr
    assert len(slots(database, f"cdcd_{unique}")) == 1
