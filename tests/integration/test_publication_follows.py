"""`postgres.publication_changes`: the publication of a running pipeline follows the configuration."""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cdcd.config.loading import load_config
from cdcd.tools.operations.sides import peek
from deploy.demo.fold import await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from deploy.local.cache import REPOSITORY
from tests.integration.conftest import Database
from tests.integration.daemon import BUSY_S, Daemon, configuration, until
from tests.integration.test_deploy_sql import psql

pytestmark = pytest.mark.postgres(only=18, also=[13])

StartDaemon = Callable[[Mapping[str, Any]], Daemon]

READ_S = 10 + BUSY_S
"""Seconds in which a new table is read. The limit is 10 on a machine that does nothing else."""


def members(database: Database, publication: str) -> set[str]:
    return {
        f"{schema}.{name}"
        for schema, name in database.execute(
            f"SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = '{publication}'"
        )
    }


def settings(
    unique: str, dsn: str, broker: KafkaBroker, *, changes: str = "owner", **sections: Any
) -> dict[str, Any]:
    postgres = {"publication_changes": changes, "tables": ["app.*"], **sections.pop("postgres", {})}
    return configuration(
        unique, dsn, broker.bootstrap_servers, postgres=postgres, snapshot={"mode": "initial"}, **sections
    )


@pytest.fixture
def app(database: Database, unique: str) -> Database:
    """A schema of one table, with a publication of it, and a role that owns them and may replicate."""
    run = database.execute
    role = f"{unique[:50]}_o"
    run(f'CREATE ROLE "{role}" LOGIN REPLICATION')
    run(f'GRANT CREATE ON DATABASE "{database.name}" TO "{role}"')
    run(f'CREATE SCHEMA app AUTHORIZATION "{role}"')
    run("CREATE TABLE app.first (id int PRIMARY KEY); INSERT INTO app.first VALUES (1)")
    run(f'ALTER TABLE app.first OWNER TO "{role}"')
    run(f'SET ROLE "{role}"; CREATE PUBLICATION "cdcd_{unique}" FOR TABLE app.first')
    return database


def owner(unique: str) -> str:
    return f"{unique[:50]}_o"


def rows(broker: KafkaBroker, prefix: str) -> dict[str, list[Any]]:
    """The ids of the records of each topic of a table."""
    found: dict[str, list[Any]] = {}
    with Reader(broker.bootstrap_servers, prefix) as reader:
        for raw in reader.read_all():
            value = json.loads(raw.value) if raw.value else {}
            if value.get("after"):
                found.setdefault(raw.topic.removeprefix(f"{prefix}."), []).append(value["after"]["id"])
    return found


