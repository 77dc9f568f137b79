"""A role that may connect writes logical messages: requests for snapshots, and events of an outbox."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from cdcd.adapters.postgres.lock import REQUESTS_MARK, lock_condition
from cdcd.core.engine.refusals import REFUSALS_MAX
from deploy.local import KafkaBroker
from tests.attacks.checkpoints import cases
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

Start = Callable[..., Daemon]

pytestmark = pytest.mark.postgres(only=[14, 18])
"""PostgreSQL 13 sends no logical messages."""

GAINS: Final = "starts, pauses or cancels snapshots of the pipeline"


@pytest.fixture
def start(
    database: Database, broker: KafkaBroker, daemon: Callable[[Mapping[str, Any]], Daemon], unique: str
) -> Start:
    """Starts the pipeline with requests as they are by default, and a table of 10 rows that it has delivered."""

    def begin(**snapshot: Any) -> Daemon:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        database.execute("INSERT INTO orders SELECT generate_series(1, 10)")
        wanted = {"mode": "initial", "signals_from": "authorized", **snapshot}
        process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot=wanted))
        process.await_streaming()
        process.await_event("snapshot.finished", rows=10)
        return process

    return begin


@contextmanager
def connected(database: Database, role: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database.dsn(user=role), autocommit=True) as connection:
        yield connection


def send(connection: psycopg.Connection, content: str, *, transactional: bool = True) -> None:
    connection.execute("SELECT pg_logical_emit_message(%s, 'cdcd.snapshot', %s)", (transactional, content))


REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "start": {"action": "start", "tables": ["public.orders"]},
    "start with a condition": {"action": "start", "tables": ["public.orders"], "where": "true"},
    "pause": {"action": "pause"},
    "cancel": {"action": "cancel"},
    "resume": {"action": "resume"},
    "an empty token": {"action": "pause", "token": ""},
    "a guessed token": {"action": "pause", "token": "A" * 32},
    "a long token": {"action": "pause", "token": "A" * 200},
    "a token of another type": {"action": "pause", "token": True},
    "the pipeline's name": {"action": "pause", "token": "cdcd"},
}


@pytest.mark.parametrize(
    "request_",
    # Commit 99c61843 refused requests with an unknown key.
    cases(REQUESTS, GAINS, failed={name for name, fields in REQUESTS.items() if "token" not in fields}),
)
@pytest.mark.parametrize("transactional", [True, False], ids=["in a transaction", "outside"])
def test_a_stranger_s_request_changes_nothing(
    database: Database, start: Start, stranger: str, request_: Mapping[str, Any], *, transactional: bool
):
    process = start(signals="all")
    with connected(database, stranger) as connection:
        send(connection, json.dumps(request_), transactional=transactional)
    refused = process.await_event("snapshot.refused")
    assert refused["level"] == "warning"
    assert not process.saw("snapshot.signalled")
    # AND who has the right is followed.
    done = run_cdcd(
        "snapshot", "start", "--config", str(process.config_path), "--table", "public.orders", "--wait"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.worst
@pytest.mark.attack(gains=GAINS, before="failed")
def test_a_stranger_cannot_read_the_token(database: Database, start: Start, unique: str, stranger: str):
    process = start()
    condition = lock_condition(f"cdcd_{unique}")
    with connected(database, stranger) as connection:
        shown = connection.execute(
            f"SELECT query FROM pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks WHERE {condition})"
        ).fetchall()
        everything = connection.execute("SELECT s::text FROM pg_stat_activity s").fetchall()
    assert shown == [("<insufficient privilege>",)]
    assert REQUESTS_MARK not in str(everything)
    # The pipeline's role sees it, and the log does not.
    ((own,),) = database.execute(
        f"SELECT query FROM pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks WHERE {condition})"
    )
    token = own.partition(REQUESTS_MARK)[2].split()[0]
    assert len(token) >= 32
    assert token not in process.output()


@pytest.mark.attack(gains="the log fills the disk, and hides what is told in it", before="failed")
def test_many_malformed_requests_are_few_lines(database: Database, start: Start, stranger: str):
    process = start()
    mark = process.mark()
    with connected(database, stranger) as connection:
        began = time.monotonic()
        connection.execute(
            "SELECT count(pg_logical_emit_message(false, 'cdcd.snapshot', '{' || n)) FROM generate_series(1, 20000) n"
        )
        database.execute("INSERT INTO orders VALUES (99)")
        process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.orders")
        took_s = time.monotonic() - began
    lines = [each for each in process.events[mark:] if each["event"] == "snapshot.refused"]
    assert 1 <= len(lines) <= REFUSALS_MAX + took_s + 5
    assert sum(each["left_out"] for each in lines) + len(lines) <= 20000


@pytest.mark.attack(gains=GAINS, before="failed")
def test_a_token_of_the_configuration_is_not_the_stranger_s(
    database: Database, start: Start, stranger: str, tmp_path
):
    secret = "correct horse battery staple"
    (tmp_path / "token").write_text(secret)
    (tmp_path / "token").chmod(0o600)
    process = start(signal_token_file=str(tmp_path / "token"))
    with connected(database, stranger) as connection:
        for wrong in (secret[:-1], secret.upper(), f"{secret} "):
            send(connection, json.dumps({"action": "pause", "token": wrong}))
    until(
        lambda: sum(each["event"] == "snapshot.refused" for each in process.events) == 3 or None,
        "three requests were not refused",
    )
    assert not process.saw("snapshot.signalled")
    with connected(database, stranger) as connection:
        # A program that was given the token may ask.
        send(connection, json.dumps({"action": "pause", "token": secret}))
    process.await_event("snapshot.signalled", action="pause")
    assert secret not in process.output()


@pytest.mark.attack(gains=GAINS, before="failed")
def test_check_names_who_may_ask_where_everybody_may(database: Database, start: Start, stranger: str):
    process = start(signals_from="anybody")
    found = json.loads(run_cdcd("check", "--config", str(process.config_path), "--format", "json").stdout)
    (finding,) = [each for each in found["findings"] if each["code"] == "snapshot.signals"]
    assert finding["level"] == "warning"
    # The statement works as it is printed, and then there is nothing to warn of.
    statement = finding["fix"].partition("the others: ")[2]
    assert statement.startswith("REVOKE EXECUTE ON FUNCTION")
    database.execute(statement)
    with connected(database, stranger) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        send(connection, json.dumps({"action": "pause"}))
    found = json.loads(run_cdcd("check", "--config", str(process.config_path), "--format", "json").stdout)
    (finding,) = [each for each in found["findings"] if each["code"] == "snapshot.signals"]
    assert finding["level"] == "ok"
