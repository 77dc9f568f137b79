"""The rows that topics make, on disk, and the rows of the source beside them.

Changes are kept in their order, and not applied (`bucket_log.py`). Whoever asks for rows gets them a part at a time:
then the changes of each of the part's keys are applied one after the other. A row is known by its table's number and
the hash of its key; a row without a key by its place.

Rows that got another key while they had values that their records leave out are kept with what they were before. The
rule: both records of a changed key have the same place, and may lie in two partitions. So what a row was is kept by
its former key and that place, and is looked for from the row with the new key.

These rows are kept in SQLite, because they are few and are looked up one by one.
"""

import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from cdcd.tools.verify.bucket_log import BucketLog, Chunks, entries, not_kept, parts
from cdcd.tools.verify.values import HASH_BYTES

Place = tuple[int, int]
"""Position of a change in the stream: commit_lsn and event_serial_no."""

KEY_MAX: Final = 1000
"""Maximum bytes of a key that are kept for messages."""

WHOLE: Final = 0
UNSENT: Final = 1
MOVED: Final = 2
ELSEWHERE: Final = 3
FOREIGN: Final = 4
"""States of a row by what it lacks: nothing; a value that was never sent; a value that the row with its former key
has; all values, which are in a file (claim check); a position, because another connector wrote it."""


class Stored(NamedTuple):
    """A row after its last change.

    Attributes:
        lsn, serial: position of this change.
        state: what the row lacks.
        shape: number of its shape (`TableFold.shapes`).
        packed: packed values (`values.py`).
        name: key, as far as it is kept.
    """

    lsn: int
    serial: int
    state: int
    shape: int
    packed: bytes
    name: bytes


class Loose(NamedTuple):
    """A row without a key that was added (`sign` 1) or removed (-1) at a position."""

    lsn: int
    serial: int
    half: int
    sign: int
    shape: int
    packed: bytes


_SCHEMA: Final = """
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-8192; PRAGMA temp_store=FILE;
CREATE TABLE moved (t INTEGER, k BLOB, lsn INTEGER, serial INTEGER, former BLOB, PRIMARY KEY (t, k, lsn, serial))
    WITHOUT ROWID;
CREATE TABLE gone (t INTEGER, k BLOB, lsn INTEGER, serial INTEGER, state INTEGER, shape INTEGER, packed BLOB,
    PRIMARY KEY (t, k, lsn, serial)) WITHOUT ROWID;
BEGIN
"""


class Moves:
    """Rows by table, hash of the key, and place. The caller owes `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / "moves.sqlite"
        self._sql = sqlite3.connect(path, isolation_level=None)
        self._sql.executescript(_SCHEMA)
        # Without a name, the file is gone with the process, however that ends.
        path.unlink()
        self._tables: set[int] = set()

    def close(self) -> None:
        self._sql.close()

    def has(self, table: int) -> bool:
        """Return whether a row of the table has another key and lacks values."""
        return table in self._tables

    def add(self, table: int, key: bytes, place: Place, former: bytes) -> None:
        """A row that has another key since this place, and lacks values that it had before."""
        self._tables.add(table)
        self._insert("INSERT OR REPLACE INTO moved VALUES (?, ?, ?, ?, ?)", (table, key, *place, former))

    def add_gone(self, table: int, key: bytes, place: Place, row: Stored) -> None:
        """What a row was when it got another key."""
        values = (table, key, *place, row.state, row.shape, row.packed)
        self._insert("INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def _insert(self, statement: str, values: tuple[int | bytes, ...]) -> None:
        try:
            self._sql.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise not_kept(self._folder, str(error)) from None

    def of(self, table: int, key: bytes) -> list[Place]:
        """The places at which a row got this key and lacked values, the last one first."""
        return self._sql.execute(
            "SELECT lsn, serial FROM moved WHERE t = ? AND k = ? ORDER BY lsn DESC, serial DESC", (table, key)
        ).fetchall()

    def former(self, table: int, key: bytes, place: Place) -> tuple[bytes, Stored] | None:
        """The former key's hash of a row that got this key at the place, and the row as it was then."""
        found = self._sql.execute(
            "SELECT g.k, g.lsn, g.serial, g.state, g.shape, g.packed FROM moved m JOIN gone g "
            "ON g.t = m.t AND g.k = m.former AND g.lsn = m.lsn AND g.serial = m.serial "
            "WHERE m.t = ? AND m.k = ? AND m.lsn = ? AND m.serial = ?",
            (table, key, *place),
        ).fetchone()
        if found is None:
            return None
        key, lsn, serial, state, shape, packed = found
        return key, Stored(lsn, serial, state, shape, packed, b"")


