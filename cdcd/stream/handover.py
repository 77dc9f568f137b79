"""Passes committed transactions to their reader, one after the other, and determines which may be confirmed.

The rule: a transaction is done when its reader has acknowledged it, or at its end if the slot is temporary. cdcd
confirms to PostgreSQL the end of the longest run of done transactions, which the ledger (`transactions/ledger.py`)
keeps.

The assembler produces steps, and `advance` converts them to items for the reader. The reader gets no transaction
without changes (PostgreSQL 13 and 14 also send transactions that changed no published table); such a transaction is
done at once. A transaction is passed to the reader when its first change is known, and its changes follow when the
reader asks for them. A new transaction begins only after the end of the one before. So memory holds at most the
frames that were received together, however large a transaction is.

A non-transactional message has its own position in the order. The reader gets it as a transaction with one change.

This module neither waits nor reads a clock.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.errors import LimitError
from cdcd.core.protocol.messages import Relation
from cdcd.core.protocol.peek import sent_at_of
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.drafts import SpoolItem
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.steps import (
    Changes,
    Closed,
    CommitWithoutPrepare,
    Described,
    KeepaliveReceived,
    NonTransactionalMessage,
    Opened,
    OriginChanged,
    RolledBack,
    Step,
    TransactionalMessage,
    TurnEnd,
)
from cdcd.stream.decoding import Decoder

E = TypeVar("E")

UNACKNOWLEDGED_MAX: Final = 1_000_000
"""Maximum number of unacknowledged transactions, which take about 200 MB in the ledger. PostgreSQL keeps the WAL of
all of them, so a reader without acknowledgements would silently fill the server's disk."""

"""Offset of the server's send time in a frame (`frames.py`)."""


class Advance(Enum):
    """Results of `Handover.advance` besides transactions and questions."""

    FRAMES = "frames are needed: call `receive`"
    TURN = "nothing but work was done: let other tasks run"
    CHANGES = "changes of the current transaction are in `changes`"
    ENDED = "the current transaction is over"


@dataclass(frozen=True, slots=True)
class DescriptionWanted:
    """Question to the catalog about a relation; call `described` with the answer.

    `xid` is the transaction that contains the description; None between transactions.
    """

    relation: Relation
    xid: int | None


class Handed:
    """A transaction that was passed to the reader.

    Attributes:
        commit_time: microseconds since PostgreSQL's epoch.
        tickets: tickets of the ledger; None before the end of the transaction is received.
        is_done: True after the reader has acknowledged it.
        is_skipped: True if the reader moved on before all changes were read.
    """

    __slots__ = ("commit_lsn", "commit_time", "is_done", "is_skipped", "tickets", "xid")

    def __init__(self, xid: int, commit_lsn: int, commit_time: int) -> None:
        self.xid = xid
        self.commit_lsn = commit_lsn
        self.commit_time = commit_time
        self.tickets: tuple[int, ...] | None = None
        self.is_done = False
        self.is_skipped = False


