"""deploy/sql: what a database administrator runs, and that it is enough for the daemon."""

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from psycopg.conninfo import make_conninfo

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker, client_program
from deploy.local.cache import REPOSITORY
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

DEPLOY = REPOSITORY / "deploy"


def psql(database: Database, script: str, **variables: str) -> str:
    """What it printed; the script is read as psql reads a file, `:name` and all."""
    settings = [f"--set={name}={value}" for name, value in variables.items()]
    done = subprocess.run(
        [client_program("psql"), "--no-psqlrc", "--dbname", database.dsn(), *settings, "--file", "-"],
        input=script,
        env={**os.environ, "CDCD_PASSWORD": "cdcd"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.fixture
def role(database: Database, unique: str) -> Iterator[str]:
    """A name for a role, which is gone before its database is."""
    yield unique
    database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{unique}'")
    database.execute(f'DROP OWNED BY "{unique}"')
    until(lambda: database.execute(f'DROP ROLE "{unique}"') == [] or None, "the role is still used")


@pytest.mark.postgres(only=[13, 18])
def test_what_compose_runs_makes_a_database_that_the_daemon_can_deliver_from(
    database: Database,
    broker: KafkaBroker,
    daemon: Callable[[dict[str, Any]], Daemon],
    role: str,
) -> None:
    # GIVEN role, tables, publication and heartbeat as compose.yaml makes them
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    script = compose["configs"]["init"]["content"].replace("/sql/", f"{DEPLOY}/sql/")
    psql(database, script, role=role)
    sections = configuration(
        role,
        make_conninfo(database.dsn(), user=role, password="cdcd"),
        broker.bootstrap_servers,
        postgres={"publication": "cdcd_shop"},
        snapshot={"mode": "initial"},
    )
    database.execute("INSERT INTO customers (name) VALUES ('Eve')")

    # WHEN the daemon runs as that role
    process = daemon(sections)
    process.await_event("table.read", table="public.customers", rows=1)
    process.await_streaming()
    database.execute("INSERT INTO customers (name) VALUES ('Ada')")
    database.execute("SELECT cdcd_heartbeat()")
    # The heartbeat comes behind the row.
    await_flushed(database.dsn(), f"cdcd_{role}")
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.customers")
    assert process.stop() == 0

    # THEN its row has come, and the heartbeat where the server sends messages
    with Reader(broker.bootstrap_servers, role) as reader:
        topics = {raw.topic.removeprefix(f"{role}.") for raw in reader.read_all()}
    assert topics == {"public.customers"} | ({"message"} if database.version >= 14 else set())


@pytest.mark.postgres(only=18)
def test_the_role_can_replicate_and_nothing_else(database: Database, role: str) -> None:
    psql(database, (DEPLOY / "sql" / "role.sql").read_text(), role=role, password="it's me")
    database.execute("CREATE TABLE secret (id int)")
    ((replicates, *powers),) = database.execute(
        "SELECT rolreplication, rolsuper, rolcreatedb, rolcreaterole, rolbypassrls FROM pg_roles "
        f"WHERE rolname = '{role}'"
    )
    assert replicates
    assert not any(powers)
    assert database.execute(f"SELECT has_table_privilege('{role}', 'secret', 'SELECT')") == [(False,)]


@pytest.mark.postgres(only=[13, 18])
def test_the_publications_script_names_the_tables_that_cannot_be_updated_any_more(
    database: Database,
) -> None:
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    database.execute("CREATE TABLE keyless (id int)")
    database.execute("CREATE TABLE whole (id int); ALTER TABLE whole REPLICA IDENTITY FULL")
    database.execute(
        "CREATE TABLE nothing (id int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING"
    )
    said = psql(
        database,
        (DEPLOY / "sql" / "publication.sql").read_text(),
        publication="shop",
        tables='keyed, keyless, whole, "nothing"',
    )
    assert [line.strip() for line in said.splitlines() if "public." in line] == [
        "public.keyless",
        "public.nothing",
    ]


@pytest.mark.postgres(only=[13, 18])
def test_the_role_may_read_the_partitions_of_a_published_table(database: Database, role: str) -> None:
    database.execute(f'CREATE ROLE "{role}"')
    database.execute("CREATE TABLE events (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE SCHEMA old")
    database.execute("CREATE TABLE old.first PARTITION OF events FOR VALUES FROM (1) TO (9)")
    database.execute("CREATE TABLE plain (id int PRIMARY KEY)")
    database.execute("CREATE TABLE secret (id int PRIMARY KEY)")
    for script in ("publication.sql", "snapshot.sql"):
        psql(
            database,
            (DEPLOY / "sql" / script).read_text(),
            publication="shop",
            tables="events, plain",
            role=role,
        )
    readable = database.execute(
        f"SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND has_table_privilege('{role}', oid, 'SELECT') "
        "AND relnamespace IN ('public'::regnamespace, 'old'::regnamespace) ORDER BY 1"
    )
    assert readable == [("events",), ("first",), ("plain",)]
    assert database.execute(f"SELECT has_schema_privilege('{role}', 'old', 'USAGE')") == [(True,)]


@pytest.mark.postgres(only=18)
def test_the_generator_of_compose_writes_what_its_tables_take(database: Database) -> None:
    configs = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["configs"]
    psql(
        database,
        "\n".join(
            line for line in configs["init"]["content"].splitlines() if line.startswith("CREATE TABLE")
        ),
    )
    psql(database, configs["shop"]["content"] * 30)
    ((customers, changed, orders),) = database.execute(
        "SELECT count(*), count(*) FILTER (WHERE email LIKE 'new%'), (SELECT count(*) FROM orders) FROM customers"
    )
    assert customers == 90
    assert changed > 0
    assert orders > 0
