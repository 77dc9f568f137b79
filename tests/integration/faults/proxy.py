"""A TCP proxy that passes bytes on, until a test tells it to spoil some: what no real server does on purpose.

    with Proxy(port, of_postgres) as proxy:
        proxy.spoil(lambda message: cut_short(message) if is_insert(message) else None)

It reads the server's (or the client's) bytes as messages, by the frame's own length, and gives each to the spoiler,
which answers None to let it pass or other bytes to send in its place; `CUT` at their end ends both connections there.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

CUT: Final = b"\x00 and the connection is cut"
"""At the end of the spoiler's answer: end the connection after what stands before."""

Frame = Callable[[bytes], int]
"""How long the first message of these bytes is; more than there are when it is not whole, or its length unknown."""

Spoiler = Callable[[bytes], bytes | None]


def postgres_frame(data: bytes) -> int:
    """A backend's message: a tag, and a length that counts itself (manual, "Message Formats")."""
    return 1 + int.from_bytes(data[1:5], "big") if len(data) >= 5 else 5


def kafka_frame(data: bytes) -> int:
    """A request or response: a length, and as many bytes."""
    return 4 + int.from_bytes(data[:4], "big") if len(data) >= 4 else 4


class Proxy:
    """Listens on `port` of 127.0.0.1, for the server on `target`. `requests`: spoil what clients send instead."""

    def __init__(self, target: int, frame: Frame, *, requests: bool = False) -> None:
        self._target = target
        self._frame = frame
        self._requests = requests
        self._spoiler: Spoiler | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.spoilt = 0
        """How many messages were."""

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def spoil(self, spoiler: Spoiler | None, times: int = 1) -> None:
        """Ask `spoiler` about every message from now on, until it has spoilt so many."""
        left = times

        def limited(message: bytes) -> bytes | None:
            nonlocal left
            with self._lock:
                answer = spoiler(message) if spoiler is not None and left else None
                if answer is not None:
                    left -= 1
                    self.spoilt += 1
                return answer

        self._spoiler = limited

    def close(self) -> None:
        with self._lock:
            sockets = [self._listener, *self._open]
        for each in sockets:
            _shut(each)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            left = [2]
            self._run(self._pump, client, server, self._requests, left)
            self._run(self._pump, server, client, not self._requests, left)

    def _pump(self, source: socket.socket, sink: socket.socket, framed: bool, left: list[int]) -> None:
        pending = b""
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not framed:
                    sink.sendall(data)
                    continue
                pending += data
                while pending and (size := self._frame(pending)) <= len(pending):
                    message, pending = pending[:size], pending[size:]
                    answer = None if self._spoiler is None else self._spoiler(message)
                    rest = message if answer is None else answer
                    sink.sendall(rest.removesuffix(CUT))
                    if rest.endswith(CUT):
                        raise OSError("cut, as told")
        _shut(source)
        _shut(sink)
        with self._lock:
            left[0] -= 1
            if not left[0]:
                self._open -= {source, sink}
                source.close()
                sink.close()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
