"""The commits that a snapshot of the source sees, applied to the records of the topics.

The rule: a snapshot sees the transactions that had ended when it was taken, which are not all transactions with a
commit before some LSN. A commit record is written, and may be streamed and delivered, before snapshots see the
transaction: hours before if a synchronous standby is unreachable (procarray.c, ProcArrayEndTransaction). So a
record is judged by its transaction's id. The snapshot sees no commit after `lsn`, the end of the WAL just after the
snapshot was taken.

An id of 32 bits cannot identify a transaction that is older than 2^31 ids. All transactions before `old_lsn`, where
the WAL that the slot needs begins, had an id when the snapshot was taken, so the snapshot sees all of them except
those that it lists as open.

Rejected: the snapshot of a slot that is created for this purpose, which has an exact LSN. Creating the slot waits
for every open transaction, and PostgreSQL 18.4 has crashed while it created one under load.
"""

from dataclasses import dataclass, field

from cdcd.core.snapshot.reading import Visibility

_IDS = 1 << 32


@dataclass(slots=True)
class Sight:
    """The visibility of a snapshot.

    Attributes:
        lsn: the end of the WAL just after the snapshot was taken.
        old_lsn: start of the WAL that the pipeline's slot needs.
        first_unseen: lowest commit before `lsn` that was passed to `sees` and is invisible; 0: all were visible.
    """

    visibility: Visibility
    lsn: int
    old_lsn: int
    first_unseen: int = 0
    _open: frozenset[int] = field(init=False)
    _last: tuple[int, bool] = (-1, False)

    def __post_init__(self) -> None:
        self._open = frozenset(xid % _IDS for xid in self.visibility.in_progress)

    @property
    def exact_lsn(self) -> int:
        """LSN before which the snapshot sees every commit."""
        return self.first_unseen or self.lsn

    def sees(self, commit_lsn: int, xid: int) -> bool:
        """Return True if the snapshot sees the transaction with this id and this commit LSN."""
        if commit_lsn == self._last[0]:
            return self._last[1]
        seen = self._sees(commit_lsn, xid)
        self._last = (commit_lsn, seen)
        if not seen and commit_lsn < self.lsn and (not self.first_unseen or commit_lsn < self.first_unseen):
            self.first_unseen = commit_lsn
        return seen

    def _sees(self, commit_lsn: int, xid: int) -> bool:
        if commit_lsn >= self.lsn:
            return False
        if commit_lsn < self.old_lsn:
            return xid not in self._open
        return self.visibility.sees(xid)
