"""A target whose own tables are views of a real Spark."""

from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind, Target


class Views(Target):
    """Each table of the target's own is a view. `prefix`: of their names."""

    format = "views"

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        return f"{schema.name}.{kind}"

    def own_name(self, name: str) -> str:
        return self._prefix + name

    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        return iter([table.name for table in spark.catalog.listTables()])

    def _create(self, spark: SparkSession, name: str, columns: str) -> None:
        spark.createDataFrame([], columns.replace("`", "")).createOrReplaceTempView(name)

    def _add(self, rows: DataFrame, name: str) -> None:
        had = rows.sparkSession.table(name)
        all_ = had.unionByName(rows).collect()
        rows.sparkSession.createDataFrame(all_, had.schema).createOrReplaceTempView(name)
