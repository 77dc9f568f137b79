"""One libpq connection in asyncio: it waits for the socket, runs commands, and receives rows by COPY.

libpq does all reading and writing. The event loop only signals that the socket is ready. Two rules follow.

The event loop stops watching a socket that no task waits for, because epoll would report it again and again.
Between two waits, however, the socket stays watched until epoll reports it once, because each change costs a system
call.

libpq closes the socket of a lost connection during a call, and the next connection of the process may get the same
descriptor. So after an error from libpq, `let_go` must be called before the event loop runs again. The methods of
this class do this themselves. A caller that uses `pgconn` directly (as the replication stream does, for speed) must
do it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg import pq

from cdcd.adapters.postgres.answers import Answer, answer_of, answer_of_result, refused

Row = tuple[str | None, ...]

_BUDGET_S: Final = 0.004
"""Seconds after which receiving COPY rows lets other tasks run, so that status updates and health checks
are in time."""


_OPEN: Final = frozenset({pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_IN})
"""After these results the server waits for the client, and libpq gives the same result again and again."""


@dataclass(slots=True)
class QueryOutcome:
    """The server's answer to one command string.

    Attributes:
        results: results other than errors and COPY, in order.
        errors: the server's errors, in order. If the connection was lost, the last one is libpq's, without SQLSTATE.
        lines: lines that COPY sent; empty if they had more than `bytes_max`.
        size: bytes of all lines, including lines that were dropped.
    """

    results: list[pq.abc.PGresult] = field(default_factory=list)
    errors: list[Answer] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0


class Session:
    """A connected, non-blocking PGconn in one event loop. One task at a time runs commands; any number may wait.

    Attributes:
        names: names for the hints of server errors: role, database and others.
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
        """The process id of the server process."""
        return self.pgconn.backend_pid

    @property
    def is_lost(self) -> bool:
        """True if the connection is lost or closed."""
        return self._over or self.pgconn.status == pq.ConnStatus.BAD

    def on_notice(self, handler: Callable[[Answer, bytes], None]) -> None:
        """Call `handler` with each notice, and with each error of an idle session, and its untranslated severity."""

        def handle(result: pq.abc.PGresult) -> None:
            severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b""
            handler(answer_of_result(result), severity)

        self.pgconn.notice_handler = handle

    # Waiting for the socket.

    async def readable(self, until: float | None = None) -> bool:
        """Wait until the socket has something to read, has ended, or `let_go` was called. Cancel-safe.

        Returns False if the loop's time reached `until` before that.
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
        """Wait until the socket accepts data again, or `let_go` was called. Cancel-safe."""
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
        """Let every `readable` return, because another task may have read their data into libpq's buffer."""
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
        """Stop watching the socket, and wake the tasks that wait for it. Their next call of libpq meets the error.

        After a failed send, the server's last message may still be readable. So tasks can continue to wait until
        libpq has closed the connection.
        """
        self._unwatch()
        self._unwatch_to_write()
        self._over = self._over or self.pgconn.status == pq.ConnStatus.BAD
        self._on_writable()
        self.wake()

    def hand_over(self) -> pq.abc.PGconn:
        """Transfer the connection to another owner, and return it. This object must not be used afterwards."""
        self.let_go()
        self._over = True
        return self.pgconn

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.let_go()
        self._over = True
        self.pgconn.finish()

    # Running commands.

    async def flush(self) -> None:
        """Send everything that libpq has buffered. After a psycopg.Error, the caller owes `let_go`."""
        while self.pgconn.flush() == 1:
            # A flush that would block also reads into libpq's buffer, so the socket may not become readable again.
            self.wake()
            await self.writable()

    def consume(self) -> None:
        """Read from the socket once, without blocking. Raises psycopg.Error."""
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            self.let_go()
            raise

    async def query(
        self, command: str | bytes, what: str, names: Mapping[str, str] | None = None
    ) -> list[list[Row]]:
        """Run `command` by the simple protocol, the only protocol of a walsender. Returns each result's rows.

        If this is cancelled, the command may still be running on the server, so the caller owes `close`. A
        COPY_BOTH result ends the wait and has no rows. Raises the error that `refusals` gives for the server's
        first error.
        """
        outcome = await self.run(command if isinstance(command, bytes) else command.encode())
        if outcome.errors:
            raise refused(what, outcome.errors[0], {**self.names, **(names or {})})
        return [rows_of(result) for result in outcome.results]

    async def run(self, command: bytes, bytes_max: int = 0) -> QueryOutcome:
        """Run `command` by the simple protocol. The outcome contains all errors, including connection errors.

        Args:
            bytes_max: bytes of COPY lines to keep. If there are more, all lines are read and dropped. The command
                is not cancelled, because a late cancellation would hit the next command.
        """
        return await self._run(lambda: self.pgconn.send_query(command), bytes_max)

    async def run_in_one_trip(self, commands: Sequence[bytes], described: bytes) -> QueryOutcome:
        """Run commands and describe a query in one round trip, by libpq's pipeline mode. The server runs no step after
        one that failed.

        Args:
            described: a query that the server parses and analyses, but neither plans nor runs. It has the last result,
                without rows, whose columns have the oids of their tables and their attnums.
        """

        def send() -> None:
            self.pgconn.enter_pipeline_mode()
            for command in commands:
                self.pgconn.send_query_params(command, None)
            self.pgconn.send_prepare(b"", described)
            self.pgconn.send_describe_prepared(b"")
            self.pgconn.pipeline_sync()

        outcome = await self._run(send, 0, in_pipeline=True)
        if self.pgconn.pipeline_status != pq.PipelineStatus.OFF and not self.is_lost:
            self.pgconn.exit_pipeline_mode()
        if not outcome.errors:
            # Parse has its own result, which is empty.
            del outcome.results[-2]
        return outcome

    async def run_without_rows(self, command: bytes) -> QueryOutcome:
        """Run one command by the extended protocol, and discard its rows on arrival. A COPY FROM STDIN stays open."""

        def send() -> None:
            self.pgconn.send_query_params(command, [])
            self.pgconn.set_single_row_mode()

        return await self._run(send, 0)

    async def parse(self, command: bytes) -> QueryOutcome:
        """Let the server parse one command and resolve its names, without running it."""
        return await self._run(lambda: self.pgconn.send_prepare(b"", command), 0)

    async def _run(
        self, send: Callable[[], None], bytes_max: int, *, in_pipeline: bool = False
    ) -> QueryOutcome:
        pgconn = self.pgconn
        outcome = QueryOutcome()
        try:
            send()
            await self.flush()
            while True:
                while pgconn.is_busy():
                    await self.readable()
                    self.consume()
                result = pgconn.get_result()
                if result is None:
                    if in_pipeline and pgconn.status != pq.ConnStatus.BAD:
                        # The results of one command end here. Those of all commands end with PIPELINE_SYNC.
                        continue
                    break
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    break
                if result.status == pq.ExecStatus.PIPELINE_ABORTED:
                    continue
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    outcome.errors.append(answer_of_result(result))
                elif result.status == pq.ExecStatus.COPY_OUT:
                    await self._copy_out(outcome, bytes_max)
                elif result.status != pq.ExecStatus.SINGLE_TUPLE:
                    outcome.results.append(result)
                    if result.status in _OPEN:
                        break
        except psycopg.Error as error:
            outcome.errors.append(answer_of(error))
            self.let_go()
        if pgconn.status == pq.ConnStatus.BAD:
            self.let_go()
        return outcome

    async def _copy_out(self, outcome: QueryOutcome, bytes_max: int) -> None:
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
    """Return the values of a result, as text."""
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
    """Wait until libpq can continue to connect.

    libpq may use another socket at each step, so this is not a `Session`.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(descriptor, _wake, ready, True)
    try:
        await ready
    finally:
        remove(descriptor)
