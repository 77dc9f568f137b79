"""Whether the stream of the new server begins where Kafka ends. Without I/O.

The rule: a transaction that the new server applied for the former one has the replication origin of the subscription,
and the LSN that it had there (pgoutput's Origin message). Kafka holds it if that LSN is not behind the fence. Every
other transaction is a write that slipped through: of the former server after the fence, or of the new one itself.

The pipeline goes on behind the last transaction that Kafka holds. So a write that lies behind that place could be
delivered from the new server, and one that lies before it never can be.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.core.engine.checkpoint import Seal
from cdcd.core.errors import PositionError
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    Truncate,
    Update,
)
from cdcd.core.protocol.reader import read_message

_CHANGES: Final = frozenset({Insert.tag, Update.tag, Delete.tag, Truncate.tag})
_READ: Final = frozenset({Begin.tag, Commit.tag, Origin.tag, Relation.tag})

TABLES_NAMED: Final = 5
"""Tables of a transaction that are named."""

SLIPPED_NAMED: Final = 5
"""Transactions that an error names."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction in the stream of the new server.

    Attributes:
        commit_lsn, end_lsn: where its commit record begins and ends.
        origin: the replication origin; "" if it was written on this server.
        origin_lsn: the end of its commit on the former server; 0 if it was written on this server.
        tables: those that it changed, as far as they are named.
    """

    commit_lsn: int
    end_lsn: int
    origin: str
    origin_lsn: int
    tables: tuple[str, ...]

    def __str__(self) -> str:
        where = (
            f"{Lsn(self.origin_lsn)} of the former server ({Lsn(self.commit_lsn)} of the new one)"
            if self.origin
            else f"{Lsn(self.commit_lsn)} of the new server"
        )
        return f"{where}, tables {', '.join(self.tables)}"


class TransactionReader:
    """Frames of a stream without streamed and prepared transactions, as transactions that changed something."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._origin = Origin(0, "")
        self._tables: dict[str, None] = {}

    def take(self, frame: bytes) -> Transaction | None:
        """The transaction that ends with this frame; None: none does, or it changed nothing."""
        tag = peek.tag_of(frame)
        if tag in _CHANGES:
            for oid in peek.relation_oids(frame, False):
                if len(self._tables) < TABLES_NAMED:
                    self._tables[self._names.get(oid, str(oid))] = None
        return self._message(read_message(frame, XLOG_HEADER)) if tag in _READ else None

    def _message(self, message: Message) -> Transaction | None:
        if isinstance(message, Begin):
            self._origin = Origin(0, "")
            self._tables = {}
        elif isinstance(message, Origin):
            self._origin = message
        elif isinstance(message, Relation):
            self._names[message.oid] = f"{message.schema}.{message.name}"
        elif isinstance(message, Commit) and self._tables:
            origin = self._origin
            return Transaction(
                message.commit_lsn, message.end_lsn, origin.name, origin.commit_lsn, tuple(self._tables)
            )
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the stream of the new server has.

    Attributes:
        position: where the pipeline goes on.
        held: number of transactions that Kafka holds.
        lost: transactions that slipped through and cannot be delivered, because one that Kafka holds lies behind them.
        late: transactions that slipped through and can be delivered from the new server.
        lost_count, late_count: how many of each there are.
    """

    position: int
    held: int
    lost: tuple[Transaction, ...]
    late: tuple[Transaction, ...]
    lost_count: int
    late_count: int


class Judge:
    """Judges the transactions of the new server, from where its slot begins. Each is given once, in their order."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._position = seal.slot_lsn
        self._held = 0
        self._lost: list[Transaction] = []
        self._late: list[Transaction] = []
        self._lost_count = 0
        self._late_count = 0

    def take(self, each: Transaction) -> None:
        """The next transaction."""
        if each.origin != self._seal.origin or each.origin_lsn > self._seal.fence_lsn:
            self._late_count += 1
            if len(self._late) < SLIPPED_NAMED:
                self._late.append(each)
            return
        # What slipped through before it lies before the place where the pipeline goes on.
        self._lost += self._late[: SLIPPED_NAMED - len(self._lost)]
        self._lost_count += self._late_count
        self._late, self._late_count = [], 0
        self._position = each.end_lsn
        self._held += 1

    def verdict(self) -> Verdict:
        """What is known of all that were taken."""
        return Verdict(
            self._position,
            self._held,
            tuple(self._lost),
            tuple(self._late),
            self._lost_count,
            self._late_count,
        )


def refuse(verdict: Verdict, former: str, *, deliver_writes: bool) -> None:
    """Raise PositionError if something slipped through, unless it can be delivered and `deliver_writes` says so.

    Args:
        former: the system_identifier of the former server.
    """
    if verdict.lost_count:
        raise PositionError(
            f"{_so_many(verdict.lost_count)} between others that Kafka holds, and would never be delivered: "
            f"{_named(verdict.lost, verdict.lost_count)}.",
            hint="Somebody wrote to the new server before it had all changes of the former one. Go back with `cdcd "
            "handover cancel`, undo these writes on the new server and prepare again. Or give the handover up and "
            "read all tables of the new server, with its configuration: "
            f"`cdcd reset --checkpoint-of {former}`, then `cdcd run`.",
        )
    if verdict.late_count and not deliver_writes:
        raise PositionError(
            f"{_so_many(verdict.late_count)} after the fence: {_named(verdict.late, verdict.late_count)}.",
            hint="All of it lies behind what Kafka holds, so nothing is lost if cdcd delivers it from the new server: "
            "run the command again with --deliver-writes. Or find out first who wrote while writes were stopped.",
        )


def _so_many(count: int) -> str:
    return f"{count} transaction{'s were' if count > 1 else ' was'} written"


def _named(transactions: tuple[Transaction, ...], count: int) -> str:
    named = "; ".join(map(str, transactions))
    return f"{named}; and {count - len(transactions)} more" if count > len(transactions) else named
