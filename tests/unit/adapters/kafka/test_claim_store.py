"""Objects for claim checks: the requests that a store gets, and what its answers become."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from cdcd.adapters.kafka import claim_store
from cdcd.adapters.kafka.claim_store import ClaimBucket, ClaimDirectory
from cdcd.core.errors import ConfigError, LimitError, SinkUnavailableError

SECRET = "hush-5ecret"

pytest.importorskip("obstore", reason="the extra s3 is in requirements-dev.lock")


class Store:
    """An HTTP server that answers every request with one status and one body, as no real store can be told to."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.headers: dict[str, str] = {"ETag": "e"}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                store.requests.append((self.command, self.path, dict(self.headers)))
                self.send_response(store.status)
                for name, value in store.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(store.body)))
                self.end_headers()
                self.wfile.write(store.body)

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self.answer
                raise AttributeError(name)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with Store() as server:
        yield server


def bucket(store: Store, url: str = "s3://claims/shop") -> ClaimBucket:
    return ClaimBucket(url, store.url, "eu-central-1")


def body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()


def test_a_probe_is_put_below_the_url_and_removed(store: Store):
    bucket(store).prove()
    (put, path, headers), (removed, same, _) = store.requests
    assert (put, removed) == ("PUT", "DELETE")
    assert path == same == "/claims/shop/cdcd-probe"
    assert "/eu-central-1/s3/" in headers["authorization"]


def test_the_name_of_an_object_is_the_digest_of_its_value(store: Store):
    value = b"v" * 1000
    digest = hashlib.sha256(value).hexdigest()
    for url in ("s3://claims/shop", "s3://claims/shop/"):
        assert bucket(store, url).keep(value, digest) == f"s3://claims/shop/{digest}.json"
    assert {path for _, path, _ in store.requests} == {f"/claims/shop/{digest}.json"}
    assert store.requests[0][2]["x-amz-content-sha256"] == digest, "the store checks what it gets"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (301, "PermanentRedirect"),
        (400, "BadRequest"),
        (401, "Unauthorized"),
        (403, "AccessDenied"),
        (404, "NoSuchBucket"),
    ],
)
def test_a_refusal_needs_a_person(store: Store, status: int, code: str):
    store.status, store.body = status, body(code)
    for ask in (bucket(store).prove, lambda: bucket(store).keep(b"v", "d")):
        with pytest.raises(LimitError, match="s3://claims/shop") as caught:
            ask()
        assert f"status {status}" in caught.value.message
        assert status == 301 or code in caught.value.message
        assert "s3:PutObject" in caught.value.hint


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_store_that_cannot_now_is_asked_again_later(store: Store, status: int):
    store.status, store.body = status, body("SlowDown")
    with pytest.raises(SinkUnavailableError, match=f"status {status}, SlowDown"):
        bucket(store).keep(b"v", "d")
    # AND the request was repeated first
    assert len(store.requests) > 1


def test_a_store_that_is_away_is_asked_again_later(store: Store):
    away = ClaimBucket("s3://claims/shop", "http://127.0.0.1:1", "eu-central-1")
    for ask in (away.prove, lambda: away.keep(b"v", "d")):
        with pytest.raises(SinkUnavailableError, match="does not answer") as caught:
            ask()
        assert "claim_check_store.endpoint" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (403, f"<Error><Code>{SECRET} \x1b[2J</Code></Error>".encode()),
        (403, SECRET.encode() * 100_000),
        (500, b"\xff\x00" + SECRET.encode()),
        (200, body("InternalError")),
        (307, SECRET.encode()),
    ],
)
def test_no_words_of_a_store_reach_an_error(store: Store, status: int, text: bytes):
    store.status, store.body, store.headers = status, text, {}
    large = bytes(claim_store.PART_BYTES + 1)
    with pytest.raises((LimitError, SinkUnavailableError)) as caught:
        bucket(store).keep(large, "d")
    said = str(caught.value)
    assert SECRET not in said
    assert "somebody" not in said
    assert "\x1b" not in said
    assert len(said) < 600
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_settings_of_the_environment_that_the_library_refuses_are_named(
    store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(ConfigError, match="obstore refuses the settings"):
        ClaimBucket("s3://claims/shop").prove()
    assert SECRET not in "".join(capfd.readouterr())


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"kafka\.claim_check_store needs") as caught:
        ClaimBucket("s3://claims/shop")
    assert "cdcd[s3]" in caught.value.hint


def test_a_file_has_the_value_under_the_name_of_its_digest(tmp_path: Path):
    directory = ClaimDirectory(tmp_path)
    for _ in range(2):
        assert directory.keep(b"v", "d") == str(tmp_path / "d.json")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"v"]
