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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import FatalError, PositionError, ProtocolError, SinkError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.gaps import Aside
from cdcd.mirror.kafka import KafkaSource, LooksUpEnds, Offsets

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


class Covered(NamedTuple):
    """What a checkpoint record covers.

    Attributes:
        commit_lsn: all changes of transactions that committed at or before it.
        end_lsn: these and all rows of snapshots up to it; more rows may follow that stand there too.
    """

    commit_lsn: int
    end_lsn: int


NOTHING: Final = Covered(0, 0)


def covered(value: bytes, where: str) -> Covered:
    """What a checkpoint record covers. PositionError: it is none."""
    try:
        data: dict[str, Any] = json.loads(value)
        commit_lsn = Lsn.parse(data["commit_lsn"])
        # In the middle of a transaction only what committed before it is complete.
        complete = commit_lsn - 1 if data["events_done"] else int(commit_lsn)
        return Covered(complete, max(complete, Lsn.parse(data["end_lsn"]) - 1))
    except (ValueError, KeyError, TypeError, ProtocolError) as error:
        raise PositionError(
            f"The checkpoint in {where} cannot be read: {error!r}.",
            hint="Set topics.checkpoint to what the daemon's configuration has.",
        ) from None


def set_aside_error(found: Aside) -> FatalError:
    """Return the error that stops a table which the daemon has set aside."""
    return FatalError(
        f"The daemon has set the table aside ({found.fault}), so that changes of it since {Lsn(found.since)} are in no"
        " topic.",
        hint="See `cdcd tables` for the reason, and for the command that lets the table come back. The mirror then"
        " goes on by itself, with all rows.",
    )


def newest_checkpoints(
    spark: SparkSession, source: KafkaSource, admin: LooksUpEnds, topic: str
) -> tuple[Covered, Covered]:
    """What the last committed record of the checkpoint's topic covers, and the last one of an earlier transaction.

    NOTHING: there is none yet.

    Raises:
        SinkError: there is no such topic.
        PositionError: a record is no checkpoint.
    """
    ends = admin.ends([topic]).get(topic)
    if ends is None:
        raise SinkError(
            f"There is no topic {topic}, by which it is known what is complete.",
            hint="Set topics.checkpoint to what the daemon's configuration has.",
        )
    rows = _last(spark, source, topic, ends)
    found = [(row["offset"], covered(bytes(row["value"]), f"{topic}@{row['offset']}")) for row in rows]
    last, newest = found[0] if found else (0, NOTHING)
    # A transaction ends with a marker, which has an offset.
    return newest, next((former for offset, former in found if offset < last - 1), NOTHING)


def _last(spark: SparkSession, source: KafkaSource, topic: str, ends: Offsets) -> list[Row]:
    """The last records of a topic, three at most, the newest first: `value` and `offset`."""
    reach = TAIL
    while True:
        start = {partition: max(0, end - reach) for partition, end in ends.items()}
        records = source.read(spark, topic, start, ends).select("value", "offset")
        rows: list[Row] = records.orderBy(sf.desc("offset")).limit(3).collect()
        if rows or not any(start.values()):
            return rows
        reach *= 32
