"""Which batch is being delivered, and which checkpoint is valid once the broker holds it.

The rule: only one batch is delivered at a time. Its checkpoint is made when the batch is taken, and becomes the
session's checkpoint when the broker holds the batch. Only then are the ledger's tickets of the batch acknowledged,
so that PostgreSQL may discard the WAL for them.
"""

from collections.abc import Callable
from dataclasses import replace

from cdcd.core.catalog.bindings import Bindings
from cdcd.core.engine.actions import Ship
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.records.encoder import Record
from cdcd.core.transactions.ledger import Ledger

Notes = Callable[[tuple[AsideTable, ...], tuple[AsideTable, ...], int], list[Record]]
"""Returns records that say which tables are set aside: by the former checkpoint, by the next one, and its LSN."""


class Delivery:
    """Takes batches out of the queue: the caller calls `next_batch` and `settle` by turns.

    Args:
        notes: makes the records of tables that are set aside, which go out with the first checkpoint that has them;
            None if there is no topic for them.
        made_topics: returns the topics that rows of outbox tables have made; None if there is no outbox.

    Attributes:
        checkpoint: the newest checkpoint that the broker holds.
        has_shipped: whether a batch with rows or changes was taken so far, delivered or not. Batches with only
            progress or descriptions do not count.
        rows, transactions: number of delivered rows (including those that snapshots read) and transactions. A part
            of a transaction counts when the transaction's last part is delivered, because until then the next
            session may deliver it again.
    """

    def __init__(
        self,
        queue: BatchQueue,
        ledger: Ledger,
        start: Checkpoint,
        bindings: Bindings | None = None,
        notes: Notes | None = None,
        made_topics: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self._notes = notes
        self._made_topics = made_topics
        self._noted = start.tables
        """The tables that are set aside as the schemas topic says."""
        self._renews_notes = bool(start.tables)
        """True until the first batch, which names all tables that are set aside, because somebody else may have written
        or removed their records."""
        self.checkpoint = start
        self.has_shipped = False
        self.rows = 0
        self.transactions = 0
        self._rows_of_parts = 0
        self._bindings = Bindings() if bindings is None else bindings
        self._queue = queue
        self._ledger = ledger
        self._out: Batch | None = None
        self._again: Batch | None = None
        """A batch that is delivered again without the records that Kafka refused."""
        self._shipped = start
        ledger.limit = start.flushed_lsn

    @property
    def is_out(self) -> bool:
        """True if a batch is being delivered."""
        return self._out is not None or self._again is not None

    def next_batch(self, now: float) -> Ship | None:
        """Return the batch to deliver now, with its checkpoint; None if none is due, or one is being delivered."""
        if self._out is not None:
            return None
        batch = self._again
        if batch is None:
            due = self._queue.due_at(now)
            if due is None or due > now:
                return None
            batch = self._queue.cut_batch(now)
        self._again = None
        self._out = batch
        self.has_shipped = self.has_shipped or self._has_content(batch)
        if not batch.closes:
            return Ship(batch, self.checkpoint)
        if self._notes is not None and (batch.tables != self._noted or self._renews_notes):
            self._note(batch, self._notes)
        self._ledger.send(batch.position.end_lsn)
        flushed = self._ledger.flushed_with(batch.tickets)
        self._shipped = replace(
            self.checkpoint.moved(batch.position, flushed),
            snapshot=batch.snapshot,
            tables=batch.tables,
            bindings=self._bindings.text(batch.position.end_lsn),
            topics=() if self._made_topics is None else self._made_topics(),
        )
        return Ship(batch, self._shipped)

    def _note(self, batch: Batch, notes: Notes) -> None:
        """Add records of the tables that are set aside, or came back, to the first batch whose checkpoint says so."""
        former = self._noted
        if self._renews_notes:
            oids = {each.oid for each in batch.tables}
            former = tuple([each for each in former if each.oid not in oids])
        self._queue.note(batch, notes(former, batch.tables, batch.position.end_lsn))
        self._noted = batch.tables
        self._renews_notes = False

    def _has_content(self, batch: Batch) -> bool:
        before, after = self.checkpoint.snapshot, batch.snapshot
        rows = 0 if after is None else after.event_no - (0 if before is None else before.event_no)
        return not batch.closes or rows > 0 or batch.position != self.checkpoint.position

    def next_at(self, now: float) -> float | None:
        """Return when `next_batch` has a batch if nothing else happens before."""
        if self._again is not None:
            return now
        return None if self._out is not None else self._queue.due_at(now)

    def refused(self, batch: Batch) -> None:
        """Note that Kafka refused records of the batch, which were removed from it.

        Nothing of the batch is delivered.
        """
        assert batch is self._out
        self._out, self._again = None, batch

    def settle(self, batch: Batch) -> None:
        """Note that the broker holds the batch, and also its checkpoint if the batch closes its Kafka transaction."""
        assert batch is self._out
        self._out = None
        self._queue.release(batch)
        self._rows_of_parts += batch.rows
        if batch.closes:
            self.rows += self._rows_of_parts
            self._rows_of_parts = 0
            self.checkpoint = self._shipped
            self._ledger.limit = self.checkpoint.flushed_lsn
            self.transactions += len(batch.commit_times)
            for ticket in batch.tickets:
                self._ledger.ack(ticket)
