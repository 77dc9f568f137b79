"""The HTTP server of a daemon and of a mirror: Tornado in its own thread with its own event loop, so that probes are
answered even if the daemon's event loop is stuck; its TLS; and the routes that both serve: /metrics and probes.

The rule: a client costs little, whatever it does. A connection serves one request within `CONNECTION_S_MAX`
seconds, headers and body have limits, and there are at most `CONNECTIONS_MAX` connections. When another connection
arrives, the oldest is closed, so that clients with idle connections do not lock out a probe.

Answers are cached for a moment, so that frequent requests cost the stream little.
"""

import asyncio
import errno
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from cdcd.config.sections.process import ListenConfig
from cdcd.core.errors import ConfigError, out_of_files
from cdcd.telemetry.state import Health

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


LOOK_S: Final = 10.0
"""Seconds between two checks of the files."""


class Tls:
    """TLS context with the certificate and key of these files, for TLS 1.2 and newer.

    Raises ConfigError if the files cannot be read, or are no certificate with its key.
    """

    def __init__(self, certificate: Path, key: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._files = (certificate, key)
        self._clock = clock
        self._looked_at = clock()
        self._seen = self._versions()
        problem = self._load()
        if problem:
            raise ConfigError(
                f"http.certificate_file and http.key_file cannot be used: {problem}",
                hint="Both must be PEM files that cdcd may read: the certificate with its chain, and its key without "
                "a passphrase.",
            )

    @classmethod
    def of(cls, http: ListenConfig) -> Self | None:
        """Return the configured TLS; None without TLS."""
        if http.certificate_file is None or http.key_file is None:
            return None
        return cls(http.certificate_file, http.key_file)

    def refresh(self) -> None:
        """Load the files again if they have changed and contain a certificate with its key."""
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        versions = self._versions()
        if versions != self._seen and not self._load():
            self._seen = versions

    def _versions(self) -> tuple[float, ...]:
        try:
            return tuple([file.stat().st_mtime for file in self._files])
        except OSError:
            return ()

    def _load(self) -> str:
        """Load the files; return the problem, or "" if they are in use now."""
        certificate, key = self._files
        try:
            # The first context is a trial, because a partial load would leave the context without a matching key.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(certificate, key, password=_no_passphrase)
        except _PassphraseError:
            return f"{key} has a passphrase"
        except OSError as error:
            return error.strerror or str(error)
        return ""


class _PassphraseError(Exception):
    """Raised instead of a passphrase, which OpenSSL would otherwise ask for at the terminal."""


def _no_passphrase() -> str:
    raise _PassphraseError


CONNECTIONS_MAX: Final = 32
"""Maximum number of connections at the same time. Probes, scrapers and open pages need few."""

BODY_BYTES_MAX: Final = 65_536
"""Maximum bytes of a request's body: enough for a thousand names of tables."""

ACCEPT_AGAIN_S: Final = 0.1
"""Seconds between two attempts to accept a connection while the process has no free descriptor. Open connections are
not served meanwhile."""

_HINTS: Final[Mapping[int, str]] = {
    errno.EADDRINUSE: "Another process, perhaps another cdcd, listens there. Set http.port to another, or 0 for any.",
    errno.EACCES: "Ports below 1024 need a privilege. Set http.port to a higher one.",
    errno.EADDRNOTAVAIL: "http.host is not an address of this machine; 127.0.0.1 and 0.0.0.0 always are.",
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Arguments of a route: the HTTP request.

    Attributes:
        query: part of the address after the question mark.
        headers: headers by name, case-insensitive.
        peer: address of the client, or of its proxy.
        is_misdirected: True if the request is for a host name that is not the server's. Only probes answer then.
    """

    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    is_misdirected: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """HTTP answer of a route."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """Handlers of a path.

    Attributes:
        get: answers GET and, without the body, HEAD; it runs in the server's event loop and must not block.
        post: answers POST.
        refuse: checks a request before its body is read, and returns a refusal, or None to allow the request.
        is_probe: True if the route answers under every host name. Its answer must have no data then.
    """

    get: Callable[[HttpRequest], Reply] | None = None
    post: Callable[[HttpRequest], Awaitable[Reply]] | None = None
    refuse: Callable[[HttpRequest], Reply | None] | None = None
    is_probe: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        return ("GET", "HEAD") if self.get is not None else ("POST",)


Routes = Mapping[str, HttpRoute]
"""Routes by path."""


def text(status: int, sentence: str, **headers: str) -> Reply:
    """Return a plain text answer with one sentence."""
    return Reply(status, "text/plain; charset=utf-8", sentence.encode() + b"\n", headers)


class HttpServer:
    """HTTP server from its construction until `close`.

    Args:
        http: address to listen on; port 0 chooses a free port, see `port`.
        routes: handlers by path.
        tls: certificate and key; None: no TLS.

    Raises ConfigError if the server cannot listen there.
    """

    def __init__(self, http: ListenConfig, routes: Routes, tls: Tls | None = None) -> None:
        self._socket = listening_socket(http)
        self._http = http
        self._routes = routes
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._started = Event()
        self.port = int(self._socket.getsockname()[1])
        """Port on which the server listens."""
        self._thread = Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._started.wait()
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._started.set()
            self._socket.close()

    async def _serve(self) -> None:
        # The import is in this thread, so that the start of the daemon does not wait for Tornado to load.
        from cdcd.telemetry.tornado_server import tornado_server  # noqa: PLC0415

        server = tornado_server(self._routes, self._tls, self._http)
        server.add_sockets([self._socket])
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._stop.wait()
        server.stop()
        await server.close_all_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def serve(http: ListenConfig, routes: Routes) -> Iterator[str]:
    """Serve HTTP, or HTTPS with a certificate, in the `with` block; yields `host:port`, or "" if `http.enabled` is
    false.
    """
    if not http.enabled:
        yield ""
        return
    with HttpServer(http, routes, Tls.of(http)) as server:
        host = f"[{http.host}]" if ":" in http.host else http.host
        yield f"{host}:{server.port}"


class _Listening(socket.socket):
    """A listening socket that makes the event loop wait while the process has no free descriptor for a connection.

    The socket stays readable while a client waits. Without the wait, the event loop would retry continuously.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if out_of_files(error) is None:
                raise
            time.sleep(ACCEPT_AGAIN_S)
            raise BlockingIOError from error


def listening_socket(http: ListenConfig) -> socket.socket:
    """Return a socket that listens on the configured address. Raises ConfigError if that is impossible."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            http.host, http.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = _Listening(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(CONNECTIONS_MAX)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
    except UnicodeError:
        raise ConfigError(f"cannot listen on {http.host}: not a host name") from None
    except OSError as error:
        full = out_of_files(error)
        if full is not None:
            raise full from None
        raise ConfigError(
            f"cannot listen on {http.host} port {http.port}: {error.strerror}",
            hint=_HINTS.get(error.errno or 0, "Set http.host and http.port, or http.enabled: false."),
        ) from None
    return listening


KINDS_MAX: Final = 16
"""Maximum number of kinds of answers in the cache. If there are more, the cache is cleared."""

Kind = TypeVar("Kind", bound=Hashable)
Answer = TypeVar("Answer")


class AnswerCache(Generic[Kind, Answer]):
    """A cache; call it with a kind and a function that makes the answer. An old answer is made again.

    Args:
        share_max: maximum share of a core for making the answers of one kind. It determines how long an answer is
            kept: with a share of 0.01, an answer that took 50 ms is kept for 5 s.
        fresh_s: minimum seconds for which an answer is kept.
    """

    def __init__(self, share_max: float, fresh_s: float = 0.0) -> None:
        self._share_max = share_max
        self._fresh_s = fresh_s
        self._made: dict[Kind, tuple[float, Answer]] = {}

    def __call__(self, kind: Kind, make: Callable[[], Answer]) -> Answer:
        now = time.monotonic()
        found = self._made.get(kind)
        if found is not None and now < found[0]:
            return found[1]
        began = time.thread_time()
        answer = make()
        if len(self._made) >= KINDS_MAX:
            self._made.clear()
        keep_s = max(self._fresh_s, (time.thread_time() - began) / self._share_max)
        self._made[kind] = (now + keep_s, answer)
        return answer


SHARE_MAX: Final = 0.1
"""Maximum share of a core for scrapes. With 200 tables a scrape takes 35 ms, and is kept for 0.35 s."""


def metrics_and_probes(
    registry: "Callable[[], CollectorRegistry]",
    probes: Mapping[str, Callable[[], Health]],
    refuse: Callable[[HttpRequest], Reply | None] | None = None,
) -> dict[str, HttpRoute]:
    """Return the routes /metrics and the probes by their paths.

    Args:
        registry: returns the registry, called at the first scrape.
        refuse: refuses requests for the metrics; None: all may read them. A probe answers such a request, without the
            reasons, which can name tables and hosts.
    """
    metrics_of = cache(registry)
    scrapes: AnswerCache[str, Reply] = AnswerCache(SHARE_MAX)

    def metrics(asked: HttpRequest) -> Reply:
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  the first scrape waits, not the start

        encode, content_type = choose_encoder(asked.headers.get("Accept", ""))
        return scrapes(content_type, lambda: Reply(200, content_type, encode(metrics_of())))

    def may_read(asked: HttpRequest) -> bool:
        return not asked.is_misdirected and (refuse is None or refuse(asked) is None)

    def probe(look: Callable[[], Health]) -> HttpRoute:
        return HttpRoute(get=lambda asked: _health(look(), with_reasons=may_read(asked)), is_probe=True)

    return {
        "/metrics": HttpRoute(get=metrics, refuse=refuse),
        **{path: probe(look) for path, look in probes.items()},
    }


def _health(health: Health, *, with_reasons: bool) -> Reply:
    shown = {name: value for name, value in health.detail.items() if with_reasons or name != "reasons"}
    return json_reply(200 if health.well else 503, shown)


def json_reply(status: int, value: object, **headers: str) -> Reply:
    """Return a JSON answer with an object."""
    return Reply(status, "application/json", json.dumps(value).encode() + b"\n", headers)
