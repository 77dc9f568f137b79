"""/metrics, /healthz and /readyz, from threads of their own: a stuck event loop cannot keep them from
answering.

The server is for probes and scrapes inside of a cluster: GET and HEAD only, no authentication, a limit on
concurrent requests and on the time that one may take.
"""

import errno
import json
import socket
import socketserver
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import BoundedSemaphore, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from cdcd.config.models import Config
from cdcd.config.sections.process import HttpConfig, ListenConfig, ReadyConfig
from cdcd.errors import ConfigError
from cdcd.telemetry.state import Health, Telemetry, liveness, readiness

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

REQUESTS_MAX: Final = 32
"""Concurrent requests; a further one is hung up on. Probes and scrapers are few."""

REQUEST_S_MAX: Final = 10
"""Time that a client may leave us waiting for its next bytes."""

_HINTS: Final[Mapping[int, str]] = {
    errno.EADDRINUSE: "Another process, perhaps another cdcd, listens there. Set http.port to another, or 0 for any.",
    errno.EACCES: "Ports below 1024 need a privilege. Set http.port to a higher one.",
    errno.EADDRNOTAVAIL: "http.host is not an address of this machine; 127.0.0.1 and 0.0.0.0 always are.",
}

Page = tuple[str, str, bytes]
"""Status line, content type, body."""

Limits = tuple[HttpConfig, ReadyConfig]
"""What the probes go by."""

Application = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


class HttpServer:
    """Serves from the moment it is made until `close`.

    Args:
        http: where to listen; port 0 takes any free one, see `port`.
        application: what answers (`application`, `pages`).

    Raises ConfigError when it cannot listen there.
    """

    def __init__(self, http: ListenConfig, application: Application) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(
                http.host, http.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = _Server(address, family)
        except UnicodeError:
            raise ConfigError(f"cannot listen on {http.host}: not a host name") from None
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {http.host} port {http.port}: {error.strerror}",
                hint=_HINTS.get(error.errno or 0, "Set http.host and http.port, or http.enabled: false."),
            ) from None
        self._server.set_app(application)
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening; requests that are being answered may end."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve_http(
    config: Config, telemetry: Telemetry, current: Callable[[], Config] | None = None
) -> AbstractContextManager[str]:
    """Serve the daemon's pages while the block runs; gives `host:port`, or "" when `http.enabled` is false.

    Args:
        current: gives the configuration of now, whose limits the probes go by; None: it stays `config`.
    """

    def limits() -> Limits:
        now = config if current is None else current()
        return now.http, now.ready

    return serve(config.http, _application(limits, telemetry))


@contextmanager
def serve(http: ListenConfig, application: Application) -> Iterator[str]:
    """The same for any application."""
    if not http.enabled:
        yield ""
        return
    with HttpServer(http, application) as server:
        host = f"[{http.host}]" if ":" in http.host else http.host
        yield f"{host}:{server.port}"


def application(http: HttpConfig, ready: ReadyConfig, telemetry: Telemetry) -> Application:
    """The daemon's pages, with limits that stay."""
    return _application(lambda: (http, ready), telemetry)


def _application(limits: Callable[[], Limits], telemetry: Telemetry) -> Application:
    def live() -> Health:
        http, _ = limits()
        return liveness(telemetry, time.monotonic(), http.stall_s_max)

    def ready() -> Health:
        _, ready = limits()
        return readiness(telemetry, time.time(), ready.lag_bytes_max, ready.lag_s_max)

    def registry() -> "CollectorRegistry":
        from cdcd.telemetry.metrics import registry_for  # noqa: PLC0415  the first scrape waits for it, not the start

        return registry_for(telemetry)

    return pages(registry, {"/healthz": live, "/readyz": ready})


def pages(
    registry: "Callable[[], CollectorRegistry]", probes: Mapping[str, Callable[[], Health]]
) -> Application:
    """The WSGI application behind the server: /metrics, and probes by their paths.

    Args:
        registry: made at the first scrape.
    """
    metrics_of = cache(registry)

    def metrics(environ: WSGIEnvironment) -> Page:
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415

        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        return "200 OK", content_type, encode(metrics_of())

    def probe(look: Callable[[], Health]) -> Callable[[WSGIEnvironment], Page]:
        return lambda _: _health(look())

    pages = {"/metrics": metrics, **{path: probe(look) for path, look in probes.items()}}

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        page = pages.get(environ.get("PATH_INFO", ""))
        more: list[tuple[str, str]] = []
        if method not in {"GET", "HEAD"}:
            status, content_type, body = _text("405 Method Not Allowed", "GET and HEAD only")
            more.append(("Allow", "GET, HEAD"))
        elif page is None:
            status, content_type, body = _text("404 Not Found", f"There are {', '.join(pages)}")
        else:
            status, content_type, body = page(environ)
        headers = [
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        start_response(status, headers + more)
        return [] if method == "HEAD" else [body]

    return answer


def _health(health: Health) -> Page:
    status = "200 OK" if health.well else "503 Service Unavailable"
    return status, "application/json", json.dumps(health.detail).encode() + b"\n"


def _text(status: str, text: str) -> Page:
    return status, "text/plain; charset=utf-8", text.encode() + b"\n"


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds and say nothing."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # A request that hangs must not hold up the end of the process.
    block_on_close = False
    request_queue_size = REQUESTS_MAX

    def __init__(self, address: Any, family: socket.AddressFamily) -> None:
        self.address_family = family
        self._slots = BoundedSemaphore(REQUESTS_MAX)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer looks its own name up in the DNS, which may take seconds, and nobody needs it.
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up or is too slow is no event."""