GARBAGE_MAX: Final = 500_000
"""Maximum number of superseded changes that are kept, in addition to as many as there are rows."""

FEW_BYTES: Final = 1 << 20
"""Bytes of one table's compared rows that wait in memory before they are written."""

PARTIAL: Final = 5
"""State of a row that has values of the row before it; only `Fill` knows which values."""

Fill = Callable[[Stored | None, Stored], Stored]
"""Function that fills a `PARTIAL` row with values of the row before it."""

Rows = dict[bytes, Stored]

_DELETED: Final = 6
_LEFT: Final = 7
_NO_ROW: Final = Stored(0, 0, _DELETED, 0, b"", b"")

_ROW: Final = struct.Struct(f">{HASH_BYTES}sIQQBIH")
"""Hash, size of the entry, LSN, serial, state, shape, size of the name. Name and values follow."""

_LOOSE: Final = struct.Struct(f">{HASH_BYTES}sIQQBbI")
"""Hash, size of the entry, LSN, serial, half, sign, shape. The values follow."""

_SEEN: Final = struct.Struct(f">{HASH_BYTES}sIHI")
"""Hash, size of the entry, of the name, and of the SQL condition. Name, condition and values follow."""

_TALLY: Final = struct.Struct(f">{HASH_BYTES}sIqq")
"""Hash, size of the entry, number of rows in the source, number of rows in the topics. After this head, an entry has
the values."""


class RowStore:
    """Rows by table and hash of the key. The caller owes `close`.

    Args:
        folder: folder for temporary files, which have no names there.
    """

    def __init__(self, folder: Path) -> None:
        self.moves = Moves(folder)
        self._folder = folder
        self._rows = BucketLog(folder)
        self._loose = BucketLog(folder)
        self._changes: Counter[int] = Counter()
        """Number of stored changes of each table."""
        self._live: dict[int, int] = {}
        """Number of rows of each table that was read completely, at its last read."""

    def close(self) -> None:
        self._rows.close()
        self._loose.close()
        self.moves.close()

    def put(self, table: int, key: bytes, row: Stored) -> None:
        """Replace the row."""
        lsn, serial, state, shape, packed, name = row
        self._changes[table] += 1
        size = _ROW.size + len(name) + len(packed)
        self._rows.add(table, _ROW.pack(key, size, lsn, serial, state, shape, len(name)) + name + packed)

    def delete(self, table: int, key: bytes) -> None:
        self.put(table, key, _NO_ROW)

    def leave(self, table: int, key: bytes, place: Place) -> None:
        """Register that the row has another key from this position on."""
        self.put(table, key, Stored(*place, _LEFT, 0, b"", b""))

    def add_loose(self, table: int, key: bytes, row: Loose) -> None:
        """Add a row without a key. A second row at the same position counts as the same row.

        Args:
            key: hash of the row's values.
        """
        size = _LOOSE.size + len(row.packed)
        self._loose.add(table, _LOOSE.pack(key, size, *row[:5]) + row.packed)

    def settle(self, table: int, fill: Fill) -> None:
        """Find the rows that later got another key. Call this before `moves` is queried."""
        if self.moves.has(table):
            for chunks in parts([self._rows], table):
                self._applied(table, chunks[0], fill, keep=True)

    def compact(self, fills: Mapping[int, Fill]) -> None:
        """Remove superseded changes if they are more than the rows.

        Args:
            fills: fill function by number of the table.
        """
        rows = sum([self._live.get(table, changes) for table, changes in self._changes.items()])
        if self._changes.total() <= 2 * rows + GARBAGE_MAX:
            return
        before, self._rows = self._rows, BucketLog(self._folder)
        self._changes.clear()
        for table, fill in fills.items():
            for chunks in parts([before], table):
                for key, row in self._applied(table, chunks[0], fill, keep=True).items():
                    self.put(table, key, row)
        before.close()

    def rows(self, table: int, fill: Fill, after: Place) -> Iterator[tuple[bytes, Stored]]:
        """Yield all rows that were changed after the position, with the hash of the key, in no order."""
        live = 0
        for chunks in parts([self._rows], table):
            rows = self._applied(table, chunks[0], fill)
            live += len(rows)
            for key, row in rows.items():
                if row[:2] > after:
                    yield key, row
        self._live[table] = live

    def beside(
        self, table: int, fill: Fill, after: Place, seen: "RowsSeen", first_bytes: Collection[int]
    ) -> Iterator[tuple[Rows, Iterator[tuple[bytes, bytes, str, bytes]]]]:
        """Yield rows of the topics and of the source, one part at a time; a key has both rows in the same part.

        Rows of the topics are left out unless they were changed after the position.

        Args:
            first_bytes: first bytes of the wanted hashes.
        """
        for ours, theirs in parts([self._rows, seen.log], table, first_bytes):
            rows = self._applied(table, ours, fill)
            yield {key: row for key, row in rows.items() if row[:2] > after}, seen.rows(theirs)

    def loose(self, table: int, after: Place) -> Iterator[Loose]:
        """Yield rows without a key that were added or removed after the position, in no order."""
        for chunks in parts([self._loose], table):
            places = set()
            for (_, _, lsn, serial, half, sign, shape), packed in entries(chunks[0], _LOOSE):
                if (lsn, serial, half) not in places and (lsn, serial) > after:
                    places.add((lsn, serial, half))
                    yield Loose(lsn, serial, half, sign, shape, packed)

    def seen(self, table: int) -> "RowsSeen":
        """Return a store for rows of the source. The caller owes its `close`."""
        return RowsSeen(self._folder, table)

    def tally(self, table: int) -> "RowTally":
        """Return a counter of rows without a key. The caller owes its `close`."""
        return RowTally(self._folder, table)

    def _applied(self, table: int, chunks: Chunks, fill: Fill, *, keep: bool = False) -> Rows:
        """Apply the changes of some keys in order, and return the remaining rows.

        Args:
            keep: True to store rows in `moves` before they get another key.
        """
        rows: Rows = {}
        unpack, header = _ROW.unpack_from, _ROW.size
        for data in chunks:
            at, end = 0, len(data)
            while at < end:
                key, size, lsn, serial, state, shape, named = unpack(data, at)
                body = at + header
                at += size
                if state <= PARTIAL:
                    name = data[body : body + named]
                    row = Stored(lsn, serial, state, shape, data[body + named : at], name)
                    rows[key] = fill(rows.get(key), row) if state == PARTIAL else row
                else:
                    before = rows.pop(key, None)
                    if keep and state == _LEFT and before is not None:
                        self.moves.add_gone(table, key, (lsn, serial), before)
        return rows


