"""Sessions that read tables, each with the role of its tables.

The rule: there are never more sessions than the engine asks questions at a time. A session is kept for the next table
of its role; a session of another role makes room for it. So the number of readers and tables costs no connections.
"""

from collections.abc import Awaitable, Callable

from cdcd.adapters.postgres.readers import Access
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader

Open = Callable[[Access], Awaitable[SnapshotReader]]


class ReaderPool:
    """Call `take`, and then `give` or `drop`.

    Args:
        open_reader: opens a session with this access. Its errors leave `take` as they are.
        limit: the most sessions.
    """

    def __init__(self, open_reader: Open, limit: int) -> None:
        self._open = open_reader
        self._limit = limit
        self._idle: list[tuple[Access, SnapshotReader]] = []
        self._taken = 0

    async def take(self, access: Access) -> SnapshotReader:
        """A session with this access, which the caller gives back."""
        for place, (owner, reader) in enumerate(self._idle):
            if owner is access:
                del self._idle[place]
                self._taken += 1
                return reader
        if self._idle and self._taken + len(self._idle) >= self._limit:
            _, other = self._idle.pop(0)
            other.close()
        self._taken += 1
        try:
            return await self._open(access)
        except BaseException:
            self._taken -= 1
            raise

    def give(self, access: Access, reader: SnapshotReader) -> None:
        """Take back a session that can be used again."""
        self._taken -= 1
        self._idle.append((access, reader))

    def drop(self, reader: SnapshotReader) -> None:
        """Take back a session that is of no use any more."""
        self._taken -= 1
        reader.close()

    def add(self, access: Access, reader: SnapshotReader) -> None:
        """Put a session in that was opened elsewhere."""
        self._idle.append((access, reader))

    def close(self) -> None:
        """Close the sessions that are idle."""
        while self._idle:
            self._idle.pop()[1].close()
