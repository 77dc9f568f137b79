"""What streams past while a chunk of a table is being read: which of its rows are out of date when it is sent.

The rule: a chunk's rows go out between two transactions of the stream, when the stream is past everything that the
chunk's snapshot sees (its high watermark). A row is left out when a transaction that the snapshot does *not* see has
changed its key and is in the stream already: what that transaction said is newer. All others are the row's
last known form at that place. So a change beside the chunk wins over the chunk, whichever came first.

Which transactions a snapshot sees is told by their ids, and not by a low watermark: a commit is in the WAL, and may
have been streamed, some time before snapshots see it (procarray.c, ProcArrayEndTransaction, comes after the flush
and after the wait for synchronous standbys). So keys are remembered from before the snapshot is taken, by transaction,
and forgotten when every chunk that is open, and therefore every later one, sees the transaction.

What can not be remembered key by key makes the chunk be read again, when the transaction is over: TRUNCATE, rows
without a key, a table that changed its form, and more keys than `keys_max`.
"""

from collections.abc import Iterable
from typing import Final

from cdcd.snapshots.visibility import Visibility

KEYS_MAX: Final = 200_000
"""Keys remembered for all tables, some 100 bytes each; the transaction with most of them is given up beyond."""

_Keys = set[bytes]


class Window:
    """Keys of watched tables by the transaction that changed them. A table is whatever name the caller uses."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._keys = 0
        self._noted: dict[str, dict[int, _Keys | None]] = {}

    @property
    def watching(self) -> bool:
        """Whether anything needs to be noted."""
        return bool(self._noted)

    @property
    def keys(self) -> int:
        """How many keys are remembered."""
        return self._keys

    def watch(self, table: str) -> None:
        """Remember from now on. What was streamed before must be seen by every snapshot that is yet to be taken."""
        self._noted.setdefault(table, {})

    def unwatch(self, table: str) -> None:
        """Nothing more will be read of the table."""
        for keys in self._noted.pop(table, {}).values():
            self._keys -= len(keys or ())

    def note(self, xid: int, table: str, key: bytes | None) -> None:
        """The committed transaction `xid` changed the row with this key; None: something that has none."""
        noted = self._noted.get(table)
        if noted is None:
            return
        if key is None:
            self._give_up(noted, xid)
            return
        keys = noted.setdefault(xid, set())
        if keys is not None and key not in keys:
            keys.add(key)
            self._keys += 1
            if self._keys > self._keys_max:
                self._shrink()

    def void(self, xid: int, tables: Iterable[str] | None = None) -> None:
        """The transaction changed these tables (None: any of them) in a way that no key tells."""
        for table in list(self._noted) if tables is None else tables:
            self.note(xid, table, None)

    def overtaken(self, table: str, seen: Visibility) -> _Keys | None:
        """The keys that newer transactions than the snapshot has seen have changed; None: read the chunk again."""
        found: _Keys = set()
        for xid, keys in self._noted.get(table, {}).items():
            if not seen.sees(xid):
                if keys is None:
                    return None
                found |= keys
        return found

    def forget(self, table: str, snapshots: Iterable[Visibility]) -> None:
        """Forget what all of these snapshots see; they must be those of all open chunks, or the latest one."""
        noted = self._noted.get(table, {})
        held = list(snapshots)
        for xid in [xid for xid in noted if all(snapshot.sees(xid) for snapshot in held)]:
            self._keys -= len(noted.pop(xid) or ())

    def _give_up(self, noted: dict[int, _Keys | None], xid: int) -> None:
        self._keys -= len(noted.get(xid) or ())
        noted[xid] = None

    def _shrink(self) -> None:
        every = [(noted, xid) for noted in self._noted.values() for xid in noted]
        noted, xid = max(every, key=lambda entry: len(entry[0][entry[1]] or ()))
        self._give_up(noted, xid)
