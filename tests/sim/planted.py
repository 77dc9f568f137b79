"""Bugs that the simulation must find: each is one that this program, or another one, had or nearly had.

They are put in place of the real classes by subclasses that undo one decision. A bug that is not found says that the
models do not exercise what it breaks.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from cdcd.engine.feedback import Feedback
from cdcd.engine.queue import Batches
from cdcd.protocol.frames import XLOG_HEADER, StatusUpdate
from cdcd.protocol.messages import Prepare, Relation, StreamAbort, StreamPrepare
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import COVERED, Position
from cdcd.transactions.steps import Heard, RolledBack, Standalone, Step
from tests.sim.instance import Parts
from tests.sim.planted_sink import (
    CommitsParts,
    DoesNotFence,
    KeepsTheProducer,
    NotesFirstAtLeastOnce,
    SendsTheLastPartAgain,
    TakesUnknownForFailed,
    WritesTheCheckpointFirst,
)


class ConfirmsOnReceive(Feedback):
    def due(self, received: int, flushed: int, now: float, server_time_us: int) -> StatusUpdate | None:
        return super().due(received, received, now, server_time_us)


class AcksWhenSent(Ledger):
    """Acknowledges what was handed to the producer, before the broker answered."""

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

    def held_at(self, decided: Collection[int]) -> None:
        return None


class StartsAtZero(Ledger):
    """Forgets over a reconnect what PostgreSQL was told."""

    def __init__(self, flushed: int = 0) -> None:
        super().__init__()


class AcksTwice(Ledger):
    def ack(self, ticket: int) -> None:
        if ticket in self._ends:
            super().ack(ticket)


class DropsAllOnSubtransactionAbort(Assembler):
    def _read_abort(self, frame: bytes) -> StreamAbort:
        message = super()._read_abort(frame)
        return replace(message, subxid=message.xid)


class KeepsAbortedSubtransactions(Assembler):
    def _replay(self, kept: Any) -> Iterator[Step]:
        kept.aborted.clear()
        return super()._replay(kept)


class KeepsMessagesOfAborted(Assembler):
    """Takes every streamed Message for the transaction's own."""

    def _check_messages(self, kept: Any, commit_lsn: int) -> None:
        pass


class DropsRelationsOfAborted(Assembler):
    def _replay(self, kept: Any) -> Iterator[Step]:
        self._aborted: set[int] = kept.aborted
        return super()._replay(kept)

    def _replay_other(self, frame: bytes, in_stream: bool) -> Iterator[Step]:
        xid = int.from_bytes(frame[XLOG_HEADER + 1 : XLOG_HEADER + 5], "big")
        if frame[XLOG_HEADER] == Relation.tag and xid in self._aborted:
            return iter(())
        return super()._replay_other(frame, in_stream)


class LeavesOldDescriptions(Assembler):
    """A replayed transaction's definitions stay in force, also when newer ones came meanwhile."""

    def _replay(self, kept: Any) -> Iterator[Step]:
        kept.relations.clear()
        return super()._replay(kept)


class ReplaysByNewDescriptions(Assembler):
    def _replay(self, kept: Any) -> Iterator[Step]:
        kept.brought.clear()
        return super()._replay(kept)


class DoesNotHoldPrepared(Assembler):
    def _hold(self, kept: Any, message: Prepare | StreamPrepare) -> None:
        super()._hold(kept, message)
        self._ledger.ack(kept.ticket)


class ReleasesAtRollback(Assembler):
    """Confirms what a prepared transaction held up before a checkpoint says that this may be confirmed."""

    def receive(self, frames: list[bytes]) -> Iterator[Step]:
        for step in super().receive(frames):
            if isinstance(step, RolledBack):
                self._ledger.ack(step.tickets[0])
                yield replace(step, tickets=step.tickets[1:])
            else:
                yield step


class KeepsWhatIsStreamedAgain(Assembler):
    """Of a prepared transaction that was decided before the restart."""

    def _forget_streamed(self, xid: int) -> bool:
        return False


class CountsEveryKeepalive(Assembler):
    """Also those within a transaction."""

    def receive(self, frames: list[bytes]) -> Iterator[Step]:
        for step in super().receive(frames):
            yield replace(step, idle=True) if isinstance(step, Heard) else step


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


