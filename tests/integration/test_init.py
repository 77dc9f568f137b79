"""`cdcd init`: what it writes is what a database administrator can run, and what `cdcd check` and `cdcd run` take."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.local import KafkaBroker, client_program
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.forked import run_cdcd

PASSWORD = "hunter2-of-init"


def cdcd(
    folder: Path, *arguments: str, answers: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    return run_cdcd(*arguments, folder=folder, environment={**os.environ, **environ}, answers=answers)


@pytest.fixture
def role(database: Database, unique: str) -> Iterator[str]:
    """A name for a role, which is gone before its database is."""
    yield unique
    if database.execute(f"SELECT FROM pg_roles WHERE rolname = '{unique}'"):
        database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{unique}'")
        database.execute(f'DROP OWNED BY "{unique}"')
        until(lambda: database.execute(f'DROP ROLE "{unique}"') == [] or None, "the role is still used")


@pytest.mark.postgres(only=[13, 18])
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
    texts = (tmp_path / "cdcd.yaml").read_text() + (tmp_path / "cdcd.sql").read_text()
    assert "of-the-admin" not in texts + written.stdout + written.stderr
    # AND an administrator runs the SQL
    ran = subprocess.run(
        [
            *(client_program("psql"), "--no-psqlrc", "--dbname", database.dsn()),
            *(f"--set=password={PASSWORD}", "--file", "cdcd.sql"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    # THEN check finds no error
    checked = cdcd(tmp_path, "check", "--config", "cdcd.yaml", "--format", "json", PGPASSWORD=PASSWORD)
    findings = json.loads(checked.stdout)["findings"]
    assert checked.returncode == 0, findings
    assert [each for each in findings if each["level"] == "error"] == []
    # AND the rows are delivered by that role
    config = yaml.safe_load((tmp_path / "cdcd.yaml").read_text())
    config["snapshot"] = {"mode": "only"}
    config["http"] = {"enabled": False}
    (tmp_path / "once.yaml").write_text(yaml.safe_dump(config))
    ran = cdcd(tmp_path, "run", "--config", "once.yaml", PGPASSWORD=PASSWORD)
    assert ran.returncode == 0, ran.stderr
    read = {
        event["table"]: event["rows"]
        for event in map(json.loads, ran.stderr.splitlines())
        if event["event"] == "table.read"
    }
    assert read == {"public.orders": 1, "public.loose": 0, "public.events": 1, 'Odd One.it"s': 0}


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
    assert "The configuration is written all the same." in away.stderr
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
        assert "-v reader_password='...'" in written.stdout
        # WHEN an administrator runs the SQL
        ran = subprocess.run(
            [
                *(client_program("psql"), "--no-psqlrc", "--dbname", database.dsn()),
                *(f"--set=password={PASSWORD}", f"--set=reader_password={PASSWORD}", "--file", "cdcd.sql"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
        # THEN the configuration has a reader for each owner, and check finds nothing about them
        config = yaml.safe_load((tmp_path / "cdcd.yaml").read_text())
        assert [one["user"] for one in config["postgres"]["readers"]] == made[2:]
        checked = cdcd(tmp_path, "check", "--config", "cdcd.yaml", "--format", "json", PGPASSWORD=PASSWORD)
        findings = json.loads(checked.stdout)["findings"]
        assert checked.returncode == 0, findings
        assert [one for one in findings if one["level"] != "ok" and one["code"].startswith("reader.")] == []
    finally:
        for each in reversed(made):
            if database.execute(f"SELECT FROM pg_roles WHERE rolname = '{each}'"):
                database.execute(f'DROP OWNED BY "{each}" CASCADE; DROP ROLE "{each}"')
