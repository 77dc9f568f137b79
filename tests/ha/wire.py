"""A network cable between a daemon and a server: a TCP relay that can be cut and mended.

While it is cut no byte passes and nobody is told: connections stay open and what was sent waits, as TCP keeps it
through a partition. New connections are accepted by the relay's kernel, and hear nothing.
"""

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self


class Wire:
    """Relays 127.0.0.1:`port` to 127.0.0.1:`target`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._passing = threading.Event()
        self._passing.set()
        self.delay_s = 0.0
        """How long each piece of up to 64 kB takes, in either direction."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            sockets = [self._listener, *self._open]
        self._passing.set()
        for each in sockets:
            # shutdown wakes a thread that waits for the socket; close alone does not.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self) -> None:
        self._passing.clear()

    def mend(self) -> None:
        self._passing.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._passing.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        with self._lock:
            self._open |= {client, server}
            if self._closed:
                return
        back = threading.Thread(target=self._relay, args=(server, client), daemon=True)
        back.start()
        self._relay(client, server)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._passing.wait()
                sink.sendall(data)
        # The end of one side is news for the other, and news do not pass a cut either.
        self._passing.wait()
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
