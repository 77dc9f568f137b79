"""Tables as a version without a log left them: each commit has the state (`cdcd.state`), and there is no log."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.mirror.api import read_changes, stream_changes
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.table_changes import Changes
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.state import Origin, Reach
from cdcd.mirror.targets.target import Kind, kind_of
from cdcd.mirror.targets.upgrading import upgrade
from tests.spark.stage import Source


class FormerTables:
    """Brings the records of topics into tables, with the states that a mirror of a former version wrote.

    All records of one call that are new to a table must be in forms that the newest one can be made of.
    """

    def __init__(self, spark: SparkSession, source: Source, target: Lakehouse) -> None:
        self._spark, self._source, self._target = spark, source, target
        self._kafka = KafkaSource(source.servers)

    def once(self, *tables: str, history: tuple[str, ...] = ()) -> None:
        """Bring the tables `public.<table>` to where their topics end.

        Args:
            history: those of them that have a changelog too.
        """
        for table in tables:
            schema = self._schema(table)
            kinds = {kind_of(schema), *([Kind.CHANGELOG] if table in history else [])}
            for kind in sorted(kinds):
                self._apply(table, kind)

    def _apply(self, table: str, kind: Kind) -> None:
        spark, target, topic = self._spark, self._target, f"{self._source.name}.public.{table}"
        name = target.name_of(self._schema(table), kind)
        found_topic = TopicStarts(self._kafka.librdkafka()).look([topic])[topic]
        state = target.reached(spark, name)
        start = {**found_topic.first, **{part: each.offset + 1 for part, each in state.partitions.items()}}
        found = self._changes(table, start)
        assert found.rejected.isEmpty()
        last = found.changes.agg(sf.max("commit_lsn"), sf.max("event_no")).collect()[0]
        has = target.prepare(spark, name, found.schema, kind, (last[0] or 0, last[1] or 0))
        origin, reach = Origin(_java(found_topic.topic_id), found_topic.first), Reach(found.end)
        target.apply(name, upgrade(found.changes, found.schema, has), origin=origin, reach=reach)

    def _schema(self, table: str) -> TableSchema:
        """The form of the table that was described last."""
        return stream_changes(self._spark, self._kafka, self._source.name, f"public.{table}")[0]

    def _changes(self, table: str, start: dict[int, int]) -> Changes:
        name = f"public.{table}"
        return read_changes(self._spark, self._kafka, self._source.name, name, start=start or None)


def _java(topic_id: str) -> str:
    """The id of a topic as the Java client writes it, and so did a former version."""
    return topic_id.replace("+", "-").replace("/", "_")
