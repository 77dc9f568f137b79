"""The login at a registry by OAuth's client credentials, against an HTTP server that gives tokens."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

import pytest

from cdcd.core.errors import RegistryUnavailableError, SinkError
from tests.schema_registry import SchemaRegistry
from tests.unit.adapters.registry.test_client import client

SECRET = "s3cret & ü"


class TokenServer:
    """Gives the tokens `t1`, `t2`, …, unless `answer` says otherwise."""

    def __init__(self) -> None:
        self.forms: list[dict[str, list[str]]] = []
        self.logins: list[str] = []
        self.answer: tuple[int, bytes] | None = None
        self.lifetime_s: Any = 3600
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                server.forms.append(parse_qs(body))
                server.logins.append(self.headers["Authorization"])
                status, data = server.answer or (200, server.token())
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def token(self) -> bytes:
        return json.dumps({"access_token": f"t{len(self.forms)}", "expires_in": self.lifetime_s}).encode()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as found:
        yield found


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        yield found


def login(tokens: TokenServer, **more: Any) -> dict[str, Any]:
    return {"token_url": tokens.url, "client_id": "cdcd", "client_secret": SECRET, **more}


def test_a_token_is_fetched_once_and_sent_with_each_request(server: SchemaRegistry, tokens: TokenServer):
    server.login = "Bearer t1"
    registry = client(server, oauth=login(tokens, scope="registry.write"))
    assert registry.subjects() == 0
    assert registry.mode() == "READWRITE"
    assert tokens.forms == [{"grant_type": ["client_credentials"], "scope": ["registry.write"]}]
    # RFC 6749, 2.3.1: id and secret are encoded as in a form before they are joined.
    assert base64.b64decode(tokens.logins[0].removeprefix("Basic ")) == b"cdcd:s3cret+%26+%C3%BC"


def test_a_token_is_renewed_before_it_expires(
    server: SchemaRegistry, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
):
    now = [1000.0]
    monkeypatch.setattr("cdcd.adapters.registry.oauth.time.monotonic", lambda: now[0])
    registry = client(server, oauth=login(tokens))
    for passed_s, fetched in ((0, 1), (2879, 1), (2, 2)):
        now[0] += passed_s
        registry.subjects()
        assert len(tokens.forms) == fetched


def test_a_token_that_the_registry_refuses_is_not_used_again(server: SchemaRegistry, tokens: TokenServer):
    server.login = "Bearer t2"
    registry = client(server, oauth=login(tokens))
    with pytest.raises(SinkError, match="401"):
        registry.subjects()
    assert registry.subjects() == 0


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((401, b"s3cret"), SinkError, "HTTP 401"),
        ((302, b""), SinkError, "HTTP 302"),
        ((503, b""), RegistryUnavailableError, "HTTP 503"),
        ((200, b"nonsense"), SinkError, "did not answer with a token"),
        ((200, b"[]"), SinkError, "did not answer with a token"),
        ((200, b'{"access_token": "a\\r\\nX-Header: b"}'), SinkError, "did not answer with a token"),
        ((200, b'{"access_token": "a", "expires_in": "x"}'), SinkError, "did not answer with a token"),
        ((200, b'{"access_token": "' + b"a" * 100_000), SinkError, "did not answer with a token"),
    ],
)
def test_an_answer_without_a_token_is_an_error_without_secrets(
    server: SchemaRegistry, tokens: TokenServer, answer: tuple[int, bytes], error: type[Exception], said: str
):
    tokens.answer = answer
    with pytest.raises(error, match=said) as raised:
        client(server, oauth=login(tokens)).subjects()
    assert "s3cret" not in str(raised.value)


def test_a_server_of_tokens_that_is_away_is_tried_again_later(server: SchemaRegistry, tokens: TokenServer):
    away = {**login(tokens), "token_url": "http://127.0.0.1:9/token"}
    with pytest.raises(RegistryUnavailableError, match="does not answer"):
        client(server, oauth=away).subjects()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"oauth": {"token_url": "https://idp"}}, "belong together"),
        ({"oauth": {"client_id": "x"}}, "belong together"),
        ({"oauth": {"token_url": "idp", "client_id": "x", "client_secret": "y"}}, "must begin with http"),
        (
            {"oauth": {"token_url": "https://i", "client_id": "x", "client_secret": "y"}, "token": "z"},
            "both given",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    server: SchemaRegistry, settings: dict[str, Any], problem: str
):
    with pytest.raises(ValueError, match=problem):
        client(server, **settings)
