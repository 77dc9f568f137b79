"""The page, the status and the actions of a real daemon, and `cdcd top` on a terminal."""

import http.client
import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import KafkaBroker, free_port
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration, until
from tests.integration.forked import run_cdcd
from tests.integration.terminal import Terminal

TOKEN = "a-token-of-the-integration-tests"
PASSWORD = "hunter2-of-the-page"


def get(daemon: Daemon, path: str) -> str:
    address = daemon.await_event("daemon.started")["http"]
    with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def status(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(daemon, "/v1/status"))
    return found


def post(daemon: Daemon, path: str, body: bytes = b"", token: str = TOKEN) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(daemon.await_event("daemon.started")["http"], timeout=WAIT_S)
    try:
        connection.request("POST", path, body=body, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def awaited(daemon: Daemon, holds: Callable[[dict[str, Any]], bool], otherwise: str) -> dict[str, Any]:
    try:
        return until(lambda: found if holds(found := status(daemon)) else None, otherwise)
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{status(daemon)}") from None


@pytest.mark.postgres(only=18)
def test_the_status_and_the_page_have_what_was_delivered_and_actions_do_what_the_command_does(
    database: Database, broker: KafkaBroker, daemon, unique: str
):
    # GIVEN a daemon that streams, with a token
    hostile = '"<img src=x onerror=alert(1)>"'
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute(f"CREATE TABLE {hostile} (id int PRIMARY KEY)")
    database.execute("INSERT INTO orders SELECT g, 'a' FROM generate_series(1, 200) g")
    config = configuration(
        unique,
        f"{database.dsn()} password={PASSWORD}",
        broker.bootstrap_servers,
        http={"port": 0, "token": TOKEN},
    )
    process = daemon(config)
    process.await_streaming()
    # WHEN rows are written
    database.execute("UPDATE orders SET note = 'b' WHERE id <= 50")
    database.execute(f"INSERT INTO {hostile} VALUES (1)")
    found = awaited(
        process,
        # The list of tables and the minutes are sampled, so they follow the totals.
        lambda each: (
            each["totals"]["rows"] == 51
            and each["lag_bytes"] == 0
            and len(each["tables"]) == 2
            and sum(minute["rows"] for minute in each["minutes"]) == 51
            # Each side is asked for the first time when the stream has begun, perhaps.
            and each["kafka"]["up"]
            and each["postgres"]["up"]
            and each["ready"]
        ),
        "not delivered",
    )
    # THEN they are counted, by table and in the minute
    tables = {each["table"]: each for each in found["tables"]}
    assert tables["public.orders"]["updates"] == 50
    assert found["tables_total"] == 2
    assert sum(minute["rows"] for minute in found["minutes"]) == 51
    assert (found["role"], found["ready"], found["kafka"]["up"], found["postgres"]["up"]) == (
        "active",
        True,
        True,
        True,
    )
    assert found["position"]["flushed_lsn"] is not None
    assert found["slot"]["name"] == f"cdcd_{unique}"
    # AND the page has the same, with names as text
    page = get(process, "/")
    assert "public.orders" in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    # AND WHEN tables are asked for, the daemon reads them
    status_code, answer = post(process, "/v1/snapshots", b'{"tables": ["public.orders"], "id": "by hand"}')
    assert (status_code, answer["action"]) == (202, "start")
    found = awaited(process, lambda each: bool(each["snapshot"] and each["snapshot"]["ended"]), "not read")
    assert found["snapshot"]["ended"] == [
        {"table": "public.orders", "request": "by hand", "rows": 200, "error": ""}
    ]
    # AND the reading can be paused and resumed
    for path, paused in (("/v1/pause", True), ("/v1/resume", False)):
        assert post(process, path)[0] == 202
        awaited(process, lambda each, paused=paused: each["snapshot"]["paused"] is paused, path)  # type: ignore[misc]
    # AND nobody without the token can, and no secret is shown anywhere
    assert post(process, "/v1/pause", token="wrong")[0] == 401
    everything = "".join([page, get(process, "/v1/status"), get(process, "/metrics"), process.output()])
    assert TOKEN not in everything
    assert PASSWORD not in everything


def looked_up(daemon: Daemon, path: str, name: str) -> Any:
    """The answer of a look-up, which a thread of the daemon makes."""

    def found() -> Any:
        answer = json.loads(get(daemon, path))
        return answer if answer[name] is not None or answer["error"] else None

    return until(found, f"{path} has no answer")


@pytest.mark.postgres(only=18, also=[13])
def test_the_page_has_the_findings_of_check_and_the_places_of_the_last_records_but_no_value(
    database: Database, broker: KafkaBroker, daemon, unique: str
):
    # GIVEN a daemon that delivers rows with a secret, and a table that check warns of
    secret = "4111-1111-1111-1111"
    database.execute(
        "CREATE TABLE orders (id text PRIMARY KEY, note text);"
        'CREATE TABLE "odd.na me" (id int PRIMARY KEY);'
        "CREATE TABLE keyless (note text); ALTER TABLE keyless REPLICA IDENTITY FULL"
    )
    config = configuration(
        unique,
        f"{database.dsn()} password={PASSWORD}",
        broker.bootstrap_servers,
        http={"port": 0},
        topics={"create": {"partitions": 3}},
    )
    process = daemon(config)
    process.await_streaming()
    database.execute(f"INSERT INTO orders SELECT '{secret}' || g, '{secret}' FROM generate_series(1, 30) g")
    database.execute("DELETE FROM orders WHERE id LIKE '%7'")
    database.execute('INSERT INTO "odd.na me" VALUES (1)')
    awaited(process, lambda each: len(each["tables"]) == 2 and each["lag_bytes"] == 0, "not delivered")
    # WHEN the page is shown
    get(process, "/")
    checks = looked_up(process, "/v1/check", "findings")
    # THEN it has what `cdcd check` finds, beside the daemon that runs
    assert checks["error"] is None
    levels = {(each["level"], each["code"]) for each in checks["findings"]}
    assert not [each for each in levels if each[0] == "error"]
    command = run_cdcd("check", "--format", "json", "--config", str(process.config_path))
    assert levels == {(each["level"], each["code"]) for each in json.loads(command.stdout)["findings"]}
    page = until(lambda: text if "in order" in (text := get(process, "/")) else None, "no checks")
    assert 'href="/records?table=public.orders"' in page
    # AND the places of the last records of a table, the newest first
    records = looked_up(process, "/v1/records?table=public.orders", "records")["records"]
    assert len(records) == 20
    assert {each["operation"] for each in records[:6]} == {"DELETE", "TOMBSTONE"}
    assert {each["topic"] for each in records} == {f"{unique}.public.orders"}
    assert len({(each["partition"], each["offset"]) for each in records}) == 20
    assert all(each["bytes"] > len(secret) for each in records if each["operation"] == "INSERT")
    assert {each["lsn"] is None for each in records if each["operation"] == "TOMBSTONE"} == {True}
    # AND of a table with an odd name
    odd = until(
        lambda: looked_up(process, "/v1/records?table=public.%22odd.na%20me%22", "records")["records"],
        "no record",
    )
    assert [each["operation"] for each in odd] == ["INSERT"]
    # AND neither keys nor values nor secrets
    everything = [page, json.dumps([checks, records, odd]), get(process, "/check")]
    everything += [
        get(process, "/records?table=public.orders"),
        get(process, "/v1/records?table=public.orders"),
    ]
    assert secret not in "".join(everything)
    assert PASSWORD not in "".join(everything)
    # AND the daemon goes on
    database.execute("INSERT INTO orders VALUES ('last', '')")
    awaited(process, lambda each: each["totals"]["rows"] >= 35, "not delivered")


@pytest.mark.postgres(only=18)
def test_without_a_token_actions_are_off(database: Database, broker: KafkaBroker, daemon, unique: str):
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    code, answer = post(process, "/v1/snapshots", b'{"tables": ["public.orders"]}')
    assert (code, "http.token_file" in answer["error"]) == (403, True)


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_an_outage_is_on_the_page_with_what_to_do(database: Database, private_broker, daemon, unique: str):
    broker = private_broker()
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    broker.stop()
    found = awaited(
        process,
        lambda each: (
            each["kafka"]["up"] is False
            and "kafka.unreachable" in {problem["event"] for problem in each["problems"]}
        ),
        "Kafka is not away",
    )
    assert found["summary"] == "waits for Kafka; nothing is lost"
    assert found["kafka"]["hint"]
    assert "Kafka has not answered for" in get(process, "/")
    broker.start()
    found = awaited(process, lambda each: each["kafka"]["up"] is True, "Kafka is not back")
    assert found["kafka"]["away_s"] is None


def top(file: Path) -> Terminal:
    """`cdcd top` on a terminal."""
    return Terminal([sys.executable, "-m", "cdcd.cli", "top", "--config", str(file)], rows=30, columns=100)


def end(screen: Terminal) -> int:
    """Read the rest and say how it ended; the terminal must be as before."""
    code = screen.read_to_end()
    assert screen.is_as_before()
    # The alternate screen is left, and the cursor is shown.
    drawn = screen.drawn
    assert drawn.rindex(b"\x1b[?1049l") > drawn.rindex(b"\x1b[?1049h")
    assert b"\x1b[?25l" not in drawn[drawn.rindex(b"\x1b[?25h") :]
    assert b"\x1b" not in drawn[drawn.rindex(b"\x1b[?1l") :].removeprefix(b"\x1b[?1l").lstrip(b"\x1b>")
    return code


@pytest.mark.postgres(only=18)
def test_top_shows_a_daemon_says_when_it_is_down_and_goes_on_when_it_is_back(
    database: Database, broker: KafkaBroker, daemon, unique: str, tmp_path: Path
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    # A port that stays the daemon's while it is down
    config = configuration(unique, database.dsn(), broker.bootstrap_servers, http={"port": free_port()})
    process = daemon(config)
    process.await_streaming()
    database.execute("INSERT INTO orders SELECT generate_series(1, 40)")
    file = tmp_path / "cdcd.yaml"
    file.write_text(yaml.safe_dump(config))
    awaited(process, lambda each: each["totals"]["rows"] == 40, "not delivered")
    with top(file) as screen:
        screen.read_until("public.orders")
        # WHEN the daemon is gone
        process.stop()
        screen.read_until("No daemon answers at")
        # AND back at its place
        again = daemon(config)
        again.await_streaming()
        screen.read_until("No row came since the daemon started.")
        # AND the window becomes small
        screen.resize(10, 40)
        screen.process.send_signal(signal.SIGWINCH)
        screen.read_until("q leave")
        screen.type(b"q")
        assert end(screen) == 0
    again.stop()
    # THEN nothing is left on the terminal, also when it is ended by a signal
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)):
        with top(file) as screen:
            screen.read_until("No daemon answers at")
            screen.process.send_signal(number)
            assert end(screen) == code