class RowsSeen:
    """Rows of the source, with the SQL conditions that select them."""

    def __init__(self, folder: Path, table: int) -> None:
        self.log = BucketLog(folder, waiting_bytes=FEW_BYTES)
        self._table = table

    def close(self) -> None:
        self.log.close()

    def add(self, key: bytes, name: bytes, sql: str, packed: bytes) -> None:
        """Add a row: the hash of its key, its key, its SQL condition, and its values."""
        condition = sql.encode("utf-8", "surrogateescape")
        size = _SEEN.size + len(name) + len(condition) + len(packed)
        entry = _SEEN.pack(key, size, len(name), len(condition)) + name + condition + packed
        self.log.add(self._table, entry)

    @staticmethod
    def rows(chunks: Chunks) -> Iterator[tuple[bytes, bytes, str, bytes]]:
        """Yield the rows as they were added."""
        for (key, _, named, found), rest in entries(chunks, _SEEN):
            condition = rest[named : named + found].decode("utf-8", "surrogateescape")
            yield key, rest[:named], condition, rest[named + found :]


class RowTally:
    """Number of rows with the same values in the source, and in the topics."""

    def __init__(self, folder: Path, table: int) -> None:
        self._log = BucketLog(folder, waiting_bytes=FEW_BYTES)
        self._table = table

    def close(self) -> None:
        self._log.close()

    def add(self, key: bytes, source: int, topics: int, packed: bytes) -> None:
        """Count rows with these values: `source` rows in the source, and `topics` rows in the topics.

        Args:
            key: hash of the values.
        """
        entry = _TALLY.pack(key, _TALLY.size + len(packed), source, topics) + packed
        self._log.add(self._table, entry)

    def rows(self) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Yield the hash of the values, the number of rows in the source and in the topics, and the values."""
        for chunks in parts([self._log], self._table):
            source: Counter[bytes] = Counter()
            topics: Counter[bytes] = Counter()
            values: dict[bytes, bytes] = {}
            for (key, _, here, there), packed in entries(chunks[0], _TALLY):
                source[key] += here
                topics[key] += there
                values.setdefault(key, packed)
            for key, packed in values.items():
                yield key, source[key], topics[key], packed
