"""Decides when a heartbeat is sent, which LSN it has, and when the operator's heartbeat query is run.

The rule: the LSN of a heartbeat is the position of the newest checkpoint that the broker holds. It is not the
position of the heartbeat's own batch: without Kafka transactions, a heartbeat may arrive before other records of
its batch, and with them, readers see the records of one Kafka transaction at different times in different
partitions. So a reader that has read a heartbeat can read every record before its LSN.

A heartbeat stands between two transactions, and belongs to the Kafka transaction and the checkpoint of the batch
that it is delivered with. After a crash, no heartbeat is repeated: the next one is a new one, whose LSN is not
lower.

At most one heartbeat and one query are under way: a new one begins only after the last one was delivered or has
ended. Those that were due in the meantime are left out. A session that ends, or that has lost the advisory lock,
begins no heartbeat and no query.
"""

from collections.abc import Callable

from cdcd.core.engine.actions import RunHeartbeatQuery
from cdcd.core.engine.queue import Batch, BatchQueue
from cdcd.core.engine.settings import HeartbeatSettings
from cdcd.core.engine.topics import Topics
from cdcd.core.records.encoder import HEARTBEATS, Encoder, Record
from cdcd.core.transactions.position import Position


class Heartbeat:
    """Puts heartbeats into the queue, and tells when the query is run. Call `begin` when the stream begins.

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

    def begin(self, now: float) -> None:
        """Note that the stream begins. The first heartbeat is due after one interval."""
        self._beat_at = now + self._interval_s
        if self._has_query:
            self._query_at = self._beat_at

    def end(self) -> None:
        """Begin nothing more, because the advisory lock is lost: another instance may be active, or PostgreSQL shuts
        down.
        """
        self._beat_at = self._query_at = None

    def beat(self, now: float, unix_us: int) -> None:
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

    def delivered(self, batch: Batch) -> None:
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
