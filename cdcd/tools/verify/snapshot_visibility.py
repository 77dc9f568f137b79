"""Which commits a snapshot of the source sees, told of the records of the topics.

The rule: a snapshot sees the transactions that had ended when it was taken, and these are not all whose commit lies
before some LSN. A commit record is written, and may be streamed and delivered, before snapshots see the transaction:
with a synchronous standby that is away, hours before (procarray.c, ProcArrayEndTransaction). So a record is judged by
its transaction's id. What lies behind `lsn`, the end of the WAL just after the snapshot was taken, is seen by nobody.

An id of 32 bits says nothing of a transaction that is older than 2^31 ids. All transactions before `old_lsn`, from
where on the slot needs the WAL, had an id when the snapshot was taken: of those, it does not see only what it lists as
open.

Rejected: the snapshot of a slot that is made for it, which has an exact LSN. Making it waits for every open
transaction, and PostgreSQL 18.4 has crashed while it made one under load.
"""

from dataclasses import dataclass, field

from cdcd.core.snapshot.visibility import Visibility

_IDS = 1 << 32


@dataclass(slots=True)
class Sight:
    """What a snapshot sees.

    Attributes:
        lsn: the end of the WAL just after the snapshot was taken.
        old_lsn: where the WAL begins that the pipeline's slot needs.
        first_unseen: the first commit before `lsn` of those asked for that the snapshot does not see; 0: it sees them.
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
        """The snapshot sees every commit before it."""
        return self.first_unseen or self.lsn

    def sees(self, commit_lsn: int, xid: int) -> bool:
        """Whether it sees the transaction with this id, whose commit is there in the WAL."""
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
