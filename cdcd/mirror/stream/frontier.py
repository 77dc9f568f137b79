"""How far a topic with several partitions can be applied: up to where nothing earlier can still be unread.

A key's changes may lie in several partitions: partitions were added, a key column was renamed, the key itself changed.
Of such a key a later change must not be applied before an earlier one, for a table does not remember what it deleted.
The rule: a change is applied when every partition has been read past its commit LSN.

The daemon's checkpoints tell how far that is. A checkpoint covers an LSN when the broker has all records up to there,
and becomes visible in the same transaction as the last of them. Kafka ends a producer's transaction in all partitions
before the next one begins, so a reader sees all that the last checkpoint but one covers, and what the last one covers
as soon as no transaction is open. Where a partition is not read to its end, its next record tells.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.records.encoder import HEADER_NEW_KEY, HEADER_OLD_KEY
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.platform.kafka_admin import Admin, records_gone
from cdcd.mirror.records.changes import head, header
from cdcd.mirror.stream.consistency import newest_checkpoints
from cdcd.mirror.targets.state import At

PEEK: Final = 64
"""Number of offsets that are read first to find a partition's next record. If they hold none, more are read."""


@dataclass(frozen=True, slots=True)
class Tip:
    """Where a topic ends by now.

    Attributes:
        ends: the offset after the last committed record of each partition.
        complete_lsn: all of the topic that committed at or before it lies before `ends`.
    """

    ends: Offsets
    complete_lsn: int


@dataclass(slots=True)
class Tips:
    """The tips of topics. The first question looks up all of `topics` together. Any thread may ask."""

    look: Callable[[Sequence[str]], Mapping[str, Tip]]
    topics: Sequence[str]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[str, Tip] = field(default_factory=dict)

    def of(self, topic: str) -> Tip:
        """The tip of a topic. SinkError: it is not there any more."""
        with self._lock:
            if topic not in self._found:
                together = not self._found and topic in self.topics
                self._found |= self.look(self.topics if together else [topic])
            tip = self._found.get(topic)
        if tip is None:
            raise records_gone(f"there is no topic {topic}")
        return tip


def look_up_tips(
    spark: SparkSession, source: KafkaSource, admin: Admin, checkpoint: str, topics: Sequence[str]
) -> dict[str, Tip]:
    """The tips of these topics.

    Args:
        checkpoint: the topic of the daemon's checkpoints.

    Raises:
        SinkError: it is not there, or Kafka refuses.
        PositionError: it has something else.
    """
    last, former = newest_checkpoints(spark, source, admin, checkpoint)
    written, ends = admin.both_ends(topics)
    return {
        topic: Tip(there, complete(last.end_lsn, former.end_lsn, there, written.get(topic, {})))
        for topic, there in ends.items()
    }


def complete(last: int, former: int, ends: Offsets, written: Offsets) -> int:
    """The LSN up to which all of a topic lies before `ends`.

    Args:
        last: what the newest checkpoint covers.
        former: what the newest checkpoint of an earlier transaction covers.
        ends: of committed records, looked up after the checkpoints.
        written: of all records, looked up between the two.
    """
    is_open = any(ends.get(partition, 0) < end for partition, end in written.items())
    return former if is_open else last


def first_change(
    spark: SparkSession, source: KafkaSource, topic: str, start: Offsets, ends: Offsets
) -> At | None:
    """Find the bound (`Reach.bound`) that the next records of partitions set. None: there are no more records.

    Args:
        start: by partition, the offset of the first record that is not read yet.
        ends: by partition, the offset after the last record. A partition that was read to its end is left out.
    """
    found: list[At] = []
    left, reach = dict(ends), PEEK
    while left:
        until = {partition: min(end, start[partition] + reach) for partition, end in left.items()}
        rows = _firsts(source.read(spark, topic, start, until)).collect()
        found += [(row["at"]["lsn"], row["at"]["event"] - row["at"]["half"]) for row in rows]
        seen = {row["partition"] for row in rows}
        left = {
            partition: end
            for partition, end in left.items()
            if partition not in seen and until[partition] < end
        }
        reach *= 32
    return min(found, default=None)


def _firsts(records: DataFrame) -> DataFrame:
    """`partition`, and `at` of its first change (struct lsn, event, half: 1 if it is one of two with that number)."""
    placed = records.select(
        "partition",
        "offset",
        head().alias("e"),
        (header(HEADER_OLD_KEY).isNotNull() | header(HEADER_NEW_KEY).isNotNull()).cast("int").alias("half"),
    ).filter(sf.col("e.source.commit_lsn").isNotNull())
    at = sf.struct(
        sf.col("e.source.commit_lsn").alias("lsn"),
        sf.coalesce("e.source.event_serial_no", sf.lit(0)).alias("event"),
        "half",
    )
    return placed.groupBy("partition").agg(sf.min_by(at, "offset").alias("at"))
