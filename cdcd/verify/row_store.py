"""The rows that topics make, on disk: SQLite in a file without a name, with a part of it in memory.

Nothing here has to last, so nothing is synchronized. Writes wait in memory, up to `WAITING` rows, and are read from
there. A row is known by its table's number and the hash of its key; a row without a key by its place.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

WAITING: Final = 5000
CACHE_KIB: Final = 32 << 10
KEY_MAX: Final = 1000
"""Bytes of a key that are kept to be shown."""

WHOLE: Final = 0
UNSENT: Final = 1
MOVED: Final = 2
ELSEWHERE: Final = 3
FOREIGN: Final = 4
"""What a row lacks: nothing; a value that was never sent; a value that the row with its former key has; all of its
values, which are in a file (claim check); a place, because another connector wrote it."""

_SCHEMA: Final = """
CREATE TABLE row (t INTEGER, k BLOB, lsn INTEGER, serial INTEGER, state INTEGER, shape INTEGER, packed BLOB, name BLOB,
    PRIMARY KEY (t, k)) WITHOUT ROWID;
CREATE TABLE bag (t INTEGER, lsn INTEGER, serial INTEGER, half INTEGER, sign INTEGER, state INTEGER, shape INTEGER,
    packed BLOB, PRIMARY KEY (t, lsn, serial, half)) WITHOUT ROWID;
CREATE TABLE moved (t INTEGER, k BLOB, lsn INTEGER, serial INTEGER, former BLOB, PRIMARY KEY (t, k, lsn, serial))
    WITHOUT ROWID;
CREATE TABLE gone (t INTEGER, k BLOB, lsn INTEGER, serial INTEGER, state INTEGER, shape INTEGER, packed BLOB,
    PRIMARY KEY (t, k, lsn, serial)) WITHOUT ROWID;
