"""A logged session of the durable log, in the place of the replication stream (`transactions/logged.py`).

What the log holds was confirmed when it was written, so that status updates go nowhere.
"""

import asyncio
from collections.abc import Iterator


class LoggedStream:
    """What a pipeline needs of a stream: `receive`, `send` and `finish`."""

    def __init__(self, frames: Iterator[list[bytes]]) -> None:
        self._frames = frames

    async def receive(self, bytes_max: int) -> list[bytes]:
        """The next frames. Behind the last ones, this waits for the end of the session.

        Raises:
            PositionError: the log ends earlier than it should.
        """
        frames = await asyncio.to_thread(next, self._frames, None)
        if frames is None:
            await asyncio.Event().wait()
        assert frames is not None
        return frames

    async def send(self, status: bytes) -> None:
        """The engine wants PostgreSQL to be told a position."""

    async def finish(self, timeout_s: float) -> bool:
        """There is nothing to end."""
        return True