@pytest.mark.postgres(only=18)
def test_top_prints_once_where_there_is_no_terminal(
    database: Database, broker: KafkaBroker, daemon, unique: str
):
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    url = f"http://{process.await_event('daemon.started')['http']}"
    run = run_cdcd("top", "--config", str(process.config_path), "--url", url)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"{unique}: streaming")
    assert "\x1b" not in run.stdout
    process.stop()
    run = run_cdcd("top", "--config", str(process.config_path), "--url", url)
    assert (run.returncode, run.stderr) == (10, "")
    assert f"No daemon answers at {url}." in run.stdout


def test_top_ends_with_its_terminal(unique: str, tmp_path: Path):
    # GIVEN a screen of a daemon that is down, in a session of its own without a controlling terminal
    config = configuration(unique, "host=127.0.0.1 dbname=postgres", "127.0.0.1:1")
    config["http"]["port"] = 1
    file = tmp_path / "cdcd.yaml"
    file.write_text(yaml.safe_dump(config))
    with top(file) as screen:
        screen.read_until("cdcd.yaml")
        # WHEN the terminal is gone, and no signal says so
        screen.hang_up()
        # THEN the command ends
        assert screen.process.wait(WAIT_S) == 129


@pytest.mark.postgres(only=18, also=[13])
def test_the_page_of_a_standby_says_which_instance_is_active_and_where(
    database: Database, broker: KafkaBroker, daemon, unique: str
):
    # GIVEN an active instance
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    dsn = f"{database.dsn()} password={PASSWORD}"
    config = configuration(unique, dsn, broker.bootstrap_servers, http={"port": 0})
    active = daemon(config)
    active.await_streaming()
    # WHEN a standby waits
    standby = daemon(config)
    told = standby.await_event("standby.waiting")
    assert (told["holder"], told["client"]) == (f"{unique} lock", "127.0.0.1")
    found = status(standby)
    assert found["active_elsewhere"]["pid"] == told["holder_pid"]
    page = get(standby, "/")
    assert "127.0.0.1" in page
    assert "not known" not in page
    # AND the pages of both instances show the configuration without the secret, and the runbook
    for process in (active, standby):
        page = get(process, "/")
        assert "Configuration in effect" in page
        assert PASSWORD not in page
        assert "CdcdKafkaUnreachable" in get(process, "/runbook")
    # AND WHEN the active instance ends, THEN the page of the other instance shows the figures
    active.stop()
    awaited(standby, lambda each: each["role"] == "active" and each["streaming"], "no takeover")
    assert "Largest lag in each quarter of an hour" in get(standby, "/")
