"""The changes of one topic, and the names of the tables that they go to."""

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.records.changes import Parser
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.tombstones import LOOK_BACK, bare_tombstones
from cdcd.mirror.stream.slices import distance
from cdcd.mirror.targets.target import Kind, Target, kind_of

RECORDS_MAX: Final = 2_000
"""Number of records up to which one task reads them. One core parses them in a tenth of a second."""


class TableNames:
    """The targets of one topic, by their names in SQL.

    Args:
        history: also keep a changelog beside the mirror.

    Attributes:
        named: all that were asked for.
    """

    def __init__(self, target: Target, *, history: bool) -> None:
        self._target = target
        self._history = history
        self.named: set[str] = set()

    def of(self, form: Form) -> list[tuple[str, Kind]]:
        """Name and kind of each target of a table in this form."""
        kinds = [kind_of(form.schema)]
        if self._history and Kind.CHANGELOG not in kinds:
            kinds.append(Kind.CHANGELOG)
        names = [(self._target.name_of(form.schema, kind), kind) for kind in kinds]
        self.named.update(name for name, _ in names)
        return names


class TopicReader:
    """Reads one topic.

    Args:
    Attributes:
        spark: the session in which it reads.
        compacted: the topic is compacted, so a tombstone may be all that is left of a delete.
        beginnings: by partition, the first offset that is still there.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: KafkaSource,
        topic: str,
        target: Target,
        names: TableNames,
        *,
        compacted: bool,
    ) -> None:
        self.topic = topic
        self.beginnings: Offsets = {}
        self.spark = spark
        self._source = source
        self._target = target
        self._names = names
        self.compacted = compacted
        self._parser: tuple[Form, Parser] | None = None
        """The form that was parsed last, and its parser."""

    def records(self, start: Offsets, ends: Offsets) -> DataFrame:
        """The records from offset to offset."""
        records = self._source.read(self.spark, self.topic, start, ends)
        # Of one part, Spark shuffles nothing.
        return records.coalesce(1) if distance(start, ends) <= RECORDS_MAX else records

    def parse(
        self, records: DataFrame, form: Form, start: Offsets, ends: Offsets, *, keep: bool = False
    ) -> DataFrame:
        """The changes in records, and the deletes of which compaction has left the tombstones only."""
        if self._parser is None or self._parser[0] is not form:
            self._parser = form, Parser(form.schema, form.rules)
        changes = self._parser[1].parse(records, keep=keep)
        if not self.compacted or not form.schema.key:
            return changes
        had = {
            partition: (place.commit_lsn, place.event_no)
            for name, _ in self._names.of(form)
            for partition, place in self._target.reached(self.spark, name).partitions.items()
        }
        first = self.beginnings
        back = {partition: max(first.get(partition, at), at - LOOK_BACK) for partition, at in start.items()}
        wider = self.records(back, ends)
        deletes = bare_tombstones(wider, start, form.schema, form.rules, had, keep=keep)
        return changes.unionByName(deletes)
