"""Tables as a version without a log left them: each commit has the state (`cdcd.state`), and there is no log."""

import json
from dataclasses import replace

from pyspark.sql import SparkSession

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.mirror.api import apply_changes, read_changes, stream_changes
from cdcd.mirror.base.formats import MADE_BY, PLACE_COLUMNS, TOPIC_ID
from cdcd.mirror.base.given import reached
from cdcd.mirror.jars import DELTA
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.platform.tables import having, properties, set_properties
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.making import KIND, SCHEMA
from cdcd.mirror.targets.state import PROPERTY, Place, State
from cdcd.mirror.targets.target import Kind, Target, kind_of
from tests.spark.stage import Source


class FormerTables:
    """Brings the records of topics into tables, with the states that a mirror of a former version wrote.

    All records of one call that are new to a table must be in forms that the newest one can be made of.
    """

    def __init__(self, spark: SparkSession, source: Source, target: Target) -> None:
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
        kafka = TopicStarts({"bootstrap.servers": self._source.servers})
        topic_id, first = kafka.topic_ids([topic])[topic], kafka.beginnings([topic])[topic]
        state = reached(spark, target, name)
        start = {**first, **{part: each.offset + 1 for part, each in state.partitions.items()}}
        source = f"public.{table}"
        found = read_changes(spark, self._kafka, self._source.name, source, start=start)
        assert found.rejected.isEmpty()
        target.brought.clear()
        apply_changes(target, found.changes, found.schema, kind=kind)
        # As Kafka's Java client writes the id.
        java_id = topic_id.replace("+", "-").replace("/", "_")
        state = reached(spark, target, name)
        # A mirror knew how far it had read each partition, and that the batch was complete up to its last change.
        last = max(at[:2] for at in state.partitions.values())
        read = {part: Place(*last, 1, end - 1) for part, end in found.end.items() if end}
        self._make_former(name, found.schema, kind, replace(state, partitions=read, topic_id=java_id))

    def _make_former(self, name: str, schema: TableSchema, kind: Kind, state: State) -> None:
        """Let the table say of itself what a mirror without a log said."""
        spark = self._spark
        for column in spark.table(name).schema:
            if column.name in PLACE_COLUMNS:
                spark.sql(f"ALTER TABLE {name} DROP COLUMN {column.name}")
            elif column.metadata.get("comment"):
                spark.sql(f"ALTER TABLE {name} ALTER COLUMN {quoted(column.name)} COMMENT ''")
        begins = ("cdcd.form.", "cdcd.position", TOPIC_ID, MADE_BY)
        ours = [key for key in properties(spark, name) if key.startswith(begins)]
        if ours:
            gone = ", ".join(f"'{key}'" for key in ours)
            spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ({gone})")
        said = {SCHEMA: schema.to_json(), KIND: kind.value, "cdcd.schema-at": "[0, 0]"}
        if self._target.format == DELTA:
            metadata = json.dumps({PROPERTY: state.to_json()})
            with having(spark, {"spark.databricks.delta.commitInfo.userMetadata": metadata}):
                set_properties(spark, name, said)
            return
        set_properties(spark, name, said)
        with having(spark, {f"spark.sql.iceberg.snapshot-property.{PROPERTY}": state.to_json()}):
            spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE false")

    def _schema(self, table: str) -> TableSchema:
        """The form of the table that was described last."""
        return stream_changes(self._spark, self._kafka, self._source.name, f"public.{table}")[0]
