"""Stage 3, third part: streamed transactions.

A streamed transaction arrives in blocks (Stream Start … Stream Stop), interleaved with others, before its outcome
is known. It is kept in the spool until Stream Commit replays it, Stream Abort drops it, or Stream Prepare makes it
a prepared one. Stream Abort names a subtransaction; only if that is the transaction itself, the whole transaction
is dropped.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation, StreamAbort, StreamCommit, StreamStart
from cdcd.core.protocol.peek import MESSAGE, RELATION, tag_of
from cdcd.core.protocol.reader import read_message, read_message_head
from cdcd.core.transactions.commits import REPORT, CommitOrder, read_as
from cdcd.core.transactions.drafts import MakeDrafts, SpoolItem
from cdcd.core.transactions.open_transactions import OpenTransaction, RelationCache, TransactionReplay
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import RelationPreview, Step

DRAFTED_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of a row that is drafted, because a draft takes more memory than a frame until the commit, which may
never come."""


class StreamedTransactions:
    """Streamed transactions, from their first block to their decision.

    Args:
        draft: called with the rows of an open transaction; returns the items to keep.
        abort_info: True if Stream Abort has LSN and time (protocol 4 with `streaming=parallel`).
    """

    def __init__(
        self,
        order: CommitOrder,
        relations: RelationCache,
        replay: TransactionReplay,
        spool: Spool,
        draft: MakeDrafts,
        abort_info: bool,
    ) -> None:
        self._order = order
        self._relations = relations
        self._replay = replay
        self._spool = spool
        self._draft = draft
        self._abort_info = abort_info
        self._open: dict[int, OpenTransaction] = {}
        self._current: OpenTransaction | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, xid: int) -> bool:
        return xid in self._open

    def clear(self) -> None:
        """Remove all transactions; the caller empties the spool."""
        self._open.clear()

    def take(self, xid: int) -> OpenTransaction | None:
        """Remove and return a transaction, while the spool keeps its contents; None if it is unknown."""
        return self._open.pop(xid, None)

    def forget(self, xid: int) -> bool:
        """Drop a transaction; return False if it is unknown."""
        if self._open.pop(xid, None) is None:
            return False
        self._spool.drop(xid)
        return True

    def start(self, frame: bytes) -> Iterable[Step]:
        """Handle Stream Start."""
        message = read_as(StreamStart, frame)
        transaction = self._open.get(message.xid)
        if message.first_segment == (transaction is not None):
            raise ProtocolError(
                f"Stream Start says {'first' if message.first_segment else 'further'} segment of the transaction "
                f"{message.xid}, which is {'open already' if transaction else 'not known'}.",
                hint=REPORT,
            )
        if transaction is None:
            transaction = OpenTransaction(message.xid, in_stream=True)
            self._spool.open(message.xid)
            self._open[message.xid] = transaction
        self._current = transaction
        return ()

    def keep_rows(self, rows: list[SpoolItem]) -> None:
        """Store rows of the open block."""
        assert self._current is not None
        xid, relations = self._current.xid, self._current.relations
        last = rows[-1]
        if isinstance(last, bytes) and len(last) > DRAFTED_BYTES_MAX:
            # Only the last frame of frames that are received together can be as large.
            self._spool.extend(xid, self._draft(rows[:-1], relations))
            self._spool.append(xid, last)
        else:
            self._spool.extend(xid, self._draft(rows, relations))

    def keep(self, frame: bytes) -> Iterable[Step]:
        """Store any other message of the open block."""
        assert self._current is not None
        tag = tag_of(frame)
        steps: tuple[Step, ...] = ()
        if tag == MESSAGE:
            read_message_head(frame, XLOG_HEADER, in_stream=True)
            self._current.has_message = True
        elif tag == RELATION:
            relation = replace(read_as(Relation, frame, in_stream=True), xid=None)
            self._current.relations[relation.oid] = self._relations.number(relation)
            steps = (RelationPreview(relation),)
        self._spool.append(self._current.xid, frame)
        return steps

    def stop(self, frame: bytes) -> Iterable[Step]:
        """Handle Stream Stop."""
        read_message(frame, XLOG_HEADER, in_stream=True)
        self._current = None
        return ()

    def commit(self, frame: bytes) -> Iterator[Step]:
        """Handle Stream Commit."""
        message = read_as(StreamCommit, frame)
        transaction = self.take(message.xid)
        if transaction is None:
            raise ProtocolError(f"Stream Commit of the unknown transaction {message.xid}.", hint=REPORT)
        self._replay.check_messages(transaction, message.commit_lsn)
        yield from self._order.open("streamed", message.xid, message.commit_lsn, message.commit_time)
        yield from self._replay.steps(transaction)
        yield from self._order.close(message.commit_lsn, message.commit_time, message.end_lsn, ())

    def abort(self, frame: bytes) -> Iterable[Step]:
        """Handle Stream Abort."""
        message = self._read_abort(frame)
        transaction = self._open.get(message.xid)
        if transaction is None:
            # PostgreSQL 18 announces the abort of transactions even if it had streamed nothing of them.
            return ()
        if message.subxid != message.xid:
            transaction.aborted.add(message.subxid)
            transaction.doubtful |= transaction.has_message
            self._order.counts["subtransaction_aborted"] += 1
            return ()
        self.forget(message.xid)
        self._order.counts["aborted"] += 1
        return ()

    def _read_abort(self, frame: bytes) -> StreamAbort:
        message = read_message(frame, XLOG_HEADER, abort_info=self._abort_info)
        assert isinstance(message, StreamAbort)
        return message
