"""What the daemon's checkpoints say is complete: the LSN up to which all records of a topic are there.

A fold goes up to one bound, so nothing from before the bound may come later. A checkpoint covers an LSN when the broker
has all records up to there, and becomes visible in the same transaction as the last of them. Kafka ends a producer's
transaction in all partitions before the next one begins, so a reader sees all that the last checkpoint but one covers,
and what the last one covers as soon as no transaction is open.
"""

import json
from typing import Any, Final, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import PositionError, ProtocolError, SinkError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.kafka import KafkaSource, LooksUpEnds, Offsets

TAIL: Final = 64
"""Number of offsets at the end of the checkpoint's topic that are read first. If they hold no record, more are read."""


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
            hint="Start the daemon, which writes the topic. If the daemon runs, compare topics.checkpoint and "
            "topics.prefix in both configurations.",
        )
    rows = _last(spark, source, topic, ends)
    found = [(row["offset"], covered(bytes(row["value"]), f"{topic}@{row['offset']}")) for row in rows]
    last, newest = found[0] if found else (0, NOTHING)
    # A transaction ends with a marker, which has an offset.
    return newest, next((former for offset, former in found if offset < last - 1), NOTHING)


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
