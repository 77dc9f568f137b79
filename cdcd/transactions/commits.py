"""Stage 3, first part: commits in their order, each with its place in the ledger.

The rule: skipping what the checkpoint covers is right because commits come in the order of their LSNs, which is made
sure of here; and nothing commits, in whichever way, but through `_open` and `_close`, which give it an entry in the
ledger and its number among what was delivered before.

A normal transaction (Begin … Commit) is known to be committed at its Begin, so its changes go straight on.

Which columns a row has is said by the last Relation message that the server sent, and the server remembers what it
has sent (`pgoutput.c`, `maybe_send_schema`): once in the normal order, which Begin Prepare … Prepare is part of, and
once more in every streamed transaction, which counts for the normal order when that commits.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, TypeVar

from cdcd.errors import PositionError, ProtocolError
from cdcd.protocol.frames import XLOG_HEADER
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import Begin, Commit, LogicalMessage, Origin, Relation, Type
from cdcd.protocol.reader import read_message
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import COVERED, Position
from cdcd.transactions.steps import Closed, Described, Opened, Originated, Standalone, Step

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

_BEGIN: Final = Struct("!26xQqI")
_COMMIT: Final = Struct("!26xBQQq")
"""Their frames, as stage 2 reads them: `Begin`, `Commit`."""


class Commits:
    """What every kind of transaction needs, and all that a normal one does.

    Args:
        ledger: gets an entry for each commit when it is decoded.
        position: what the checkpoint covers; transactions before it are skipped.
    """

    def __init__(self, ledger: Ledger, position: Position) -> None:
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._ledger = ledger
        self._position = position
        self._skip = 0
        self._commit_lsn = 0
        self._order = position.end_lsn
        self._last_commit_lsn = None if position.events_done else position.commit_lsn or None
        self._ticket = -1
        self._relations: dict[int, tuple[int, Relation]] = {}
        self._arrivals = 0

    # Many transactions are one row: these two messages are read without a look at each field by itself, unless
    # something is wrong with them, which the strict reader then says.

    def _begin(self, frame: bytes) -> Iterable[Step]:
        commit_lsn = xid = commit_time = 0
        if len(frame) == _BEGIN.size:
            commit_lsn, commit_time, xid = _BEGIN.unpack(frame)
        if not commit_lsn or not xid:
            message = self._read(frame, Begin)
            commit_lsn, commit_time, xid = message.final_lsn, message.commit_time, message.xid
        self._commit_lsn = commit_lsn
        return self._open("plain", xid, commit_lsn, commit_time)

    def _commit(self, frame: bytes) -> Iterable[Step]:
        flags, commit_lsn, end_lsn, commit_time = -1, 0, 0, 0
        if len(frame) == _COMMIT.size:
            flags, commit_lsn, end_lsn, commit_time = _COMMIT.unpack(frame)
        if flags:
            message = self._read(frame, Commit)
            commit_lsn, end_lsn, commit_time = message.commit_lsn, message.end_lsn, message.commit_time
        if commit_lsn != self._commit_lsn:
            raise ProtocolError(
                f"Commit at {Lsn(commit_lsn)} ends a transaction that Begin announced for "
                f"{Lsn(self._commit_lsn)}.",
                hint=REPORT,
            )
        return self._close(commit_lsn, commit_time, end_lsn, ())

    def _open(self, kind: str, xid: int, commit_lsn: int, commit_time: int) -> tuple[Step, ...]:
        self._in_order(commit_lsn)
        self.counts[kind] += 1
        self._ticket = self._ledger.open()
        self._skip = self._position.skip(commit_lsn)
        if self._skip == COVERED:
            return ()
        return (Opened(kind, xid, commit_lsn, commit_time, self._last_commit_lsn, self._skip),)

    def _close(
        self, commit_lsn: int, commit_time: int, end_lsn: int, tickets: tuple[int, ...]
    ) -> tuple[Step, ...]:
        self._ledger.seal(self._ticket, end_lsn)
        tickets = (*tickets, self._ticket)
        steps: tuple[Step, ...] = ()
        if self._skip == COVERED:
            for ticket in tickets:
                self._ledger.ack(ticket)
        elif self._skip > 0:
            raise PositionError(
                f"The checkpoint says that {self._skip} more events of the transaction {Lsn(commit_lsn)} were "
                "delivered than the server sends now.",
                hint="What the publication publishes was changed while the transaction was half delivered. Set "
                "it back, or read the tables again.",
            )
        else:
            steps = (Closed(commit_lsn, commit_time, end_lsn, tickets),)
        self._last_commit_lsn = commit_lsn
        self._skip = 0
        return steps

    def _in_order(self, lsn: int) -> None:
        """Skipping by LSN is right only if commits come in the order of their LSNs; make sure of it."""
        if lsn < self._order and self._position.skip(lsn) != COVERED:
            raise ProtocolError(
                f"The commit at {Lsn(lsn)} comes after a later one ({Lsn(self._order)}).", hint=REPORT
            )
        if lsn > self._order:
            self._order = lsn

    def _describe(self, frame: bytes) -> Iterator[Step]:
        message = read_message(frame, XLOG_HEADER)
        assert isinstance(message, Relation | Type)
        if isinstance(message, Relation):
            self._arrivals += 1
            self._relations[message.oid] = (self._arrivals, message)
        yield Described(message)

    def _originate(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, Origin)
        if self._skip != COVERED:
            yield Originated(message.name, message.commit_lsn)

    def _standalone(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, LogicalMessage)
        if message.transactional:
            raise ProtocolError(
                f"A transactional message ({message.prefix!r}) at {Lsn(message.lsn)} outside of a transaction.",
                hint=REPORT,
            )
        # Its LSN is the end of its record (decode.c, logicalmsg_decode), which may be where a commit record starts.
        # The last byte before it is in no other record, and stands for the message as a commit LSN does elsewhere.
        place = message.lsn - 1
        self._in_order(place)
        if self._position.skip(place):
            return
        self.counts["message"] += 1
        ticket = self._ledger.open()
        self._ledger.seal(ticket, message.lsn)
        yield Standalone(frame, False, place, self._last_commit_lsn, ticket)

    def _read(self, frame: bytes, kind: type[M], *, in_stream: bool = False) -> M:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, kind)
        return message
