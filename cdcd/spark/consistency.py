"""One commit LSN for all tables of a batch: up to where everything that committed is in what was read.

Kafka's transactions are atomic for a reader of one partition; the markers of one transaction reach the partitions one
after the other, so that the ends of several topics at one moment are no common point of the source. The rule that gives
one: read the pipeline's newest checkpoint C, and *after that* the end of everything that was written to each partition,
open transactions included (high watermarks H). Every change that C covers lies before H, for the checkpoint became
visible after the changes were written. A batch whose (committed) ends E are all at or past H therefore holds every
change with a commit LSN up to C's.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.errors import PositionError, ProtocolError
from cdcd.protocol.lsn import Lsn
from cdcd.spark.kafka import KafkaSource

CONTROL: Final = "consistent"
"""The table that holds the LSNs at which all tables agree: commit_lsn, lsn (as PostgreSQL writes it), batch_id, at, and
`without`: tables that are mirrored but not as of this LSN, because they stopped or were read again later."""

TAIL: Final = 64
PENDING_MAX: Final = 256

Ends = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a checkpoint covers lies before these offsets."""

    commit_lsn: int
    high: Ends

    def is_before(self, ends: Ends) -> bool:
        """Whether a batch that goes to `ends` holds all of it."""
        return all(
            ends.get(topic, {}).get(partition, 0) >= offset
            for topic, partitions in self.high.items()
            for partition, offset in partitions.items()
        )


class Cuts:
    """Marks that were taken, and the newest that a batch fulfils. The LSNs that it gives only rise."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._last = 0

    def take(self, mark: Mark) -> None:
        """A mark was taken; to be fulfilled by a later batch."""
        if self._marks and len(self._marks) >= PENDING_MAX:
            # A reader that is far behind: fewer, further apart.
            self._marks = deque(list(self._marks)[::2])
        self._marks.append(mark)

    def cut(self, ends: Ends) -> int | None:
        """The greatest LSN that a batch up to `ends` is known to hold everything of; None where there is none yet."""
        while self._marks and self._marks[0].is_before(ends):
            self._last = max(self._last, self._marks.popleft().commit_lsn)
        return self._last or None


def covered(value: bytes, where: str) -> int:
    """The commit LSN up to which everything is covered by a checkpoint record. PositionError: it is none."""
    try:
        data: dict[str, Any] = json.loads(value)
        commit_lsn = Lsn.parse(data["commit_lsn"])
        # In the middle of a transaction only what committed before it is complete.
        return commit_lsn - 1 if data["events_done"] else int(commit_lsn)
    except (ValueError, KeyError, TypeError, ProtocolError) as error:
        raise PositionError(
            f"The checkpoint in {where} cannot be read: {error!r}.",
            hint="Is topics.checkpoint the same as in the daemon's configuration?",
        ) from None


def newest_checkpoint(
    spark: SparkSession, source: KafkaSource, topic: str, ends: Mapping[int, int]
) -> int | None:
    """What the last committed record of the checkpoint's topic covers; None where there is none yet."""
    reach = TAIL
    while True:
        start = {partition: max(0, end - reach) for partition, end in ends.items()}
        row = (
            source.read(spark, topic, start, ends)
            .agg(sf.max_by(sf.struct("value", "offset"), "offset").alias("last"))
            .collect()[0]["last"]
        )
        if row is not None:
            return covered(bytes(row["value"]), f"{topic}@{row['offset']}")
        if not any(start.values()):
            return None
        reach *= 32


def control_row(
    spark: SparkSession, commit_lsn: int, batch_id: int, without: Sequence[str] = ()
) -> DataFrame:
    """A row of the table CONTROL."""
    return spark.range(1).select(
        sf.lit(commit_lsn).cast("bigint").alias("commit_lsn"),
        sf.lit(str(Lsn(commit_lsn))).alias("lsn"),
        sf.lit(batch_id).cast("bigint").alias("batch_id"),
        sf.current_timestamp().alias("at"),
        sf.array(*map(sf.lit, without)).cast("array<string>").alias("without"),
    )
