"""What the assembler says: a transaction's changes as a sequence of steps, the same for every kind of transaction.

`Opened`, then any number of `Changes`, `Described` and `Originated`, then `Closed`. `Described` also comes between
transactions. `RolledBack`, `Standalone` and `Heard` stand for themselves.
"""

from dataclasses import dataclass

from cdcd.protocol.messages import Relation, Type


@dataclass(frozen=True, slots=True)
class Opened:
    """A committed transaction begins; all its changes follow before another one begins.

    `skip` counts the events at its beginning that the checkpoint covers; they do not follow.
    `last_commit_lsn` is the commit LSN of the transaction before it in the stream, None where that is unknown.
    """

    kind: str
    xid: int
    commit_lsn: int
    commit_time: int
    last_commit_lsn: int | None
    skip: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Raw frames of Insert, Update, Delete, Truncate and Message, one event each, in the transaction's order.

    `in_stream` says that an xid follows each message's tag.
    """

    frames: list[bytes]
    in_stream: bool


@dataclass(frozen=True, slots=True)
class Described:
    """From here on, rows of this relation (values of this type) are as the message says."""

    message: Relation | Type


@dataclass(frozen=True, slots=True)
class Originated:
    """The changes that follow in this transaction came from the replication origin `name`."""

    name: str
    lsn: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The transaction is complete; `tickets` are owed to the ledger when the broker holds all of it."""

    commit_lsn: int
    commit_time: int
    end_lsn: int
    tickets: tuple[int, ...]


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


Step = Opened | Changes | Described | Originated | Closed | RolledBack | Standalone | Heard
