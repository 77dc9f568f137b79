"""Decides when watermarks are sent, which LSN they have, and to which topics of tables they go.

A watermark is a record without key and value, in every partition of a topic. Every change of the partition that was
committed before the watermark's LSN stands before the watermark.

The rule: the LSN of a watermark is the position of the newest checkpoint that the broker holds. When that
checkpoint was acknowledged, every record before it had its offset, in every partition, and also without Kafka
transactions. So a watermark that is produced later stands behind all of them, even if a producer sends some of them
again. The LSN is not the position of the watermark's own batch, because without Kafka transactions, a batch that is
sent again may already be there in part.

The engine knows only the topics. The sink finds the number of partitions when it produces the watermarks
(`kafka/partitions.py`), because partitions may be added at any time.

At most one round of watermarks is under way: the next one is made only after the last one was delivered and the
position has advanced. A session that ends, or that has lost the advisory lock, makes no watermarks.
"""

from collections.abc import Callable

from cdcd.core.engine.queue import Batch, BatchQueue, Watermark
from cdcd.core.transactions.position import Position


class Watermarks:
    """Puts watermarks into the queue. Call `begin` when the stream begins.

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

    def begin(self, now: float) -> None:
        """Note that the stream begins. The first watermarks are due after one interval."""
        self._due_at = now + self._interval_s

    def end(self) -> None:
        """Make no more watermarks, because the advisory lock is lost: another instance may be active."""
        self._due_at = None

    def mark(self, now: float) -> None:
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

    def delivered(self, batch: Batch) -> None:
        """Note that the broker holds the batch."""
        if batch.watermark is not None:
            self._is_out = False

    def next_at(self) -> float | None:
        """Return when watermarks are due if nothing is reported before; None if something must be reported first."""
        return None if self._waits() else self._due_at
