"""Output of the assembler: a transaction's changes as a sequence of steps, the same for every kind of transaction.

`Opened`, then any number of `Changes`, `TransactionalMessage`, `Described` and `OriginChanged`, then `Closed`.
`Described` also occurs between transactions. `RolledBack`, `CommitWithoutPrepare`, `NonTransactionalMessage` and
`KeepaliveReceived` are single steps. `RelationPreview` may occur between these at any time, for a streamed
transaction that may never be committed. `TurnEnd` may occur at any time and has no meaning.

The three steps of each transaction are plain classes: with transactions of one row, creating them as dataclasses
would be a seventh of the work.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.core.protocol.messages import Relation, Type
from cdcd.core.transactions.drafts import SpoolItem


class Opened:
    """Beginning of a committed transaction; all its changes follow before the next one begins.

    `skip` is the number of its first events that the checkpoint covers; of these, only logical messages follow.
    `last_commit_lsn` is the commit LSN of the transaction before it in the stream; None: unknown.
    """

    __slots__ = ("commit_lsn", "commit_time", "kind", "last_commit_lsn", "skip", "xid")

    def __init__(
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

    `in_stream`: True if an xid follows each message's tag.
    """

    __slots__ = ("in_stream", "items")

    def __init__(self, items: list[SpoolItem], in_stream: bool) -> None:
        self.items = items
        self.in_stream = in_stream


@dataclass(frozen=True, slots=True)
class TransactionalMessage:
    """A logical message of the open transaction: one event, at its place among the changes.

    `in_stream`: True if an xid follows the tag. `is_delivered`: True if `Opened.skip` counts the event, which follows
    nevertheless, because a message can concern the events after it.
    """

    frame: bytes
    in_stream: bool
    is_delivered: bool = False


@dataclass(frozen=True, slots=True)
class RelationPreview:
    """A Relation message of a streamed transaction that is still open.

    It takes effect at the commit, by `Described`.
    """

    message: Relation


@dataclass(frozen=True, slots=True)
class Described:
    """Description of later rows of a relation, or of later values of a type."""

    message: Relation | Type


@dataclass(frozen=True, slots=True)
class OriginChanged:
    """Replication origin of the later changes in this transaction."""

    name: str
    lsn: int


class Closed:
    """End of the transaction; `tickets` are owed to the ledger when the broker holds all of it."""

    __slots__ = ("commit_lsn", "commit_time", "end_lsn", "tickets")

    def __init__(self, commit_lsn: int, commit_time: int, end_lsn: int, tickets: tuple[int, ...]) -> None:
        self.commit_lsn = commit_lsn
        self.commit_time = commit_time
        self.end_lsn = end_lsn
        self.tickets = tickets


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Rollback of a prepared transaction; `tickets` are owed when the broker holds the position `end_lsn`."""

    end_lsn: int
    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitWithoutPrepare:
    """A COMMIT PREPARED without a received PREPARE; the transaction follows without changes.

    PostgreSQL 15 to 17 send no PREPARE for a transaction that only locked rows (`reorderbuffer.c`,
    `ReorderBufferReplay`). Otherwise the slot was past the PREPARE when this pipeline first used it, or an operator
    accepted this: then the changes of the transaction are missing in Kafka. The protocol does not distinguish the
    two cases.
    """

    xid: int
    gid: str
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class NonTransactionalMessage:
    """A non-transactional logical message: an event with its own position in the order.

    For this message `lsn` is what the commit LSN is for a transaction; a restart from `lsn + 1` does not receive
    the message again.
    """

    frame: bytes
    in_stream: bool
    lsn: int
    last_commit_lsn: int | None
    ticket: int


@dataclass(frozen=True, slots=True)
class KeepaliveReceived:
    """A keepalive: everything before `wal_end` was decoded, if `idle` is True (no transaction was being sent)."""

    wal_end: int
    reply_requested: bool
    idle: bool


class TurnEnd:
    """Work without a result: the receiver may let other tasks run before the next step."""

    __slots__ = ()


TURN: Final = TurnEnd()

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
    | TurnEnd
)
