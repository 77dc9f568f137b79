"""A server that never ends its answer, for tests of timeouts."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def dripping(begin: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """URL of a server that sends `begin`, and then a byte every 50 ms for as long as somebody reads."""
    ended = threading.Event()

    def drip(accepted: socket.socket) -> None:
        with accepted if tls is None else tls.wrap_socket(accepted, server_side=True) as connection:
            connection.recv(1 << 16)
            connection.sendall(begin)
            while not ended.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            drip(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield f"http{'' if tls is None else 's'}://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
