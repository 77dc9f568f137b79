"""What the assembler says: a transaction's changes as a sequence of steps, the same for every kind of transaction.

`Opened`, then any number of `Changes`, `Described` and `Originated`, then `Closed`. `Described` also comes between
transactions. `RolledBack`, `Standalone` and `Heard` stand for themselves. `Foretold` and `Undecided` come at any time
between these, while a streamed transaction arrives that may never be committed.

The three that each transaction has are plain classes: of many transactions of one row, making these as dataclasses is a
seventh of the work.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cdcd.protocol.messages import Relation, Type
from cdcd.transactions.drafts import Kept


class Opened:
    """A committed transaction begins; all its changes follow before another one begins.

    `skip` counts the events at its beginning that the checkpoint covers; they do not follow.
    `last_commit_lsn` is the commit LSN of the transaction before it in the stream, None where that is unknown.
    """

    __slots__ = ("commit_lsn", "commit_time", "kind", "last_commit_lsn", "skip", "xid")

    def __init__(  # noqa: PLR0917  one of these for each transaction, and keywords cost
        self, kind: str, xid: int, commit_lsn: int, commit_time: int, last_commit_lsn: int | None, skip: int
    ) -> None:
        self.kind = kind
        self.xid = xid
        self.commit_lsn = commit_lsn
        self.commit_time = commit_time
        self.last_commit_lsn = last_commit_lsn
        self.skip = skip


class Changes:
    """Events in the transaction's order: frames of Insert, Update, Delete, Truncate and Message, and drafts of rows.

    `in_stream` says that an xid follows each message's tag.
    """

    __slots__ = ("in_stream", "kept")

    def __init__(self, kept: list[Kept], in_stream: bool) -> None:
        self.kept = kept
        self.in_stream = in_stream


class Undecided:
    """Frames of rows in a streamed transaction, whose fate is open.

    The receiver may put drafts of them, in their order, in their place. `relations` are those that were
    described in the transaction so far, by oid, each with the number of its arrival.
    """

    __slots__ = ("kept", "relations")

    def __init__(self, kept: list[Kept], relations: Mapping[int, tuple[int, Relation]]) -> None:
        self.kept = kept
        self.relations = relations


@dataclass(frozen=True, slots=True)
class Foretold:
    """A streamed transaction described a relation. When it is committed, `Described` says so where it counts."""

    message: Relation


@dataclass(frozen=True, slots=True)
class Described:
    """From here on, rows of this relation (values of this type) are as the message says."""

    message: Relation | Type


@dataclass(frozen=True, slots=True)
class Originated:
    """The changes that follow in this transaction came from the replication origin `name`."""

    name: str
    lsn: int


class Closed:
    """The transaction is complete; `tickets` are owed to the ledger when the broker holds all of it."""

    __slots__ = ("commit_lsn", "commit_time", "end_lsn", "tickets")

    def __init__(self, commit_lsn: int, commit_time: int, end_lsn: int, tickets: tuple[int, ...]) -> None:
        self.commit_lsn = commit_lsn
        self.commit_time = commit_time
        self.end_lsn = end_lsn
        self.tickets = tickets


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A prepared transaction is gone; `tickets` are owed when the broker holds the position after that, `end_lsn`."""

    end_lsn: int
    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standalone:
    """A non-transactional logical message: an event with a place of its own in the order.

    `lsn` stands for it where transactions have their commit LSN; a restart from `lsn + 1` does not bring it again.
    """

    frame: bytes
    in_stream: bool
    lsn: int
    last_commit_lsn: int | None
    ticket: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A keepalive: everything before `wal_end` was decoded, if `idle` (no transaction was being sent)."""

    wal_end: int
    reply_requested: bool
    idle: bool


Step = (
    Opened
    | Changes
    | Undecided
    | Foretold
    | Described
    | Originated
    | Closed
    | RolledBack
    | Standalone
    | Heard
)
