"""The owner of a schema names tables; a DBA pastes the commands and the SQL that cdcd prints for them."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql
import pytest

from cdcd.core.pasted import literal, qualified, quoted
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

NAMES = (
    "$(touch pwned)",
    "a'; touch pwned; '",
    'x"; DROP TABLE witness; --',
    "Odd Name",
    "order",
    "a\u202eb\\",
    "a\x1b[31m\u200b",
    "\U000e0041",
)


@pytest.mark.attack(
    gains="another statement, run by the DBA who pastes SQL that cdcd prints", before="failed"
)
def test_printed_sql_names_the_table_that_it_is_about(database: Database):
    database.execute("CREATE TABLE witness (id int)")
    with psycopg.connect(database.dsn(), autocommit=True) as sql:
        for name in NAMES:
            # GIVEN a table with this name
            sql.execute(
                psycopg.sql.SQL("CREATE TABLE {} (id int)").format(psycopg.sql.Identifier("public", name))
            )
            # WHEN the SQL that cdcd prints is run
            sql.execute(f"ALTER TABLE {qualified(f'public.{name}')} REPLICA IDENTITY FULL;".encode())
            sql.execute(
                f"ALTER TABLE {quoted(name)} ADD COLUMN {quoted(name)} text DEFAULT {literal(name)};".encode()
            )
            # THEN it was about this table, and the constant is its name
            found = sql.execute(
                "SELECT relreplident FROM pg_class WHERE relname = %s AND relnamespace = 'public'::regnamespace",
                [name],
            ).fetchall()
            assert found == [("f",)], name
            default = sql.execute(
                "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_class c ON c.oid = adrelid "
                "WHERE relname = %s",
                [name],
            ).fetchall()
            said = sql.execute(f"SELECT {default[0][0]}".encode()).fetchall()
            assert said == [(name,)]
        assert sql.execute("SELECT to_regclass('witness') IS NOT NULL").fetchall() == [(True,)]


@pytest.mark.attack(
    gains="a command of the attacker's in the shell of the DBA, by the log of the daemon", before="failed"
)
def test_the_command_of_a_new_table_is_pasted_into_a_shell(
    database: Database,
    broker: KafkaBroker,
    unique: str,
    daemon: Callable[[dict[str, Any]], Daemon],
    tmp_path: Path,
):
    # GIVEN a daemon that does not read tables that are added to its publication
    database.execute("CREATE TABLE plain (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION hostile FOR ALL TABLES")
    settings = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "never", "added_tables": False, "signals": "all"},
    )
    settings["postgres"]["publication"] = "hostile"
    process = daemon(settings)
    process.await_event("stream.started")
    mark = process.mark()
    # WHEN the owner of a schema makes a table with such a name
    database.execute('CREATE TABLE "$(touch pwned)" (id int PRIMARY KEY)')
    database.execute('INSERT INTO "$(touch pwned)" VALUES (1)')
    event = process.await_event("table.added", after=mark)
    # THEN the command in the log is one command about this table, and works
    program = tmp_path / "cdcd"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cdcd.cli "$@"\n')
    program.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CDCD_CONFIG": str(process.config_path),
    }
    done = subprocess.run(
        ["/bin/sh", "-c", event["command"]],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not (tmp_path / "pwned").exists()
    if database.version < 14:
        # 13 sends no logical messages to the daemon, which the command says. It got that far.
        assert (done.returncode, "PostgreSQL 13" in done.stderr) == (2, True)
        return
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: "public.$(touch pwned)" in process.output() or None, "the table was not read")
    process.await_event("table.read", after=mark)
