"""Batches of records for Kafka, which end only where readers may see a transaction end.

The rule: a `read_committed` reader sees a source transaction wholly or not at all. So a Kafka transaction ends
where a source transaction ends. Only a source transaction with more than `whole_bytes_max` of records is cut, after
an event, and the position says after which one. Small source transactions share a Kafka transaction. A large one is
handed over in several batches, so that memory stays bounded; all of these but the last leave the Kafka transaction
open (`Batch.closes`).

A batch has the position that is valid once its Kafka transaction is committed, and the ledger's tickets that are
acknowledged then. It also carries the progress of snapshots, which is taken when the batch ends, after its last
record.

A batch without records still advances the position, after keepalives and after transactions that changed no
published table. Such a batch waits up to `idle_s` for records, so that an idle database costs only a small write
now and then. It does not wait if it is the end of a transaction that was cut right after its last event.

Rows of the initial snapshot are added while their topics are being created. A batch with such rows, and with it every
later batch, waits until its topics are ready.

Back-pressure begins here: while `room` is false, neither the socket nor tables are read.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from cdcd.core.engine.batch import PART, Batch, Watermark
from cdcd.core.engine.checkpoint import AsideTable, also_aside
from cdcd.core.engine.context import Traced
from cdcd.core.engine.settings import BatchSettings
from cdcd.core.records.encoder import Record, record_bytes
from cdcd.core.records.late_records import LateRecords
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Counts, Position

TICKETS_MAX: Final = 4096
"""A batch without records is due at once when it has this many tickets, which bounds the memory of its tickets."""


AWAITED_MAX: Final = 250
"""A batch ends when its records wait for this many topics, so that it need not wait for the topics of all tables."""


class BatchQueue:
    """A queue of batches with a limit in bytes. It is filled while `room` is true; `cut_batch` returns the next batch.

    Between `begin` and `close`, `enqueue` brings the records of a transaction. Only one batch is delivered at a time,
    and the caller reports it by `release`.

    Args:
        limits: when a batch ends, when a transaction is cut, and when there is no `room`.
        idle_s: how long a batch without records may wait.
        progress: returns the progress of snapshots, which counts all rows that were added so far.
        before_cut: called before a part of a transaction counts as delivered by itself.
        counts: returns how many records of the open transaction were added so far, by table.
        aside: returns the tables that are set aside.
    """

    def __init__(
        self,
        position: Position,
        limits: BatchSettings,
        *,
        idle_s: float,
        progress: Callable[[], Progress | None] = lambda: None,
        before_cut: Callable[[], None] = lambda: None,
        counts: Callable[[], Counts] = lambda: (),
        aside: Callable[[], tuple[AsideTable, ...]] = lambda: (),
    ) -> None:
        bytes_max, queue_bytes_max, whole_bytes_max = (
            limits.bytes_max,
            limits.queue_bytes_max,
            limits.whole_bytes_max,
        )
        assert bytes_max <= queue_bytes_max, "a batch must fit into the queue"
        self.size = 0
        self.waiting = 0
        """Number of records that wait or are being delivered; `size` has their bytes."""
        self._bytes_max = bytes_max
        self._part_bytes = max(bytes_max, min(PART * bytes_max, queue_bytes_max // 2))
        self._records_max = limits.records_max
        self.is_transactional = whole_bytes_max is not None
        """True if records are delivered in Kafka transactions."""
        self._whole_bytes_max = whole_bytes_max or 0
        self._queue_bytes_max = queue_bytes_max
        self._idle_s = idle_s
        self._progress = progress
        self._before_cut = before_cut
        self._counts = counts
        self._aside = aside
        self._asked = False
        self._taken_at = 0.0
        self._full: deque[Batch] = deque()
        self._filling = Batch(position, position)
        self._tail: list[Record | LateRecords] = []
        self._tail_has_late = False
        self._tail_count = 0
        self._tail_size = 0
        self._tail_rows = 0
        self._whole_size = 0
        self._commit_lsn = 0
        self._events_done = 0
        self._open = False
        self._cut = False
        self._idle_ticket = -1

    @property
    def room(self) -> bool:
        """True if more may be added before something is delivered."""
        return self.size < self._queue_bytes_max

    @property
    def position(self) -> Position:
        """The position after everything that was added and closed."""
        return self._filling.position

    @property
    def between(self) -> bool:
        """True if no transaction is open."""
        return not self._open

    @property
    def events_done(self) -> int:
        """Number of events of the open transaction that were added, including those that were delivered before."""
        return self._events_done

    def begin(self, commit_lsn: int, events_done: int) -> None:
        """Begin a transaction, whose first `events_done` events are delivered already."""
        self._commit_lsn = commit_lsn
        self._events_done = events_done
        self._open = True
        self._cut = False
        self._whole_size = 0

    def enqueue(self, records: list[Record], size: int, events: int, late: LateRecords | None = None) -> bool:
        """Take over `records`, which are `size` bytes for `events` events of the transaction. The list is emptied.

        Args:
            late: more records of these events, which follow the others. `size` does not include them.

        Returns:
            True if the transaction was cut here, so that readers see it in parts.
        """
        count = len(records)
        self._tail += records
        records.clear()
        if late is not None:
            count += late.count
            size += late.size
            self._tail.append(late)
            self._tail_has_late = True
        self.size += size
        self.waiting += count
        self._tail_size += size
        self._tail_count += count
        # TRUNCATE may make no record.
        self._tail_rows += min(events, count)
        self._events_done += events
        if self._tail_size < self._part_bytes and self._tail_count < self._records_max:
            return False
        return self._hand_over_part()

    def _hand_over_part(self) -> bool:
        filling = self._filling
        if self._whole_size == 0 and (filling.items or filling.tickets or filling.watermark is not None):
            # The records so far belong to other transactions, and need not wait for the end of this one.
            self._turn()
        self._whole_size += self._tail_size
        if self._whole_size < self._whole_bytes_max and not self._cut:
            self._append_tail(self._filling.position)
            self._filling.closes = False
            self._turn()
            return False
        self._cut = True
        self._before_cut()
        # All records so far belong to earlier commits, so a position within this commit is behind them.
        self._append_tail(Position(self._commit_lsn, self._commit_lsn, self._events_done, self._counts()))
        self._turn()
        return True

    def append(self, records: list[Record], size: int) -> None:
        """Take over records after the last event that belong to no event; `close` must follow. The list is emptied.

        They are never cut off from the end of the transaction: a restart behind the last event would write them
        again.
        """
        self.size += size
        self.waiting += len(records)
        self._tail_size += size
        self._tail_count += len(records)
        self._tail += records
        records.clear()

    def close(
        self,
        commit_lsn: int,
        end_lsn: int,
        commit_time: int | None,
        tickets: tuple[int, ...],
        trace: Traced | None = None,
    ) -> None:
        """Note that the transaction is complete.

        `commit_time` is None for a non-transactional message, which is no commit. `trace` is None if the transaction
        belongs to no trace.
        """
        self._open = False
        before = self._filling.position
        parted = self._whole_size > 0
        if commit_time is not None and (self._tail or parted or before.commit_lsn == commit_lsn):
            position = Position(commit_lsn, end_lsn)
            self._filling.commit_time = commit_time
            self._filling.commit_times.append(commit_time)
            if trace is not None:
                self._filling.traces.append(trace)
        else:
            position = before.moved(end_lsn)
        # Parts of the transaction are sent. Until its end is delivered, readers do not see them, or PostgreSQL keeps
        # all its WAL.
        self._filling.urgent |= parted or before.events_done > 0
        self._append_tail(position)
        self._owe(tickets)
        if self._filling.size >= self._bytes_max or self._filling.count >= self._records_max:
            self._turn()

    def roll_back(self, end_lsn: int, tickets: tuple[int, ...]) -> None:
        """Note that a prepared transaction was rolled back: move the position behind it, and
        acknowledge its tickets.
        """
        assert not self._open, "it is rolled back between transactions"
        self._filling.position = self._filling.position.moved(end_lsn)
        self._owe(tickets)

    def advance(self, ledger: Ledger, wal_end: int, *, asked: bool) -> None:
        """Note a keepalive between transactions: everything before `wal_end` is decoded.

        `asked` means that the next batch must not wait.
        """
        assert not self._open, "a keepalive counts between transactions only"
        # After a restart, the checkpoint in Kafka may be ahead of the position that was reported to PostgreSQL.
        idle = ledger.is_last(self._idle_ticket)
        untold = wal_end > ledger.flushed and (idle or not ledger.open_entries)
        if untold or wal_end > self._filling.position.end_lsn:
            if not idle:
                self._idle_ticket = ledger.open()
                self._filling.tickets.append(self._idle_ticket)
            ledger.seal(self._idle_ticket, wal_end)
            self._filling.position = self._filling.position.moved(wal_end)
        self._asked |= asked and wal_end > ledger.flushed

    def insert(self, records: list[Record], size: int, rows: int = 0, awaits: Collection[str] = ()) -> None:
        """Take over records of a snapshot, `size` bytes for `rows` rows, between two transactions.

        The progress already counts these rows.

        Args:
            awaits: topics of the records that are not ready. `topics_ready` or `topics_refused` must follow.
        """
        assert not self._open, "rows of a snapshot stand between transactions"
        self.size += size
        self.waiting += len(records)
        filling = self._filling
        filling.items += records
        filling.size += size
        filling.rows += rows
        filling.urgent = True
        filling.awaits.update(awaits)
        records.clear()
        if (
            filling.size >= self._bytes_max
            or filling.count >= self._records_max
            or len(filling.awaits) >= AWAITED_MAX
        ):
            self._turn()

    def topics_ready(self, topics: Collection[str]) -> None:
        """Note that records may go to these topics."""
        for each in (*self._full, self._filling):
            each.awaits.difference_update(topics)

    def topics_refused(self, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        """Remove the records that wait for these topics.

        Args:
            refused: the tables that have these topics, and are set aside.
        """
        waiting = (*self._full, self._filling)
        if any(not each.awaits.isdisjoint(topics) for each in waiting):
            self._strip(waiting, topics, refused)

    def beat(self, records: list[Record], size: int) -> None:
        """Take over a heartbeat of `size` bytes between two transactions. The list is emptied."""
        self._filling.heartbeat_bytes = size
        self.insert(records, size)

    def mark(self, watermark: Watermark) -> None:
        """Take over watermarks, between two transactions."""
        assert not self._open, "watermarks stand between transactions"
        self._filling.watermark = watermark
        self._filling.urgent = True

    def touch(self) -> None:
        """Note that the progress of snapshots has changed, so that it is delivered soon, even without records."""
        self._filling.urgent = True

    def due_at(self, now: float) -> float | None:
        """Return when a batch may be taken; None if there is nothing to take."""
        if self._full:
            return None if self._full[0].awaits else now
        filling = self._filling
        if filling.awaits:
            return None
        if self._open and self._whole_size and not self._cut:
            # This batch must not end the Kafka transaction that is open.
            return None
        if filling.items or filling.urgent or len(filling.tickets) >= TICKETS_MAX:
            return now
        if not filling.tickets:
            return None
        return now if self._asked else self._taken_at + self._idle_s

    def cut_batch(self, now: float) -> Batch:
        """Return the next batch; call it when `due_at` says so, and `release` when the broker holds the batch."""
        if not self._full:
            self._turn()
        self._taken_at = now
        self._asked = False
        return self._full.popleft()

    def strip(self, batch: Batch, topics: Collection[str], refused: Collection[AsideTable]) -> None:
        """Remove the records of these topics from `batch`, which was taken, and from everything that waits.

        A table that is set aside as of a batch stays so there, although it may have come back in a later one, because
        only that one has the progress with which the table is read.

        Args:
            refused: the tables that have these topics, and are set aside.
        """
        self._strip((batch, *self._full, self._filling), topics, refused)
        tail = Batch(self._filling.base, self._filling.base, items=self._tail, size=self._tail_size)
        size, count = tail.strip(topics)
        self._tail, self._tail_size = tail.items, tail.size
        self._tail_count -= count
        self.size -= size
        self.waiting -= count

    def _strip(
        self, batches: Collection[Batch], topics: Collection[str], refused: Collection[AsideTable]
    ) -> None:
        for each in batches:
            if each is not self._filling:
                each.tables = also_aside(each.tables, refused)
            each.awaits.difference_update(topics)
            size, count = each.strip(topics)
            self.size -= size
            self.waiting -= count

    def note(self, batch: Batch, records: list[Record]) -> None:
        """Add these records to `batch`, which was taken and is not handed over yet."""
        size = sum([record_bytes(key, value, None) for _, key, value, _ in records])
        batch.items += records
        batch.size += size
        self.size += size
        self.waiting += len(records)

    def release(self, batch: Batch) -> None:
        """Note that the broker holds the batch, so its bytes do not count any more."""
        self.size -= batch.size
        self.waiting -= batch.count

    def _owe(self, tickets: tuple[int, ...]) -> None:
        self._filling.tickets.extend(tickets)
        self._idle_ticket = -1

    def _append_tail(self, position: Position) -> None:
        filling = self._filling
        if filling.items:
            filling.items += self._tail
            self._tail.clear()
        else:
            # The list itself is used instead of a copy, because most records of a large transaction are no longer in
            # the processor's caches.
            filling.items = self._tail
            self._tail = []
        filling.has_late = filling.has_late or self._tail_has_late
        self._tail_has_late = False
        self._tail_count = 0
        filling.size += self._tail_size
        filling.rows += self._tail_rows
        filling.position = position
        self._tail_size = self._tail_rows = 0

    def _turn(self) -> None:
        before = self._filling
        before.snapshot = self._progress()
        before.tables = self._aside()
        self._full.append(before)
        self._filling = Batch(before.position, before.position)
        self._idle_ticket = -1
