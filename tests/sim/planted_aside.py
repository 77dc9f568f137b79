"""Bugs of tables that are set aside."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from cdcd.core.catalog.bindings import Bindings
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.between_transactions import BetweenTransactions
from cdcd.core.engine.change_records import Added, ChangeRecords
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint, also_aside
from cdcd.core.engine.delivery import Delivery, Notes
from cdcd.core.engine.fates import RETRY_S, Fates
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.ingest import Ingest
from cdcd.core.engine.left_out import KeptStep, LeftOut, LeftOutTables
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.messages import Relation
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.steps import Changes


class ReturnsWithoutTheEnd(PublishedTables):
    """A table comes back without the end of its former rows."""

    def bring_back(self, oid: int, name: str) -> bool:
        ends, self._ends_rows = self._ends_rows, False
        found = super().bring_back(oid, name)
        self._ends_rows = ends
        return found


class ReturnsUnread(PublishedTables):
    """A table comes back, and its rows are not read."""

    def bring_back(self, oid: int, name: str) -> bool:
        return False


class IsNotWrittenDown(Fates):
    """The checkpoint does not say which tables are set aside."""

    def table(self) -> tuple[AsideTable, ...]:
        return ()


class ForgetsDescriptions(Fates):
    """What the stream says of a table while it is set aside is lost."""

    def describe(self, relation: Relation) -> None:
        return


class StripsTheBatchAlone(BatchQueue):
    """Records that the broker refuses stay in what waits behind the batch."""

    def strip(self, batch: Batch, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        full, self._full = self._full, type(self._full)()
        super().strip(batch, topics, refused)
        self._full = full
        for each in full:
            each.tables = also_aside(each.tables, refused)


class TakesTheTablesOfNow(BatchQueue):
    """A batch that the broker refused says which tables are set aside now, not which were when it was cut."""

    def strip(self, batch: Batch, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        super().strip(batch, topics, refused)
        for each in (batch, *self._full):
            each.tables = self._aside()


class KeepsRowsOfRefusedTopics(BatchQueue):
    """Rows that wait for a topic are sent although the topic is refused."""

    def topics_refused(self, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        self.topics_ready(topics)


class SendsTheBatchWhole(BatchQueue):
    """Records that the broker refuses are sent again."""

    def strip(self, batch: Batch, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        return


class CountsTheFaultTwice(ChangeRecords):
    """The event at fault has two numbers."""

    def _add_without(self, step: Changes, before: int, error: CdcdError) -> Added:
        done = super()._add_without(step, before, error)
        self._encoder.skip(1)
        return done


class LosesWhatFollows(Ingest):
    """The events behind the one at fault are lost."""

    def _put_back(self, step: Changes) -> None:
        super()._put_back(Changes(step.items[:1], step.in_stream))


class SetsTheHeldStepFree(Ingest):
    """The events that wait for their topic are forgotten with the table."""

    def leave(self, oid: int) -> Relation | None:
        self._held = None
        return super().leave(oid)


class RefusesTheRequestWhole(Fates):
    """A request to bring several tables back is refused if one of them is back already."""

    def names(self, wanted: Collection[str]) -> dict[str, int]:
        found = super().names(wanted)
        return found if len(found) == len(wanted) else {}


class ReadsOn(Incremental):
    """The rows of a table that is set aside are read and sent."""

    def leave(self, oid: int, reason: str) -> None:
        return

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._aside = {}
        self.look_ups._aside = {}


class StaysAtItsFault(Fates):
    """The checkpoint says a later place than that of the first record that was refused."""

    def set_aside(
        self, oid: int, name: str, topic: str, *, fault: str, reason: str, hint: str, lsn: int
    ) -> bool:
        if oid in self.aside:
            return False
        return super().set_aside(oid, name, topic, fault=fault, reason=reason, hint=hint, lsn=lsn)


class ComesBackWithoutAName(Fates):
    """A table whose name is not known comes back under no name."""

    def plan(self, now: float) -> None:
        super().plan(now)
        for each in self.aside.values():
            if each.retry_at is None and not each.name:
                each.retry_at = self._earliest = now + RETRY_S


class IsForgottenAtTheStart(Fates):
    """A session begins as if no table were set aside."""

    def __init__(self, start: Iterable[AsideTable], *arguments: Any, **options: Any) -> None:
        super().__init__((), *arguments, **options)


class KeepsDroppedTables(Fates):
    """A table that was dropped while it is set aside stays in the checkpoint."""

    def left(self, position: int) -> list[int]:
        return []


class LetsGoTooSoon(Fates):
    """A table that was dropped is not set aside any more while its changes still arrive."""

    def left(self, position: int) -> list[int]:
        return list(self._left)


class ReturnsInsideATransaction(BetweenTransactions):
    """A table comes back while a transaction is open."""

    def reached(self, now: float) -> None:
        self._come_back(now)
        super().reached(now)


class SendsTheRestOfTheStep(Ingest):
    """The steps that are being processed still have the events of the table."""

    def leave(self, oid: int) -> Relation | None:
        return self.relations.leave(oid)


class StripsAll(BatchQueue):
    """The records of all tables are removed from a batch that the broker refused."""

    def strip(self, batch: Batch, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        super().strip(batch, {item[0] for item in batch.records} | set(topics), refused)


class StripsOwnTopicsAlone(BatchQueue):
    """The records that routes sent to other topics of the table stay in the batch."""

    def strip(self, batch: Batch, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        super().strip(batch, [topic for topic in topics if "-" not in topic], refused)


class NotesNoReturn(Delivery):
    """The schemas topic does not say that tables came back."""

    def __init__(
        self,
        queue: BatchQueue,
        ledger: Ledger,
        start: Checkpoint,
        bindings: Bindings | None,
        notes: Notes | None,
    ) -> None:
        silent = None if notes is None else lambda _before, after, lsn: notes((), after, lsn)
        super().__init__(queue, ledger, start, bindings, silent)


class NotesNothingThatReturnsAtOnce(Delivery):
    """The schemas topic does not say that a table came back before the session's first batch."""

    def _note(self, batch: Batch, notes: Notes) -> None:
        if self._renews_notes:
            self._noted = ()
        super()._note(batch, notes)


class DropsTheRefusedBatch(Delivery):
    """A batch that the broker refused is not sent again."""

    def refused(self, batch: Batch) -> None:
        self._out = None
        self._queue.release(batch)


class LosesWhatPrecedes(ChangeRecords):
    """The records of the step before the event at fault are lost."""

    def _add_without(self, step: Changes, before: int, error: CdcdError) -> Added:
        self._current.records.clear()
        return super()._add_without(step, before, error)


class CountsRunsOfEvents(LeftOutTables):
    """A run of events of tables that are set aside counts as one."""

    def split(self, step: Changes) -> Iterator[KeptStep]:
        for part in super().split(step):
            yield LeftOut(1) if isinstance(part, LeftOut) else part


class StaysOut(LeftOutTables):
    """The events of a table that came back are left out."""

    def split(self, step: Changes) -> Iterator[KeptStep]:
        self._oids.update(self._aside)
        return super().split(step)
