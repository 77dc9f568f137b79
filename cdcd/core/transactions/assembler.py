"""Stage 3: assembles messages to transactions, only committed ones, in commit order.

The rule: all output is committed, complete and in the order of the commits; no output contains changes that were
rolled back, wholly or in part.

This module has the states of the stream with the messages that are allowed in them: the table `TRANSITIONS`, from
which ARCHITECTURE.md's diagram is drawn. The parts of the assembler define the effect of each message:

- `CommitOrder`: the open transaction, the order of commits, the ledger. Normal transactions need only this part.
- `RelationCache`: the valid description of each relation.
- `StreamedTransactions` and `PreparedTransactions`: undecided transactions, kept in the spool.
- `TransactionReplay`: the kept contents of a transaction as steps, when it commits.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER, Keepalive, read_frame
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.peek import CHANGES, FRAME_KIND_AT, ROWS, XLOG_DATA, lsn_of
from cdcd.core.transactions.commits import REPORT, CommitOrder
from cdcd.core.transactions.drafts import MakeDrafts, SpoolItem
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.open_transactions import RelationCache, TransactionReplay
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.prepared_transactions import PreparedTransactions
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import TURN, Changes, KeepaliveReceived, Step
from cdcd.core.transactions.streamed_transactions import StreamedTransactions


class StreamState(Enum):
    """State of the stream of messages."""

    IDLE = "between transactions"
    TRANSACTION = "Begin … Commit"
    PREPARE = "Begin Prepare … Prepare"
    STREAM = "Stream Start … Stream Stop"


Handler = Callable[[bytes], Iterable[Step]]


class _Node:
    """A state of one assembler: by tag, the effect of a message and the next state."""

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.is_idle = state is StreamState.IDLE
        self.in_transaction = state is StreamState.TRANSACTION
        self.in_stream = state is StreamState.STREAM
        self.handlers: dict[int, Handler] = {}
        self.next: dict[int, _Node] = {}


class Assembler:
    """Converts CopyData frames, in their order, to steps.

    The caller iterates over the result of `assemble` to its end before the next call. It passes the tickets of
    `Closed`, `RolledBack` and `NonTransactionalMessage` to `ledger.ack` when the broker holds their events. After a
    lost connection the caller discards the assembler: the server sends everything after the flushed position again,
    and never sends an abort for transactions that a crash ended.

    Args:
        ledger: gets an entry for each commit, and each undecided prepare, when the message is decoded.
        spool: keeps undecided transactions; `close` empties it.
        position: position of the checkpoint; transactions before it are skipped.
        draft: called with the rows of an open streamed transaction; returns the items to keep.
        abort_info: True if Stream Abort has LSN and time (protocol 4 with `streaming=parallel`).
    """

    def __init__(
        self, ledger: Ledger, spool: Spool, position: Position, draft: MakeDrafts, abort_info: bool = False
    ) -> None:
        self._spool = spool
        self.order = CommitOrder(ledger, position)
        self.relations = RelationCache()
        self.replay = TransactionReplay(self.order, self.relations, spool)
        self.streamed = StreamedTransactions(
            self.order, self.relations, self.replay, spool, draft, abort_info
        )
        self.prepared = PreparedTransactions(self.order, self.relations, self.replay, spool, self.streamed)
        self._at = _nodes(self)[StreamState.IDLE]

    @property
    def counts(self) -> dict[str, int]:
        """Number of transactions and messages since the start, by kind."""
        return self.order.counts

    @property
    def is_idle(self) -> bool:
        """True if the stream is between two transactions, and between the blocks of streamed ones."""
        return self._at.is_idle

    @property
    def streamed_open(self) -> int:
        """Number of streamed transactions whose end is not known."""
        return len(self.streamed)

    @property
    def prepared_open(self) -> int:
        """Number of prepared transactions that are neither committed nor rolled back."""
        return len(self.prepared)

    def oldest_prepared(self) -> tuple[str, int] | None:
        """Return the gid and the prepare time (wire microseconds) of the oldest undecided prepared transaction."""
        return self.prepared.oldest()

    def close(self) -> None:
        """Discard all open transactions, because they belong to the lost connection."""
        self.streamed.clear()
        self.prepared.clear()
        self._spool.close()

    def assemble(self, frames: list[bytes]) -> Iterator[Step]:
        """Yield the steps that follow from `frames`, lazily, because a replayed transaction may be larger than memory.

        Raises:
            ProtocolError: a message is malformed, or out of place.
            PositionError: a prepared transaction is committed, but its changes were never received.
            UndecidableMessageError: start again without streaming.
            LimitError: the spool is full.
        """
        order = self.order
        changes: list[SpoolItem] = []
        rows: list[SpoolItem] = []
        for frame in frames:
            if len(frame) <= XLOG_HEADER or frame[FRAME_KIND_AT] != XLOG_DATA:
                yield self._keepalive(frame)
                continue
            tag = frame[XLOG_HEADER]
            at = self._at
            if at.in_transaction and tag in CHANGES:
                if order.skip == 0:
                    changes.append(frame)
                elif order.skip > 0:
                    order.skip -= 1
                continue
            if at.in_stream and tag in ROWS:
                rows.append(frame)
                continue
            if changes:
                yield Changes(changes, False)
                changes = []
            if rows:
                self.streamed.keep_rows(rows)
                yield TURN
                rows = []
            handle = at.handlers.get(tag)
            if handle is None:
                raise ProtocolError(
                    f"Message {chr(tag)!r} at {Lsn(lsn_of(frame))} is out of place in the "
                    f"state {at.state.name} ({at.state.value}).",
                    hint=REPORT,
                )
            self._at = at.next[tag]
            yield from handle(frame)
        if changes:
            yield Changes(changes, False)
        if rows:
            self.streamed.keep_rows(rows)
            yield TURN

    def _keepalive(self, frame: bytes) -> KeepaliveReceived:
        message = read_frame(frame)
        if not isinstance(message, Keepalive):
            raise ProtocolError("XLogData without a message.", hint=REPORT)
        self.order.ledger.hear(message.wal_end)
        return KeepaliveReceived(message.wal_end, message.reply_requested, self._at.is_idle)


HandlerOf = Callable[[Assembler], Handler]
"""Returns the method that handles a message, bound to a part of an assembler."""


def _nodes(assembler: Assembler) -> dict[StreamState, _Node]:
    """Return the table, bound to the parts of one assembler."""
    nodes = {state: _Node(state) for state in StreamState}
    for (state, tag), (to, handler_of) in TRANSITIONS.items():
        nodes[state].handlers[tag] = handler_of(assembler)
        nodes[state].next[tag] = nodes[to]
    return nodes


def _table(
    rows: dict[StreamState, dict[str, tuple[StreamState, HandlerOf]]],
) -> dict[tuple[StreamState, int], tuple[StreamState, HandlerOf]]:
    return {
        (state, tag): to
        for state, cells in rows.items()
        for tags, to in cells.items()
        for tag in tags.encode()
    }


TRANSITIONS: Final = _table(
    {
        StreamState.IDLE: {
            "B": (StreamState.TRANSACTION, lambda its: its.order.begin),
            "b": (StreamState.PREPARE, lambda its: its.prepared.begin),
            "S": (StreamState.STREAM, lambda its: its.streamed.start),
            "c": (StreamState.IDLE, lambda its: its.streamed.commit),
            "A": (StreamState.IDLE, lambda its: its.streamed.abort),
            "p": (StreamState.IDLE, lambda its: its.prepared.stream_prepare),
            "P": (StreamState.IDLE, lambda its: its.prepared.prepare_alone),
            "K": (StreamState.IDLE, lambda its: its.prepared.commit),
            "r": (StreamState.IDLE, lambda its: its.prepared.rollback),
            "M": (StreamState.IDLE, lambda its: its.order.non_transactional_message),
        },
        StreamState.TRANSACTION: {
            "RY": (StreamState.TRANSACTION, lambda its: its.relations.describe),
            "O": (StreamState.TRANSACTION, lambda its: its.order.origin),
            "M": (StreamState.TRANSACTION, lambda its: its.order.transactional_message),
            "C": (StreamState.IDLE, lambda its: its.order.commit),
        },
        StreamState.PREPARE: {
            "RIUDTMYO": (StreamState.PREPARE, lambda its: its.prepared.keep),
            "P": (StreamState.IDLE, lambda its: its.prepared.prepare),
        },
        StreamState.STREAM: {
            "RIUDTMYO": (StreamState.STREAM, lambda its: its.streamed.keep),
            "E": (StreamState.IDLE, lambda its: its.streamed.stop),
        },
    }
)
"""`(state, tag) -> (state, handler)`. In TRANSACTION the tags in `CHANGES` keep the state, and their frames are
passed on."""
