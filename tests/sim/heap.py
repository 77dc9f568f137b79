"""Rows in pages, in versions, as heapam.c keeps them, and which of them a snapshot sees.

The rule: a version stays where it was written. An UPDATE writes another one on whichever page has room, early pages
first, as the free space map leads to them: so a row moves into pages that a reader may have behind it.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from cdcd.core.snapshot.reading import Visibility
from tests.sim.catalog import Definition, Row

PAGE_BYTES: Final = 8192
P_EARLY: Final = 0.7


class Transactions:
    """pg_xact, pg_subtrans and the list of those that run; ids are those that write, of subtransactions too.

    A transaction that committed is seen by new snapshots only when it has `ended` (ProcArrayEndTransaction), which
    is some time after its commit record was written, and perhaps streamed.
    """

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.running: set[int] = set()
        self.aborted: set[int] = set()
        self.committed: set[int] = set()
        self.latest = 0

    def assign(self, xid: int, top: int) -> None:
        self.parents[xid] = top
        if xid == top:
            self.running.add(xid)

    def commit(self, top: int) -> None:
        """Its commit record is in the WAL."""
        self.committed.add(top)

    def end(self, top: int) -> None:
        """From here on snapshots see what became of it."""
        self.running.discard(top)
        self.latest = max(self.latest, top)

    def abort(self, xid: int, children: tuple[int, ...]) -> None:
        self.aborted.add(xid)
        self.aborted.update(children)

    def snapshot(self) -> Visibility:
        """pg_current_snapshot()."""
        after = self.latest + 1
        running = frozenset([xid for xid in self.running if xid < after])
        return Visibility(min(running, default=after), after, running)

    def historic(self, next_xid: int) -> Visibility:
        """What a slot exports: it sees what committed in the WAL before (SnapBuildExportSnapshot)."""
        running = frozenset([xid for xid in self.running if xid not in self.committed])
        return Visibility(min(running, default=next_xid), next_xid, running)

    def is_seen(self, xid: int, snapshot: Visibility) -> bool:
        top = self.parents[xid]
        return xid not in self.aborted and top in self.committed and snapshot.sees(top)

    def is_done(self, xid: int, own: int) -> bool:
        """Whether the transaction `own` sees now what `xid` wrote."""
        if xid in self.aborted:
            return False
        top = self.parents[xid]
        return top == own or (top in self.committed and top not in self.running)

    def is_open(self, xid: int, own: int) -> bool:
        """Whether `own` would have to wait for it."""
        if xid in self.aborted:
            return False
        top = self.parents[xid]
        return top != own and top in self.running


class Version:
    """A version of a row."""

    __slots__ = ("page", "row", "xmax", "xmin")

    def __init__(self, page: int, xmin: int, row: Row) -> None:
        self.page = page
        self.xmin = xmin
        self.xmax = 0
        self.row = row


class Heap:
    """One file. `capacity` is how many versions have room on a page."""

    def __init__(self, filenode: int, capacity: int, transactions: Transactions) -> None:
        self.filenode = filenode
        self.capacity = capacity
        self.versions: list[Version] = []
        self.pages = 0
        self._transactions = transactions
        self._used: list[int] = []

    def insert(self, xmin: int, row: Row, rng: Random, keep: Callable[[Version], bool]) -> Version:
        """Write a version on a page with room. `keep`: whether a dead version may still be needed."""
        if len(self.versions) >= self.pages * self.capacity or rng.random() < 0.2:
            self._prune(keep)
        free = [page for page, used in enumerate(self._used) if used < self.capacity]
        if not free:
            self._used.append(0)
            self.pages += 1
            page = self.pages - 1
        else:
            page = free[0] if rng.random() < P_EARLY else rng.choice(free)
        version = Version(page, xmin, row)
        self._used[page] += 1
        self.versions.append(version)
        return version

    def _prune(self, keep: Callable[[Version], bool]) -> None:
        """What nobody can see any more makes room (heap_page_prune, VACUUM)."""
        transactions = self._transactions
        kept: list[Version] = []
        for version in self.versions:
            dead = version.xmin in transactions.aborted or (
                version.xmax and transactions.is_done(version.xmax, 0) and not keep(version)
            )
            if dead:
                self._used[version.page] -= 1
            else:
                kept.append(version)
        self.versions = kept

    def visible(self, snapshot: Visibility) -> Iterator[Version]:
        seen = self._transactions.is_seen
        for version in self.versions:
            if seen(version.xmin, snapshot) and not (version.xmax and seen(version.xmax, snapshot)):
                yield version

    def current(self, own: int) -> list[Version]:
        """What a statement of the transaction `own` sees, and may change without waiting."""
        transactions = self._transactions
        return [
            version
            for version in self.versions
            if transactions.is_done(version.xmin, own)
            and (
                not version.xmax
                or (
                    not transactions.is_done(version.xmax, own)
                    and not transactions.is_open(version.xmax, own)
                )
            )
        ]

    def is_free(self, definition: Definition, key: tuple[bytes | None, ...], own: int) -> bool:
        """Whether `own` can insert the key, and need not wait for another transaction to know."""
        transactions = self._transactions
        for version in self.versions:
            if version.xmin in transactions.aborted or definition.key_of(version.row) != key:
                continue
            if not (version.xmax and transactions.is_done(version.xmax, own)):
                return False
        return True

    @property
    def size(self) -> int:
        return self.pages * PAGE_BYTES
