"""A batch: the records that one Kafka transaction delivers, and the place in the stream behind them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, cast

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.engine.context import Traced
from cdcd.core.records.encoder import Record, record_bytes
from cdcd.core.records.late_records import LateRecords, Produce
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.position import Position

GIVEN_AWAY: Final[Record] = ("", None, None, None)
"""Placeholder in a batch for a record that `Batch.give_away` has freed."""

PART: Final = 3
"""Size of the batches of a large transaction, as a multiple of `bytes_max`, if the queue has room for two of them.

Larger batches are cheaper, because each batch has a fixed cost, and no reader waits for a part of a transaction.
"""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A record without key and value for every partition of these topics, with the LSN in a header.

    Every change that was committed before the LSN stands before it in its partition (`engine/timed_records.py`).
    """

    lsn: int
    topics: tuple[str, ...]


@dataclass(slots=True)
class Batch:
    """Records for one Kafka transaction, or a part of them.

    Attributes:
        base, position: the positions before and after the batch.
        items: the records, of which some may be made when they are handed over. To look at records, use `records`.
        has_late: whether `items` has records that are made when they are handed over.
        size: bytes of all keys and values.
        rows: number of changes and of snapshot rows whose records it has.
        tickets: the ledger's tickets that are acknowledged with this batch.
        commit_time: time of the last commit in the batch, in microseconds since PostgreSQL's epoch; None if it has
            no commit.
        commit_times: times of all commits in the batch that have records, in the same unit.
        traces: the transactions among them whose context names a trace.
        snapshot: progress of reading tables at the end of this batch.
        tables: the tables that are set aside with this batch.
        urgent: the batch does not wait for records.
        heartbeat_bytes: bytes of the heartbeat that are part of `size`; 0 if there is none.
        watermark: the watermarks that the sink adds after the records; None if there are none. They are not part of
            `records` and `size`.
        marks: number of watermark records that the sink added, for the metrics.
        closes: whether the Kafka transaction ends with this batch. If it does not, the next batch belongs to the
            same Kafka transaction, and `position` is still the position before it.
        handed_over: number of records that `hand_over` and `give_away` have passed to the producer.
        topics: the topics of the records that were handed over.
        awaits: topics of records that were added before their topics were ready. The batch is not taken before.
    """

    base: Position
    position: Position
    items: list[Record | LateRecords] = field(default_factory=list)
    has_late: bool = False
    size: int = 0
    rows: int = 0
    tickets: list[int] = field(default_factory=list)
    commit_time: int | None = None
    commit_times: list[int] = field(default_factory=list)
    traces: list[Traced] = field(default_factory=list)
    snapshot: Progress | None = None
    tables: tuple[AsideTable, ...] = ()
    urgent: bool = False
    heartbeat_bytes: int = 0
    watermark: Watermark | None = None
    marks: int = 0
    closes: bool = True
    handed_over: int = 0
    topics: set[str] = field(default_factory=set)
    awaits: set[str] = field(default_factory=set)

    @property
    def records(self) -> list[Record]:
        """All records of the batch.

        To replace a record that is handed over later, the caller replaces it in this list.
        """
        if self.has_late:
            made: list[Record | LateRecords] = []
            for item in self.items:
                if not isinstance(item, LateRecords):
                    made.append(item)
                elif item.is_forgotten:
                    made += [GIVEN_AWAY] * item.count
                else:
                    made += item.records()
            self.items = made
            self.has_late = False
        return cast("list[Record]", self.items)

    @property
    def count(self) -> int:
        """Number of records."""
        if not self.has_late:
            return len(self.items)
        return sum([item.count if isinstance(item, LateRecords) else 1 for item in self.items])

    def has_larger(self, bytes_max: int) -> bool:
        """Return whether key, value and headers of a record have more than `bytes_max` bytes together."""
        for item in self.items:
            if isinstance(item, LateRecords):
                if item.largest > bytes_max:
                    return True
            elif record_bytes(item[1], item[2], item[3]) > bytes_max:
                return True
        return False

    def hand_over(self, produce: Produce) -> None:
        """Pass the records from index `handed_over` on to `produce`.

        If `produce` raises, `handed_over` is the index of the record that it refused.
        """
        self._hand_over(produce, -1)

    def give_away(self, produce: Produce, keep_over: int) -> None:
        """Hand records over like `hand_over`, and free each record that `produce` has taken.

        Call this method only for records that are never sent again. Freeing a record while it is in the processor's
        cache, so that the next one takes its memory, saves a seventh of the time for a large transaction.

        Args:
            keep_over: a record whose key and value have more bytes than this is kept, so that it is still there if
                it is refused for its size.
        """
        self._hand_over(produce, keep_over)

    def strip(self, topics: Collection[str]) -> tuple[int, int]:
        """Remove the records of these topics, and return their bytes and their number."""
        gone: list[Record | LateRecords] = []
        kept: list[Record | LateRecords] = []
        for item in self.items:
            topic = item.topic if isinstance(item, LateRecords) else item[0]
            (gone if topic in topics else kept).append(item)
        self.items = kept
        if self.watermark is not None:
            left = tuple([topic for topic in self.watermark.topics if topic not in topics])
            self.watermark = Watermark(self.watermark.lsn, left)
        size, count = sizes(gone)
        self.size -= size
        self.rows = max(0, self.rows - count)
        return size, count

    def _hand_over(self, produce: Produce, keep_over: int) -> None:
        """Pass the records to `produce`, and free the records of at most `keep_over` bytes; -1 frees no record.

        The loop is in this module and not in the caller's, because this module is compiled.
        """
        items = self.items
        last = ""
        # These are the numbers of records before the item.
        before = first = 0 if self.has_late else self.handed_over
        # The loop goes by index, because a copy of the list would touch each record again, long after it was made.
        for index in range(first, len(items)):
            item = items[index]
            if isinstance(item, LateRecords):
                self._hand_over_late(item, before, produce, keep_over)
                before += item.count
                continue
            before += 1
            if before <= self.handed_over:
                continue
            topic, key, value, headers = item
            assert topic, "a record that was given away is never sent again"
            if headers is None:
                produce(topic, value, key)
            else:
                produce(topic, value, key, headers=list(headers))
            if topic is not last:
                last = topic
                self.topics.add(topic)
            if keep_over >= 0 and record_bytes(key, value, headers) <= keep_over:
                items[index] = GIVEN_AWAY
            self.handed_over = before

    def _hand_over_late(self, late: LateRecords, before: int, produce: Produce, keep_over: int) -> None:
        """Hand over the rest of `late`, whose first record is preceded by `before` records in the batch."""
        done = self.handed_over - before
        if done >= late.count:
            return
        assert not late.is_forgotten, "records that were given away are never sent again"
        try:
            late.hand_over(produce, done)
        finally:
            self.handed_over = before + late.handed_over
        self.topics.add(late.topic)
        if late.largest <= keep_over:
            late.forget()


def sizes(items: Iterable[Record | LateRecords]) -> tuple[int, int]:
    """Return the bytes of keys and values, and the number of records."""
    size = count = 0
    for item in items:
        if isinstance(item, LateRecords):
            size += item.size
            count += item.count
        else:
            _, key, value, _ = item
            size += record_bytes(key, value, None)
            count += 1
    return size, count
