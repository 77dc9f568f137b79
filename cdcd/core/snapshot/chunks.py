"""Decides which pages are read next, in chunks of about the same number of bytes.

The rule: every chunk that was handed out comes back in one of these ways: it is read (`settle`), it is to be read
again (`give_back`, `put_off`, `split`), or its task has ended. No page is in two chunks.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from cdcd.core.snapshot.reading import PageQuery, SourceTable
from cdcd.core.snapshot.table_task import Part, TableTask, gaps

PAGES_MAX: Final = 4096
"""Maximum number of pages in a chunk of small rows, however large `chunk_bytes` is."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Pages of one part of a table, from `begin` up to but not including `end`."""

    task: TableTask
    part: int
    filenode: int
    begin: int
    end: int

    @property
    def pages(self) -> int:
        return self.end - self.begin


class Chunks:
    """Hands out chunks of the tables that were added, in the order in which they were added.

    Args:
        chunk_bytes: number of bytes on disk that a chunk should cover.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._waiting: deque[Chunk] = deque()
        self._put_off: deque[Chunk] = deque()
        """Chunks that are handed out only when there are no others."""
        self._open: dict[tuple[str, str, str], list[tuple[Part, int, int, int]]] = {}
        """By task, the ranges of pages that are not handed out yet, in reverse order. A deque would take 700 bytes."""
        self._tasks: dict[tuple[str, str, str], TableTask] = {}
        self._out: dict[tuple[str, str, str], int] = {}

    def add(self, task: TableTask) -> None:
        """Add a planned task: its pages that were not delivered yet are handed out."""
        key = _key(task)
        self._tasks[key] = task
        ranges = [
            (part, begin, end, self._pages_for(part))
            for part in task.parts or ()
            for begin, end in gaps(part.done, part.pages)
        ]
        if ranges:
            self._open[key] = ranges[::-1]
        self._out.setdefault(key, 0)

    def drop(self, task: TableTask) -> None:
        """Hand out nothing more of the task, and ignore its chunks that are still out."""
        key = _key(task)
        self._open.pop(key, None)
        self._tasks.pop(key, None)
        self._out.pop(key, None)
        self._waiting = deque(chunk for chunk in self._waiting if _key(chunk.task) != key)
        self._put_off = deque(chunk for chunk in self._put_off if _key(chunk.task) != key)

    def has(self, task: TableTask) -> bool:
        """Return whether the task was added and not dropped."""
        return _key(task) in self._tasks

    def next(self) -> Chunk | None:
        """Return a chunk to read; None if there is none at present."""
        chunk = self._waiting.popleft() if self._waiting else self._cut()
        if chunk is None and self._put_off:
            chunk = self._put_off.popleft()
        if chunk is not None:
            self._out[_key(chunk.task)] += 1
        return chunk

    def peek(self) -> TableTask | None:
        """Return the task of the chunk that `next` would return."""
        if self._waiting:
            return self._waiting[0].task
        key = next(iter(self._open), None)
        if key is not None:
            return self._tasks[key]
        return self._put_off[0].task if self._put_off else None

    def _cut(self) -> Chunk | None:
        key = next(iter(self._open), None)
        if key is None:
            return None
        ranges = self._open[key]
        part, begin, end, pages = ranges.pop()
        if begin + pages < end:
            ranges.append((part, begin + pages, end, pages))
            end = begin + pages
        elif not ranges:
            del self._open[key]
        return Chunk(self._tasks[key], part.oid, part.filenode, begin, end)

    def _pages_for(self, part: Part) -> int:
        return max(1, min(PAGES_MAX, self._chunk_bytes * part.pages // max(1, part.size)))

    def give_back(self, chunk: Chunk) -> None:
        """Take back a chunk that was not delivered: it is to be read again."""
        if self._return(chunk):
            self._waiting.append(chunk)

    def put_off(self, chunk: Chunk) -> None:
        """Take back a chunk that cannot be read now: it is to be read again after every other task had its turn."""
        key = _key(chunk.task)
        if self._return(chunk):
            self._put_off.append(chunk)
            if key in self._open:
                self._open[key] = self._open.pop(key)

    def split(self, chunk: Chunk) -> bool:
        """Replace a chunk whose rows are too large to be kept together in memory by its two halves.

        Returns False if the chunk has only one page.
        """
        if chunk.pages == 1:
            return False
        if self._return(chunk):
            middle = chunk.begin + chunk.pages // 2
            for begin, end in ((chunk.begin, middle), (middle, chunk.end)):
                self._waiting.append(Chunk(chunk.task, chunk.part, chunk.filenode, begin, end))
        return True

    def settle(self, chunk: Chunk) -> bool:
        """Note that the chunk was read, and that its rows are kept or being delivered.

        Returns False if its task has ended.
        """
        return self._return(chunk)

    def left(self) -> list[TableTask]:
        """Return the tasks that have chunks which are not settled."""
        return [task for task in self._tasks.values() if not self.is_exhausted(task)]

    def is_exhausted(self, task: TableTask) -> bool:
        """Return whether every chunk of the task was handed out and settled."""
        key = _key(task)
        return (
            key in self._tasks
            and key not in self._open
            and not self._out[key]
            and not any(_key(chunk.task) == key for chunk in (*self._waiting, *self._put_off))
        )

    def _return(self, chunk: Chunk) -> bool:
        key = _key(chunk.task)
        if key not in self._out:
            return False
        self._out[key] -= 1
        return True


def _key(task: TableTask) -> tuple[str, str, str]:
    return task.name, task.where, task.request


def page_query(table: SourceTable, sql_name: str, chunk: Chunk, where: str = "") -> PageQuery:
    """Return the query for the rows of the chunk.

    Args:
        sql_name: the quoted SQL name of the table or partition that has the chunk's pages.
        where: the request's condition, which is added to the publication's row filter; "" for none.
    """
    conditions = (table.row_filter, where)
    return PageQuery(sql_name, chunk.part, chunk.filenode, chunk.begin, chunk.end, table, conditions)
