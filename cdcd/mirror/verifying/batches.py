"""The tables of a mirror without a log (`change_log: none`), as `cdcd verify` reads them.

A version has its state in its own commit (`targets.state`). The version lacks a record if the record is new to this
state (`reduction.is_new`) and is not in quarantine.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.records.changes import OPERATIONS, head
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.quarantine import PLACE, QUARANTINE
from cdcd.mirror.targets.reduction import is_new
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import Kind, Target
from cdcd.mirror.verifying.waiting import Deletes, Reached, Seen, Until, unread_from
from cdcd.mirror.watching.stops import Stop, read_stops


class BatchTables:
    """The tables of a mirror without a log."""

    def __init__(self, spark: SparkSession, target: Target, kafka: KafkaSource, forms: Descriptions) -> None:
        self._spark = spark
        self._target = target
        self._kafka = kafka
        self._forms = forms

    def name_of(self, schema: TableSchema) -> str:
        return self._target.name_of(schema, Kind.MIRROR)

    def stop(self, topic: str) -> Stop | None:
        return read_stops(self._spark, self._target).get(topic)

    def newest(self, name: str, until: Until) -> Reached:
        found = self._target.newest(self._spark, name)
        state = State() if found is None else found.state
        if self._lacks(state, until):
            return Reached(lacks=True)
        if found is None:
            return Reached(lacks=False)
        truncated = 0 if state.truncated is None else state.truncated[0]
        return Reached(lacks=False, seen=Seen(found.schema, found.rows, truncated))

    def deletes(self, topic: str, lsn: int) -> Deletes | None:
        with Admin(self._spark, self._kafka) as admin:
            ends = admin.ends([topic]).get(topic, {})
            begins = admin.beginnings([topic]).get(topic, {})
        head_ = head()
        records = self._kafka.read(self._spark, topic, begins, ends).withColumn(
            "form", head_["source"]["schema_id"]
        )
        later = records.filter(head_["op"].isin("d", "t") & (head_["source"]["commit_lsn"] >= lsn))
        return Deletes.of(later, topic, self._forms)

    def quarantined(self, topic: str) -> int:
        name = self._target.own_name(QUARANTINE)
        if not self._target.has(self._spark, name):
            return 0
        count: int = self._spark.table(name).filter(sf.col("topic") == topic).count()
        return count

    def _lacks(self, state: State, until: Until) -> bool:
        """Whether a record that the version must have is new to it."""
        starts = unread_from({part: place.offset + 1 for part, place in state.partitions.items()}, until)
        if not starts:
            return False
        ends = {each: until.ends[each] for each in starts}
        records = self._kafka.read(self._spark, until.topic, starts, ends)
        heads = records.filter(sf.col("value").isNotNull()).select(
            head().alias("head"), "topic", "partition", "offset"
        )
        heads = heads.select("head.op", "head.source.*", "topic", "partition", "offset").withColumnRenamed(
            "event_serial_no", "event_no"
        )
        lacking = heads.filter(
            sf.col("op").isin(*OPERATIONS) & (sf.col("commit_lsn") < until.lsn) & is_new(state)
        )
        quarantine = self._target.own_name(QUARANTINE)
        if self._target.has(self._spark, quarantine):
            there = self._spark.table(quarantine).select(*PLACE).distinct()
            lacking = lacking.join(there, list(PLACE), "left_anti")
        return not lacking.isEmpty()
