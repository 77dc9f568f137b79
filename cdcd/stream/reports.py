"""Status updates to PostgreSQL while a stream is open, independent of the reader of the stream."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cdcd.core.engine.feedback import Feedback, interval_for, reply_requested
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.frames import write_frame
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.core.transactions.ledger import Ledger

if TYPE_CHECKING:
    from cdcd.stream.source import StreamSource

STATUS_S: Final = 5.0
"""Seconds between status updates; a third of the server's `wal_sender_timeout` if that is shorter."""

WATCH_S: Final = 2.0
"""Seconds between requests to the server for a sign of life."""


class Reports:
    """Sender of status updates. Run `send_when_due` and `watch` as tasks while the stream is open.

    Args:
        fail: called with the error that ends the stream.
    """

    def __init__(
        self, source: "StreamSource", ledger: Ledger, fail: Callable[[CdcdError], CdcdError]
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._fail = fail
        self._feedback = Feedback(interval_for(STATUS_S, source.wal_sender_timeout_s), time.monotonic())
        self._wake = asyncio.Event()

    @property
    def told(self) -> int:
        """The flushed position that was confirmed to PostgreSQL, as an LSN."""
        return self._feedback.told

    def received(self, frames: list[bytes]) -> None:
        """Check received frames for a request for a status update."""
        if reply_requested(frames):
            self._feedback.ask()
        self.wake()

    def wake(self) -> None:
        """Check for a new flushed position of the ledger."""
        self._wake.set()

    async def send_when_due(self) -> None:
        """Send status updates, as `Feedback` decides, until the connection fails."""
        try:
            while True:
                update = self._due()
                if update is not None:
                    await self._source.replication.send(update)
                self._wake.clear()
                wait_s = max(0.0, self._feedback.next_at(self._ledger.flushed) - time.monotonic())
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
        except CdcdError as error:
            self._fail(error)
            self._source.replication.close()

    async def watch(self) -> None:
        """Ask the server for signs of life.

        If it gives none, close the replication connection, because a fast shutdown of the server may be waiting for
        that.
        """
        try:
            while True:
                await asyncio.sleep(WATCH_S)
                await self._source.check()
        except CdcdError as error:
            self._fail(error)
            with suppress(CdcdError):
                await self.send_now()
            self._source.replication.close()

    async def send_now(self) -> None:
        """Send a status update, even if none is due. Raises TransientError if the connection is lost."""
        self._feedback.ask()
        update = self._due()
        assert update is not None
        await self._source.replication.send(update)

    def _due(self) -> bytes | None:
        ledger = self._ledger
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        update = self._feedback.due(ledger.received, ledger.flushed, time.monotonic(), now_us)
        return None if update is None else write_frame(update)
