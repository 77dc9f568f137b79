"""The advisory lock in its own thread, so that no step of the event loop delays the proof that the lock is held.

A step of the event loop may take longer than the lease, such as a large row that libpq receives. An `AdvisoryLock` in
this loop would be silent meanwhile; a standby would end its session and would then meet the same step. So the session
of the lock belongs to a thread whose event loop does nothing else.

The thread proves that the process runs. The thread must not prove this for a process whose main event loop never
continues. So the proofs stop when the main event loop has not moved for `STANDSTILL_S`, and a standby takes over
one lease later. A process that is frozen as a whole proves nothing.
"""

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from cdcd.adapters.postgres.connection import Dsn
from cdcd.adapters.postgres.lease import BEATS
from cdcd.adapters.postgres.lock import LEASE_S, AdvisoryLock, LockHeld, LostLock
from cdcd.core.errors import TransientError

STANDSTILL_S: Final = 30.0
"""Maximum standstill of the main event loop, in seconds, before the proofs stop. A step takes 3 ms for each MiB of
a message, and PostgreSQL sends at most 1 GB in one message."""

END_S: Final = 2.0
"""Seconds within which the thread must close its connection."""

_ENDED: Final = "The connection with the advisory lock is closed."

LOOK_S: Final = 0.2
"""Interval in seconds at which the thread checks if it has to end, while it waits for another event loop."""

T = TypeVar("T")


class KeptLock:
    """An `AdvisoryLock` whose methods run in its own thread. The caller owes `close`.

    Args:
        thread: the running thread of this lock.
        lock: the lock, which belongs to the event loop of `thread`.
    """

    def __init__(self, thread: "_LoopThread", lock: AdvisoryLock, lease_s: float) -> None:
        self._thread = thread
        self._lock = lock
        self._lease_s = lease_s
        self._moved_at = time.monotonic()

    @classmethod
    async def open(
        cls,
        dsn: Dsn,
        slot: str,
        *,
        application_name: str,
        connect_timeout_s: float = 10.0,
        lease_s: float = LEASE_S,
        token: str = "",
    ) -> Self:
        """Connect without acquiring the lock.

        Errors as `connection.open_session`; `token` as in `AdvisoryLock.open`.
        """
        thread = _LoopThread()
        opening = AdvisoryLock.open(
            dsn,
            slot,
            application_name=application_name,
            connect_timeout_s=connect_timeout_s,
            lease_s=lease_s,
            token=token,
        )
        try:
            lock = await thread.run(opening)
        except BaseException:
            thread.end()
            raise
        return cls(thread, lock, lease_s)

    @property
    def backend_pid(self) -> int:
        """Process id of the server process that holds the lock."""
        return self._lock.backend_pid

    @property
    def lapsed(self) -> bool:
        """See `AdvisoryLock.lapsed`."""
        return self._lock.lapsed

    async def acquire(
        self,
        on_wait: Callable[[LockHeld], None] = lambda _: None,
        on_ended: Callable[[LockHeld, float], None] = lambda _held, _silent_s: None,
        on_stranger: Callable[[LockHeld], None] = lambda _held: None,
    ) -> None:
        """See `AdvisoryLock.acquire`. The callbacks run in the caller's event loop, and may raise."""
        loop = asyncio.get_running_loop()

        def waits(held: LockHeld) -> None:
            self._thread.relay(loop, lambda: on_wait(held))

        def ended(held: LockHeld, silent_s: float) -> None:
            self._thread.relay(loop, lambda: on_ended(held, silent_s))

        def strange(held: LockHeld) -> None:
            self._thread.relay(loop, lambda: on_stranger(held))

        await self._thread.run(self._lock.acquire(waits, ended, strange))

    async def keep(self) -> None:
        """See `AdvisoryLock.keep`. The proofs stop while the caller's event loop stands still."""
        self._moved_at = time.monotonic()
        kept = asyncio.ensure_future(self._thread.run(self._lock.keep(self._moves)))
        try:
            while not kept.done():
                self._moved_at = time.monotonic()
                await asyncio.wait({kept}, timeout=self._lease_s / BEATS)
        finally:
            kept.cancel()
        await kept

    def _moves(self) -> bool:
        return time.monotonic() - self._moved_at < STANDSTILL_S

    async def verify(self, timeout_s: float) -> None:
        """See `AdvisoryLock.verify`."""
        await self._thread.run(self._lock.verify(timeout_s))

    async def wait_lost(self) -> LostLock:
        """See `AdvisoryLock.wait_lost`."""
        return await self._thread.run(self._lock.wait_lost())

    def close(self) -> None:
        """End the session, and with it the lock and the thread. Idempotent."""
        self._thread.end(self._lock.close)


class _LoopThread:
    """A thread that runs an event loop until `end`.

    Raises:
        OSError: the thread cannot create an event loop.
    """

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._over: asyncio.Event | None = None
        self._is_ending = False
        self._last: Callable[[], None] = _nothing
        _try_descriptors()
        self._thread = threading.Thread(target=self._work, name="lock", daemon=True)
        self._thread.start()
        self._loop = self._started.result()

    def _work(self) -> None:
        try:
            asyncio.run(self._until_the_end())
        except OSError as error:
            # An event loop needs descriptors. If there are none, callers that wait for the event loop must
            # still get an answer.
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _until_the_end(self) -> None:
        self._over = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._over.wait()
        self._last()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the thread of the lock. Return its result, or raise its exception.

        Raises:
            TransientError: the thread has ended, or ends during the call.
        """
        try:
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise TransientError(_ENDED) from None
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise TransientError(_ENDED) from None

    def relay(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """From this thread, make the call in the event loop of another thread, wait for it, and raise its exception."""
        done: Future[None] = Future()

        def make() -> None:
            try:
                call()
            except Exception as error:  # noqa: BLE001  whatever it is, the other thread raises it
                done.set_exception(error)
            else:
                done.set_result(None)

        loop.call_soon_threadsafe(make)
        # The other event loop may stand still, or wait for the end of this thread.
        while not self._is_ending and not done.done():
            wait([done], LOOK_S)
        if done.done():
            done.result()

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Call `last` in the thread, cancel the thread's tasks, and wait until the thread has ended."""
        assert self._over is not None
        self._is_ending = True
        if last is not None:
            self._last = last
        # The loop is closed if this was called before.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(END_S)


def _try_descriptors() -> None:
    """Open and close the descriptors of an event loop, because a loop that gets only some of them leaves a traceback.

    Raises:
        OSError: this process may not open this many descriptors.
    """
    for each in (*socket.socketpair(), select.epoll()):
        each.close()


def _nothing() -> None:
    return
