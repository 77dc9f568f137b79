"""One connection of libpq in asyncio: waiting for its socket, commands of the simple protocol, and rows by COPY.

libpq does all reading and writing; the event loop only tells when the socket is ready. Two rules follow.

A socket that nobody waits for is not watched for long: epoll would report it again and again. It stays watched from one
wait to the next, though, because telling epoll each time costs a system call.

libpq closes the socket of a lost connection in the middle of a call, and the next connection of the process may get
the same number. So whoever gets an error from libpq calls `let_go` before the event loop runs again. The methods of
this class do it themselves; a caller that uses `pgconn` directly (the replication stream does, for speed) owes it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg import pq

from cdcd.postgres.refusals import Answer, answer_of, answer_of_result, refused

Row = tuple[str | None, ...]

_BUDGET_S: Final = 0.004
"""The longest that rows of a COPY keep the event loop, so that feedback and health checks stay punctual."""


@dataclass(slots=True)
class Outcome:
    """What the server answered to one command string.

    Attributes:
        results: those with rows, in order.
        errors: the server's, in order; last, with an empty SQLSTATE, how libpq describes a lost connection.
        lines: what COPY sent, until it was more than `bytes_max`; then none.
        size: bytes of all lines, also of those that were thrown away.
    """

    results: list[pq.abc.PGresult] = field(default_factory=list)
    errors: list[Answer] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0


class Session:
    """A connected, non-blocking PGconn of one event loop. One task at a time runs commands; any may wait.

    Attributes:
        names: role, database and others, for the hints of server errors.
    """

    def __init__(self, pgconn: pq.abc.PGconn, names: Mapping[str, str]) -> None:
        self.pgconn = pgconn
        self.names = dict(names)
        self._socket = pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._watched = False
        self._watched_to_write = False
        self._over = False
        self._readers: list[asyncio.Future[bool]] = []
        self._writers: list[asyncio.Future[None]] = []

    @property
    def server_version(self) -> int:
        """`server_version_num`, e.g. 180001."""
        return self.pgconn.server_version

    @property
    def backend_pid(self) -> int:
        """The process id of the server's side."""
        return self.pgconn.backend_pid

    @property
    def is_lost(self) -> bool:
        """Whether nothing more can come from the server."""
        return self._over or self.pgconn.status == pq.ConnStatus.BAD

    def on_notice(self, handler: Callable[[Answer, bytes], None]) -> None:
        """Call `handler` with each notice and its severity (untranslated), and with errors of an idle session."""

        def handle(result: pq.abc.PGresult) -> None:
            severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b""
            handler(answer_of_result(result), severity)

        self.pgconn.notice_handler = handle

    # Waiting.

    async def readable(self, until: float | None = None) -> bool:
        """Return when the socket has something to read, has ended, or is let go of. Cancel-safe.

        False: the loop's time is `until`, and nothing came.
        """
        if self._over:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        if not self._watched:
            self._loop.add_reader(self._socket, self._on_readable)
            self._watched = True
        self._readers.append(waiter)
        timer = None if until is None else self._loop.call_at(until, _wake, waiter, False)
        try:
            return await waiter
        finally:
            self._readers.remove(waiter)
            if timer:
                timer.cancel()

    async def writable(self) -> None:
        """Return when the socket takes something again, or is let go of. Cancel-safe."""
        if self._over:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        if not self._watched_to_write:
            self._loop.add_writer(self._socket, self._on_writable)
            self._watched_to_write = True
        self._writers.append(waiter)
        try:
            await waiter
        finally:
            self._writers.remove(waiter)
            if not self._writers:
                self._unwatch_to_write()

    def _on_readable(self) -> None:
        if not self._readers:
            self._unwatch()
        for waiter in self._readers:
            if not waiter.done():
                waiter.set_result(True)

    def _on_writable(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)

    def wake(self) -> None:
        """Let every `readable` return: somebody else may have read what they wait for into libpq's buffer."""
        for waiter in self._readers:
            _wake(waiter, True)

    def _unwatch(self) -> None:
        if self._watched:
            self._loop.remove_reader(self._socket)
            self._watched = False

    def _unwatch_to_write(self) -> None:
        if self._watched_to_write:
            self._loop.remove_writer(self._socket)
            self._watched_to_write = False

    def let_go(self) -> None:
        """Watch the socket no longer, and wake whoever waits for it: their next call of libpq meets the error.

        After an error in sending, the server's last words may still be there to be read, so waiting goes on being
        possible until libpq has given up the connection.
        """
        self._unwatch()
        self._unwatch_to_write()
        self._over = self._over or self.pgconn.status == pq.ConnStatus.BAD
        self._on_writable()
        self.wake()

    def hand_over(self) -> pq.abc.PGconn:
        """The connection for somebody else to use: this object is of no more use."""
        self.let_go()
        self._over = True
        return self.pgconn

    def close(self) -> None:
        """End the connection. Idempotent."""
        self.let_go()
        self._over = True
        self.pgconn.finish()

    # Commands.

    async def flush(self) -> None:
        """Send what libpq has kept for sending. Raises psycopg.Error; the caller owes `let_go` then."""
        while self.pgconn.flush() == 1:
            # A flush that would block reads what has come: the socket may not show it any more.
            self.wake()
            await self.writable()

    def consume(self) -> None:
        """Read from the socket once, without blocking. Raises psycopg.Error."""
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            self.let_go()
            raise

    async def query(self, command: str, what: str, names: Mapping[str, str] | None = None) -> list[list[Row]]:
        """Run `command` by the simple protocol, the only one that a walsender knows; the rows of each result.

        When cancelled, the command may still be running on the server: the caller owes `close`. A COPY_BOTH result
        ends the wait and has no rows. Raises what `refusals` makes of the server's first error.
        """
        outcome = await self.run(command.encode())
        if outcome.errors:
            raise refused(what, outcome.errors[0], {**self.names, **(names or {})})
        return [rows_of(result) for result in outcome.results]

    async def run(self, command: bytes, bytes_max: int = 0) -> Outcome:
        """Run `command` by the simple protocol. Errors are in the outcome, those of the connection too.

        Args:
            bytes_max: of lines that COPY sends and that are kept. More than that are read and thrown away, because a
                cancellation that comes late would hit the next command.
        """
        return await self._run(lambda: self.pgconn.send_query(command), bytes_max)

    async def run_with(
        self, command: bytes, values: list[bytes], type_oids: list[int], *, binary: bool
    ) -> Outcome:
        """Run one command with parameters, all of them in binary form or none."""
        formats = [int(binary)] * len(values)
        return await self._run(
            lambda: self.pgconn.send_query_params(
                command, values, param_types=type_oids, param_formats=formats
            ),
            0,
        )

    async def _run(self, send: Callable[[], None], bytes_max: int) -> Outcome:
        pgconn = self.pgconn
        outcome = Outcome()
        try:
            send()
            await self.flush()
            while True:
                while pgconn.is_busy():
                    await self.readable()
                    self.consume()
                result = pgconn.get_result()
                if result is None:
                    break
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    outcome.errors.append(answer_of_result(result))
                elif result.status == pq.ExecStatus.COPY_OUT:
                    await self._copy_out(outcome, bytes_max)
                else:
                    outcome.results.append(result)
                    if result.status == pq.ExecStatus.COPY_BOTH:
                        break
        except psycopg.Error as error:
            outcome.errors.append(answer_of(error))
            self.let_go()
        if pgconn.status == pq.ConnStatus.BAD:
            self.let_go()
        return outcome

    async def _copy_out(self, outcome: Outcome, bytes_max: int) -> None:
        get_copy_data = self.pgconn.get_copy_data
        lines, size = outcome.lines, 0
        deadline = time.monotonic() + _BUDGET_S
        while True:
            got, data = get_copy_data(1)
            if got > 0:
                size += got
                if size <= bytes_max:
                    lines.append(data.tobytes())
                else:
                    lines.clear()
                if len(lines) % 64 == 0 and time.monotonic() > deadline:
                    await asyncio.sleep(0)
                    deadline = time.monotonic() + _BUDGET_S
            elif got == 0:
                await self.readable()
                self.consume()
                deadline = time.monotonic() + _BUDGET_S
            else:
                outcome.size = size
                return


def rows_of(result: pq.abc.PGresult) -> list[Row]:
    """The values of a result as text."""
    return [
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _wake(waiter: "asyncio.Future[bool]", heard: bool) -> None:
    if not waiter.done():
        waiter.set_result(heard)


async def await_socket(descriptor: int, *, to_write: bool) -> None:
    """Return when a connection that is still being made can go on: libpq may give it another socket at each step."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(descriptor, _wake, ready, True)
    try:
        await ready
    finally:
        remove(descriptor)
