"""Bugs on the way of the stream: assembler, ledger, queue, feedback, position. Each undoes one decision."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from cdcd.core.engine.actions import Ship
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.context import Traced
from cdcd.core.engine.delivery import Delivery
from cdcd.core.engine.feedback import Feedback
from cdcd.core.engine.ingest import Ingest
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.settings import BatchSettings
from cdcd.core.facts import unheard
from cdcd.core.protocol.frames import XLOG_HEADER, StatusUpdate
from cdcd.core.protocol.messages import Prepare, Relation, StreamAbort, StreamPrepare
from cdcd.core.records.debezium_json.encoder import json_format
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.late_records import LateRecords
from cdcd.core.records.stream import RecordStream
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.open_transactions import OpenTransaction, TransactionReplay
from cdcd.core.transactions.position import COVERED, Position
from cdcd.core.transactions.prepared_transactions import PreparedTransactions
from cdcd.core.transactions.steps import KeepaliveReceived, NonTransactionalMessage, RolledBack, Step
from cdcd.core.transactions.streamed_transactions import StreamedTransactions


class ConfirmsOnReceive(Feedback):
    def due(self, received: int, flushed: int, now: float, server_time_us: int) -> StatusUpdate | None:
        return super().due(received, received, now, server_time_us)


class PlantedStream(RecordStream):
    """A stream of records in JSON, for bugs to be planted in it."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings, False, unheard, json_format)


class NumbersOnlyRecords(PlantedStream):
    """An event that is skipped has no number, so that a restart gives the events behind it other ones."""

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        before = len(out)
        size = super().encode(frame, in_stream, now_us, out)
        if len(out) == before:
            self.current.serial -= 1
        return size


class CountsWhatIsShipped(Delivery):
    """Counts rows when they are handed over, so that those that come again count again."""

    def next_batch(self, now: float) -> Ship | None:
        ship = super().next_batch(now)
        if ship is not None:
            self.rows += ship.batch.rows
        return ship

    def settle(self, batch: Batch) -> None:
        rows = self.rows
        super().settle(batch)
        self.rows = rows


class LooksDelivered(Ingest):
    """Learns how far the server is from its keepalives alone, which do not come while something waits."""

    def _committed(self, lsn: int) -> None:
        pass


class Unlimited(Ledger):
    """Tells what came again after a start, before a checkpoint says that it was told."""

    @property
    def flushed(self) -> int:
        return self._acknowledged


class AcksWhenSent(Unlimited):
    """Acknowledges what was handed to the producer, before the broker answered, and tells it without the limit."""

    def send(self, end_lsn: int) -> None:
        super().send(end_lsn)
        for ticket, end in list(self._ends.items()):
            if 0 < end <= end_lsn:
                super().ack(ticket)

    def ack(self, ticket: int) -> None:
        if ticket in self._ends:
            super().ack(ticket)


class OpensLate(Ledger):
    """An entry counts from the moment that its batch is handed to the producer."""

    def __init__(self, flushed: int = 0) -> None:
        super().__init__(flushed)
        self._decoded: dict[int, int] = {}

    def open(self) -> int:
        ticket = super().open()
        self._decoded[ticket] = self._ends.pop(ticket)
        return ticket

    def seal(self, ticket: int, end_lsn: int) -> None:
        self._decoded[ticket] = end_lsn
        self.hear(end_lsn)

    def is_last(self, ticket: int) -> bool:
        return ticket in self._decoded and ticket == self._next_ticket - 1

    def send(self, end_lsn: int) -> None:
        super().send(end_lsn)
        for ticket, end in sorted(self._decoded.items()):
            if 0 < end <= end_lsn:
                self._ends[ticket] = self._decoded.pop(ticket)

    def ack(self, ticket: int) -> None:
        if ticket in self._decoded:
            self._ends[ticket] = self._decoded.pop(ticket)
        super().ack(ticket)


class ResealsIdleTickets(Ledger):
    def is_last(self, ticket: int) -> bool:
        return ticket in self._ends


class ForgetsHolds(Ledger):
    """Takes for what may have been told everything that the broker holds, also past an undecided PREPARE."""

    def flushed_with(self, tickets: Sequence[int]) -> int:
        return max(self.acked, *(self._ends[ticket] for ticket in tickets), super().flushed_with(tickets))


class StartsAtZero(Ledger):
    """Forgets over a reconnect what PostgreSQL was told."""

    def __init__(self, flushed: int = 0) -> None:
        super().__init__()


class AcksTwice(Ledger):
    def ack(self, ticket: int) -> None:
        if ticket in self._ends:
            super().ack(ticket)


def assembler_with(
    part: type[TransactionReplay | StreamedTransactions | PreparedTransactions],
) -> type[Assembler]:
    """An assembler of which one part is replaced."""

    class Planted(Assembler):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            replaced: Any
            for replaced in (self.replay, self.streamed, self.prepared):
                if issubclass(part, type(replaced)):
                    replaced.__class__ = part

    return Planted


class DropsAllOnSubtransactionAbort(StreamedTransactions):
    def _read_abort(self, frame: bytes) -> StreamAbort:
        message = super()._read_abort(frame)
        return replace(message, subxid=message.xid)


