"""Debezium's `source.snapshot` for the rows of an initial snapshot, which marks the first and the last row of a table
and of the snapshot.

Debezium's rule (`RelationalSnapshotChangeEventSource`, `setSnapshotMarker`): `last` for the last row of the last
table, otherwise `first` for the first row of all, otherwise `last_in_data_collection`, otherwise
`first_in_data_collection`, otherwise `true`.

Chunks are read in parallel and come in any order, and it is known which row is the last only when there is no
other. So for each table that is being read, the last chunk with rows is held back; its progress is delivered
together with it, so a crash in the meantime only costs reading it again. Of all tables that are complete, one chunk
is held back.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

FIRST: Final = "first"
FIRST_IN_TABLE: Final = "first_in_data_collection"
ROW: Final = "true"
LAST_IN_TABLE: Final = "last_in_data_collection"
LAST: Final = "last"
INCREMENTAL: Final = "incremental"
"""Marker of every row of an incremental snapshot."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Marked(Generic[C]):
    """A chunk that may be sent, with the markers of its first and its last row; a single row has the marker of the
    last.
    """

    chunk: C
    first: str
    last: str


class Markers(Generic[C]):
    """Returns chunks with their markers: each call returns the chunks to send now, in this order."""

    def __init__(self) -> None:
        self._held: dict[int, C] = {}
        self._final: tuple[int, C] | None = None
        self._begun: set[int] = set()
        self._first = True

    def add(self, table: int, chunk: C) -> list[Marked[C]]:
        """Add a chunk of the table, which has at least one row."""
        before = self._held.get(table)
        self._held[table] = chunk
        return [] if before is None else [self._mark(table, before, ROW)]

    def complete(self, table: int) -> list[Marked[C]]:
        """Note that every chunk of the table was added."""
        chunk = self._held.pop(table, None)
        if chunk is None:
            return []
        before, self._final = self._final, (table, chunk)
        return [] if before is None else [self._mark(*before, LAST_IN_TABLE)]

    def discard(self, table: int) -> None:
        """Forget the chunk that is held back, because the table's reading was ended before it was complete."""
        self._held.pop(table, None)

    def finish(self) -> list[Marked[C]]:
        """Return the chunks that are held back, because every table is complete or is read by something else."""
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
    """Return the marker of a chunk with one row: of its two markers, the one that comes first in Debezium's rule."""
    if marked.last == LAST:
        return LAST
    if marked.first == FIRST or marked.last == ROW:
        return marked.first
    return marked.last
