"""The owner of a table or schema gives it, its columns, types or labels names that have no form in UTF-8."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg
import pytest

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker, PostgresServer
from tests.attacks.test_writer_encodings import encoded, records
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd


@dataclass(frozen=True)
class Undecodable:
    """A table that has a text without a form in UTF-8: statements that create it, and the name of the table later."""

    statements: tuple[bytes, ...]
    rows: bytes
    later: str = "public.odd"


def undecodable(byte: bytes) -> dict[str, Undecodable]:
    odd = b'"b' + byte + b'"'
    insert = b"INSERT INTO odd (id) VALUES "
    return {
        "table": Undecodable(
            (b"CREATE TABLE " + odd + b" (id int PRIMARY KEY)",),
            b"INSERT INTO " + odd + b" VALUES ",
            "public.new_name",
        ),
        "schema": Undecodable(
            (b"CREATE SCHEMA " + odd, b"CREATE TABLE " + odd + b".odd (id int PRIMARY KEY)"),
            b"INSERT INTO " + odd + b".odd VALUES ",
            "new_name.odd",
        ),
        "column": Undecodable((b"CREATE TABLE odd (id int PRIMARY KEY, " + odd + b" int)",), insert),
        "type": Undecodable(
            (
                b"CREATE TYPE " + odd + b" AS (n int)",
                b"CREATE TABLE odd (id int PRIMARY KEY, v " + odd + b"[])",
            ),
            insert,
        ),
        "label": Undecodable(
            (
                b"CREATE TYPE mood AS ENUM ('fine', '" + byte + b"')",
                b"CREATE TABLE odd (id int PRIMARY KEY, m mood)",
            ),
            insert,
        ),
        "default": Undecodable(
            (
                b"CREATE TABLE odd (id int PRIMARY KEY)",
                b"INSERT INTO odd VALUES (0)",
                b"ALTER TABLE odd ADD note text DEFAULT '" + byte + b"'",
            ),
            insert,
        ),
    }


NAMED: Final = [
    *[("SQL_ASCII", b"\xe9", kind) for kind in undecodable(b"")],
    *[("EUC_KR", b"\xc9\xa1", kind) for kind in ("table", "column", "label")],
    ("MULE_INTERNAL", b"\x92\xa4\xa2", "table"),
]


@pytest.mark.attack(gains="the end of the pipeline, by one name", before="failed")
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("first", ["stream", "snapshot"])
@pytest.mark.parametrize("case", NAMED, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_name_that_cannot_be_decoded_sets_its_table_aside_until_it_is_renamed(
    case: tuple[str, bytes, str],
    first: str,
    postgres: PostgresServer,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    encoding, byte, kind = case
    servers = broker.bootstrap_servers
    odd = undecodable(byte)[kind]
    with encoded(postgres, unique, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            sql.execute(b"CREATE TABLE t (id int PRIMARY KEY, note text)")
            # GIVEN a table with such a name, which is there before the daemon or is created while it runs
            statements = [*odd.statements, odd.rows + b"(1)"]
            if first == "snapshot":
                for statement in statements:
                    sql.execute(statement)
            running = daemon(
                configuration(
                    unique, dsn, servers, snapshot={"mode": "initial"}, tables={"on_error": "set_aside"}
                )
            )
            running.await_streaming()
            if first == "stream":
                for statement in statements:
                    sql.execute(statement)
            # THEN that table is set aside by name, and the others go on, also after a restart
            aside = running.await_event("table.aside", timeout_s=30)
            assert "cannot be decoded" in aside["reason"]
            sql.execute(b"INSERT INTO t VALUES (1, 'a')")
            await_flushed(dsn, f"cdcd_{unique}")
            running.kill()
            running.start()
            running.await_streaming()
            sql.execute(odd.rows + b"(2)")
            sql.execute(b"INSERT INTO t VALUES (2, 'b')")
            await_flushed(dsn, f"cdcd_{unique}")
            check = run_cdcd("check", "--config", str(running.config_path))
            assert "cannot be decoded" in check.stdout
            # WHEN the owner runs the command of the hint, and the table is resumed
            command = aside["hint"].partition("SELECT ")[2].partition(" \\gexec")[0]
            ((renames,),) = sql.execute(f"SELECT convert_to({command}, 'SQL_ASCII')".encode()).fetchall()
            sql.execute(renames)

            def has_returned() -> bool | None:
                """The daemon lists the names of tables every few seconds, and knows no new name before that."""
                done = run_cdcd("tables", "resume", odd.later, "--config", str(running.config_path))
                assert done.returncode == 0, done.stderr
                return any(each["event"] == "table.returned" for each in running.events) or None

            if postgres.version < 14:
                # PostgreSQL 13 sends no requests, so a start lets the tables come back.
                assert running.stop() == 0
                running.start()
                running.await_streaming()
            else:
                until(has_returned, "the table does not come back")
            # THEN the table's rows come
            sql.execute(b"INSERT INTO " + odd.later.encode() + b" (id) VALUES (3)")

            def all_there() -> bool | None:
                return {1, 2, 3} <= records(servers, unique, odd.later).keys() or None

            until(all_there, "rows are missing")
            assert running.stop() == 0
        assert records(servers, unique).keys() == {1, 2}


@pytest.mark.attack(gains="a daemon that ends without a word of the name", before="failed")
@pytest.mark.postgres(only=[18])
def test_where_a_fault_of_a_table_stops_the_daemon_the_error_says_how_to_rename_it(
    postgres: PostgresServer, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    with encoded(postgres, unique, "SQL_ASCII") as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            running = daemon(configuration(unique, dsn, broker.bootstrap_servers))
            running.await_streaming()
            sql.execute(b'CREATE TABLE "b\xe9" (id int PRIMARY KEY)')
            sql.execute(b'INSERT INTO "b\xe9" VALUES (1)')
            assert running.wait() == 3
        words = running.last_words()
        assert "cannot be decoded to UTF-8" in words
        assert "gexec" in words


@pytest.mark.attack(
    gains="another statement in the psql of the DBA, who pastes the hint's command", before="failed"
)
@pytest.mark.postgres(only=[13, 18])
def test_the_command_of_the_hint_renames_and_does_nothing_else(
    postgres: PostgresServer, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    with encoded(postgres, unique, "SQL_ASCII") as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            for statement in (
                b"CREATE TABLE t (id int PRIMARY KEY)",
                b'CREATE TABLE "%s \xe9""; DROP TABLE t; --" (id int PRIMARY KEY)',
                b'CREATE TABLE c (id int PRIMARY KEY, "%I \xe9 TO x; DROP TABLE t; --" int)',
                b"CREATE TYPE mood AS ENUM ('\xe9'' TO ''x''; DROP TABLE t; --')",
                b"CREATE TABLE l (id int PRIMARY KEY, m mood)",
                b'CREATE TYPE "\xe9"" ; DROP TABLE t; --" AS (n int)',
                b'CREATE TABLE y (id int PRIMARY KEY, v "\xe9"" ; DROP TABLE t; --")',
            ):
                sql.execute(statement)
            running = daemon(
                configuration(
                    unique,
                    dsn,
                    broker.bootstrap_servers,
                    snapshot={"mode": "initial"},
                    tables={"on_error": "set_aside"},
                )
            )
            running.await_streaming()
            running.await_event("snapshot.finished")
            hints = [event["hint"] for event in running.events if event["event"] == "table.aside"]
            assert len(hints) == 4
            # WHEN psql runs what each query gives
            for number, hint in enumerate(hints):
                command = hint.partition("SELECT ")[2].partition(" \\gexec")[0]
                command = command.replace("new_name", f"new_name_{number}")
                ((renames,),) = sql.execute(f"SELECT convert_to({command}, 'SQL_ASCII')".encode()).fetchall()
                sql.execute(renames)
            # THEN nothing but names is changed
            counted = b"SELECT count(*) FROM pg_class WHERE relname ~ %s"
            assert sql.execute(counted, ("^t$",)).fetchall() == [(1,)]
            assert sql.execute(counted, ("^new_name_[0-3]$",)).fetchall() == [(2,)]
        assert running.stop() == 0


@pytest.mark.attack(
    gains="another owner's table, by a name like the one that cdcd shows for it", before="failed"
)
@pytest.mark.postgres(only=[18])
def test_a_name_in_the_form_of_another_tables_bytes_is_another_table(
    postgres: PostgresServer, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    servers = broker.bootstrap_servers
    with encoded(postgres, unique, "SQL_ASCII") as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            twin = '"b\ufdd0e9"'.encode()
            sql.execute(b'CREATE TABLE "b\xe9" (id int PRIMARY KEY)')
            sql.execute(b"CREATE TABLE " + twin + b" (id int PRIMARY KEY)")
            sql.execute(b"CREATE TABLE t (id int PRIMARY KEY)")
            running = daemon(
                configuration(
                    unique, dsn, servers, snapshot={"mode": "initial"}, tables={"on_error": "set_aside"}
                )
            )
            running.await_streaming()
            running.await_event("snapshot.finished")
            sql.execute(b"INSERT INTO " + twin + b" VALUES (9)")
            sql.execute(b"INSERT INTO t VALUES (1)")
            await_flushed(dsn, f"cdcd_{unique}")
            aside = {event["oid"] for event in running.events if event["event"] == "table.aside"}
            assert len(aside) == 2
        assert running.stop() == 0
        assert records(servers, unique).keys() == {1}
        assert records(servers, unique, "b_e9") == {}


@pytest.mark.attack(
    gains="the end of the pipeline, by one name, where the publication's name is not ASCII", before="failed"
)
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "EUC_KR"])
def test_a_name_that_cannot_be_decoded_is_read_by_queries_whose_parameters_are_not_ascii(
    encoding: str, postgres: PostgresServer, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    odd = b'"b\xc9\xa1"' if encoding == "EUC_KR" else b'"b\xe9"'
    with encoded(postgres, unique, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            sql.execute(b"CREATE TABLE t (id int PRIMARY KEY, note text)")
            sql.execute(b"CREATE TABLE " + odd + b" (id int PRIMARY KEY)")
            settings = configuration(
                unique,
                dsn,
                broker.bootstrap_servers,
                postgres={"publication": "가", "slot": f"cdcd_{unique}"},
                snapshot={"mode": "initial"},
                tables={"on_error": "set_aside"},
            )
            running = daemon(settings)
            running.await_streaming()
            aside = running.await_event("table.aside", timeout_s=30)
            assert "cannot be decoded" in aside["reason"]
            sql.execute(b"INSERT INTO t VALUES (1, 'a')")
            await_flushed(dsn, f"cdcd_{unique}")
            check = run_cdcd("check", "--config", str(running.config_path))
            assert "cannot be decoded" in check.stdout
            assert running.stop() == 0
        assert records(broker.bootstrap_servers, unique).keys() == {1}
