"""Stage 3, fourth part: two-phase transactions.

The rule: a PREPARE is not confirmed to PostgreSQL as flushed before it is decided, because a slot past the PREPARE
does not send the transaction again.

A prepared transaction (Begin Prepare … Prepare, or Stream Prepare after blocks) is kept in the spool until Commit
Prepared replays it or Rollback Prepared drops it. Until then the ledger keeps the flushed position before its
PREPARE.
"""

from collections.abc import Iterable, Iterator

from cdcd.core.errors import PositionError, ProtocolError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import (
    BeginPrepare,
    CommitPrepared,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamPrepare,
)
from cdcd.core.protocol.peek import DESCRIPTIONS, relation_oids, tag_of
from cdcd.core.transactions.commits import REPORT, CommitOrder, read_as
from cdcd.core.transactions.open_transactions import OpenTransaction, RelationCache, TransactionReplay
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import CommitWithoutPrepare, RolledBack, Step
from cdcd.core.transactions.streamed_transactions import StreamedTransactions


class PreparedTransactions:
    """Prepared transactions, from Begin Prepare or Stream Prepare to their decision."""

    def __init__(
        self,
        order: CommitOrder,
        relations: RelationCache,
        replay: TransactionReplay,
        spool: Spool,
        streamed: StreamedTransactions,
    ) -> None:
        self._order = order
        self._relations = relations
        self._replay = replay
        self._spool = spool
        self._streamed = streamed
        self._held: dict[int, OpenTransaction] = {}
        self._current: OpenTransaction | None = None

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Remove all transactions; the caller empties the spool."""
        self._held.clear()

    def oldest(self) -> tuple[str, int] | None:
        """Return the gid and the prepare time (wire microseconds) of the oldest transaction; None without any."""
        if not self._held:
            return None
        oldest = min(self._held.values(), key=_prepare_time)
        return oldest.gid, oldest.prepare_time

    def begin(self, frame: bytes) -> Iterable[Step]:
        """Handle Begin Prepare."""
        message = read_as(BeginPrepare, frame)
        self._current = self._new("Begin Prepare", message.xid)
        return ()

    def keep(self, frame: bytes) -> Iterable[Step]:
        """Handle a message between Begin Prepare and Prepare."""
        transaction = self._current
        assert transaction is not None
        steps: tuple[Step, ...] = ()
        if tag_of(frame) in DESCRIPTIONS:
            described = self._relations.take(frame)
            steps = (described,)
            if isinstance(described.message, Relation):
                self._adopt(transaction, described.message.oid)
        else:
            for oid in relation_oids(frame, False):
                if oid not in transaction.relations and self._adopt(transaction, oid):
                    transaction.brought.append(transaction.relations[oid][1])
        self._spool.append(transaction.xid, frame)
        return steps

    def _adopt(self, transaction: OpenTransaction, oid: int) -> bool:
        """Add the description in force to the transaction's own; return False if the server has sent none."""
        arrived = self._relations.get(oid)
        if arrived is None:
            return False
        transaction.relations[oid] = arrived
        return True

    def prepare(self, frame: bytes) -> Iterable[Step]:
        """Handle Prepare after Begin Prepare."""
        message = read_as(Prepare, frame)
        transaction = self._current
        assert transaction is not None
        if message.xid != transaction.xid:
            raise ProtocolError(
                f"Prepare of {message.xid} inside the transaction {transaction.xid}.", hint=REPORT
            )
        self._current = None
        self._hold(transaction, message)
        return ()

    def prepare_alone(self, frame: bytes) -> Iterable[Step]:
        """Handle Prepare without Begin Prepare: PostgreSQL 18 sends this if the transaction only locked rows."""
        message = read_as(Prepare, frame)
        self._hold(self._new("Prepare", message.xid), message)
        return ()

    def stream_prepare(self, frame: bytes) -> Iterable[Step]:
        """Handle Stream Prepare, by which a streamed transaction becomes a prepared one."""
        message = read_as(StreamPrepare, frame)
        transaction = self._streamed.take(message.xid)
        if transaction is None:
            raise ProtocolError(f"Stream Prepare of the unknown transaction {message.xid}.", hint=REPORT)
        self._hold(transaction, message)
        return ()

    def commit(self, frame: bytes) -> Iterator[Step]:
        """Handle Commit Prepared."""
        message = read_as(CommitPrepared, frame)
        order = self._order
        transaction = self._decide(message.xid, message.gid)
        if transaction is None:
            has_changes = self._forget_streamed(message.xid)
            if order.is_covered(message.commit_lsn):
                return
            if has_changes:
                raise PositionError(
                    f"COMMIT PREPARED {message.gid!r} at {Lsn(message.commit_lsn)}, but its PREPARE was never "
                    "received: the slot was confirmed past it by somebody else; the server does not send it again.",
                    hint="The changes of this transaction are missing in Kafka. Read its tables again, or accept it "
                    "with `cdcd run --accept-gap` after moving the slot past this position.",
                )
            yield CommitWithoutPrepare(message.xid, message.gid, message.commit_lsn)
            yield from order.open("prepared", message.xid, message.commit_lsn, message.commit_time)
            yield from order.close(message.commit_lsn, message.commit_time, message.end_lsn, ())
            return
        self._replay.check_messages(transaction, message.commit_lsn)
        yield from order.open("prepared", message.xid, message.commit_lsn, message.commit_time)
        yield from self._replay.steps(transaction)
        yield from order.close(
            message.commit_lsn, message.commit_time, message.end_lsn, (transaction.ticket,)
        )

    def rollback(self, frame: bytes) -> Iterable[Step]:
        """Handle Rollback Prepared."""
        message = read_as(RollbackPrepared, frame)
        transaction = self._decide(message.xid, message.gid)
        # The transaction is unknown if it was prepared before the slot was consistent, or is already confirmed;
        # PostgreSQL's own subscriber ignores it, too (worker.c, apply_handle_rollback_prepared).
        if transaction is None:
            self._forget_streamed(message.xid)
            return ()
        self._spool.drop(transaction.xid)
        self._order.counts["rolled_back"] += 1
        ledger = self._order.ledger
        ticket = ledger.open()
        ledger.seal(ticket, message.rollback_end_lsn)
        if message.rollback_end_lsn > self._order.position.end_lsn:
            return (RolledBack(message.rollback_end_lsn, (transaction.ticket, ticket)),)
        ledger.ack(transaction.ticket)
        ledger.ack(ticket)
        return ()

    def _new(self, announced_by: str, xid: int) -> OpenTransaction:
        if xid in self._held or xid in self._streamed:
            raise ProtocolError(
                f"{announced_by} of the transaction {xid}, which is open already.", hint=REPORT
            )
        self._spool.open(xid)
        return OpenTransaction(xid, in_stream=False)

    def _hold(self, transaction: OpenTransaction, message: Prepare | StreamPrepare) -> None:
        transaction.gid = message.gid
        transaction.prepare_time = message.prepare_time
        transaction.ticket = self._order.ledger.open()
        self._held[transaction.xid] = transaction

    def _decide(self, xid: int, gid: str) -> OpenTransaction | None:
        """Remove and return the prepared transaction; the gid alone does not identify it, because gids are reused."""
        transaction = self._held.get(xid)
        if transaction is None or transaction.gid != gid:
            return None
        return self._held.pop(xid)

    def _forget_streamed(self, xid: int) -> bool:
        """Drop a streamed part: a PREPARE that the slot is past is not sent again, but its blocks may be."""
        return self._streamed.forget(xid)


def _prepare_time(transaction: OpenTransaction) -> int:
    return transaction.prepare_time