class Handover(Generic[E]):
    """The state of the stream; call `advance` repeatedly, and follow its result.

    Args:
        ledger: the ledger that the assembler uses.
        waits_for_reader: True if a transaction is done when it is acknowledged. False: it is done at its end.

    Attributes:
        current: the transaction that the reader has, until its end; None between transactions.
        changes: changes of the current transaction for the reader; the caller removes them.
        skips: True if later changes of the current transaction are skipped.
    """

    def __init__(
        self, assembler: Assembler, ledger: Ledger, decoder: Decoder[E], *, waits_for_reader: bool
    ) -> None:
        self.current: Handed | None = None
        self.changes: deque[E] = deque()
        self.skips = False
        self._assembler = assembler
        self._ledger = ledger
        self._decoder = decoder
        self._waits_for_reader = waits_for_reader
        self._steps: Iterator[Step] = iter(())
        self._look_up: DescriptionWanted | None = None
        self._opened: Opened | None = None
        self._held: Step | None = None
        self._ends = False

    def receive(self, frames: list[bytes]) -> None:
        """Process received frames, in their order. Call this only after `Advance.FRAMES`."""
        self._steps = self._assembler.assemble(frames)

    def described(self, description: TableDescription, types: Mapping[int, TypeDescription]) -> None:
        """Process the answer to `DescriptionWanted`."""
        assert self._look_up is not None
        self._decoder.define(self._look_up.relation, description, types)
        self._look_up = None

    def advance(self) -> Advance | DescriptionWanted | CommitWithoutPrepare | Handed:
        """Do the next piece of work. A result `Handed` is the transaction that begins, which is then `current`.

        A result `CommitWithoutPrepare` must be reported, because changes may be missing.

        Raises:
            ProtocolError, PositionError, LimitError: the stream cannot continue.
        """
        while True:
            if self._look_up is not None:
                return self._look_up
            if self._ends:
                return self._end()
            step = self._held
            self._held = None
            if step is None:
                step = next(self._steps, None)
            if step is None:
                return Advance.FRAMES
            said = self._take(step)
            if said is not None:
                return said

    def acknowledge(self, handed: Handed) -> None:
        """Register that the reader is done with the transaction; a repeated call has no effect."""
        if handed.is_done:
            return
        handed.is_done = True
        if handed.tickets is not None and self._waits_for_reader:
            self._settle(handed.tickets)

    def _take(self, step: Step) -> Advance | CommitWithoutPrepare | Handed | None:
        match step:
            case Opened():
                self._opened = step
                self._decoder.begin(step)
            case Changes() | TransactionalMessage():
                if self.current is None:
                    opened = self._opened
                    assert opened is not None
                    self._held = step
                    return self._hand_over(Handed(opened.xid, opened.commit_lsn, opened.commit_time))
                return self._decode(step)
            case Closed():
                self._opened = None
                if self.current is None:
                    self._settle(step.tickets)
                else:
                    self.current.tickets = step.tickets
                    return self._end()
            case NonTransactionalMessage():
                sent_at = sent_at_of(step.frame)
                handed = self._hand_over(Handed(0, step.lsn, sent_at))
                handed.tickets = (step.ticket,)
                self.changes.extend(self._decoder.decode_message(step))
                self._ends = True
                return handed
            case Described(message=Relation() as relation):
                self._look_up = DescriptionWanted(
                    relation, None if self._opened is None else self._opened.xid
                )
            case OriginChanged():
                self._decoder.set_origin(step.name, step.lsn)
            case RolledBack():
                self._settle(step.tickets)
            case KeepaliveReceived():
                if step.idle and step.wal_end > self._ledger.flushed:
                    # Everything before is done, or is a separate entry that holds this one back.
                    ticket = self._ledger.open()
                    self._ledger.seal(ticket, step.wal_end)
                    self._ledger.ack(ticket)
            case TurnEnd():
                return Advance.TURN
            case CommitWithoutPrepare():
                return step
            case _:
                # The step is a description of a type or a preview; only the description of the relation counts.
                pass
        return None

    def _decode(self, step: Changes | TransactionalMessage) -> Advance:
        if self.skips:
            return Advance.TURN
        items: list[SpoolItem] = step.items if isinstance(step, Changes) else [step.frame]
        decode, in_stream = self._decoder.decode, step.in_stream
        for frame in items:
            assert isinstance(frame, bytes), "no drafts are made here"
            self.changes.extend(decode(frame, in_stream))
        return Advance.CHANGES

    def _hand_over(self, handed: Handed) -> Handed:
        if self._ledger.open_entries > UNACKNOWLEDGED_MAX:
            raise LimitError(
                f"{UNACKNOWLEDGED_MAX} transactions wait for their acknowledgement, and PostgreSQL keeps their WAL.",
                hint="Call `await transaction.acknowledge()` for each transaction whose changes are safe.",
            )
        self.current = handed
        self.skips = False
        return handed

    def _end(self) -> Advance:
        handed = self.current
        assert handed is not None
        assert handed.tickets is not None
        self._ends = False
        self.current = None
        if handed.is_done or not self._waits_for_reader:
            self._settle(handed.tickets)
        return Advance.ENDED

    def _settle(self, tickets: tuple[int, ...]) -> None:
        for ticket in tickets:
            self._ledger.ack(ticket)