class KeepsAbortedSubtransactions(TransactionReplay):
    def steps(self, transaction: OpenTransaction) -> Iterator[Step]:
        transaction.aborted.clear()
        return super().steps(transaction)


class KeepsMessagesOfAborted(TransactionReplay):
    """Takes every streamed Message for the transaction's own."""

    def check_messages(self, transaction: OpenTransaction, commit_lsn: int) -> None:
        pass


class DropsRelationsOfAborted(TransactionReplay):
    def steps(self, transaction: OpenTransaction) -> Iterator[Step]:
        self._aborted: set[int] = transaction.aborted
        return super().steps(transaction)

    def _other(self, frame: bytes, in_stream: bool) -> Iterator[Step]:
        xid = int.from_bytes(frame[XLOG_HEADER + 1 : XLOG_HEADER + 5], "big")
        if frame[XLOG_HEADER] == Relation.tag and xid in self._aborted:
            return iter(())
        return super()._other(frame, in_stream)


class LeavesOldDescriptions(TransactionReplay):
    """A replayed transaction's definitions stay in force, also when newer ones came meanwhile."""

    def steps(self, transaction: OpenTransaction) -> Iterator[Step]:
        transaction.relations.clear()
        return super().steps(transaction)


class ReplaysByNewDescriptions(TransactionReplay):
    def steps(self, transaction: OpenTransaction) -> Iterator[Step]:
        transaction.brought.clear()
        return super().steps(transaction)


class DoesNotHoldPrepared(PreparedTransactions):
    def _hold(self, transaction: OpenTransaction, message: Prepare | StreamPrepare) -> None:
        super()._hold(transaction, message)
        self._order.ledger.ack(transaction.ticket)


class ReleasesAtRollback(Assembler):
    """Confirms what a prepared transaction held up before a checkpoint says that this may be confirmed."""

    def assemble(self, frames: list[bytes]) -> Iterator[Step]:
        for step in super().assemble(frames):
            if isinstance(step, RolledBack):
                self.order.ledger.ack(step.tickets[0])
                yield replace(step, tickets=step.tickets[1:])
            else:
                yield step


class KeepsWhatIsStreamedAgain(PreparedTransactions):
    """Of a prepared transaction that was decided before the restart."""

    def _forget_streamed(self, xid: int) -> bool:
        return False


class CountsEveryKeepalive(Assembler):
    """Also those within a transaction."""

    def assemble(self, frames: list[bytes]) -> Iterator[Step]:
        for step in super().assemble(frames):
            yield replace(step, idle=True) if isinstance(step, KeepaliveReceived) else step


class SkipsOneTooMany(Position):
    def skip(self, commit_lsn: int) -> int:
        skip = super().skip(commit_lsn)
        return skip + 1 if skip > 0 else skip


class SkipsOneTooFew(Position):
    def skip(self, commit_lsn: int) -> int:
        return max(super().skip(commit_lsn) - 1, 0) if self.events_done else super().skip(commit_lsn)


class SkipsTheNext(Position):
    """Takes a commit that starts where the position ends for done."""

    def skip(self, commit_lsn: int) -> int:
        return COVERED if commit_lsn == self.end_lsn else super().skip(commit_lsn)


class SealsMessagesLate(Assembler):
    """Likewise, in what PostgreSQL is told."""

    def assemble(self, frames: list[bytes]) -> Iterator[Step]:
        for step in super().assemble(frames):
            if isinstance(step, NonTransactionalMessage):
                self.order.ledger.seal(step.ticket, step.lsn + 2)
            yield step


class EndsMessagesLate(BatchQueue):
    """The byte after a message's LSN may be a commit's first."""

    def close(
        self,
        commit_lsn: int,
        end_lsn: int,
        commit_time: int | None,
        tickets: tuple[int, ...],
        trace: Traced | None = None,
    ) -> None:
        super().close(commit_lsn, end_lsn + (commit_time is None), commit_time, tickets, trace)


class ForgetsWhatIsDone(BatchQueue):
    """A batch that ends within a transaction says no more of it than the batch before."""

    def enqueue(self, records: list[Record], size: int, events: int, late: LateRecords | None = None) -> bool:
        cut = super().enqueue(records, size, events, late)
        if cut:
            self._full[-1].position = self._filling.position = self._full[-1].base
        return cut


class CountsRecords(BatchQueue):
    """A count of records is not one of events: some have two, some have none."""

    def enqueue(self, records: list[Record], size: int, events: int, late: LateRecords | None = None) -> bool:
        return super().enqueue(records, size, len(records) or events, late)


class CutsWhole(BatchQueue):
    """Each part of a large transaction is a Kafka transaction (G10)."""

    def __init__(self, position: Position, limits: BatchSettings, **options: Any) -> None:
        super().__init__(position, replace(limits, whole_bytes_max=0), **options)


class NeverTellsTheRest(BatchQueue):
    """After a restart, what the checkpoint covers stays unconfirmed until something new is written."""

    def advance(self, ledger: Ledger, wal_end: int, *, asked: bool) -> None:
        if wal_end > self._filling.position.end_lsn:
            super().advance(ledger, wal_end, asked=asked)
