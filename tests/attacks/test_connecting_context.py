"""Contexts of transactions of a role that may connect, and of an application that may call `cdcd.set_context`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdcd.core.engine.refusals import REFUSALS_MAX
from deploy.local import KafkaBroker
from tests.attacks.checkpoints import cases
from tests.attacks.measured import MB, allowed, await_passed, filled, records, run
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_context import TOKEN, installed

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=[14, 18])
"""PostgreSQL 13 sends no logical messages."""

GAINS: Final = "headers of the stranger's choice, which name another actor"


@pytest.fixture
def started(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, stranger: str, tmp_path: Path
) -> Daemon:
    """A pipeline whose contexts need a token, and a table in which the stranger may insert rows."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute(f"GRANT INSERT ON orders TO {stranger}")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"slot": unique},
            context={"enabled": True, "token_file": installed(database, tmp_path)},
        )
    )
    process.await_streaming()
    return process


def emit(content: str, *, transactional: bool = True) -> str:
    return f"SELECT pg_logical_emit_message({str(transactional).lower()}, 'cdcd.context', {content})"


CONTEXTS: Final[Mapping[str, str]] = {
    "no token": json.dumps({"actor": "root"}),
    "an empty token": json.dumps({"actor": "root", "token": ""}),
    "a guessed token": json.dumps({"actor": "root", "token": "A" * 32}),
    "a token of another type": json.dumps({"actor": "root", "token": [TOKEN]}),
    "deep JSON": '{"a":' * 600 + "1" + "}" * 600,
    "no JSON": "nonsense",
    "a header within a header": json.dumps({"actor": "x\r\nauthorization: root", "token": TOKEN}),
    "a name with a line end": json.dumps({"actor\r\nauthorization": "root", "token": TOKEN}),
    "a terminal's commands": json.dumps({"actor": "\x1b[2J", "token": TOKEN}),
    "many fields": json.dumps({"token": TOKEN, **{f"f{number}": 1 for number in range(100)}}),
    "a large one": json.dumps({"actor": "x" * 70_000, "token": TOKEN}),
}


@pytest.mark.parametrize("content", cases(CONTEXTS, GAINS, failed=set()))
def test_a_context_that_is_not_allowed_changes_no_record(
    database: Database, broker: KafkaBroker, started: Daemon, unique: str, stranger: str, content: str
):
    quoted = content.replace("'", "''")
    run(database, emit(f"'{quoted}'"), "INSERT INTO orders VALUES (1)", user=stranger)
    await_passed(started, database, unique)
    (record,) = records(broker, f"{unique}.public.orders")
    assert record.headers() is None
    refused = started.await_event("context.refused")
    assert refused["level"] == "warning"
    assert TOKEN not in started.output()
    assert "root" not in refused["reason"]


@pytest.mark.attack(gains="a daemon that is out of memory at each start", before="withstood")
def test_a_context_of_any_size_passes(database: Database, started: Daemon, unique: str, stranger: str):
    run(database, emit(filled(64)), emit(filled(64), transactional=False), user=stranger)
    await_passed(started, database, unique)
    assert started.peak_memory_bytes() < allowed(64 * MB)


@pytest.mark.attack(gains="a log that a stranger fills", before="withstood")
def test_many_refused_contexts_are_few_lines(database: Database, started: Daemon, unique: str, stranger: str):
    with psycopg.connect(database.dsn(user=stranger)) as connection:
        connection.execute(
            "SELECT pg_logical_emit_message(true, 'cdcd.context', 'x' || n) FROM generate_series(1, 5000) AS n"
        )
    await_passed(started, database, unique)
    started.await_metric("cdcd_contexts_refused_total", lambda count: count == 5000)
    assert len([each for each in started.events if each["event"] == "context.refused"]) < REFUSALS_MAX + 30


@pytest.mark.worst
@pytest.mark.attack(gains="the token, or the role of somebody else in the headers", before="withstood")
def test_an_application_has_neither_the_token_nor_another_role(
    database: Database, broker: KafkaBroker, started: Daemon, unique: str, stranger: str
):
    with psycopg.connect(database.dsn(user=stranger), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT cdcd.set_context('{}')")
        database.execute(
            f"GRANT USAGE ON SCHEMA cdcd TO {stranger};"
            f"GRANT EXECUTE ON FUNCTION cdcd.set_context(jsonb) TO {stranger}"
        )
        seen = connection.execute("SELECT s::text FROM pg_user_mappings AS s").fetchall()
        seen += connection.execute("SELECT prosrc FROM pg_proc WHERE proname = 'set_context'").fetchall()
        seen += connection.execute("SELECT srvoptions::text FROM pg_foreign_server").fetchall()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT umoptions FROM pg_user_mapping")
        assert TOKEN not in str(seen)
        with connection.transaction():
            connection.execute(
                'SELECT cdcd.set_context(\'{"actor": "anna", "role": "postgres", "token": "x"}\')'
            )
            connection.execute("INSERT INTO orders VALUES (1)")
    await_passed(started, database, unique)
    (record,) = records(broker, f"{unique}.public.orders")
    assert dict(record.headers()) == {
        "cdcd.context.actor": b"anna",
        "cdcd.context.role": stranger.encode(),
    }


@pytest.mark.attack(gains="another actor, where nobody knows that everybody may name one", before="withstood")
def test_check_says_that_everybody_may_send_a_context_without_a_token(
    database: Database, broker: KafkaBroker, trial: Callable[..., Any]
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.configure(context={"enabled": True})
    (found,) = [each for each in one.check().findings if each["code"] == "context.public"]
    assert found["level"] == "warning"
    assert "context.token_file" in found["fix"]
