"""Pool of sessions that read tables, each with the role of its tables.

The rule: there are never more sessions than questions that the engine asks at a time. A session is kept for the
next table of its role; a session of another role is closed to make room. So the number of readers and tables does
not add connections.
"""

from collections.abc import Awaitable, Callable

from cdcd.adapters.postgres.readers import Access
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader

Open = Callable[[Access], Awaitable[SnapshotReader]]


class ReaderPool:
    """The pool; call `take`, and then `give` or `drop`.

    Args:
        open_reader: opens a session with the given access. `take` passes its errors on.
        limit: maximum number of sessions.
    """

    def __init__(self, open_reader: Open, limit: int) -> None:
        self._open = open_reader
        self._limit = limit
        self._idle: list[tuple[Access, SnapshotReader]] = []
        self._taken = 0

    async def take(self, access: Access) -> SnapshotReader:
        """Return a session with this access, which the caller returns to the pool."""
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
        """Return a session to the pool for reuse."""
        self._taken -= 1
        self._idle.append((access, reader))

    def drop(self, reader: SnapshotReader) -> None:
        """Close a session that cannot be reused."""
        self._taken -= 1
        reader.close()

    def add(self, access: Access, reader: SnapshotReader) -> None:
        """Add a session that was opened elsewhere."""
        self._idle.append((access, reader))

    def close(self) -> None:
        """Close the idle sessions."""
        while self._idle:
            self._idle.pop()[1].close()
