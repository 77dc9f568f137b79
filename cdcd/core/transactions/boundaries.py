"""Confirmable positions in a stream without streamed and prepared transactions, frame by frame.

The rule: a position may be confirmed to PostgreSQL only between two transactions. Such a position is the end of a
commit, or a keepalive while no transaction is open. Everything that commits before the position was received before
it, and everything that commits later is sent again whole.

These positions decide for the durable log (`logged.py`) what may be confirmed, and where the log's contents end.
The writer and the reader of the log both use this class, so that they cannot disagree.
"""

from typing import Final

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER, Keepalive, read_frame
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Commit
from cdcd.core.protocol.peek import COMMIT, FRAME_KIND_AT, XLOG_DATA, lsn_of
from cdcd.core.transactions.commits import REPORT, read_as

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
                    f"Message {chr(tag)!r} at {Lsn(lsn_of(frame))} stands between two transactions of a stream that "
                    "has neither streamed nor prepared ones.",
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
