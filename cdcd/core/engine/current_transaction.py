"""The transaction whose events are being put into the queue: its numbers, its records, and its effects on the daemon.

The rule: effects of a transaction on the daemon (a request, or a name that goes to another table) are applied when its
events count as delivered, so that they are repeated after a restart in between.
"""

from collections.abc import Callable

from cdcd.core.engine.context import Headers, add_headers, traced
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.topics import Topics
from cdcd.core.facts import Observer
from cdcd.core.facts.transactions import TransactionLarge
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.core.records.encoder import Encoder, Record, record_bytes
from cdcd.core.records.late_records import LateRecords
from cdcd.core.transactions.steps import Closed, Opened


class CurrentTransaction:
    """The open transaction, or the last one. The caller fills `records` and calls `submit` for each part of its events.

    Attributes:
        records: the records that the next `submit` moves into the queue.
        unix_us: the wall clock of the turn, in microseconds since 1970.
        xid, commit_lsn: of the transaction that was opened last.
        cuts: number of transactions that were cut because they were larger than a Kafka transaction may be.
        context_bytes: bytes of the headers that the transaction's context adds to each record; 0 without a context.
    """

    def __init__(
        self,
        encoder: Encoder,
        queue: BatchQueue,
        topics: Topics,
        observe: Observer,
        *,
        schemas_topic: str | None = None,
    ) -> None:
        self.encoder = encoder
        self.queue = queue
        self.records: list[Record] = []
        self.unix_us = 0
        self.xid = 0
        self.commit_lsn = 0
        self.cuts = 0
        self._topics = topics
        self.observe = observe
        self._metadata = encoder.metadata
        self._start = queue.position
        self._whole: Opened | None = None
        """The open transaction, until the queue ends a batch inside it. None: no transaction is open, or it was cut."""
        self._effects: list[Callable[[], None]] = []
        self._context: Headers = []
        self.context_bytes = 0
        self._schemas_topic = schemas_topic
        """Topic of descriptions of tables, which are no records of the transaction."""

    @property
    def place_lsn(self) -> int:
        """Return the commit LSN of the open transaction, or between two transactions, the end of the last one."""
        return self.queue.position.end_lsn if self.queue.between else self.commit_lsn

    def open(self, step: Opened) -> None:
        """Begin a transaction. The events that `step.skip` counts are delivered already."""
        self._whole = step
        self.xid = step.xid
        self.commit_lsn = step.commit_lsn
        self.use_context([])
        self.encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
        if step.skip:
            self.encoder.skip(step.skip)
            if self._metadata is not None:
                self._metadata.restore(self._start.counts)
        self.queue.begin(step.commit_lsn, step.skip)

    def use_context(self, headers: Headers) -> None:
        """Add these headers to the records of the transaction's following events."""
        self._context = headers
        self.context_bytes = record_bytes(None, None, headers)

    def _add_context(self) -> int:
        """Add the headers of the context to `records`, and return the bytes that were added."""
        added = 0
        for place, (topic, key, value, headers) in enumerate(self.records):
            if topic != self._schemas_topic:
                found = add_headers(headers, self._context)
                self.records[place] = (topic, key, value, found)
                added += record_bytes(None, None, found) - record_bytes(None, None, headers)
        return added

    def submit(self, size: int, count: int, late: LateRecords | None = None) -> None:
        """Move `records`, which are `size` bytes for `count` events, into the queue, and `late` behind them."""
        if self.context_bytes:
            size += self._add_context()
        if self.queue.enqueue(self.records, size, count, late):
            self.cut()

    def leave_out(self, count: int) -> None:
        """Count events that have no records."""
        self.encoder.skip(count)
        self.submit(0, count)

    def cut(self) -> None:
        """Note that the queue ended a batch inside the transaction."""
        if self._whole is None:
            return
        whole, self._whole = self._whole, None
        if self.queue.is_transactional:
            self.cuts += 1
            self.observe(TransactionLarge(xid=whole.xid, commit_lsn=whole.commit_lsn))

    def close(self, step: Closed) -> None:
        """End the transaction: its effects are applied, and its last batch has the position behind it."""
        if self._effects:
            self.apply_effects()
        if self._metadata is not None:
            size = self._metadata.ended(self.records)
            if self.context_bytes:
                size += self._add_context()
            self.queue.append(self.records, size)
        trace = None
        if self.context_bytes:
            trace = traced(self._context, self.xid, step.commit_lsn, step.commit_time + POSTGRES_EPOCH_US)
        self.queue.close(step.commit_lsn, step.end_lsn, step.commit_time, step.tickets, trace)

    def defer(self, effect: Callable[[], None]) -> None:
        """Call `effect` when the transaction's events up to here count as delivered."""
        self._effects.append(effect)

    def apply_effects(self) -> None:
        """Apply the effects of the transaction on the daemon, because its events count as delivered from here on."""
        effects, self._effects = self._effects, []
        for apply in effects:
            apply()

    def has_schemas(self, of: int) -> bool:
        """Return whether the records of logical messages, or of transactions, have the ids of their schemas; those that
        are lacking are requested.
        """
        return self._topics.are_registered(self.encoder.unregistered(of))
