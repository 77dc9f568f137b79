"""Stage 3, first part: commits in their order, each with its entry in the ledger; and, for the durable log, confirmable
positions of a stream without streamed and prepared transactions.

The rule: skipping transactions that the checkpoint covers is correct because commits arrive in the order of their
LSNs, which this class verifies. Every kind of commit goes through `open` and `close`, which give it an entry in the
ledger and its number among the delivered transactions.

A normal transaction (Begin … Commit) is known to be committed at its Begin, so its changes are passed on at once.

The rule: a position may be confirmed to PostgreSQL only between two transactions. Such a position is the end of a
commit, or a keepalive while no transaction is open. Everything that commits before the position was received before
it, and everything that commits later is sent again whole.

These positions decide for the durable log (`logged.py`) what may be confirmed, and where the log's contents end.
The writer and the reader of the log both use this class, so that they cannot disagree.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

from cdcd.core.errors import PositionError, ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER, Keepalive, read_frame
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Begin, Commit, Origin
from cdcd.core.protocol.peek import BEGIN, COMMIT, FRAME_KIND_AT, XLOG_DATA, lsn_of
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
"""Kinds that `CommitOrder.counts` counts."""


class CommitOrder:
    """The open transaction, and the state that all kinds of transaction need.

    Args:
        ledger: gets an entry for each commit when the message is decoded.
        position: position of the checkpoint; transactions before it are skipped.

    Attributes:
        counts: number of transactions and messages since the start, by `KINDS`.
        skip: number of events of the open transaction that are still to be skipped, or `COVERED` for all of them.
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

    # Many transactions have one row, so these two messages are read without checking each field, unless the message
    # looks wrong; then the strict reader reports the error.

    def begin(self, frame: bytes) -> Iterable[Step]:
        """Handle Begin of a normal transaction."""
        commit_lsn = xid = commit_time = 0
        if len(frame) == BEGIN.size:
            commit_lsn, commit_time, xid = BEGIN.unpack(frame)
        if not commit_lsn or not xid:
            message = read_as(Begin, frame)
            commit_lsn, commit_time, xid = message.final_lsn, message.commit_time, message.xid
        self._commit_lsn = commit_lsn
        return self.open("plain", xid, commit_lsn, commit_time)

    def commit(self, frame: bytes) -> Iterable[Step]:
        """Handle Commit of a normal transaction."""
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
        """Begin a committed transaction; `skip` is then the number of its events to skip."""
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
        """Close the transaction that `open` began; `tickets` are settled together with its own ticket."""
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
        """Commit LSN of the last transaction of the stream; 0: unknown."""
        return self._last_commit_lsn or 0

    def is_covered(self, commit_lsn: int) -> bool:
        """Return True if nothing is left to send of the transaction with this commit LSN."""
        return self.position.skip(commit_lsn) == COVERED

    def take_event(self) -> bool:
        """Return True if the next event of the open transaction is to be sent; a skipped event is counted."""
        if self.skip > 0:
            self.skip -= 1
            return False
        return self.skip == 0

    def origin(self, frame: bytes) -> Iterable[Step]:
        """Handle Origin within a normal transaction."""
        message = read_as(Origin, frame)
        return () if self.skip == COVERED else (OriginChanged(message.name, message.commit_lsn),)

    def transactional_message(self, frame: bytes) -> Iterable[Step]:
        """Handle a logical message within a normal transaction."""
        if self.skip == COVERED:
            return ()
        return (TransactionalMessage(frame, False, is_delivered=not self.take_event()),)

    def non_transactional_message(self, frame: bytes) -> Iterable[Step]:
        """Handle a logical message between transactions."""
        message, _ = read_message_head(frame, XLOG_HEADER)
        if message.transactional:
            raise ProtocolError(
                f"A transactional message ({message.prefix!r}) at {Lsn(message.lsn)} outside of a transaction.",
                hint=REPORT,
            )
        # The LSN of the message is the end of its record (decode.c, logicalmsg_decode), which may be the start of a
        # commit record. The last byte before it belongs to no other record, and represents the message as a commit
        # LSN does for a transaction.
        lsn = message.lsn - 1
        self._in_order(lsn)
        if self.position.skip(lsn):
            return ()
        self.counts["message"] += 1
        ticket = self.ledger.open()
        self.ledger.seal(ticket, message.lsn)
        return (NonTransactionalMessage(frame, False, lsn, self._last_commit_lsn, ticket),)

    def _in_order(self, lsn: int) -> None:
        """Verify that commits arrive in the order of their LSNs, because skipping by LSN depends on it."""
        if lsn < self._order and self.position.skip(lsn) != COVERED:
            raise ProtocolError(
                f"The commit at {Lsn(lsn)} comes after a later commit ({Lsn(self._order)}).", hint=REPORT
            )
        if lsn > self._order:
            self._order = lsn


def read_as(kind: type[M], frame: bytes, *, in_stream: bool = False) -> M:
    """Return the message in the frame, whose tag shows that it is of this kind."""
    message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(message, kind)
    return message


_BEGIN: Final = 0x42  # B
_COMMIT: Final = 0x43  # C
_MESSAGE: Final = 0x4D  # M


class Boundaries:
    """State of one connection; pass every frame in order, from the beginning.

    Args:
        begin: position at which the connection began; earlier commits are not sent.
        inside: True if a transaction is open at that position, because the reading begins in the middle of the
            connection.

    Attributes:
        end: last position between two transactions so far; `begin` before the first one.
        inside: True while a transaction is open.
    """

    def __init__(self, begin: int, inside: bool = False) -> None:
        self.end = begin
        self.inside = inside

    def take(self, frames: list[bytes]) -> int:
        """Process received frames. Returns how many frames lie before `end`; the others belong to an open transaction.

        Raises:
            ProtocolError: a transaction is streamed or prepared, although neither was requested.
        """
        before = 0
        count = 0
        for frame in frames:
            count += 1
            if len(frame) <= XLOG_HEADER or frame[FRAME_KIND_AT] != XLOG_DATA:
                if not self.inside:
                    self._keepalive(frame)
                    before = count
                continue
            tag = frame[XLOG_HEADER]
            if self.inside:
                if tag == _COMMIT:
                    self._commit(frame)
                    before = count
            elif tag == _BEGIN:
                self.inside = True
            elif tag != _MESSAGE:
                raise ProtocolError(
                    f"Message {chr(tag)!r} at {Lsn(lsn_of(frame))} is between two transactions of a stream that has "
                    f"neither streamed nor prepared transactions.",
                    hint=REPORT,
                )
        return before

    def _keepalive(self, frame: bytes) -> None:
        message = read_frame(frame)
        if not isinstance(message, Keepalive):
            raise ProtocolError("XLogData without a message.", hint=REPORT)
        if message.wal_end > self.end:
            self.end = message.wal_end

    def _commit(self, frame: bytes) -> None:
        flags = -1
        end_lsn = 0
        if len(frame) == COMMIT.size:
            flags, _, end_lsn, _ = COMMIT.unpack(frame)
        if flags:
            end_lsn = read_as(Commit, frame).end_lsn
        self.inside = False
        if end_lsn > self.end:
            self.end = end_lsn
