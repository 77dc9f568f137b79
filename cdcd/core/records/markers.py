"""Debezium's `source.snapshot` for the rows of an initial snapshot: which row is the first and the last, and of what.

Debezium's rule (`RelationalSnapshotChangeEventSource`, `setSnapshotMarker`): `last` for the last row of the last table,
else `first` for the first of all, else `last_in_data_collection`, else `first_in_data_collection`, else `true`.

Chunks are read side by side and come in any order, and whether a row is the last is only known when there is no other.
So the last chunk with rows of each table that is being read is held back; it goes out with its progress, so that a
crash meanwhile costs its reading and nothing else. Of tables that are complete one chunk in all is held back.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

FIRST: Final = "first"
FIRST_IN_TABLE: Final = "first_in_data_collection"
ROW: Final = "true"
LAST_IN_TABLE: Final = "last_in_data_collection"
LAST: Final = "last"
INCREMENTAL: Final = "incremental"
"""What every row of an incremental snapshot has."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Marked(Generic[C]):
    """A chunk that may be sent, with the markers of its first and its last row; a single row has the last's."""

    chunk: C
    first: str
    last: str


class Markers(Generic[C]):
    """Hand over chunks as they are read; each call gives the chunks to send now, in this order."""

    def __init__(self) -> None:
        self._held: dict[int, C] = {}
        self._final: tuple[int, C] | None = None
        self._begun: set[int] = set()
        self._first = True

    def add(self, table: int, chunk: C) -> list[Marked[C]]:
        """A chunk of the table, with at least one row."""
        before = self._held.get(table)
        self._held[table] = chunk
        return [] if before is None else [self._mark(table, before, ROW)]

    def complete(self, table: int) -> list[Marked[C]]:
        """Every chunk of the table was added."""
        chunk = self._held.pop(table, None)
        if chunk is None:
            return []
        before, self._final = self._final, (table, chunk)
        return [] if before is None else [self._mark(*before, LAST_IN_TABLE)]

    def discard(self, table: int) -> None:
        """The table is given up before it was complete: its chunk that is held is not sent."""
        self._held.pop(table, None)

    def finish(self) -> list[Marked[C]]:
        """Every table is complete, or left to somebody else: send what is held."""
        out = [self._mark(table, chunk, ROW) for table, chunk in self._held.items()]
        self._held.clear()
        if self._final is not None:
            out.append(self._mark(*self._final, LAST))
            self._final = None
        return out

    def _mark(self, table: int, chunk: C, last: str) -> Marked[C]:
        first = FIRST if self._first else ROW if table in self._begun else FIRST_IN_TABLE
        self._first = False
        self._begun.add(table)
        return Marked(chunk, first, last)


def marker_of_single(marked: Marked[C]) -> str:
    """The marker of a chunk's only row: the later rule of the two gives way, but `last` goes before `first`."""
    if marked.last == LAST:
        return LAST
    if marked.first == FIRST or marked.last == ROW:
        return marked.first
    return marked.last