class EndsMessagesLate(Batches):
    """The byte after a message's LSN may be a commit's first."""

    def close(self, commit_lsn: int, end_lsn: int, commit_time: int | None, tickets: tuple[int, ...]) -> None:
        super().close(commit_lsn, end_lsn + (commit_time is None), commit_time, tickets)


class SealsMessagesLate(Assembler):
    """Likewise, in what PostgreSQL is told."""

    def receive(self, frames: list[bytes]) -> Iterator[Step]:
        for step in super().receive(frames):
            if isinstance(step, Standalone):
                self._ledger.seal(step.ticket, step.lsn + 2)
            yield step


class ForgetsWhatIsDone(Batches):
    """A batch that ends within a transaction says no more of it than the batch before."""

    def add(self, size: int, events: int) -> bool:
        cut = super().add(size, events)
        if cut:
            self._full[-1].position = self._filling.position = self._full[-1].base
        return cut


class CountsRecords(Batches):
    """A count of records is not one of events: some have two, some have none."""

    def add(self, size: int, events: int) -> bool:
        return super().add(size, len(self.tail) or events)


class CutsSmall(Batches):
    """A batch ends wherever it is full, also within a small transaction."""

    def add(self, size: int, events: int) -> bool:
        cut = super().add(size, events)
        if len(self.tail) + len(self._filling.records) >= self._records_max:
            self._append_tail(Position(self._commit_lsn, self._commit_lsn, self._events_done))
            self._turn()
        return cut


class NeverTellsTheRest(Batches):
    """After a restart, what the checkpoint covers stays unconfirmed until something new is written."""

    def advance(self, ledger: Ledger, wal_end: int, *, asked: bool) -> None:
        if wal_end > self._filling.position.end_lsn:
            super().advance(ledger, wal_end, asked=asked)


PLANTED: Final[Mapping[str, Parts]] = MappingProxyType(
    {
        "confirm_on_receive": Parts(feedback=ConfirmsOnReceive),
        "ack_before_delivery": Parts(ledger=AcksWhenSent),
        "entry_opened_late": Parts(ledger=OpensLate),
        "idle_ticket_resealed": Parts(ledger=ResealsIdleTickets),
        "bound_past_prepare": Parts(ledger=ForgetsHolds),
        "rollback_releases_at_once": Parts(assembler=ReleasesAtRollback),
        "flushed_falls": Parts(ledger=StartsAtZero),
        "drop_all_on_subtransaction_abort": Parts(assembler=DropsAllOnSubtransactionAbort),
        "aborted_subtransaction_kept": Parts(assembler=KeepsAbortedSubtransactions),
        "message_of_aborted_subtransaction_kept": Parts(assembler=KeepsMessagesOfAborted),
        "relation_of_aborted_subtransaction_dropped": Parts(assembler=DropsRelationsOfAborted),
        "old_description_stays": Parts(assembler=LeavesOldDescriptions),
        "replay_by_new_description": Parts(assembler=ReplaysByNewDescriptions),
        "prepared_not_held": Parts(assembler=DoesNotHoldPrepared, ledger=AcksTwice),
        "streamed_again_kept": Parts(assembler=KeepsWhatIsStreamedAgain),
        "every_keepalive_counts": Parts(assembler=CountsEveryKeepalive),
        "skip_one_too_many": Parts(position=SkipsOneTooMany),
        "skip_one_too_few": Parts(position=SkipsOneTooFew),
        "skip_the_next": Parts(position=SkipsTheNext),
        "message_ends_late": Parts(batches=EndsMessagesLate),
        "message_sealed_late": Parts(assembler=SealsMessagesLate),
        "cut_not_recorded": Parts(batches=ForgetsWhatIsDone),
        "records_for_events": Parts(batches=CountsRecords),
        "small_transactions_cut": Parts(batches=CutsSmall),
        "rest_never_told": Parts(batches=NeverTellsTheRest),
        "producer_kept": Parts(sink=KeepsTheProducer),
        "unknown_taken_for_failed": Parts(sink=TakesUnknownForFailed),
        "no_fencing": Parts(sink=DoesNotFence),
        "checkpoint_before_records": Parts(sink=WritesTheCheckpointFirst),
        "checkpoint_before_records_at_least_once": Parts(sink=NotesFirstAtLeastOnce),
        "part_committed": Parts(sink=CommitsParts),
        "last_part_sent_again": Parts(sink=SendsTheLastPartAgain),
    }
)
