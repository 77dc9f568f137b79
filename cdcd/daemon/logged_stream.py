"""A logged session of the durable log, in place of the replication stream (`transactions/logged.py`).

The log's contents were confirmed when they were written, so status updates are not sent.
"""

import asyncio
from collections.abc import Iterator


class LoggedStream:
    """The methods of a stream that a pipeline needs: `receive`, `send` and `finish`."""

    def __init__(self, frames: Iterator[list[bytes]]) -> None:
        self._frames = frames

    async def receive(self, bytes_max: int) -> list[bytes]:
        """Return the next frames. After the last frames, this call waits for the end of the session.

        Raises:
            PositionError: the log ends too early.
        """
        frames = await asyncio.to_thread(next, self._frames, None)
        if frames is None:
            await asyncio.Event().wait()
        assert frames is not None
        return frames

    async def send(self, status: bytes) -> None:
        """Ignore a status update, because the log's contents are confirmed already."""

    async def finish(self, timeout_s: float) -> bool:
        """Return True, because there is no stream to end."""
        return True
