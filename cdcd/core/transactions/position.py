"""Position of the stream: part of a checkpoint, and rule for what a restart skips.

Commit records, prepared commits and non-transactional messages are decoded in their order in the WAL, each at a
separate LSN (`decode.c`: `buf->origptr`), so a single LSN divides the stream into delivered and undelivered events.
An LSN of a row cannot do this: rows of concurrent transactions have another order than their commits, and the rows
of one multi-insert share an LSN.
"""

from typing import Final

from cdcd.core.protocol.lsn import Lsn

COVERED: Final = -1
"""Result of `Position.skip` for a transaction with nothing left to send."""


Counts = tuple[tuple[str, int], ...]
"""Number of a transaction's records so far, by table (`schema.table`)."""


class Position:
    """A position: everything that ends at or before `end_lsn` is done, and the first `events_done` events of
    `commit_lsn`.

    `commit_lsn` is the start of the last commit record with a part in the batch. If `events_done` is not zero, that
    transaction is larger than a batch and continues after its first `events_done` events, and `end_lsn` is the
    position of its commit too; otherwise it is complete and lies before `end_lsn`. `counts` are the records of
    these events, if records contain their place in the transaction
    (`records/debezium_json/transaction_metadata.py`). They follow from the other fields, so comparisons ignore
    them.

    A position is never changed. Each transaction creates one, so it is a plain class, as the steps are.
    """

    __slots__ = ("commit_lsn", "counts", "end_lsn", "events_done")

    def __init__(
        self, commit_lsn: int = 0, end_lsn: int = 0, events_done: int = 0, counts: Counts = ()
    ) -> None:
        self.commit_lsn = commit_lsn
        self.end_lsn = end_lsn
        self.events_done = events_done
        self.counts = counts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"Position{self._fields()}"

    def _fields(self) -> tuple[int, int, int]:
        return (self.commit_lsn, self.end_lsn, self.events_done)

    def skip(self, commit_lsn: int) -> int:
        """Return how many events of the transaction with this commit LSN are done: a count, or `COVERED`."""
        if commit_lsn < self.end_lsn:
            return COVERED
        return self.events_done if commit_lsn == self.commit_lsn else 0

    def moved(self, end_lsn: int) -> "Position":
        """Return the position after everything up to `end_lsn`, which contained nothing to send."""
        return self if end_lsn <= self.end_lsn else Position(self.commit_lsn, end_lsn)

    @property
    def needed_wal(self) -> int:
        """LSN that the WAL must have reached to contain everything that is done."""
        return self.end_lsn + 1 if self.events_done else self.end_lsn

    def __str__(self) -> str:
        inside = f" and {self.events_done} events of {Lsn(self.commit_lsn)}" if self.events_done else ""
        return f"{Lsn(self.end_lsn)}{inside}"
