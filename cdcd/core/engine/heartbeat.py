"""Heartbeats: when one is due, which LSN it names, and when the operator's query is run.

The rule: a heartbeat names the position of the newest checkpoint that the broker holds. It does not name the position
of its own batch: without Kafka transactions, a heartbeat may arrive before other records of its batch, and with them
readers see the records of one Kafka transaction at moments that differ by partition. So whoever reads a heartbeat can
read every record before its LSN.

A heartbeat is a record between two transactions, in the Kafka transaction and with the checkpoint of whatever is
delivered with it. One that is made again after a crash is another one, and names no earlier LSN.

What is under way is bounded: a heartbeat is made only if the one before is delivered, and a query is run only if the
one before has ended. Neither is made up for. A session that ends, or has lost the advisory lock, begins neither.
"""

from collections.abc import Callable

from cdcd.core.engine.actions import RunHeartbeatQuery
from cdcd.core.engine.queue import Batch, BatchQueue
from cdcd.core.engine.topics import Topics
from cdcd.core.records.encoder import HEARTBEATS, Encoder, Record
from cdcd.core.transactions.position import Position


class Heartbeat:
    """Puts heartbeats into the queue, and says when the query is run. `begin` it with the stream.

    Args:
        interval_s: seconds from one heartbeat to the next, and from one query to the next.
        has_query: there is a query.
        held: the position of the newest checkpoint that the broker holds.
    """

    def __init__(
        self,
        interval_s: float,
        has_query: bool,
        *,
        encoder: Encoder,
        queue: BatchQueue,
        topics: Topics,
        held: Callable[[], Position],
    ) -> None:
        self._interval_s = interval_s
        self._has_query = has_query
        self._encoder = encoder
        self._queue = queue
        self._topics = topics
        self._held = held
        self._beat_at: float | None = None
        """When the next heartbeat is due; None: the stream has not begun."""
        self._query_at: float | None = None
        self._is_out = False
        """A heartbeat is in the queue, or on its way."""
        self._lacks_schemas = False
        """A heartbeat is due, and waits for the ids of its schemas."""
        self._is_running = False
        """The query is being run."""
        self._records: list[Record] = []

    def begin(self, now: float) -> None:
        """The stream begins. The first heartbeat is due after an interval."""
        self._beat_at = now + self._interval_s
        if self._has_query:
            self._query_at = self._beat_at

    def end(self) -> None:
        """The lock is lost: another instance may be the active one, or PostgreSQL shuts down. Begin nothing more."""
        self._beat_at = self._query_at = None

    def beat(self, now: float, unix_us: int) -> None:
        """Put a heartbeat into the queue if one is due, and if it can be delivered where the stream is."""
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
        """What the heartbeat names: everything that ends at or before is delivered."""
        return self._held().end_lsn

    def delivered(self, batch: Batch) -> None:
        """The broker holds the batch."""
        if batch.heartbeat_bytes:
            self._is_out = False

    def query(self, now: float) -> RunHeartbeatQuery | None:
        """The query, if it is due. The caller owes `query_ended`."""
        if self._query_at is None or now < self._query_at or self._is_running:
            return None
        self._is_running = True
        self._query_at = now + self._interval_s
        return RunHeartbeatQuery()

    def query_ended(self) -> None:
        """The query was run, or has failed."""
        self._is_running = False

    def next_at(self) -> float | None:
        """When something is due if nothing is reported before; None: something must be reported first."""
        times = []
        waits = self._is_out or self._lacks_schemas or not self._queue.between
        if self._beat_at is not None and not waits:
            times.append(self._beat_at)
        if self._query_at is not None and not self._is_running:
            times.append(self._query_at)
        return min(times, default=None)
