"""The tables that are folded from a log (`change_log: fold`), as `cdcd verify` reads them.

A version has its position in its own commit (`base.position`). The version lacks a change from before an LSN if the log
lacks a record of the topic from before the LSN, or has such a change after the version's position. Records that the log
has as unreadable are in no table, so no version lacks them.
"""

from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.base.formats import BaseFormat, check_made, read_form
from cdcd.mirror.base.part import records_of
from cdcd.mirror.base.position import Position
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import positions
from cdcd.mirror.log.positions import at_version
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.records.changes import OPERATIONS, head, told
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind, Target
from cdcd.mirror.verifying.waiting import Deletes, Reached, Seen, Until, unread_from
from cdcd.mirror.watching.stops import Stop


class FoldedTables:
    """The tables that are folded from a log.

    Args:
        target: names the tables.
        log: name of the log in SQL.
        forms: descriptions of the tables, as the mirror reads them.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        format_: BaseFormat,
        log: str,
        kafka: KafkaSource,
        forms: Descriptions,
    ) -> None:
        self._spark = spark
        self._target = target
        self._format = format_
        self._log = log
        self._kafka = kafka
        self._forms = forms

    def name_of(self, schema: TableSchema) -> str:
        return self._target.name_of(schema, Kind.MIRROR)

    def stop(self, topic: str) -> Stop | None:
        if not exists(self._spark, self._log):
            return None
        has = positions.read(self._spark, self._log)
        if topic in has.tables:
            return has.tables[topic]
        reason = has.stopped.get(topic)
        if reason is None:
            return None
        return Stop(topic, datetime.now(UTC), waits=False, message=reason, hint="")

    def newest(self, name: str, until: Until) -> Reached:
        spark = self._spark
        version = None
        if exists(spark, name):
            check_made(spark, name, name)
            version = self._format.version(spark, name)
        position = Position() if version is None else version.position
        if position is None or not position.clean or self._lacks(position.lsn, until):
            return Reached(lacks=True)
        text = None if version is None else read_form(spark, name, position.form)
        if version is None or text is None:
            return Reached(lacks=False)
        rows = at_version(spark, name, version.pin)
        return Reached(lacks=False, seen=Seen(TableSchema.from_json(text), rows))

    def deletes(self, topic: str, lsn: int) -> Deletes | None:
        if not exists(self._spark, self._log):
            return None
        rows = self._spark.table(self._log).filter(
            (sf.col("topic") == topic)
            & sf.col("kind").isin("change", "truncate")
            & sf.col("op").isin("d", "t")
            & (sf.col("lsn") >= lsn)
        )
        return Deletes.of(records_of(rows), topic, self._forms)

    def quarantined(self, topic: str) -> int:
        if not exists(self._spark, self._log):
            return 0
        rows = self._spark.table(self._log).filter("day IS NOT NULL AND kind = 'unreadable'")
        count: int = rows.filter(sf.col("topic") == topic).count()
        return count

    def _lacks(self, lsn: int, until: Until) -> bool:
        """Whether changes that a version must have are after its position `lsn`, in the log or only in Kafka."""
        has: dict[int, int] = {}
        if exists(self._spark, self._log):
            found = positions.read(self._spark, self._log)
            has = dict(found.ends.get(until.topic, {}))
            if lsn < found.deleted.get(until.topic, 0):
                # The next fold stops the table.
                return True
            after = self._spark.table(self._log).filter(
                (sf.col("topic") == until.topic)
                & sf.col("kind").isin("change", "truncate")
                & (sf.col("lsn") > lsn)
                & (sf.col("lsn") < until.lsn)
            )
            if not after.isEmpty():
                return True
        starts = unread_from(has, until)
        if not starts:
            return False
        ends = {each: until.ends[each] for each in starts}
        records = self._kafka.read(self._spark, until.topic, starts, ends).filter(told().isNotNull())
        heads = records.select(head().alias("head")).select("head.op", "head.source.commit_lsn")
        return not heads.filter(sf.col("op").isin(*OPERATIONS) & (sf.col("commit_lsn") < until.lsn)).isEmpty()
