"""`cdcd init`: what it writes is what a database administrator can run, and what `cdcd check` and `cdcd run` take."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.local import KafkaBroker, client_program
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.forked import run_cdcd


def cdcd(
    folder: Path, *arguments: str, answers: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    return run_cdcd(*arguments, folder=folder, environment={**os.environ, **environ}, answers=answers)


def paste(folder: Path, printed: str) -> subprocess.CompletedProcess[str]:
    """Run the printed commands in one shell, without the last one, which is `cdcd run`, and note the passwords.

    The exit code is that of `cdcd check`.
    """
    commands = [line.strip() for line in printed.splitlines() if line.startswith("     ")]
    assert commands[-1].startswith("cdcd run ")
    noted = 'printf "%s\\n" "$CDCD_POSTGRES__PASSWORD" "${CDCD_READER_PASSWORD:-}" > password'
    search = [str(Path(client_program("psql")).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    return subprocess.run(
        ["sh", "-e"],
        input="\n".join([*commands[:-2], noted, commands[-2]]),
        cwd=folder,
        env={**os.environ, "PATH": os.pathsep.join(search), "PSQLRC": "/dev/null"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def role(database: Database, unique: str) -> Iterator[str]:
    """A name for a role, which is gone before its database is."""
    yield unique
    if database.execute(f"SELECT FROM pg_roles WHERE rolname = '{unique}'"):
        database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{unique}'")
        database.execute(f'DROP OWNED BY "{unique}"')
        until(lambda: database.execute(f'DROP ROLE "{unique}"') == [] or None, "the role is still used")


@pytest.mark.postgres(only=18, also=[13])
def test_what_is_written_makes_a_pipeline_that_check_and_run_take(
    database: Database, broker: KafkaBroker, role: str, unique: str, tmp_path: Path
):
    # GIVEN a table of each kind
    database.execute('CREATE TABLE orders (id int PRIMARY KEY, "Note" text)')
    database.execute("INSERT INTO orders VALUES (1)")
    database.execute("CREATE TABLE loose (a int)")
    database.execute("CREATE TABLE events (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)")
    database.execute(
        "CREATE TABLE events_2026 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')"
    )
    database.execute("INSERT INTO events VALUES (1, '2026-05-05')")
    database.execute('CREATE SCHEMA "Odd One"')
    database.execute('CREATE TABLE "Odd One"."it""s" (id int PRIMARY KEY)')
    # WHEN init has looked
    written = cdcd(
        tmp_path,
        "init",
        *(
            "--no-input",
            "--dsn",
            f"{database.dsn()} password=of-the-admin",
            "--kafka",
            broker.bootstrap_servers,
        ),
        *("--role", role, "--name", unique, "--table", "public.*", "--table", '"Odd One".*'),
    )
    assert written.returncode == 0, written.stderr
    assert "for 4 tables" in written.stdout
    # AND `cdcd init` has named the table that it leaves out because publishing it would break UPDATE and DELETE
    assert "warning: public.loose has no primary key." in written.stderr
    texts = (tmp_path / "cdcd.yaml").read_text() + (tmp_path / "cdcd.sql").read_text()
    assert "of-the-admin" not in texts + written.stdout + written.stderr
    # AND the printed commands are run, up to `cdcd run`
    assert (pasted := paste(tmp_path, written.stdout)).returncode == 0, pasted.stderr
    assert "0 errors" in pasted.stdout
    password = (tmp_path / "password").read_text().strip()
    # THEN check finds no error
    checked = cdcd(
        tmp_path, "check", "--config", "cdcd.yaml", "--format", "json", CDCD_POSTGRES__PASSWORD=password
    )
    findings = json.loads(checked.stdout)["findings"]
    assert checked.returncode == 0, findings
    assert [each for each in findings if each["level"] == "error"] == []
    # AND the rows are delivered by that role
    config = yaml.safe_load((tmp_path / "cdcd.yaml").read_text())
    config["snapshot"] = {"mode": "only"}
    config["http"] = {"enabled": False}
    (tmp_path / "once.yaml").write_text(yaml.safe_dump(config))
    ran = cdcd(tmp_path, "run", "--config", "once.yaml", CDCD_POSTGRES__PASSWORD=password)
    assert ran.returncode == 0, ran.stderr
    read = {
        event["table"]: event["rows"]
        for event in map(json.loads, ran.stderr.splitlines())
        if event["event"] == "table.read"
    }
    assert read == {"public.orders": 1, "public.events": 1, 'Odd One.it"s': 0}
    # AND the table without a key can still be updated, and is delivered when its lines of the SQL are run
    database.execute("INSERT INTO loose VALUES (1); UPDATE loose SET a = 2")
    added = [
        line.removeprefix("-- ")
        for line in (tmp_path / "cdcd.sql").read_text().splitlines()
        if '"loose"' in line
    ]
    assert len(added) == 2
    for statement in added:
        database.execute(statement)
    database.execute("DELETE FROM loose")


@pytest.mark.postgres(only=18)
def test_it_asks_again_after_a_wrong_answer_and_overwrites_nothing(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    answers = [
        "host=127.0.0.1 port=1",
        database.dsn(),
        "",  # the role
        "shop",
        "public.nothing",
        "",  # tables
        broker.bootstrap_servers,
    ]
    asked = cdcd(tmp_path, "init", answers="\n".join(answers) + "\n")
    assert asked.returncode == 0, asked.stderr
    assert "public.nothing" in asked.stderr
    config = yaml.safe_load((tmp_path / "cdcd.yaml").read_text())
    assert (config["name"], config["postgres"]["tables"]) == ("shop", ["public.*"])
    assert config["topics"]["create"]["replication_factor"] == 1
    (tmp_path / "cdcd.yaml").write_text("mine")
    again = cdcd(tmp_path, "init", answers="")
    assert (again.returncode, "nothing was written" in again.stderr) == (2, True)
    assert (tmp_path / "cdcd.yaml").read_text() == "mine"


@pytest.mark.postgres(only=18)
def test_without_questions_what_is_missing_is_an_error_and_kafka_may_be_away(
    database: Database, unique: str, tmp_path: Path
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    missing = cdcd(tmp_path, "init", "--no-input")
    assert (missing.returncode, "--dsn is needed" in missing.stderr) == (2, True)
    nowhere = cdcd(tmp_path, "init", "--no-input", "--dsn", "host=127.0.0.1 port=1", "--kafka", "k:1")
    assert nowhere.returncode == 3
    away = cdcd(tmp_path, "init", "--no-input", "--dsn", database.dsn(), "--kafka", "127.0.0.1:1")
    assert away.returncode == 0, away.stderr
    assert "The configuration was written although the database did not answer." in away.stderr
    assert "Kafka could not be asked" in (tmp_path / "cdcd.yaml").read_text()


@pytest.mark.postgres(only=[13, 18])
def test_tables_of_other_owners_get_readers_that_check_takes(
    database: Database, broker: KafkaBroker, role: str, unique: str, tmp_path: Path
):
    # GIVEN two owners that are no superusers
    owners = [f"{unique[:40]}_{name}" for name in ("ann", "bob")]
    made = [*owners, *(f"cdcd_reads_{owner}" for owner in owners)]
    try:
        for owner in owners:
            database.execute(f'CREATE ROLE "{owner}"; CREATE SCHEMA AUTHORIZATION "{owner}"')
            database.execute(f'CREATE TABLE "{owner}".t (id int PRIMARY KEY)')
            database.execute(f'ALTER TABLE "{owner}".t OWNER TO "{owner}"')
        tables = [word for owner in owners for word in ("--table", f'"{owner}".*')]
        options = ("--no-input", "--dsn", database.dsn(), "--kafka", broker.bootstrap_servers)
        written = cdcd(tmp_path, "init", *options, "--role", role, "--name", unique, *tables)
        assert written.returncode == 0, written.stderr
        # WHEN the printed commands are run, up to `cdcd run`
        assert (pasted := paste(tmp_path, written.stdout)).returncode == 0, pasted.stderr
        password, of_readers = (tmp_path / "password").read_text().split()
        assert password != of_readers
        # THEN the configuration has a reader for each owner, and check finds nothing about them
        config = yaml.safe_load((tmp_path / "cdcd.yaml").read_text())
        assert [one["user"] for one in config["postgres"]["readers"]] == made[2:]
        checked = cdcd(
            tmp_path,
            *("check", "--config", "cdcd.yaml", "--format", "json"),
            CDCD_POSTGRES__PASSWORD=password,
            CDCD_READER_PASSWORD=of_readers,
        )
        findings = json.loads(checked.stdout)["findings"]
        assert checked.returncode == 0, findings
        assert [one for one in findings if one["level"] != "ok" and one["code"].startswith("reader.")] == []
    finally:
        for each in reversed(made):
            if database.execute(f"SELECT FROM pg_roles WHERE rolname = '{each}'"):
                database.execute(f'DROP OWNED BY "{each}" CASCADE; DROP ROLE "{each}"')


@pytest.mark.postgres(only=18, also=[13])
def test_check_sees_that_the_restart_of_wal_level_is_pending(
    private_postgres, broker: KafkaBroker, tmp_path: Path, unique: str
):
    # GIVEN a server whose `wal_level` is too low for logical decoding
    server = private_postgres(settings={"wal_level": "replica"})
    server.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    written = cdcd(
        tmp_path, "init", "--no-input", "--name", unique,
        *("--dsn", server.dsn(), "--kafka", broker.bootstrap_servers),
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    assert "warning: wal_level is replica. Run the SQL, then restart PostgreSQL." in written.stderr
    # WHEN the printed commands are run without the restart
    pasted = paste(tmp_path, written.stdout)
    assert pasted.returncode == 10, pasted.stderr
    # THEN `cdcd check` names the missing step
    assert "another value is set that takes effect after a restart" in pasted.stdout
    assert "Restart PostgreSQL, for example" in pasted.stdout
    # AND a second `cdcd init` names it too
    again = cdcd(
        tmp_path, "init", "--no-input", "--name", unique, "--force",
        *("--dsn", server.dsn(), "--kafka", broker.bootstrap_servers),
    )  # fmt: skip
    assert "wal_level is replica, and a change waits for the restart. Restart PostgreSQL." in again.stderr
    # AND after the restart, the check passes
    server.stop()
    server.start()
    password = (tmp_path / "password").read_text().strip()
    checked = cdcd(tmp_path, "check", "--config", "cdcd.yaml", CDCD_POSTGRES__PASSWORD=password)
    assert checked.returncode == 0, checked.stdout
