"""Records that cdcd makes by itself, at intervals: heartbeats, and watermarks in the topics of tables.

The rule for both: the LSN is the position of the newest checkpoint that the broker holds. So a reader that has read the
record can read every change before its LSN. Heartbeats and watermarks stand between two transactions, and belong to the
Kafka transaction and the checkpoint of the batch that they are delivered with. At most one of each kind is under way: a
new one begins only after the last one was delivered. cdcd leaves out the ones that were due in the meantime. A session
that ends, or that has lost the advisory lock, makes none.

**Heartbeats.** The LSN is not the position of the heartbeat's own batch: without Kafka transactions, a heartbeat may
arrive before other records of its batch, and with them, readers see the records of one Kafka transaction at different
times in different partitions. After a crash, no heartbeat is repeated: the next one is a new one, whose LSN is not
lower.

**Watermarks.** A watermark is a record without key and value, in every partition of a topic. Every change of the
partition that was committed before the watermark's LSN stands before the watermark. When that checkpoint was
acknowledged, every record before it had its offset, in every partition, and also without Kafka transactions. So a
watermark that is produced later stands behind all of them, even if a producer sends some of them again. The LSN is not
the position of the watermark's own batch, because without Kafka transactions, a batch that is sent again may already be
there in part. The engine knows only the topics. The sink finds the number of partitions when it produces the watermarks
(`kafka/partitions.py`), because partitions may be added at any time. The next round is made only after the position has
advanced.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from cdcd.core.engine.actions import RunHeartbeatQuery
from cdcd.core.engine.batch import Batch, Watermark
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.settings import HeartbeatSettings
from cdcd.core.engine.topics import Topics
from cdcd.core.records.encoder import HEARTBEATS, Encoder, Record
from cdcd.core.transactions.position import Position


class TimedRecords(ABC):
    """One kind of these records. Call `start` when the stream begins, and `put` between two transactions."""

    @abstractmethod
    def start(self, now: float) -> None:
        """Note that the stream begins. The first record is due after one interval."""

    @abstractmethod
    def end(self) -> None:
        """Make no more records, because the advisory lock is lost: another instance may be active, or PostgreSQL shuts
        down.
        """

    @abstractmethod
    def put(self, now: float, unix_us: int) -> None:
        """Put a record into the queue if one is due and can be delivered at this point of the stream."""

    @abstractmethod
    def sent(self, batch: Batch) -> None:
        """Note that the broker holds the batch."""

    @abstractmethod
    def next_at(self) -> float | None:
        """Return when something is due if nothing is reported before; None if something must be reported first."""


class Heartbeat(TimedRecords):
    """Puts heartbeats into the queue, and tells when the query is run. Call `start` when the stream begins.

    Args:
        interval_s: seconds from one heartbeat to the next, and from one query to the next.
        has_query: whether the operator has configured a query.
        held: returns the position of the newest checkpoint that the broker holds.
    """

    def __init__(
        self,
        settings: HeartbeatSettings,
        *,
        encoder: Encoder,
        queue: BatchQueue,
        topics: Topics,
        held: Callable[[], Position],
    ) -> None:
        self._interval_s = settings.interval_s
        self._has_query = settings.has_query
        self._encoder = encoder
        self._queue = queue
        self._topics = topics
        self._held = held
        self._beat_at: float | None = None
        """When the next heartbeat is due; None if the stream has not begun."""
        self._query_at: float | None = None
        self._is_out = False
        """True if a heartbeat is in the queue or is being delivered."""
        self._lacks_schemas = False
        """True if a heartbeat is due, but its schemas are not registered yet."""
        self._is_running = False
        """True if the query is being run."""
        self._records: list[Record] = []

    def start(self, now: float) -> None:
        """Note that the stream begins. The first heartbeat is due after one interval."""
        self._beat_at = now + self._interval_s
        if self._has_query:
            self._query_at = self._beat_at

    def end(self) -> None:
        """Begin nothing more, because the advisory lock is lost: another instance may be active, or PostgreSQL shuts
        down.
        """
        self._beat_at = self._query_at = None

    def put(self, now: float, unix_us: int) -> None:
        """Put a heartbeat into the queue if one is due and can be delivered at this point of the stream."""
        if self._beat_at is None or now < self._beat_at or self._is_out or not self._queue.between:
            return
        self._lacks_schemas = not self._topics.are_registered(self._encoder.unregistered(HEARTBEATS))
        if self._lacks_schemas:
            return
        self._is_out = True
        self._beat_at = now + self._interval_s
        size = self._encoder.encode_heartbeat(self._lsn(), unix_us, self._records)
        self._queue.beat(self._records, size)

    def _lsn(self) -> int:
        """Return the LSN for a heartbeat: every transaction that ends at or before it is delivered."""
        return self._held().end_lsn

    def sent(self, batch: Batch) -> None:
        """Note that the broker holds the batch."""
        if batch.heartbeat_bytes:
            self._is_out = False

    def query(self, now: float) -> RunHeartbeatQuery | None:
        """Return the query if it is due, else None. After it, the caller must call `query_ended`."""
        if self._query_at is None or now < self._query_at or self._is_running:
            return None
        self._is_running = True
        self._query_at = now + self._interval_s
        return RunHeartbeatQuery()

    def query_ended(self) -> None:
        """Note that the query has ended or failed."""
        self._is_running = False

    def next_at(self) -> float | None:
        """Return when something is due if nothing is reported before; None if something must be reported first."""
        times = []
        waits = self._is_out or self._lacks_schemas or not self._queue.between
        if self._beat_at is not None and not waits:
            times.append(self._beat_at)
        if self._query_at is not None and not self._is_running:
            times.append(self._query_at)
        return min(times, default=None)


class Watermarks(TimedRecords):
    """Puts watermarks into the queue. Call `start` when the stream begins.

    Args:
        interval_s: seconds from one round of watermarks to the next.
        held: returns the position of the newest checkpoint that the broker holds.
        topics: returns the topics of tables that may have watermarks by now.
    """

    def __init__(
        self,
        interval_s: float,
        *,
        queue: BatchQueue,
        held: Callable[[], Position],
        topics: Callable[[], tuple[str, ...]],
    ) -> None:
        self._interval_s = interval_s
        self._queue = queue
        self._held = held
        self._topics = topics
        self._due_at: float | None = None
        """When the next watermarks are due; None if the stream has not begun."""
        self._is_out = False
        """True if watermarks are in the queue or are being delivered."""
        self._last = 0
        """The LSN of the last watermarks."""

    def start(self, now: float) -> None:
        """Note that the stream begins. The first watermarks are due after one interval."""
        self._due_at = now + self._interval_s

    def end(self) -> None:
        """Make no more watermarks, because the advisory lock is lost: another instance may be active."""
        self._due_at = None

    def put(self, now: float, unix_us: int) -> None:
        """Put watermarks into the queue if they are due and can be delivered at this point of the stream."""
        if self._due_at is None or now < self._due_at or self._waits():
            return
        self._is_out = True
        self._due_at = now + self._interval_s
        self._last = self._lsn()
        self._queue.mark(Watermark(self._last, self._topics()))

    def _waits(self) -> bool:
        """Return whether something else must be reported before watermarks can be made."""
        return self._is_out or self._lsn() <= self._last or not self._queue.between

    def _lsn(self) -> int:
        """Return the LSN for watermarks: every change with a lower commit LSN is delivered."""
        return self._held().end_lsn

    def sent(self, batch: Batch) -> None:
        """Note that the broker holds the batch."""
        if batch.watermark is not None:
            self._is_out = False

    def next_at(self) -> float | None:
        """Return when watermarks are due if nothing is reported before; None if something must be reported first."""
        return None if self._waits() else self._due_at


class Timetable:
    """The heartbeats and watermarks of a session, as far as they are configured.

    Args:
        held: returns the position of the newest checkpoint that the broker holds.
        marked: returns the topics of tables that may have watermarks by now.
    """

    def __init__(
        self,
        settings: HeartbeatSettings,
        encoder: Encoder,
        queue: BatchQueue,
        topics: Topics,
        *,
        held: Callable[[], Position],
        marked: Callable[[], tuple[str, ...]],
    ) -> None:
        self._heartbeat: Heartbeat | None = None
        self._kinds: list[TimedRecords] = []
        if settings.interval_s:
            self._heartbeat = Heartbeat(settings, encoder=encoder, queue=queue, topics=topics, held=held)
            self._kinds.append(self._heartbeat)
        if settings.watermark_s:
            self._kinds.append(Watermarks(settings.watermark_s, queue=queue, held=held, topics=marked))

    def start(self, now: float) -> None:
        """Note that the stream begins."""
        for each in self._kinds:
            each.start(now)

    def end(self) -> None:
        """Make no more records, and begin no query, because the advisory lock is lost."""
        for each in self._kinds:
            each.end()

    def put(self, now: float, unix_us: int) -> None:
        """Put the records into the queue that are due and can be delivered at this point of the stream."""
        for each in self._kinds:
            each.put(now, unix_us)

    def sent(self, batch: Batch) -> None:
        """Note that the broker holds the batch."""
        for each in self._kinds:
            each.sent(batch)

    def query(self, now: float) -> RunHeartbeatQuery | None:
        """Return the query of heartbeats if it is due, else None. After it, the caller must call `query_ended`."""
        return None if self._heartbeat is None else self._heartbeat.query(now)

    def query_ended(self) -> None:
        """Note that the query has ended or failed."""
        if self._heartbeat is not None:
            self._heartbeat.query_ended()

    def next_at(self) -> float | None:
        """Return when something is due if nothing is reported before; None if something must be reported first."""
        times = [at for each in self._kinds if (at := each.next_at()) is not None]
        return min(times, default=None)
