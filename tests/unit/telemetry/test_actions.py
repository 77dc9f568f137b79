import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.config.loading import Config, parse_config
from cdcd.core.errors import CdcdError, ConfigError, TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.signals import Signal
from cdcd.telemetry.actions import Accepted
from cdcd.telemetry.daemon_pages import daemon_routes
from cdcd.telemetry.http import HttpServer
from cdcd.telemetry.state import Telemetry

TOKEN = "0123456789abcdef-of-a-test"
PATHS = ["/v1/snapshots", "/v1/pause", "/v1/resume", "/v1/tables/stop", "/v1/tables/resume"]


class Asked:
    """What the daemon was asked for. `failure` is raised instead of an answer; `wait` holds answers up."""

    def __init__(self) -> None:
        self.signals: list[Signal] = []
        self.failure: CdcdError | None = None
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.notices: tuple[str, ...] = ()

    def __call__(self, _config: Config, signal: Signal) -> Accepted:
        self.begun.set()
        assert self.go.wait(10)
        if self.failure is not None:
            raise self.failure
        self.signals.append(signal)
        return Accepted(Lsn(0x16B3748), self.notices)


def config(http: str = "") -> Config:
    return parse_config(
        f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'b:1'}}\nhttp: {{port: 0{http}}}\n",
        {},
    )


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def server(asked: Asked) -> Iterator[HttpServer]:
    given = config(f", token: {TOKEN}")
    with HttpServer(given.http, daemon_routes(lambda: given, Telemetry("shop"), asked)) as server:
        yield server


def post(
    server: HttpServer, path: str, body: bytes = b"", authorization: str | None = f"Bearer {TOKEN}"
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        headers = {} if authorization is None else {"Authorization": authorization}
        connection.request("POST", path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


@pytest.mark.parametrize("path", PATHS)
def test_without_a_token_in_the_configuration_actions_are_off_and_say_how_to_turn_them_on(path, asked):
    given = config()
    with HttpServer(given.http, daemon_routes(lambda: given, Telemetry("shop"), asked)) as server:
        status, answer, _ = post(server, path, b'{"tables": ["public.orders"]}')
    assert status == 403
    assert "http.token_file" in answer["error"]
    assert asked.signals == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xff",
    ],
)
def test_a_wrong_token_is_refused(path, authorization, server, asked):
    status, answer, headers = post(server, path, authorization=authorization)
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="cdcd"')
    assert TOKEN not in json.dumps(answer)
    assert asked.signals == []


def test_a_snapshot_is_asked_for_as_the_command_does(server, asked):
    status, answer, _ = post(
        server, "/v1/snapshots", b'{"tables": ["public.orders"], "where": "id > 3", "id": "n"}'
    )
    assert (status, answer) == (202, {"asked_lsn": "0/16B3748", "pipeline": "shop", "action": "start"})
    assert asked.signals == [Signal("start", ("public.orders",), "id > 3", "n", "shop")]


def test_what_is_different_from_what_was_asked_for_is_in_the_answer(server, asked):
    asked.notices = ("public.sales is partitioned. Its leaves are read.",)
    _, answer, _ = post(server, "/v1/snapshots", b'{"tables": ["public.sales"]}')
    assert answer["notices"] == ["public.sales is partitioned. Its leaves are read."]


def test_pause_and_resume(server, asked):
    assert post(server, "/v1/pause")[0] == 202
    assert post(server, "/v1/resume", b"{}")[0] == 202
    assert asked.signals == [Signal("pause", pipeline="shop"), Signal("resume", pipeline="shop")]


def test_a_table_is_stopped_and_comes_back_as_by_the_command(server, asked):
    for path, action in (("/v1/tables/stop", "stop_tables"), ("/v1/tables/resume", "resume_tables")):
        status, answer, _ = post(server, path, b'{"tables": ["public.orders"]}')
        assert (status, answer["action"]) == (202, action)
        assert asked.signals.pop() == Signal(action, ("public.orders",), pipeline="shop")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/snapshots", b"", "start needs tables"),
        ("/v1/snapshots", b"{", "not JSON"),
        ("/v1/snapshots", b"[" * 60_000, "not JSON"),
        ("/v1/snapshots", b"\xff\xfe", "not JSON"),
        ("/v1/snapshots", b"[]", "not a JSON object"),
        ("/v1/snapshots", b'{"tables": "public.orders"}', "must be a list"),
        ("/v1/snapshots", b'{"tables": ["orders"]}', "must be a list"),
        ("/v1/snapshots", b'{"tables": ["a.b"], "pipeline": "bank"}', "pipeline is not a key"),
        ("/v1/snapshots", b'{"tables": ["a.b"], "action": "cancel"}', "action is not a key"),
        ("/v1/snapshots", b'{"tables": ["a.b"], "id": "\\u0000"}', "without NUL"),
        ("/v1/pause", b'{"tables": ["a.b"]}', "tables is not a key"),
        ("/v1/tables/stop", b"", "stop_tables needs tables"),
        ("/v1/tables/resume", b'{"tables": []}', "resume_tables needs tables"),
        ("/v1/tables/resume", b'{"tables": ["a.b"], "where": "true"}', "where is not a key"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(path, body, says, server, asked):
    status, answer, _ = post(server, path, body)
    assert status == 400
    assert says in answer["error"]
    assert asked.signals == []


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ConfigError("signals are off", hint="Turn them on."), 409),
        (TransientError("away", hint="Wait."), 503),
    ],
)
def test_what_the_command_would_say_is_the_answer(failure, status, server, asked):
    asked.failure = failure
    found, answer, _ = post(server, "/v1/pause")
    assert (found, answer) == (status, {"error": failure.message, "hint": failure.hint})


def test_a_request_that_hangs_holds_up_no_probe_and_lets_no_second_one_in(server, asked, monkeypatch):
    monkeypatch.setattr("cdcd.telemetry.actions.ANSWER_S_MAX", 1.0)
    asked.go.clear()
    answers: list[int] = []
    first = threading.Thread(target=lambda: answers.append(post(server, "/v1/pause")[0]))
    first.start()
    assert asked.begun.wait(10)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    status, answer, _ = post(server, "/v1/resume")
    assert (status, "under way" in answer["error"]) == (503, True)
    first.join(10)
    assert answers == [504]
    asked.go.set()


def test_a_token_that_is_changed_counts_at_once(asked):
    given = [config(f", token: {TOKEN}")]
    with HttpServer(given[0].http, daemon_routes(lambda: given[0], Telemetry("shop"), asked)) as server:
        assert post(server, "/v1/pause")[0] == 202
        given[0] = config(", token: another-token-of-a-test")
        assert post(server, "/v1/pause")[0] == 401


@pytest.mark.parametrize("token", ["short", "with a blank in the token", "ümlaute-sind-nicht-erlaubt"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused_and_not_shown(token):
    with pytest.raises(ConfigError, match=r"http.token: must be 16 to 1000 printable ASCII") as caught:
        config(f", token: {token}")
    assert token not in str(caught.value)


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    from_file = config(f", token_file: {tmp_path}/token").http
    assert from_file.token is not None
    assert from_file.token.get_secret_value() == TOKEN
    text = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n"
    from_environment = parse_config(text, {"CDCD_HTTP__TOKEN": TOKEN}).http
    assert from_environment.token == from_file.token
    assert TOKEN not in repr(from_file)
