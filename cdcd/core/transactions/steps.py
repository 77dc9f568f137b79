"""What the assembler says: a transaction's changes as a sequence of steps, the same for every kind of transaction.

`Opened`, then any number of `Changes`, `TransactionalMessage`, `Described` and `OriginChanged`, then `Closed`.
`Described` also comes between transactions. `RolledBack`, `CommitWithoutPrepare`, `NonTransactionalMessage` and
`KeepaliveReceived` stand for themselves. `RelationPreview` comes between these at any time, while a streamed
transaction arrives that may never be committed. `Turn` comes at any time and means nothing.

The three that each transaction has are plain classes: of many transactions of one row, making these as dataclasses is a
seventh of the work.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.core.protocol.messages import Relation, Type
from cdcd.core.transactions.drafts import SpoolItem


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
    """Events in the transaction's order: frames of Insert, Update, Delete and Truncate, and drafts of rows.

    `in_stream` says that an xid follows each message's tag.
    """

    __slots__ = ("in_stream", "items")

    def __init__(self, items: list[SpoolItem], in_stream: bool) -> None:
        self.items = items
        self.in_stream = in_stream


@dataclass(frozen=True, slots=True)
class TransactionalMessage:
    """A logical message of the open transaction: one event, in its place among the changes.

    `in_stream` says that an xid follows the tag.
    """

    frame: bytes
    in_stream: bool


@dataclass(frozen=True, slots=True)
class RelationPreview:
    """A still-open streamed transaction sent a Relation message. It takes effect at commit, by `Described`."""

    message: Relation


@dataclass(frozen=True, slots=True)
class Described:
    """From here on, rows of this relation (values of this type) are as the message says."""

    message: Relation | Type


@dataclass(frozen=True, slots=True)
class OriginChanged:
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
class CommitWithoutPrepare:
    """A COMMIT PREPARED came whose PREPARE was not received; the transaction follows without changes.

    PostgreSQL 15 to 17 send no PREPARE for a transaction that only locked rows (`reorderbuffer.c`,
    `ReorderBufferReplay`). Else the slot was past the PREPARE when this pipeline first used it, or somebody accepted
    that: then the changes of the transaction are missing in Kafka. The protocol does not tell the two apart.
    """

    xid: int
    gid: str
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class NonTransactionalMessage:
    """A non-transactional logical message: an event with a position of its own in the order.

    `lsn` is for this message what the commit LSN is for a transaction; a restart from `lsn + 1` does not bring the
    message again.
    """

    frame: bytes
    in_stream: bool
    lsn: int
    last_commit_lsn: int | None
    ticket: int


@dataclass(frozen=True, slots=True)
class KeepaliveReceived:
    """A keepalive: everything before `wal_end` was decoded, if `idle` (no transaction was being sent)."""

    wal_end: int
    reply_requested: bool
    idle: bool


class Turn:
    """Nothing happened but work: the receiver may let other tasks run before it takes the next step."""

    __slots__ = ()


TURN: Final = Turn()

Step = (
    Opened
    | Changes
    | TransactionalMessage
    | RelationPreview
    | Described
    | OriginChanged
    | Closed
    | RolledBack
    | CommitWithoutPrepare
    | NonTransactionalMessage
    | KeepaliveReceived
    | Turn
)
