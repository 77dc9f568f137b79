"""Committed transactions -> their reader, one after the other, and what may be confirmed of them.

The rule: a transaction counts as done when its reader acknowledged it, or at its end if the slot is a temporary one.
PostgreSQL is told the end of the longest run of done transactions, which the ledger (`transactions/ledger.py`) keeps.

The assembler gives steps; `advance` turns them into what the reader sees. A transaction without a change (PostgreSQL 13
and 14 send also those that changed no published table) is never seen by the reader, and counts as done. A transaction
is handed over when its first change is known, and its changes follow while the reader asks for them. A new transaction
begins only after the end of the one before. So memory holds at most the frames that were received together, however
large a transaction is.

A non-transactional message has a place of its own in the order. It is handed over as a transaction with one change.

Nothing here waits, and nothing looks at a clock.
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
    Turn,
)
from cdcd.stream.decoding import Decoder

E = TypeVar("E")

UNACKNOWLEDGED_MAX: Final = 1_000_000
"""How many transactions may wait for their acknowledgement: about 200 MB of the ledger. PostgreSQL keeps the WAL of all
of them, so a reader that never acknowledges would fill the server's disk without a word."""

"""Where in a frame the server's clock at sending is (`frames.py`)."""


class Advance(Enum):
    """What `Handover.advance` says, unless it gives a transaction or asks something."""

    FRAMES = "frames are needed: call `receive`"
    TURN = "nothing but work was done: let other tasks run"
    CHANGES = "changes of the current transaction are in `changes`"
    ENDED = "the current transaction is over"


@dataclass(frozen=True, slots=True)
class DescriptionWanted:
    """The catalog is asked for a relation: call `described` with the answer.

    `xid` is the transaction in which the description came, None between transactions.
    """

    relation: Relation
    xid: int | None


class Handed:
    """A transaction that was handed over.

    Attributes:
        commit_time: microseconds since PostgreSQL's epoch.
        tickets: those of the ledger; None: the end of the transaction was not received.
        is_done: the reader acknowledged it.
        is_skipped: some of it was left out, because the reader went on.
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
    """Call `advance` again and again, and do what it says.

    Args:
        ledger: the one that the assembler uses.
        waits_for_reader: a transaction is done when it is acknowledged. If not, it is done at its end.

    Attributes:
        current: the transaction that is handed over, until its end; None between transactions.
        changes: those of the current transaction that the reader has not taken; the caller takes them out.
        skips: what still comes of the current transaction is left out.
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
        """Frames came, in their order. Only after `Advance.FRAMES`."""
        self._steps = self._assembler.receive(frames)

    def described(self, description: TableDescription, types: Mapping[int, TypeDescription]) -> None:
        """The answer to `DescriptionWanted`."""
        assert self._look_up is not None
        self._decoder.define(self._look_up.relation, description, types)
        self._look_up = None

    def advance(self) -> Advance | DescriptionWanted | CommitWithoutPrepare | Handed:
        """Do the next piece of work. A `Handed` is the transaction that begins, and `current` from here on.

        A `CommitWithoutPrepare` is to be told to somebody, because changes may be missing.

        Raises:
            ProtocolError, PositionError, LimitError: the stream cannot go on.
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
        """The reader is done with the transaction; once is as good as twice."""
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
                    # What lies before is done, or is an entry of its own that holds this one back.
                    ticket = self._ledger.open()
                    self._ledger.seal(ticket, step.wal_end)
                    self._ledger.ack(ticket)
            case Turn():
                return Advance.TURN
            case CommitWithoutPrepare():
                return step
            case _:
                # A description of a type, or a preview: the description of the relation says what counts.
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
