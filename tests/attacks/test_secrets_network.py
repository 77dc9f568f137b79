"""Whoever answers an HTTP request of cdcd, or reads its log, wants the login that cdcd has."""

import http.server
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cdcd.adapters.credentials.command import Command, output_of
from cdcd.adapters.credentials.requests import opener
from cdcd.adapters.registry.client import Registry
from cdcd.adapters.registry.oauth import ClientCredentials
from cdcd.config.loading import parse_config
from cdcd.config.sections.registry import RegistryOAuthConfig
from cdcd.core.errors import CdcdError, TransientError
from cdcd.telemetry.http_client import ANSWER_BYTES_MAX, fetch, status_of
from cdcd.tools.adopt.connect_api import Connector
from tests.attacks.checkpoints import cases
from tests.dripping import dripping

LOGIN = "hV7kQz93mPwT"


class _Server(http.server.ThreadingHTTPServer):
    """Remembers the headers of what it is asked. `location`: where it redirects to; empty: it answers `body`."""

    def __init__(self, location: str = "", status: int = 302, body: bytes = b"{}") -> None:
        self.asked: list[dict[str, str]] = []
        self.location, self.status, self.body = location, status, body
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def _answer(self) -> None:
        self.server.asked.append({"path": self.path, **dict(self.headers)})
        body = self.server.body
        self.send_response(self.server.status if self.server.location or self.server.status >= 400 else 200)
        if self.server.location:
            self.send_header("Location", f"{self.server.location}{self.path}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _answer  # noqa: N815  as http.server has it

    def log_message(self, *_arguments: object) -> None:
        """Nothing, because the test's output is its own."""


@contextmanager
def serving(location: str = "", status: int = 302, body: bytes = b"{}") -> Iterator[_Server]:
    with _Server(location, status, body) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def connect_api(url: str) -> None:
    Connector(f"{url.replace('://', f'://admin:{LOGIN}@')}/connectors/shop").options()


def registry(url: str, timeout_s: float = 10) -> None:
    Registry(
        parse_config(
            f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'b:1'}}\nformat: {{value: avro}}\n"
            f"registry: {{url: '{url}', token: {LOGIN}, timeout_s: {timeout_s}}}",
            {},
        )
    ).subjects()


@pytest.mark.attack(gains="the login of Kafka Connect, on a server of the attacker's", before="failed")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_kafka_connect_redirects_to_a_stranger(status: int):
    with serving() as stranger, serving(stranger.url, status) as server:
        with pytest.raises(CdcdError, match="final address"):
            connect_api(server.url)
        assert len(server.asked) == 1
        assert not stranger.asked


@pytest.mark.attack(gains="the registry's token, on a server of the attacker's", before="withstood")
@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_registry_redirects_to_a_stranger(status: int):
    with serving() as stranger, serving(stranger.url, status) as server:
        with pytest.raises(CdcdError, match="final address"):
            registry(server.url)
        assert not stranger.asked


DEEP = {"lists": b"[" * 200_000, "whole": b"[" * 9_000 + b"]" * 9_000, "objects": b'{"a":' * 200_000}
"""Answers in which Python's reader of JSON recurses until RecursionError."""


def oauth(url: str, timeout_s: float = 10) -> None:
    login = RegistryOAuthConfig.model_validate(
        {"token_url": url, "client_id": "cdcd", "client_secret": LOGIN}
    )
    ClientCredentials(opener(), timeout_s).token(login)


@pytest.mark.parametrize("status", [200, 422])
@pytest.mark.parametrize("ask", [connect_api, registry, oauth])
@pytest.mark.parametrize(
    "answer", cases(DEEP, "a traceback, or the end of the daemon at every start", failed=set(DEEP))
)
def test_an_answer_of_deep_json_is_refused_as_what_it_is(answer: bytes, ask, status: int):
    with serving(status=status, body=answer) as server, pytest.raises(CdcdError):
        ask(server.url)


DRIPS = {
    "head": b"HTTP/1.1 200 OK\r\nX-Long: ",
    "body": b'HTTP/1.1 200 OK\r\nContent-Length: 65000\r\n\r\n{"a": "',
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff0\r\n",
    "refusal": b"HTTP/1.1 422 No\r\nContent-Length: 65000\r\n\r\n",
}


def status(url: str, _timeout_s: float) -> None:
    config = parse_config("name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}", {})
    assert status_of(config, url) is None
    raise TransientError("no status", hint="")