def test_a_new_table_is_published_and_read_and_one_that_no_longer_matches_leaves(
    app: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    publication = f"cdcd_{unique}"
    user = owner(unique)
    process = daemon(
        settings(unique, app.dsn(user=user), broker, tables={"exclude": ["app.*_old", "app.tmp_*"]})
    )
    process.await_streaming()

    # WHEN tables are created while the pipeline runs, one with an odd name, one without a key, two that do not match
    began = time.monotonic()
    app.execute(
        f"""SET ROLE "{user}"; CREATE TABLE app."Odd ""Name" (id int PRIMARY KEY);
        INSERT INTO app."Odd ""Name" VALUES (7); CREATE TABLE app.keyless (id int);
        CREATE TABLE app.tmp_1 (id int PRIMARY KEY)"""
    )
    app.execute("CREATE TABLE public.other (id int PRIMARY KEY)")

    # THEN the one that matches is published and read, and the keyless one is told with its statement
    process.await_event("table.read", table='app.Odd "Name', rows=1)
    assert time.monotonic() - began < READ_S
    assert members(app, publication) == {"app.first", 'app.Odd "Name'}
    changed = process.await_event("publication.changed")
    assert (changed["added"], changed["dropped"]) == (['app.Odd "Name'], [])
    differs = process.await_event("publication.differs")
    assert differs["lacking"] == ["app.keyless"]
    assert "replica identity" in differs["reason"]

    # WHEN a person runs the statement of the event
    app.execute(differs["command"])
    assert members(app, publication) == {"app.first", 'app.Odd "Name', "app.keyless"}

    # WHEN a published table gets a name that does not match, THEN it leaves the publication
    app.execute("ALTER TABLE app.first RENAME TO first_old")
    process.await_event("publication.changed", dropped=["app.first_old"])
    assert members(app, publication) == {'app.Odd "Name', "app.keyless"}

    # AND changes of the new table stream
    app.execute("""INSERT INTO app."Odd ""Name" VALUES (8)""")
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", 'app.Odd "Name')
    assert process.stop() == 0


def newest_member(process: Daemon) -> int:
    checkpoint = peek(load_config(process.config_path, os.environ))
    return 0 if checkpoint is None or checkpoint.snapshot is None else checkpoint.snapshot.newest_member


@pytest.mark.parametrize("when", ["at once", pytest.param("stopped", marks=pytest.mark.long)])
def test_a_table_that_was_taken_out_of_the_publication_for_a_moment_is_read_again(
    app: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, when: str
):
    # GIVEN a table whose rows were delivered
    publication, user = f"cdcd_{unique}", owner(unique)
    app.execute("INSERT INTO app.first VALUES (2), (3)")
    process = daemon(settings(unique, app.dsn(user=user), broker))
    process.await_event("table.read", table="app.first", rows=3)
    process.await_streaming()

    # WHEN somebody takes it out of the publication, and it comes back within seconds, or while cdcd is stopped
    if when == "stopped":
        until(lambda: newest_member(process) or None, "the publication's entries in the checkpoint")
        process.kill()
    app.execute(f'ALTER PUBLICATION "{publication}" DROP TABLE app.first')
    app.execute("DELETE FROM app.first WHERE id = 1; INSERT INTO app.first VALUES (4)")
    after = process.mark()
    if when == "stopped":
        app.execute(f'ALTER PUBLICATION "{publication}" ADD TABLE app.first')
        process.start()
    else:
        process.await_event("publication.changed", added=["app.first"])

    # THEN its former rows end, and it is read
    process.await_event("table.added", after=after, table="app.first", read=True)
    process.await_event("table.read", after=after, table="app.first", rows=3)
    await_flushed(app.dsn(), publication)
    report = compare(app.dsn(), broker.bootstrap_servers, unique, rows_before=True, tables=["app.first"])
    assert report.equal, str(report)
    assert process.stop() == 0


def test_a_table_of_somebody_else_is_told_with_the_statement_and_holds_up_no_other(
    app: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    user = owner(unique)
    process = daemon(settings(unique, app.dsn(user=user), broker))
    process.await_streaming()
    app.execute("CREATE TABLE app.strange (id int PRIMARY KEY)")
    differs = process.await_event("publication.differs", lacking=["app.strange"])
    assert "own" in differs["reason"]
    app.execute(
        f'SET ROLE "{user}"; CREATE TABLE app.second (id int PRIMARY KEY); INSERT INTO app.second VALUES (3)'
    )
    process.await_event("table.read", table="app.second", rows=1)

    # WHEN a DBA runs what the event says, THEN the table streams
    app.execute(differs["command"])
    app.execute("INSERT INTO app.strange VALUES (5)")
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "app.strange")
    assert process.stop() == 0


def test_a_table_that_somebody_has_locked_is_published_when_it_is_free(
    app: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    user = owner(unique)
    process = daemon(settings(unique, app.dsn(user=user), broker))
    process.await_streaming()
    app.execute(
        f'SET ROLE "{user}"; CREATE TABLE app.held (id int PRIMARY KEY); INSERT INTO app.held VALUES (1)'
    )
    with app.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE app.held")
        app.execute(
            f'SET ROLE "{user}"; CREATE TABLE app.free (id int PRIMARY KEY); INSERT INTO app.free VALUES (2)'
        )
        process.await_event("table.read", table="app.free", rows=1)
        process.await_event("table.locked", table="app.held")
    process.await_event("table.read", table="app.held", rows=1)
    assert process.stop() == 0


def test_by_default_the_statement_is_told_and_nothing_is_changed(
    app: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    process = daemon(settings(unique, app.dsn(user=owner(unique)), broker, changes="never"))
    process.await_streaming()
    app.execute(f'SET ROLE "{owner(unique)}"; CREATE TABLE app.second (id int PRIMARY KEY)')
    differs = process.await_event("publication.differs")
    assert differs["command"] == f'ALTER PUBLICATION "cdcd_{unique}" ADD TABLE ONLY "app"."second";'
    assert members(app, f"cdcd_{unique}") == {"app.first"}
    assert process.stop() == 0


@pytest.fixture
def function(app: Database, unique: str) -> Database:
    """`app` with a pipeline's role that owns nothing, and the function that a DBA installs for it."""
    pipeline = f"{unique[:50]}_p"
    app.execute(f'CREATE ROLE "{pipeline}" LOGIN REPLICATION; GRANT USAGE ON SCHEMA app TO "{pipeline}"')
    app.execute(f'GRANT SELECT ON app.first TO "{pipeline}"')
    app.execute(
        f'ALTER DEFAULT PRIVILEGES FOR ROLE "{owner(unique)}" IN SCHEMA app GRANT SELECT ON TABLES TO "{pipeline}"'
    )
    install(app, unique, include="app.*, billing.in?oice_*", exclude='app.secret_*, app."odd.*"')
    return app


def install(database: Database, unique: str, **variables: str) -> str:
    script = (REPOSITORY / "deploy/sql/follow.sql").read_text()
    return psql(database, script, publication=f"cdcd_{unique}", role=f"{unique[:50]}_p", **variables)


def test_the_function_of_a_dba_publishes_what_its_patterns_allow(
    function: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    user = f"{unique[:50]}_p"
    process = daemon(
        settings(
            unique, function.dsn(user=user), broker, changes="function", postgres={"tables": ["app.*", "b.*"]}
        )
    )
    process.await_streaming()
    function.execute(
        f'SET ROLE "{owner(unique)}"; CREATE TABLE app.second (id int PRIMARY KEY); INSERT INTO app.second VALUES (2);'
        "CREATE TABLE app.secret_1 (id int PRIMARY KEY)"
    )
    process.await_event("table.read", table="app.second", rows=1)
    # The configuration of the pipeline names it, and the DBA has not allowed it.
    differs = process.await_event("publication.differs", lacking=["app.secret_1"])
    assert "follow.sql" in differs["reason"]
    assert members(function, f"cdcd_{unique}") == {"app.first", "app.second"}
    function.execute("ALTER TABLE app.first RENAME TO first_2; ALTER TABLE app.first_2 SET SCHEMA public")
    process.await_event("publication.changed", dropped=["public.first_2"])
    assert process.stop() == 0


def test_a_schema_of_new_tables_is_followed_through_a_restart(
    app: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    """Tables that were created while no daemon ran are published and read by the next one."""
    user = owner(unique)
    process = daemon(settings(unique, app.dsn(user=user), broker))
    process.await_event("table.read", table="app.first", rows=1)
    process.await_streaming()
    assert process.stop() == 0
    app.execute(
        f'SET ROLE "{user}"; CREATE TABLE app.later (id int PRIMARY KEY); INSERT INTO app.later VALUES (9)'
    )
    process.start()
    process.await_event("table.read", table="app.later", rows=1)
    until(lambda: rows(broker, unique).get("app.later") == [9] or None, "no record of the row")
    assert process.stop() == 0
