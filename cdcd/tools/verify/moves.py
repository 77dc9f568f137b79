"""Rows that got another key while they had values that their records leave out, and what they were before.

The rule: both records of a changed key have the same place, and may lie in two partitions. So what a row was is kept by
its former key and that place, and is looked for from the row with the new key.

In SQLite, because these rows are few and are looked for one by one.
"""

import sqlite3
from pathlib import Path
from typing import Final

from cdcd.tools.verify.bucket_log import not_kept
from cdcd.tools.verify.stored import Place, Stored

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
        """Whether a row of the table has another key and lacks values."""
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
