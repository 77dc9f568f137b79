"""HTTP requests that may carry a login: redirects are not followed, and errors show no address with a login.

urllib sends the headers of a request, including `Authorization`, to the target of a redirect.

The rule: the timeout of a request limits the whole request, from the connection to the last byte of the answer. The
timeout of urllib limits each read only, so that a server could hold a thread for days with a byte every few seconds.
`Limit` is for libraries whose requests cdcd does not send itself.
"""

import functools
import http.client
import io
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import IO, Any, Final, TypeVar

from cdcd.adapters.credentials.command import without_secrets

T = TypeVar("T")

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

REDIRECTED: Final = (
    "The server redirects to another address. cdcd does not follow, because it would send the login there. Give the "
    "final address."
)
"""Hint for an answer with a status of `REDIRECTS`."""


ABANDONED_MAX: Final = 4
"""More than one, so that a request that hangs for ever does not prevent all later ones."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None


class _Remaining(io.RawIOBase):
    """Bytes of a socket up to a deadline, in monotonic seconds. A read after the deadline raises TimeoutError."""

    def __init__(self, stream: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        self._stream = stream
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the answer is not complete within the timeout")
        self._sock.settimeout(remaining)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *given: Any, deadline: float, **named: Any) -> None:
        super().__init__(sock, *given, **named)
        self.fp = io.BufferedReader(_Remaining(self.fp.detach(), sock, deadline))


def _timed(connection: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
    """Return a constructor of connections that read an answer until `timeout` seconds after the construction."""

    def connect(host: str, *, timeout: float, **named: Any) -> http.client.HTTPConnection:
        made = connection(host, timeout=timeout, **named)
        made.response_class = functools.partial(_Answer, deadline=time.monotonic() + timeout)  # type: ignore[assignment]
        return made

    return connect


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_timed(http.client.HTTPConnection), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._of_request = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_timed(http.client.HTTPSConnection), req, context=self._of_request)


class AbandonedError(TimeoutError):
    """A call took longer than its `Limit`."""


class Limit:
    """Runs calls of a library one after the other, each for `timeout_s` seconds at most.

    A call that takes longer is abandoned in its thread. While `ABANDONED_MAX` threads run, later calls fail at once, so
    that a server that never ends its answers costs few threads.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._abandoned: list[threading.Thread] = []

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, or raise its exception. AbandonedError: the call takes too long."""
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        if len(self._abandoned) >= ABANDONED_MAX:
            raise AbandonedError(f"{ABANDONED_MAX} earlier requests are still without an answer")
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001  raised in the thread that waits
                answer.set_exception(error)

        thread = threading.Thread(target=run, name="limited", daemon=True)
        thread.start()
        try:
            return answer.result(self.timeout_s)
        except TimeoutError:
            if answer.done():
                raise
            self._abandoned.append(thread)
            raise AbandonedError(f"no answer within {self.timeout_s:g} s") from None


def opener(context: ssl.SSLContext | None = None, *, by_proxy: bool = True) -> urllib.request.OpenerDirector:
    """Return an opener whose requests raise HTTPError if the server redirects, and end after their timeout.

    Args:
        context: TLS context for https; None: the machine's certificate authorities.
        by_proxy: True to use the proxies of the environment (`https_proxy` and others). Use False for a server on
            this machine.
    """
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), _Http(), _Https(context)]
    if not by_proxy:
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def reason(error: OSError | http.client.HTTPException) -> str:
    """Return the reason for a missing answer, without possible secrets."""
    if isinstance(error, http.client.InvalidURL):
        # The message of the exception quotes the address, and a proxy's address may contain a password.
        return "the address of the server, or of a proxy in the environment, is not valid"
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    return without_secrets(str(why) or type(why).__name__)
