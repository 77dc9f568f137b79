"""Reads the rows of a table at an imported snapshot, chunk by chunk, for tools other than the daemon.

A chunk whose rows turn out to be too large to be kept in memory together is cut in two. Reading ends if the table
was altered, rewritten or dropped since its snapshot was taken, because only a new snapshot can read it.

`Rate` limits how fast rows are read.
"""

import asyncio
import time
from typing import Final

from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.core.errors import SourceError, TransientError
from cdcd.core.snapshot.chunks import Chunks
from cdcd.core.snapshot.reading import UNLIMITED, Changed, PageQuery, Refused, SourceTable, TooLarge
from cdcd.core.snapshot.table_task import Part, TableTask

_GROWTH: Final = 4
"""Maximum size of a chunk as text, as a multiple of its size on disk."""


class ChangedTableError(TransientError):
    """The table has changed since its snapshot was taken."""


class TableChunks:
    """Reader of the pages of a part of a table. Call `next` until it returns None.

    Args:
        sql_name: name of the part, quoted for SQL.
        part: pages of the part; pages that are `done` are not read.
        chunk_bytes: bytes on disk that are read at a time; in memory a chunk takes a few times as much.
        where: SQL condition on rows, beside the row filter of the publication; "" for none.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        table: SourceTable,
        sql_name: str,
        part: Part,
        chunk_bytes: int,
        where: str = "",
    ) -> None:
        self._conditions = (table.row_filter, where)
        self._reader = reader
        self._table = table
        self._sql_name = sql_name
        self._part = part
        self._bytes_max = _GROWTH * chunk_bytes
        self._chunks = Chunks(chunk_bytes)
        self._chunks.add(TableTask(table.name, part.oid, parts=(part,)))
        self._is_empty = not part.pages

    async def next(self) -> list[bytes] | None:
        """Return the lines of the next chunk that has rows; None after the last chunk.

        Raises:
            SourceError: the table may not be read.
            TransientError: the connection or the snapshot is lost.
            ChangedTableError: the table was altered, truncated or dropped.
        """
        if self._is_empty:
            # Its rows may have been removed between the snapshot and the count of its pages.
            self._is_empty = False
            await self._read(0, 0, UNLIMITED)
        while (chunk := self._chunks.next()) is not None:
            lines = await self._read(
                chunk.begin, chunk.end, UNLIMITED if chunk.pages == 1 else self._bytes_max
            )
            if lines is None:
                self._chunks.split(chunk)
                continue
            self._chunks.settle(chunk)
            if lines:
                return lines
        return None

    async def _read(self, begin: int, end: int, bytes_max: int) -> list[bytes] | None:
        """Return the lines of these pages; None if they are too large. Raises the errors of `next`."""
        query = PageQuery(
            self._sql_name,
            self._part.oid,
            self._part.filenode,
            begin,
            end,
            self._table,
            self._conditions,
        )
        answer = await self._reader.read(query, bytes_max)
        if isinstance(answer, TooLarge):
            return None
        if isinstance(answer, Changed):
            raise ChangedTableError(
                f"{self._sql_name} has changed since its snapshot was taken: {answer.reason}",
                hint="Run the snapshot of the table again.",
            )
        if isinstance(answer, Refused):
            raise SourceError(f"{self._sql_name} cannot be read: {answer.reason}", hint=answer.hint)
        return answer.lines


class Rate:
    """Waits so that no more than `bytes_per_s` are read on average; 0 means no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    async def passed(self, size: int) -> None:
        """Note that `size` bytes were read, and wait until the next ones may be read."""
        if self._bytes_per_s:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            await asyncio.sleep(max(0.0, self._free_at - now))
