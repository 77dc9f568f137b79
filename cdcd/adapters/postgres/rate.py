"""A limit on how fast rows are read."""

import asyncio
import time


class Rate:
    """Waits so that no more than `bytes_per_s` pass on average; 0: without limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    async def passed(self, size: int) -> None:
        """So many bytes were read: wait until the next may be."""
        if self._bytes_per_s:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            await asyncio.sleep(max(0.0, self._free_at - now))
