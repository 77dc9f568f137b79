"""Where the stream stands: the position that a checkpoint has, and what a restart skips because of it.

Commit records, prepared commits and non-transactional messages are decoded in the order in which they lie in
the WAL, each at an LSN of its own (`decode.c`: `buf->origptr`), so one LSN divides the stream into what is done
and what is not. An LSN of a row cannot: rows of concurrent transactions come in another order than their
commits, and the rows of one multi-insert share an LSN.
"""

from typing import Final

from cdcd.core.protocol.lsn import Lsn

COVERED: Final = -1
"""What `Position.skip` answers for a transaction of which nothing is left to send."""


Counts = tuple[tuple[str, int], ...]
"""Records of a transaction so far, by table (`schema.table`)."""


class Position:
    """Everything that ends at or before `end_lsn` is done, and the first `events_done` events of `commit_lsn`.

    `commit_lsn` is the start of the last commit record that had a part in the batch. When `events_done` is not
    zero, that transaction is larger than a batch and goes on after its first `events_done` events, and `end_lsn` is
    where it commits too; else it is complete and lies before `end_lsn`. `counts` are the records of those events, if
    records say their place in the transaction (`records/debezium_json/transaction_metadata.py`); they follow from the
    other fields, and two positions are equal without them.

    Never changed once it is made. Each transaction makes one, so it is a plain class, as the steps are.
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
        """How many events of the transaction that commits at `commit_lsn` are done: a count, or `COVERED`."""
        if commit_lsn < self.end_lsn:
            return COVERED
        return self.events_done if commit_lsn == self.commit_lsn else 0

    def moved(self, end_lsn: int) -> "Position":
        """The position after everything that ends at or before `end_lsn` too, when that held nothing to send."""
        return self if end_lsn <= self.end_lsn else Position(self.commit_lsn, end_lsn)

    @property
    def needed_wal(self) -> int:
        """Where the WAL must have got to, for what is done to be in it."""
        return self.end_lsn + 1 if self.events_done else self.end_lsn

    def __str__(self) -> str:
        inside = f" and {self.events_done} events of {Lsn(self.commit_lsn)}" if self.events_done else ""
        return f"{Lsn(self.end_lsn)}{inside}"
