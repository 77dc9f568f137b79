"""Check that the stream of the new server begins where Kafka ends. This module has no I/O.

The rule: a transaction that the new server applied for the former server has the replication origin of the
subscription, and its LSN on the former server (pgoutput's Origin message). Kafka holds this transaction if that LSN
is not after the fence. Every other transaction is an unexpected write: of the former server after the fence, or of
the new server itself.

The pipeline continues after the last transaction that Kafka holds. So an unexpected write after that position could
be delivered from the new server, but one before that position cannot.
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
from cdcd.core.table_names import table_text

_CHANGES: Final = frozenset({Insert.tag, Update.tag, Delete.tag, Truncate.tag})
_READ: Final = frozenset({Begin.tag, Commit.tag, Origin.tag, Relation.tag})

TABLES_NAMED: Final = 5
"""Maximum number of a transaction's tables that are named."""

SLIPPED_NAMED: Final = 5
"""Maximum number of transactions that an error names."""


@dataclass(frozen=True, slots=True)
class JudgedTransaction:
    """A committed transaction in the stream of the new server.

    Attributes:
        commit_lsn, end_lsn: begin and end of its commit record.
        origin: replication origin; "" if it was written on this server.
        origin_lsn: end of its commit on the former server; 0 if it was written on this server.
        tables: tables that it changed, as far as they are named.
    """

    commit_lsn: int
    end_lsn: int
    origin: str
    origin_lsn: int
    tables: tuple[str, ...]

    def __str__(self) -> str:
        where = (
            f"{Lsn(self.origin_lsn)} of the former server ({Lsn(self.commit_lsn)} of the new server)"
            if self.origin
            else f"{Lsn(self.commit_lsn)} of the new server"
        )
        return f"{where}, tables {', '.join(self.tables)}"


class TransactionReader:
    """Reader of transactions with changes, from the frames of a stream without streamed and prepared transactions."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._origin = Origin(0, "")
        self._tables: dict[str, None] = {}

    def take(self, frame: bytes) -> JudgedTransaction | None:
        """Return the transaction with changes that ends with this frame; None if none does."""
        tag = peek.tag_of(frame)
        if tag in _CHANGES:
            for oid in peek.relation_oids(frame, False):
                if len(self._tables) < TABLES_NAMED:
                    self._tables[self._names.get(oid, str(oid))] = None
        return self._message(read_message(frame, XLOG_HEADER)) if tag in _READ else None

    def _message(self, message: Message) -> JudgedTransaction | None:
        if isinstance(message, Begin):
            self._origin = Origin(0, "")
            self._tables = {}
        elif isinstance(message, Origin):
            self._origin = message
        elif isinstance(message, Relation):
            self._names[message.oid] = table_text(message.schema, message.name)
        elif isinstance(message, Commit) and self._tables:
            origin = self._origin
            return JudgedTransaction(
                message.commit_lsn, message.end_lsn, origin.name, origin.commit_lsn, tuple(self._tables)
            )
        return None


@dataclass(frozen=True, slots=True)
class HandoverVerdict:
    """Judgement on the stream of the new server.

    Attributes:
        position: position at which the pipeline continues.
        held: number of transactions that Kafka holds.
        lost: unexpected transactions that cannot be delivered, because a transaction that Kafka holds lies after
            them.
        late: unexpected transactions that can be delivered from the new server.
        lost_count, late_count: number of each.
    """

    position: int
    held: int
    lost: tuple[JudgedTransaction, ...]
    late: tuple[JudgedTransaction, ...]
    lost_count: int
    late_count: int


class Judge:
    """Judges the transactions of the new server, from the beginning of its slot.

    Each transaction is passed once, in their order.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._position = seal.slot_lsn
        self._held = 0
        self._lost: list[JudgedTransaction] = []
        self._late: list[JudgedTransaction] = []
        self._lost_count = 0
        self._late_count = 0

    def take(self, each: JudgedTransaction) -> None:
        """Judge the next transaction."""
        if each.origin != self._seal.origin or each.origin_lsn > self._seal.fence_lsn:
            self._late_count += 1
            if len(self._late) < SLIPPED_NAMED:
                self._late.append(each)
            return
        # The unexpected transactions before it lie before the position at which the pipeline continues.
        self._lost += self._late[: SLIPPED_NAMED - len(self._lost)]
        self._lost_count += self._late_count
        self._late, self._late_count = [], 0
        self._position = each.end_lsn
        self._held += 1

    def verdict(self) -> HandoverVerdict:
        """Return the judgement on all transactions so far."""
        return HandoverVerdict(
            self._position,
            self._held,
            tuple(self._lost),
            tuple(self._late),
            self._lost_count,
            self._late_count,
        )


def refuse(verdict: HandoverVerdict, former: str, *, deliver_writes: bool) -> None:
    """Raise PositionError for unexpected transactions, unless they can be delivered and `deliver_writes` is True.

    Args:
        former: system_identifier of the former server.
    """
    if verdict.lost_count:
        raise PositionError(
            f"{_so_many(verdict.lost_count)} between others that Kafka holds, and would never be delivered: "
            f"{_named(verdict.lost, verdict.lost_count)}.",
            hint="Somebody wrote to the new server before it had all changes of the former server. Go back with `cdcd "
            "handover cancel`, undo these writes on the new server and prepare again. Or cancel the handover and read "
            "all tables of the new server, with its configuration: "
            f"`cdcd reset --checkpoint-of {former}`, then `cdcd run`.",
        )
    if verdict.late_count and not deliver_writes:
        raise PositionError(
            f"{_so_many(verdict.late_count)} after the fence: {_named(verdict.late, verdict.late_count)}.",
            hint="All of these come after the changes that Kafka holds, so nothing is lost if cdcd delivers them from "
            "the new server: run the command again with --deliver-writes. Or find out first who wrote while writes "
            "were stopped.",
        )


def _so_many(count: int) -> str:
    return f"{count} transaction{'s were' if count > 1 else ' was'} written"


def _named(transactions: tuple[JudgedTransaction, ...], count: int) -> str:
    named = "; ".join(map(str, transactions))
    return f"{named}; and {count - len(transactions)} more" if count > len(transactions) else named