CREATE TABLE counted (t INTEGER, k BLOB, n INTEGER, packed BLOB, PRIMARY KEY (t, k)) WITHOUT ROWID;
CREATE TABLE seen (t INTEGER, k BLOB, n INTEGER, packed BLOB, PRIMARY KEY (t, k)) WITHOUT ROWID;
"""


class Stored(NamedTuple):
    """A row: its last change's place, what it lacks, its shape's number, its values (`values.py`) and its key."""

    lsn: int
    serial: int
    state: int
    shape: int
    packed: bytes
    name: bytes


class Loose(NamedTuple):
    """A row without a key that came (`sign` 1) or went (-1) at a place."""

    lsn: int
    serial: int
    half: int
    sign: int
    state: int
    shape: int
    packed: bytes


class RowStore:
    """Rows by table and hash of key. The caller owes `close`, and `settle` before it reads more than single rows."""

    def __init__(self, folder: Path) -> None:
        path = folder / "rows.sqlite"
        self._sql = sqlite3.connect(path, isolation_level=None)
        self._sql.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-{CACHE_KIB}; "
            f"PRAGMA temp_store=FILE; {_SCHEMA} BEGIN"
        )
        # Without a name, the file is gone with the process, however that ends.
        path.unlink()
        self._waiting: dict[tuple[int, bytes], Stored | None] = {}
        self._loose: list[tuple[int | bytes, ...]] = []

    def close(self) -> None:
        self._sql.close()

    def get(self, table: int, key: bytes) -> Stored | None:
        """The row with this hash of the key; None: there is none."""
        waiting = self._waiting.get((table, key), _NOT_WAITING)
        if waiting is not _NOT_WAITING:
            return waiting
        found = self._sql.execute(
            "SELECT lsn, serial, state, shape, packed, name FROM row WHERE t = ? AND k = ?", (table, key)
        ).fetchone()
        return None if found is None else Stored(*found)

    def put(self, table: int, key: bytes, row: Stored) -> None:
        self._waiting[table, key] = row
        if len(self._waiting) >= WAITING:
            self.settle()

    def delete(self, table: int, key: bytes) -> None:
        self._waiting[table, key] = None
        if len(self._waiting) >= WAITING:
            self.settle()

    def add_loose(self, table: int, row: Loose) -> None:
        """A row without a key. One at the same place is the same."""
        self._loose.append((table, *row))
        if len(self._loose) >= WAITING:
            self.settle()

    def add_moved(self, table: int, key: bytes, place: tuple[int, int], former: bytes) -> None:
        """A row that has another key since this place, and lacks values that it had before."""
        self._sql.execute("INSERT OR REPLACE INTO moved VALUES (?, ?, ?, ?, ?)", (table, key, *place, former))

    def add_gone(self, table: int, key: bytes, place: tuple[int, int], row: Stored) -> None:
        """What a row was when it got another key."""
        values = (table, key, *place, row.state, row.shape, row.packed)
        self._sql.execute("INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def former(self, table: int, key: bytes, place: tuple[int, int]) -> tuple[bytes, Stored] | None:
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

    def moves(self, table: int, key: bytes) -> list[tuple[int, int]]:
        """The places at which a row got this key and lacked values, the last one first."""
        return self._sql.execute(
            "SELECT lsn, serial FROM moved WHERE t = ? AND k = ? ORDER BY lsn DESC, serial DESC", (table, key)
        ).fetchall()

    def settle(self) -> None:
        """Write what waits."""
        puts = [(*at, *row) for at, row in self._waiting.items() if row is not None]
        deletes = [at for at, row in self._waiting.items() if row is None]
        self._sql.executemany("INSERT OR REPLACE INTO row VALUES (?, ?, ?, ?, ?, ?, ?, ?)", puts)
        self._sql.executemany("DELETE FROM row WHERE t = ? AND k = ?", deletes)
        self._sql.executemany("INSERT OR IGNORE INTO bag VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self._loose)
        self._waiting.clear()
        self._loose.clear()

    def rows(
        self, table: int, begin: bytes, end: bytes, after: tuple[int, int]
    ) -> Iterator[tuple[bytes, Stored]]:
        """The rows whose key's hash is from `begin` to before `end`, in its order, changed after the place `after`."""
        found = self._sql.execute(
            "SELECT k, lsn, serial, state, shape, packed, name FROM row "
            "WHERE t = ? AND k >= ? AND k < ? AND (lsn, serial) > (?, ?) ORDER BY k",
            (table, begin, end, *after),
        )
        for key, *values in found:
            yield key, Stored(*values)

    def loose(self, table: int, after: tuple[int, int]) -> Iterator[Loose]:
        """The rows without a key that came and went after the place `after`."""
        for values in self._sql.execute(
            "SELECT lsn, serial, half, sign, state, shape, packed FROM bag WHERE t = ? AND (lsn, serial) > (?, ?)",
            (table, *after),
        ):
            yield Loose(*values)

    def count(self, table: int, rows: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Count rows without a key of the topics, by their hashes: how many, and their values."""
        self._sql.execute("DELETE FROM counted WHERE t = ?", (table,))
        self._add("counted", table, rows)

    def counted(self, table: int, begin: bytes, end: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """The rows without a key by their hashes, as they were counted; those that are not there are left out."""
        yield from self._sql.execute(
            "SELECT k, n, packed FROM counted WHERE t = ? AND k >= ? AND k < ? AND n <> 0 ORDER BY k",
            (table, begin, end),
        )

    def see(self, table: int, rows: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Remember rows of the source: how many there are of each."""
        self._add("seen", table, rows)

    def unseen(
        self, table: int, begin: bytes, end: bytes, after: tuple[int, int]
    ) -> Iterator[tuple[bytes, Stored]]:
        """As `rows`, without those that the source has."""
        found = self._sql.execute(
            "SELECT k, lsn, serial, state, shape, packed, name FROM row r "
            "WHERE t = ? AND k >= ? AND k < ? AND (lsn, serial) > (?, ?) "
            "AND NOT EXISTS (SELECT 1 FROM seen s WHERE s.t = r.t AND s.k = r.k) ORDER BY k",
            (table, begin, end, *after),
        )
        for key, *values in found:
            yield key, Stored(*values)

    def miscounted(self, table: int, begin: bytes, end: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Rows without a key of which source and topics have another number: source, topics, values."""
        yield from self._sql.execute(
            "SELECT sum(s), sum(c), max(packed) FROM ("
            "SELECT k, n AS s, 0 AS c, packed FROM seen WHERE t = ?1 AND k >= ?2 AND k < ?3 UNION ALL "
            "SELECT k, 0, n, packed FROM counted WHERE t = ?1 AND k >= ?2 AND k < ?3) "
            "GROUP BY k HAVING sum(s) <> sum(c) ORDER BY k",
            (table, begin, end),
        )

    def forget_seen(self, table: int) -> None:
        self._sql.execute("DELETE FROM seen WHERE t = ?", (table,))

    def _add(self, name: str, table: int, rows: Iterable[tuple[bytes, int, bytes]]) -> None:
        query = f"INSERT INTO {name} VALUES (?, ?, ?, ?) ON CONFLICT (t, k) DO UPDATE SET n = n + excluded.n"  # noqa: S608
        self._sql.executemany(query, ((table, *row) for row in rows))


_NOT_WAITING: Final = Stored(-1, -1, -1, -1, b"", b"")
