"""Stage 3, first part: commits in their order, each with its place in the ledger.

The rule: skipping what the checkpoint covers is right because commits come in the order of their LSNs, which is made
sure of here; and nothing commits, in whichever way, but through `open` and `close`, which give it an entry in the
ledger and its number among what was delivered before.

A normal transaction (Begin … Commit) is known to be committed at its Begin, so its changes go straight on.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

from cdcd.core.errors import PositionError, ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Begin, Commit, Origin
from cdcd.core.protocol.peek import BEGIN, COMMIT
from cdcd.core.protocol.reader import read_message, read_message_head
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import COVERED, Position
from cdcd.core.transactions.steps import (
    Closed,
    NonTransactionalMessage,
    Opened,
    OriginChanged,
    Step,
    TransactionalMessage,
)

M = TypeVar("M")

REPORT: Final = (
    "Nothing past it was confirmed. Capture the stream with pg_recvlogical and report it; restarting receives "
    "it again."
)

KINDS: Final = (
    "plain",
    "streamed",
    "prepared",
    "message",
    "aborted",
    "subtransaction_aborted",
    "rolled_back",
)
"""What `CommitOrder.counts` counts."""


class CommitOrder:
    """The transaction that is open, and what every kind of transaction needs.

    Args:
        ledger: gets an entry for each commit when it is decoded.
        position: what the checkpoint covers; transactions before it are skipped.

    Attributes:
        counts: transactions and messages since the start, by `KINDS`.
        skip: events of the open transaction that are still to be left out, or `COVERED`: all of them.
    """

    def __init__(self, ledger: Ledger, position: Position) -> None:
        self.ledger = ledger
        self.position = position
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.skip = 0
        self._commit_lsn = 0
        self._order = position.end_lsn
        self._last_commit_lsn = None if position.events_done else position.commit_lsn or None
        self._ticket = -1

    # Many transactions are one row: these two messages are read without a look at each field by itself, unless
    # something is wrong with them, which the strict reader then says.

    def begin(self, frame: bytes) -> Iterable[Step]:
        """Begin of a normal transaction."""
        commit_lsn = xid = commit_time = 0
        if len(frame) == BEGIN.size:
            commit_lsn, commit_time, xid = BEGIN.unpack(frame)
        if not commit_lsn or not xid:
            message = read_as(Begin, frame)
            commit_lsn, commit_time, xid = message.final_lsn, message.commit_time, message.xid
        self._commit_lsn = commit_lsn
        return self.open("plain", xid, commit_lsn, commit_time)

    def commit(self, frame: bytes) -> Iterable[Step]:
        """Commit of a normal transaction."""
        flags, commit_lsn, end_lsn, commit_time = -1, 0, 0, 0
        if len(frame) == COMMIT.size:
            flags, commit_lsn, end_lsn, commit_time = COMMIT.unpack(frame)
        if flags:
            message = read_as(Commit, frame)
            commit_lsn, end_lsn, commit_time = message.commit_lsn, message.end_lsn, message.commit_time
        if commit_lsn != self._commit_lsn:
            raise ProtocolError(
                f"Commit at {Lsn(commit_lsn)} ends a transaction that Begin announced for "
                f"{Lsn(self._commit_lsn)}.",
                hint=REPORT,
            )
        return self.close(commit_lsn, commit_time, end_lsn, ())

    def open(self, kind: str, xid: int, commit_lsn: int, commit_time: int) -> tuple[Step, ...]:
        """A committed transaction begins; `skip` then says what of it is left out."""
        self._in_order(commit_lsn)
        self.counts[kind] += 1
        self._ticket = self.ledger.open()
        self.skip = self.position.skip(commit_lsn)
        if self.skip == COVERED:
            return ()
        return (Opened(kind, xid, commit_lsn, commit_time, self._last_commit_lsn, self.skip),)

    def close(
        self, commit_lsn: int, commit_time: int, end_lsn: int, tickets: tuple[int, ...]
    ) -> tuple[Step, ...]:
        """The transaction that `open` began is complete; `tickets` are settled together with its own."""
        self.ledger.seal(self._ticket, end_lsn)
        tickets = (*tickets, self._ticket)
        steps: tuple[Step, ...] = ()
        if self.skip == COVERED:
            for ticket in tickets:
                self.ledger.ack(ticket)
        elif self.skip > 0:
            raise PositionError(
                f"The checkpoint says that {self.skip} more events of the transaction {Lsn(commit_lsn)} were "
                "delivered than the server sends now.",
                hint="What the publication publishes was changed while the transaction was half delivered. Set "
                "it back, or read the tables again.",
            )
        else:
            steps = (Closed(commit_lsn, commit_time, end_lsn, tickets),)
        self._last_commit_lsn = commit_lsn
        self.skip = 0
        return steps

    @property
    def last_commit_lsn(self) -> int:
        """The commit LSN of the last transaction of the stream; 0: it is unknown."""
        return self._last_commit_lsn or 0

    def is_covered(self, commit_lsn: int) -> bool:
        """Whether nothing is left to send of the transaction that commits there."""
        return self.position.skip(commit_lsn) == COVERED

    def take_event(self) -> bool:
        """Whether the next event of the open transaction is to be sent; one that is left out is counted."""
        if self.skip > 0:
            self.skip -= 1
            return False
        return self.skip == 0

    def origin(self, frame: bytes) -> Iterable[Step]:
        """Origin within a normal transaction."""
        message = read_as(Origin, frame)
        return () if self.skip == COVERED else (OriginChanged(message.name, message.commit_lsn),)

    def transactional_message(self, frame: bytes) -> Iterable[Step]:
        """A logical message within a normal transaction."""
        return (TransactionalMessage(frame, False),) if self.take_event() else ()

    def non_transactional_message(self, frame: bytes) -> Iterable[Step]:
        """A logical message between transactions."""
        message, _ = read_message_head(frame, XLOG_HEADER)
        if message.transactional:
            raise ProtocolError(
                f"A transactional message ({message.prefix!r}) at {Lsn(message.lsn)} outside of a transaction.",
                hint=REPORT,
            )
        # Its LSN is the end of its record (decode.c, logicalmsg_decode), which may be where a commit record starts.
        # The last byte before it is in no other record, and stands for the message as a commit LSN does elsewhere.
        lsn = message.lsn - 1
        self._in_order(lsn)
        if self.position.skip(lsn):
            return ()
        self.counts["message"] += 1
        ticket = self.ledger.open()
        self.ledger.seal(ticket, message.lsn)
        return (NonTransactionalMessage(frame, False, lsn, self._last_commit_lsn, ticket),)

    def _in_order(self, lsn: int) -> None:
        """Skipping by LSN is right only if commits come in the order of their LSNs; make sure of it."""
        if lsn < self._order and self.position.skip(lsn) != COVERED:
            raise ProtocolError(
                f"The commit at {Lsn(lsn)} comes after a later one ({Lsn(self._order)}).", hint=REPORT
            )
        if lsn > self._order:
            self._order = lsn


def read_as(kind: type[M], frame: bytes, *, in_stream: bool = False) -> M:
    """The message in the frame, whose tag says that it is of this kind."""
    message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(message, kind)
    return message