@pytest.mark.parametrize("ask", [registry, oauth, status])
@pytest.mark.parametrize(
    "begin", cases(DRIPS, "a table, a start or a command that waits for hours", failed=set(DRIPS))
)
def test_a_server_that_sends_a_byte_now_and_then_is_given_up_after_the_timeout(begin: bytes, ask):
    before = time.monotonic()
    with dripping(begin) as url, pytest.raises(CdcdError):
        ask(url, 1)
    assert time.monotonic() - before < 10


@pytest.mark.attack(gains="a traceback of `cdcd status`, or all memory of the machine", before="failed")
@pytest.mark.parametrize(
    "body", [DEEP["whole"], b"[" + b" " * (ANSWER_BYTES_MAX + 100)], ids=["deep", "large"]
)
def test_what_listens_on_the_daemons_port_answers_with_what_is_no_status(body: bytes):
    with serving(body=body) as server:
        config = parse_config(
            f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'b:1'}}\n"
            f"http: {{host: 127.0.0.1, port: {server.server_port}}}",
            {},
        )
        assert status_of(config) is None
        assert len(fetch(server.url)) <= ANSWER_BYTES_MAX


@pytest.mark.attack(gains="requests of the machine that runs cdcd, to any address", before="failed")
def test_what_listens_on_the_daemons_port_redirects_to_a_stranger():
    with serving() as stranger, serving(stranger.url) as server:
        assert fetch(f"{server.url}/v1/status") == "{}"
        assert not stranger.asked


@pytest.mark.attack(gains="what `cdcd status` asks the daemon of the same machine", before="withstood")
def test_a_proxy_of_the_environment_is_not_asked_for_the_daemon_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
):
    with serving() as proxy, serving() as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        config = parse_config(
            f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'b:1'}}\n"
            f"http: {{host: 127.0.0.1, port: {server.server_port}}}",
            {},
        )
        assert status_of(config) is None
        assert (len(server.asked), proxy.asked) == (1, [])


@pytest.mark.attack(gains="the proxy's password, from an error", before="withstood")
@pytest.mark.parametrize("ask", [connect_api, registry])
def test_a_proxy_with_a_password_does_not_show_it(ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"http://user:{LOGIN}/x@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(CdcdError) as caught:
        ask("http://registry.example.com:8081")
    assert LOGIN not in str(caught.value)


SAID = [
    "token abc123 is not valid",
    "bad password: swordfish",
    "the token is swordfish",
    "refused \\'swordfish\\' for cdcd",
    "auth failed for eyJ.a.b",
    "got aBcDeFgH from the vault",
    "using x7q9",
    "key=x7q9 expired",
    "SECRET x7q9, retry",
    "Authorization: Bearer x7q9",
    "passcode 481516",
    "https://vault.example.com/v1/x7q9",
]


@pytest.mark.parametrize(
    "said",
    cases(
        {said: said for said in SAID},
        "a short token, from the log, where the command that prints it fails",
        failed={*SAID} - {"bad password: swordfish", "key=x7q9 expired"},
    ),
)
def test_a_command_that_fails_says_its_secret(said: str):
    program = f"import sys; sys.stderr.write({said!r}); sys.exit(3)"
    with pytest.raises(TransientError) as caught:
        output_of(Command("postgres.password_command", (sys.executable, "-c", program), 30))
    shown = caught.value.message.partition("exit code 3")[2]
    for secret in ("abc123", "swordfish", "eyJ", "aBcDeFgH", "x7q9", "481516"):
        assert secret not in shown


@pytest.mark.attack(gains="parts of a token, from the log", before="withstood")
@pytest.mark.parametrize(
    "secret", ["ab1", "letmein", "open sesame", json.dumps({"access_token": "wonderland"})]
)
def test_what_a_command_printed_is_not_in_what_is_shown(secret: str):
    program = (
        "import sys; print(sys.argv[1]); sys.stderr.write(f'no {sys.argv[1]} X{sys.argv[1]}Y'); sys.exit(3)"
    )
    with pytest.raises(TransientError) as caught:
        output_of(Command("postgres.password_command", (sys.executable, "-c", program, secret), 30))
    shown = caught.value.message.partition("exit code 3")[2]
    for word in ("ab1", "letmein", "sesame", "wonderland"):
        assert word not in shown
