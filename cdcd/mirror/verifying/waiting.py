"""The version of a mirror's table that has everything that a snapshot of the source sees.

The rule: everything that committed before the snapshot's LSN lies before where the topic ends when the daemon's
checkpoint has passed the LSN. A version has it if none of the records up to there that are from before the LSN is new
to the version (`reduction.is_new`), but for those in quarantine.
"""

import time
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.records.changes import OPERATIONS, head
from cdcd.mirror.targets.quarantine import PLACE, QUARANTINE
from cdcd.mirror.targets.reduction import is_new
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import Newest, Target
from cdcd.mirror.watching.stops import read_stops
from cdcd.tools.verify.delivery import NotDeliveredError

LOOK_S: Final = 1.0

_LOOKS_FOR_STOPS: Final = 10
"""After so many looks, it is looked whether the table is stopped."""


class StoppedTableError(Exception):
    """The mirror has stopped the table, and says why."""


class Waiting:
    """Waits for tables of a mirror.

    Args:
        timeout_s: how long the mirror may take to bring a table up to the snapshot.
    """

    def __init__(
        self, spark: SparkSession, target: Target, kafka: KafkaSource, admin: Admin, timeout_s: float
    ) -> None:
        self._spark = spark
        self._target = target
        self._kafka = kafka
        self._admin = admin
        self._timeout_s = timeout_s

    def reached(self, name: str, table: str, topic: str, lsn: int) -> Newest | None:
        """The version; None: there is no such table, and no record for it.

        Args:
            name: of the mirror's table in SQL.
            lsn: of the snapshot. The daemon has delivered everything before it.

        Raises:
            StoppedTableError: the mirror has stopped the table.
            NotDeliveredError: it does not get there in time.
        """
        deadline = time.monotonic() + self._timeout_s
        ends: Offsets | None = None
        looks = 0
        while True:
            late = time.monotonic() > deadline
            if late or looks % _LOOKS_FOR_STOPS == 0:
                # Before all else: a table that the daemon has set aside has everything that its topic has.
                stop = read_stops(self._spark, self._target).get(topic)
                if stop is not None and not stop.waits:
                    raise StoppedTableError(stop.message)
            written, committed = self._admin.both_ends([topic])
            # A Kafka transaction is acknowledged before each partition shows it to its readers.
            ends = written.get(topic, {}) if ends is None else ends
            seen = committed.get(topic, {})
            if all(seen.get(partition, 0) >= end for partition, end in ends.items()):
                newest = self._target.newest(self._spark, name)
                if not self._lacks(State() if newest is None else newest.state, topic, ends, lsn):
                    return newest
            if late:
                raise NotDeliveredError(
                    f"The mirror has not brought {table} up to {Lsn(lsn)} within {self._timeout_s:g} s."
                    + ("" if stop is None else f" It waits: {stop.message}"),
                    hint="Check with `cdcd mirror status` that the mirror runs, or allow more time (--timeout).",
                )
            looks += 1
            time.sleep(LOOK_S)

    def _lacks(self, state: State, topic: str, ends: Offsets, lsn: int) -> bool:
        """Whether a record before `ends`, from before the LSN, is new to a version in this state."""
        starts = unread_from(state, self._admin.beginnings([topic]).get(topic, {}), ends)
        if not starts:
            return False
        records = self._kafka.read(self._spark, topic, starts, {each: ends[each] for each in starts})
        heads = records.filter(sf.col("value").isNotNull()).select(
            head().alias("head"), "topic", "partition", "offset"
        )
        heads = heads.select("head.op", "head.source.*", "topic", "partition", "offset").withColumnRenamed(
            "event_serial_no", "event_no"
        )
        lacking = heads.filter(sf.col("op").isin(*OPERATIONS) & (sf.col("commit_lsn") < lsn) & is_new(state))
        quarantine = self._target.own_name(QUARANTINE)
        if self._target.has(self._spark, quarantine):
            there = self._spark.table(quarantine).select(*PLACE).distinct()
            lacking = lacking.join(there, list(PLACE), "left_anti")
        return not lacking.isEmpty()


def unread_from(state: State, beginnings: Offsets, ends: Offsets) -> dict[int, int]:
    """By partition, from where on a version in this state may lack records before `ends`; without those that it has.

    Args:
        beginnings: the first offset that is still there.
    """
    found = {}
    for partition, end in ends.items():
        place = state.partitions.get(partition)
        begin = max(beginnings.get(partition, 0), 0 if place is None else place.offset + 1)
        if begin < end:
            found[partition] = begin
    return found


def quarantined(spark: SparkSession, target: Target, topic: str) -> int:
    """Number of records of a topic in quarantine."""
    name = target.own_name(QUARANTINE)
    if not target.has(spark, name):
        return 0
    count: int = spark.table(name).filter(sf.col("topic") == topic).count()
    return count
