"""A role that may only connect leaves bytes that are no text in sessions, transactions and temporary objects."""

import json
from collections.abc import Callable
from typing import Final

import psycopg
import pytest

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker, PostgresServer
from tests.attacks.checkpoints import cases
from tests.attacks.test_writer_encodings import encoded, records
from tests.integration.daemon import Daemon, configuration
from tests.integration.forked import run_cdcd

LEFT: Final[dict[str, tuple[bytes, ...]]] = {
    "temporary table": (b'CREATE TEMP TABLE "b\xe9" ("c\xe9" int DEFAULT 1)',),
    "temporary type": (b"CREATE TYPE pg_temp.\"b\xe9\" AS ENUM ('c\xe9')",),
    "temporary sequence and view": (
        b'CREATE TEMP SEQUENCE "s\xe9"',
        b'CREATE TEMP VIEW "v\xe9" AS SELECT 1 AS "c\xe9"',
    ),
    "query of a session": (b"SELECT 'b\xe9'",),
    "application name": (b"SET application_name = 'cdcd \xe9'",),
    "channel": (b'LISTEN "b\xe9"',),
    "cursor and prepared statement": (
        b"PREPARE \"p\xe9\" AS SELECT '\xe9'",
        b"BEGIN",
        b'DECLARE "c\xe9" CURSOR FOR SELECT 1',
    ),
    "open transaction": (b"BEGIN", b"SELECT txid_current(), 'b\xe9'"),
    "savepoint": (b"BEGIN", b'SAVEPOINT "b\xe9"', b"SELECT txid_current()"),
    "prepared transaction": (b"BEGIN", b"SELECT txid_current()", b"PREPARE TRANSACTION 'NAME\xe9'"),
    "comment": (b"CREATE TEMP TABLE plain (id int)", b"COMMENT ON TABLE pg_temp.plain IS 'b\xe9'"),
    "setting": (b"SET my.setting = 'b\xe9'",),
}
"""What the role leaves behind, in sessions that stay open."""


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize(
    "left",
    cases(
        {left: left for left in LEFT},
        "a start, a check or a status that fails for all tables",
        failed={"prepared transaction"},
    ),
)
def test_bytes_that_are_no_text_in_the_catalog_of_sessions_stop_nobody(
    left: str, postgres: PostgresServer, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    with encoded(postgres, unique, "SQL_ASCII") as dsn, psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        running = daemon(configuration(unique, dsn, broker.bootstrap_servers, snapshot={"mode": "initial"}))
        running.await_streaming()
        role = f"{unique[-20:]}_stranger"
        sql.execute(f"CREATE ROLE {role} LOGIN".encode())
        stranger = psycopg.connect(dsn, user=role, autocommit=True, client_encoding="SQL_ASCII")
        try:
            for statement in LEFT[left]:
                stranger.execute(statement.replace(b"NAME", unique.encode()))
            # WHEN the daemon starts again, and a person asks how it is
            running.kill()
            running.start()
            running.await_streaming()
            sql.execute("INSERT INTO t VALUES (1, 'a')")
            await_flushed(dsn, f"cdcd_{unique}")
            done = run_cdcd("check", "--format", "json", "--config", str(running.config_path))
            errors = [one for one in json.loads(done.stdout)["findings"] if one["level"] == "error"]
            assert errors == []
            listed = run_cdcd("tables", "--config", str(running.config_path))
            assert listed.returncode == 0, listed.stderr
        finally:
            stranger.close()
            if left == "prepared transaction":
                sql.execute(f"ROLLBACK PREPARED E'{unique}\\xe9'".encode())
            assert running.stop() == 0
            sql.execute(f"DROP OWNED BY {role}".encode())
            sql.execute(f"DROP ROLE {role}".encode())
        assert records(broker.bootstrap_servers, unique).keys() == {1}
