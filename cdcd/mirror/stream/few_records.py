"""Slices of a few records, of many topics in one job of Spark.

Most tables of a database with many of them have a few changes in a batch. A job for each costs more than their
records: a plan, a client of Kafka, and tasks to start. So such slices are read together, and their records brought to
the driver, a group of slices at a time. There they are reduced (`targets/few.py`).

The rule: what cannot be read so is read by its table alone. Nothing is decided here about a record.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.records.encoder import HEADER_UNCHANGED, HEADER_UNWRITABLE
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.records.changes import header
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.stream.sessions import Sessions
from cdcd.mirror.stream.slices import Slice, distance
from cdcd.mirror.targets.few import Raw, reduce_few
from cdcd.mirror.targets.small import interpreted
from cdcd.mirror.targets.target import Applied, New, Target

VALUE_BYTES_MAX: Final = 16 * 1024
"""Size of a record's value up to which it is brought to the driver, in bytes."""

GROUP_RECORDS_MAX: Final = 4_000
"""Number of records that are read together. With the largest values they are 64 MiB in the driver."""
GROUP_TOPICS_MAX: Final = 250
"""Number of topics that are read together. Spark's client asks for each of them by itself."""


class SmallSlice(NamedTuple):
    """Part of a topic, from offset to offset, that has few records."""

    topic: str
    start: Offsets
    until: Offsets


class FewRecords:
    """The records of some slices. The first question for one reads a group of them. Any thread may ask.

    Args:
        slices: in the order in which they will be asked for, one of each topic.
    """

    def __init__(self, sessions: Sessions, source: KafkaSource, slices: Sequence[SmallSlice]) -> None:
        self._sessions = sessions
        self._source = source
        self._groups = {each.topic: group for group in _grouped(slices) for each in group}
        self._asked = {each.topic: each for each in slices}
        self._found: dict[str, list[Raw]] = {}
        self._lock = threading.Lock()

    def of(self, topic: str, start: Offsets, until: Offsets) -> list[Raw] | None:
        """The records, once. None: the table has to read them by itself."""
        asked = self._asked.pop(topic, None)
        if asked is None or dict(asked.start) != dict(start) or dict(asked.until) != dict(until):
            return None
        with self._lock:
            group = self._groups.pop(topic, None)
            if group is not None:
                for each in group:
                    self._groups.pop(each.topic, None)
                self._found |= self._read(group)
            return self._found.pop(topic, None)

    def _read(self, group: Sequence[SmallSlice]) -> dict[str, list[Raw]]:
        places = {each.topic: (each.start, each.until) for each in group}
        try:
            with self._sessions.one() as spark, interpreted(spark, is_small=True):
                rows = _wanted(self._source.read_all(spark, places)).collect()
        except (PySparkException, Py4JError):
            # One topic of the group may be to blame. Its table finds out alone, and the others go on.
            return {}
        found: dict[str, list[Raw]] = {each.topic: [] for each in group}
        for row in rows:
            value = None if row["value"] is None else bytes(row["value"])
            found[row["topic"]].append(Raw(row["partition"], row["offset"], value, row["unchanged"]))
        large = {row["topic"] for row in rows if row["large"]}
        return {topic: records for topic, records in found.items() if topic not in large}


def _wanted(records: DataFrame) -> DataFrame:
    """What the driver needs of records. A value that is too large is left out.

    A record with values that have no form counts as too large: the table judges it by itself.
    """
    size = sf.length("value")
    large = (size > VALUE_BYTES_MAX) | header(HEADER_UNWRITABLE).isNotNull()
    wanted = records.select(
        "topic",
        "partition",
        "offset",
        sf.when(size <= VALUE_BYTES_MAX, sf.col("value")).alias("value"),
        sf.coalesce(large, sf.lit(False)).alias("large"),
        header(HEADER_UNCHANGED).alias("unchanged"),
    )
    return wanted.coalesce(records.sparkSession.sparkContext.defaultParallelism)


def apply_few(
    spark: SparkSession,
    target: Target,
    table: tuple[str, New],
    form: Form,
    step: Slice,
    records: Sequence[Raw],
) -> Applied | None:
    """Bring records that are in the driver into a table. None: they are not plain, and nothing was done.

    Args:
        table: its name, and what it is to be if it is not there.
    """
    name, new = table
    few = reduce_few(records, form, target.reached(spark, name), step.reach.bound)
    if few is None:
        return None
    return target.apply_few(
        spark, name, few, form, new=new, batch_id=step.batch_id, origin=step.origin, reach=step.reach
    )


def _grouped(slices: Iterable[SmallSlice]) -> Iterator[list[SmallSlice]]:
    group: list[SmallSlice] = []
    records = 0
    for each in slices:
        more = distance(each.start, each.until)
        if group and (records + more > GROUP_RECORDS_MAX or len(group) == GROUP_TOPICS_MAX):
            yield group
            group, records = [], 0
        group.append(each)
        records += more
    if group:
        yield group
