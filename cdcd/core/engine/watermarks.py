"""Watermarks in the topics of tables: when they are due, which LSN they name, and to which topics they go.

A watermark is a record without key and value in every partition of a topic. It says that every change of the partition
that was committed before an LSN stands before it.

The rule: a watermark names the position of the newest checkpoint that the broker holds. When that checkpoint was
acknowledged, every record that it covers had its offset, in every partition and also without Kafka transactions. So a
watermark that is produced later stands behind all of them, whatever is sent again, by whichever producer. It names no
position of its own batch, because a batch that is sent again without Kafka transactions may be there in part.

What the engine knows is the topics. How many partitions a topic has is the sink's to ask when it produces the
watermarks (`kafka/marking.py`), because partitions may be added at any time.

What is under way is bounded: watermarks are made only if those before are delivered, and only if the position has
moved. A session that ends, or has lost the advisory lock, makes none.
"""

from collections.abc import Callable

from cdcd.core.engine.queue import Batch, BatchQueue, Watermark
from cdcd.core.transactions.position import Position


class Watermarks:
    """Puts watermarks into the queue. `begin` it with the stream.

    Args:
        interval_s: seconds from one round of watermarks to the next.
        held: the position of the newest checkpoint that the broker holds.
        topics: the topics of tables that may have watermarks by now.
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
        """When the next watermarks are due; None: the stream has not begun."""
        self._is_out = False
        """Watermarks are in the queue, or on their way."""
        self._last = 0
        """What the last ones named."""

    def begin(self, now: float) -> None:
        """The stream begins. The first watermarks are due after an interval."""
        self._due_at = now + self._interval_s

    def end(self) -> None:
        """The lock is lost: another instance may be the active one. Make nothing more."""
        self._due_at = None

    def mark(self, now: float) -> None:
        """Put watermarks into the queue if they are due, and if they can be delivered where the stream is."""
        if self._due_at is None or now < self._due_at or self._waits():
            return
        self._is_out = True
        self._due_at = now + self._interval_s
        self._last = self._lsn()
        self._queue.mark(Watermark(self._last, self._topics()))

    def _waits(self) -> bool:
        """Whether something must be reported before there is anything to say."""
        return self._is_out or self._lsn() <= self._last or not self._queue.between

    def _lsn(self) -> int:
        """What the watermarks name: every change with a commit LSN below it is delivered."""
        return self._held().end_lsn

    def delivered(self, batch: Batch) -> None:
        """The broker holds the batch."""
        if batch.watermark is not None:
            self._is_out = False

    def next_at(self) -> float | None:
        """When something is due if nothing is reported before; None: something must be reported first."""
        return None if self._waits() else self._due_at
