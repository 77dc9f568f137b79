"""The HTTP server of a daemon and of a mirror: Tornado, with a thread and an event loop of its own, so that a stuck
event loop of the daemon cannot keep probes from an answer.

The rule: a client costs little, whatever it does. A connection has one request and `CONNECTION_S_MAX` seconds, headers
and body have limits, and there are at most `CONNECTIONS_MAX` connections. If one more comes, the oldest is closed, so
that clients which only hold connections open do not lock out a probe.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

from cdcd.config.sections.process import ListenConfig
from cdcd.core.errors import ConfigError, out_of_files
from cdcd.telemetry.tls import Tls

CONNECTIONS_MAX: Final = 32
"""Connections at the same time. Probes, scrapers and open pages are few."""

BODY_BYTES_MAX: Final = 65_536
"""Size of a request's body: a thousand names of tables."""

ACCEPT_AGAIN_S: Final = 0.1
"""Seconds between two attempts to accept a connection if the process has no descriptor left. Open connections are not
served meanwhile."""

_HINTS: Final[Mapping[int, str]] = {
    errno.EADDRINUSE: "Another process, perhaps another cdcd, listens there. Set http.port to another, or 0 for any.",
    errno.EACCES: "Ports below 1024 need a privilege. Set http.port to a higher one.",
    errno.EADDRNOTAVAIL: "http.host is not an address of this machine; 127.0.0.1 and 0.0.0.0 always are.",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What a route is given.

    Attributes:
        query: the part of the address after the question mark.
        headers: by name; the names' case does not matter.
        peer: the address of who asks, or of a proxy before it.
    """

    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a route answers."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """What answers at a path.

    Attributes:
        get: answers GET and, without the body, HEAD; it runs in the server's event loop and must not wait.
        post: answers POST.
        refuse: judges a request before its body is read; None: it may go on.
        is_probe: answers under each name, because it has no data.
    """

    get: Callable[[Request], Reply] | None = None
    post: Callable[[Request], Awaitable[Reply]] | None = None
    refuse: Callable[[Request], Reply | None] | None = None
    is_probe: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        return ("GET", "HEAD") if self.get is not None else ("POST",)


Routes = Mapping[str, Route]
"""By path."""


def text(status: int, sentence: str, **headers: str) -> Reply:
    """A sentence for people."""
    return Reply(status, "text/plain; charset=utf-8", sentence.encode() + b"\n", headers)


class HttpServer:
    """Serves from the moment it is made until `close`.

    Args:
        http: where to listen; port 0 takes any free one, see `port`.
        routes: what answers.
        tls: None: without TLS.

    Raises ConfigError when it cannot listen there.
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
        """Where it listens."""
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
        # In this thread, so that the start of the daemon does not wait for Tornado to load.
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
def serve(http: ListenConfig, routes: Routes, tls: Tls | None = None) -> Iterator[str]:
    """Serve while the block runs; gives `host:port`, or "" when `http.enabled` is false."""
    if not http.enabled:
        yield ""
        return
    with HttpServer(http, routes, tls) as server:
        host = f"[{http.host}]" if ":" in http.host else http.host
        yield f"{host}:{server.port}"


class _Listening(socket.socket):
    """A listening socket that makes the event loop wait if the process has no descriptor left for a connection.

    The socket stays readable as long as a client waits. Without a wait, the event loop would try again and again.
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
    """A socket that listens where the configuration says. Raises ConfigError when it cannot."""
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
