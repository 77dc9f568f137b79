"""Where rows that were read beside the stream are true in it, and which of them are out of date there.

The rule: a chunk's rows go out between two transactions of the stream, when the stream is past everything that the
chunk's snapshot sees (`Rows.after`, its high watermark). A row is left out when a transaction that the snapshot does
*not* see has changed its key and is in the stream already, because the change of that transaction is newer. All other
rows are the last known form of their keys at that place. So a change wins over a row of the chunk, whichever of them
came first.

The ids of transactions tell what a snapshot sees, and not a low watermark: a commit is in the WAL, and may have been
streamed, some time before snapshots see it (procarray.c, ProcArrayEndTransaction, comes after the flush and after the
wait for synchronous standbys). So keys are remembered from before the snapshot is taken, by transaction.

`Window` remembers no more than what an open chunk, or one that will be opened, does not see: `advance` says which
snapshot is the oldest of these, and transactions that it sees are not remembered. So a backlog that was committed long
ago costs nothing, and neither does a table that waits. What cannot be remembered key by key (TRUNCATE, rows without
a key) makes a chunk be read again. At `KEYS_MAX` keys the window gives up: its table has to be planned again.

`Owed` remembers the other half: keys whose last change left a value out (unchanged TOAST), while it is not known that
the value was delivered. The chunk's row was the only carrier of it, and was left out, or is on a page that was read
before the row moved there. These rows are read again by key.
"""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from cdcd.core.snapshot.reading import Visibility
from cdcd.core.snapshot.table_task import OWED_BYTES_MAX, OWED_KEYS_MAX, Key, owed_text

KEYS_MAX: Final = 200_000
"""Keys that a table's window remembers, some 100 bytes each."""

OWED_MAX: Final = 200_000
"""Keys that a table may owe, some 200 bytes each. Beyond, the table is read from its beginning."""


def oldest(snapshots: Iterable[Visibility]) -> Visibility:
    """The one that was taken first: what it sees, all the others see."""
    return min(snapshots, key=_age)


def _age(snapshot: Visibility) -> tuple[int, int, int]:
    return snapshot.xmax, snapshot.xmin, -len(snapshot.in_progress)


class Window:
    """Keys of one table that were changed by transactions which not every open chunk sees, by transaction."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self.gave_up = False
        """There were too many keys: no chunk that is open can be sent any more."""
        self.keys = 0
        self._keys_max = keys_max
        self._noted: dict[int, set[bytes] | None] = {}
        self._floor: Visibility | None = None
        self._recent = (-1, False)

    def note(self, xid: int, key: bytes | None) -> None:
        """The committed transaction `xid` changed the row with this key; None: it changed what no key tells."""
        if self.gave_up or self._is_seen(xid):
            return
        if key is None:
            self.keys -= len(self._noted.get(xid) or ())
            self._noted[xid] = None
            return
        keys = self._noted.setdefault(xid, set())
        if keys is not None and key not in keys:
            keys.add(key)
            self.keys += 1
            if self.keys > self._keys_max:
                self.gave_up = True
                self._noted.clear()
                self.keys = 0

    def _is_seen(self, xid: int) -> bool:
        if self._floor is None:
            return False
        if xid != self._recent[0]:
            self._recent = (xid, self._floor.sees(xid))
        return self._recent[1]

    def advance(self, floor: Visibility) -> None:
        """No chunk that is open, or will be, sees less than this snapshot: forget what it sees."""
        if floor == self._floor:
            return
        self._floor = floor
        self._recent = (-1, False)
        for xid in [xid for xid in self._noted if floor.sees(xid)]:
            self.keys -= len(self._noted.pop(xid) or ())

    def overtaken(self, seen: Visibility) -> set[bytes] | None:
        """The keys that transactions have changed which the snapshot does not see; None: read the chunk again."""
        found: set[bytes] = set()
        for xid, keys in self._noted.items():
            if not seen.sees(xid):
                if keys is None:
                    return None
                found |= keys
        return found


class Owed:
    """Keys of one table whose rows are to be read again. The record's key, as bytes, leads to the row's values.

    Args:
        keys: what an earlier life owed; their records' keys are not known, which `settle` does not need.
    """

    def __init__(self, keys: Iterable[Key] = (), keys_max: int = OWED_MAX) -> None:
        self.gave_up = False
        """There were too many keys: the table is to be read from its beginning."""
        self.closed = False
        """Every page was delivered: whoever is not owed by now has had all of its values."""
        self._keys_max = keys_max
        self._secret = False
        self._by_record: dict[bytes, Key] = {}
        self._former: dict[Key, None] = dict.fromkeys(keys)

    def __len__(self) -> int:
        return len(self._by_record) + len(self._former)

    def note(self, record_key: bytes, values: Key | None, *, moved: bool, secret: bool = False) -> None:
        """A change of the row was streamed.

        Args:
            values: those of the key columns if the change left a value of the row out; None if it sent all of them,
                or deleted the row.
            moved: the row had another key before.
            secret: the values must not be written down, because records do not have them in clear.
        """
        if values is None:
            if self._by_record or self._former:
                former = self._by_record.pop(record_key, None)
                if former is not None:
                    self._former.pop(former, None)
            return
        if self.gave_up or (
            self.closed and not moved and record_key not in self._by_record and values not in self._former
        ):
            return
        self._secret = self._secret or secret
        self._by_record[record_key] = values
        self._former.pop(values, None)
        if len(self) > self._keys_max:
            self.gave_up = True
            self._by_record.clear()
            self._former.clear()

    def note_rows(self, record_keys: Iterable[bytes]) -> None:
        """Rows with these keys were sent with all of their values."""
        if self._by_record:
            for key in record_keys:
                self._by_record.pop(key, None)

    def begin(self, overtaken: Collection[bytes]) -> None:
        """All rows are read from now on, also those that were read before, but for those that are overtaken."""
        self._former.clear()
        self.closed = False
        for key in self._by_record.keys() - set(overtaken):
            del self._by_record[key]

    def settle(self, asked: Iterable[tuple[bytes | None, Key]], overtaken: set[bytes]) -> None:
        """Rows that `some` gave were read again, and sent if they were there, but for those that are overtaken."""
        for record_key, key in asked:
            if record_key is None:
                self._former.pop(key, None)
            elif record_key not in overtaken and self._by_record.get(record_key) == key:
                del self._by_record[record_key]

    def truncated(self) -> None:
        """No row is left of those before."""
        self._by_record.clear()
        self._former.clear()

    def some(self, most: int) -> list[tuple[bytes | None, Key]]:
        """At most so many of them, the oldest first, for `settle`."""
        former: list[tuple[bytes | None, Key]] = [(None, key) for key in islice(self._former, most)]
        return former + [(record, key) for record, key in islice(self._by_record.items(), most - len(former))]

    def to_write_down(self) -> tuple[Key, ...] | None:
        """All of them, for the checkpoint record; None: it must not have them, has no room, or they are not known."""
        if self.gave_up or len(self) > OWED_KEYS_MAX or (self._secret and self._by_record):
            return None
        keys = (*self._former, *self._by_record.values())
        return keys if not keys or len(owed_text(keys)) <= OWED_BYTES_MAX else None
