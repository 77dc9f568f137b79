"""Tornado's server with the limits of `http.py`. Only the server's thread imports this module."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler, stream_request_body

from cdcd.config.sections.process import ListenConfig
from cdcd.telemetry.access import refuse_host
from cdcd.telemetry.http import BODY_BYTES_MAX, CONNECTIONS_MAX, HttpRequest, Reply, Routes, Tls, text

CONNECTION_S_MAX: Final = 20.0
"""Seconds after which a connection is closed in any state."""

HEADERS_S_MAX: Final = 10.0
"""Seconds within which a client must send its headers, including the TLS handshake, and then its body."""

HEADERS_BYTES_MAX: Final = 16_384
"""Maximum bytes of a request's headers."""


def tornado_server(routes: Routes, tls: Tls | None, listen: ListenConfig) -> HTTPServer:
    """Return the server, which does not listen yet."""
    # Errors of clients are not logged. Errors of cdcd are logged by tornado.application.
    for name in ("tornado.access", "tornado.general"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return Server(
        Application([(".*", Handler, {"routes": routes, "listen": listen})], log_function=lambda _: None),
        tls=tls,
        ssl_options=None if tls is None else tls.context,
        no_keep_alive=True,
        idle_connection_timeout=HEADERS_S_MAX,
        body_timeout=HEADERS_S_MAX,
        max_header_size=HEADERS_BYTES_MAX,
        max_body_size=4 * BODY_BYTES_MAX,
        max_buffer_size=8 * BODY_BYTES_MAX,
    )


@stream_request_body
class Handler(RequestHandler):
    """Handler of a request: a route's answer, or a sentence about the error."""

    def initialize(self, routes: Routes, listen: ListenConfig) -> None:
        self._routes = routes
        self._listen = listen

    def prepare(self) -> None:
        """Check the request before its body is read."""
        self._body = bytearray()
        self._misdirected = refuse_host(self.request.headers.get("Host", ""), self._listen)
        path, asked = self.request.path, self._asked()
        route = self._routes.get(path)
        self._refusal = None if route is not None and route.is_probe else self._misdirected
        if self._refusal is None:
            self._refusal = _refusal(self._routes, self.request.method or "", path, asked)

    def data_received(self, chunk: bytes) -> None:
        # The body of a refused request is read to its end, because a client that is still sending does not read the
        # answer.
        if self._refusal is None:
            self._body += chunk

    async def _answer(self) -> None:
        asked, reply = self._asked(), self._refusal
        if reply is None:
            route = self._routes[self.request.path]
            if route.post is not None:
                reply = await route.post(asked)
            else:
                assert route.get is not None
                reply = route.get(asked)
        self.set_status(reply.status)
        self._set_headers(reply.content_type, reply.headers)
        self.finish(reply.body)

    get = head = post = put = delete = patch = options = _answer

    def _asked(self) -> HttpRequest:
        peer = self.request.remote_ip or ""
        return HttpRequest(
            self.request.query,
            self.request.headers,
            bytes(self._body),
            peer,
            is_misdirected=self._misdirected is not None,
        )

    def _set_headers(self, content_type: str, more: Mapping[str, str]) -> None:
        self.clear_header("Server")
        for name, value in {"Content-Type": content_type, "Cache-Control": "no-store", **more}.items():
            self.set_header(name, value)

    def compute_etag(self) -> str | None:
        return None

    def write_error(self, status_code: int, **_: Any) -> None:
        self._set_headers("text/plain; charset=utf-8", {})
        known = status_code < 500
        self.finish(b"This request is not understood.\n" if known else b"cdcd failed; its log says why.\n")


class Server(HTTPServer):
    """HTTP server that closes connections that are too old or too many."""

    def initialize(self, *args: Any, tls: Tls | None = None, **options: Any) -> None:
        super().initialize(*args, **options)
        self._tls = tls
        self._open: OrderedDict[IOStream, asyncio.TimerHandle] = OrderedDict()

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        if self._tls is not None:
            self._tls.refresh()
        if len(self._open) >= CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            self._forget(oldest)
            oldest.close()
        self._open[stream] = asyncio.get_running_loop().call_later(CONNECTION_S_MAX, stream.close)
        super().handle_stream(stream, address)

    def on_close(self, server_conn: Any) -> None:
        super().on_close(server_conn)
        self._forget(server_conn.stream)

    def _forget(self, stream: IOStream) -> None:
        timer = self._open.pop(stream, None)
        if timer is not None:
            timer.cancel()


def _refusal(routes: Routes, method: str, path: str, asked: HttpRequest) -> Reply | None:
    """Return the refusal of a request; None if its route may answer. The body has not been read yet."""
    route = routes.get(path)
    if route is None:
        return text(404, f"There are {', '.join(routes)}")
    if method not in route.methods:
        return text(405, f"{' and '.join(route.methods)} only", Allow=", ".join(route.methods))
    if "Transfer-Encoding" in asked.headers:
        return text(411, "Send the body with its length (Content-Length).")
    length = asked.headers.get("Content-Length", "0")
    if not length.isdecimal() or len(length) > 9 or int(length) > BODY_BYTES_MAX:
        return text(413, f"A body of at most {BODY_BYTES_MAX} bytes is allowed.")
    return None if route.refuse is None else route.refuse(asked)
