"""The mirror's own tables, over views of a real Spark."""

import datetime as dt
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdcd.mirror.targets.target import Maintenance
from tests.unit.mirror.targets.test_lakehouse import Fake, FakeFormat

COLUMNS = "commit_lsn bigint, at timestamp"
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


class Views(FakeFormat):
    """Each table is a view."""

    def exists(self, spark: SparkSession, name: str) -> bool:
        return bool(spark.catalog.tableExists(name))

    def create(
        self,
        spark: SparkSession,
        name: str,
        columns: str,
        properties: Any,
        *,
        view: Any = None,
        by: Any = None,
    ) -> None:
        spark.createDataFrame([], columns.replace("`", "")).createOrReplaceTempView(name)

    def append(self, rows: DataFrame, name: str) -> None:
        had = rows.sparkSession.table(name)
        all_ = had.unionByName(rows).collect()
        rows.sparkSession.createDataFrame(all_, had.schema).createOrReplaceTempView(name)


def test_a_row_that_is_appended_again_is_left_out(spark: SparkSession):
    tables = Fake(Views())
    name = "points"
    try:
        first = spark.createDataFrame([(1, LONG_AGO), (2, LONG_AGO), (2, LONG_AGO)], COLUMNS)
        assert tables.append(name, first, ["commit_lsn"]) == 2
        assert [each for each, _ in tables.maintain_own(spark, Maintenance())] == [name]
        again = spark.createDataFrame([(2, LONG_AGO), (3, LONG_AGO)], COLUMNS)
        assert tables.append(name, again, ["commit_lsn"]) == 1
        assert tables.append(name, again, ["commit_lsn"]) == 0
        assert sorted(row.commit_lsn for row in spark.table(name).collect()) == [1, 2, 3]
    finally:
        spark.catalog.dropTempView(name)


def test_a_table_that_another_driver_makes_at_the_same_time_is_used(spark: SparkSession):
    class Raced(Views):
        def create(self, spark: SparkSession, name: str, columns: str, properties: Any, **given: Any) -> None:
            super().create(spark, name, columns, properties, **given)
            raise RuntimeError("TABLE_OR_VIEW_ALREADY_EXISTS")

    name = "points"
    try:
        rows = spark.createDataFrame([(1, LONG_AGO)], COLUMNS)
        assert Fake(Raced()).append(name, rows, ["commit_lsn"]) == 1
    finally:
        spark.catalog.dropTempView(name)


def test_what_is_kept_is_not_pruned(spark: SparkSession):
    tables = Fake(Views())
    name = "points"
    assert tables.prune(spark, name, "commit_lsn", Maintenance()) == 0
    try:
        rows = spark.createDataFrame([(lsn, LONG_AGO) for lsn in range(5)], COLUMNS)
        tables.append(name, rows, ["commit_lsn"])
        assert tables.prune(spark, name, "commit_lsn", Maintenance(keep_s=0, keep_versions=5)) == 0
        assert tables.prune(spark, name, "commit_lsn", Maintenance(keep_s=2**32, keep_versions=1)) == 0
    finally:
        spark.catalog.dropTempView(name)
