"""How far a stream without streamed and without prepared transactions may be confirmed, frame by frame.

The rule: a position may be told to PostgreSQL only where the stream stands between two transactions. Such a place is
the end of a commit, or a keepalive that comes while no transaction is open. Everything that commits before such a place
was received before it, and everything that commits later is sent again whole.

The durable log (`logged.py`) decides by these places what may be confirmed, and where the log's contents end. Whoever
writes the log and whoever reads it use this class, so that the two cannot disagree.
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
    """Give it every frame of one connection in order, from the beginning.

    Args:
        begin: where the connection began: nothing that commits before it is sent.
        inside: a transaction is open there, because the reading begins in the middle of the connection.

    Attributes:
        end: the last place between two transactions so far; `begin` until there is one.
        inside: a transaction is open.
    """

    def __init__(self, begin: int, inside: bool = False) -> None:
        self.end = begin
        self.inside = inside

    def take(self, frames: list[bytes]) -> int:
        """Frames came. Returns how many of them lie before `end`: those behind it belong to an open transaction.

        Raises:
            ProtocolError: a transaction is streamed or prepared, which was not asked for.
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
