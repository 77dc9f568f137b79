"""The tables of a target's own, over views of a real Spark, and the names of tables."""

import datetime as dt

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import PositionError
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.target import Maintenance
from tests.unit.mirror.targets.views import Views

COLUMNS = "commit_lsn bigint, at timestamp"
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def test_a_name_is_known_without_its_catalog():
    assert IcebergTarget("lake").bare_name("`lake`.`public`.`it``s`") == "public.it`s"
    assert DeltaTarget("/lake").bare_name("delta.`/lake/public/orders`") == "public.orders"
    assert DeltaTarget().bare_name("`spark_catalog`.`public`.`orders`") == "public.orders"


def test_a_table_as_of_an_lsn_that_is_no_point_is_refused(spark: SparkSession):
    with pytest.raises(PositionError, match="points_consistent lists no point at LSN 0/9"):
        Views("points_").read(spark, "public.orders", 9)


def test_a_row_that_is_appended_again_is_left_out(spark: SparkSession):
    tables = Views()
    name = "points"
    try:
        first = spark.createDataFrame([(1, LONG_AGO), (2, LONG_AGO), (2, LONG_AGO)], COLUMNS)
        assert tables.append(name, first, ["commit_lsn"]) == 2
        again = spark.createDataFrame([(2, LONG_AGO), (3, LONG_AGO)], COLUMNS)
        assert tables.append(name, again, ["commit_lsn"]) == 1
        assert tables.append(name, again, ["commit_lsn"]) == 0
        assert sorted(row.commit_lsn for row in spark.table(name).collect()) == [1, 2, 3]
    finally:
        spark.catalog.dropTempView(name)


def test_a_table_that_another_driver_makes_at_the_same_time_is_used(spark: SparkSession):
    class Raced(Views):
        def _create(self, spark: SparkSession, name: str, columns: str) -> None:
            super()._create(spark, name, columns)
            raise RuntimeError("TABLE_OR_VIEW_ALREADY_EXISTS")

    name = "points"
    try:
        rows = spark.createDataFrame([(1, LONG_AGO)], COLUMNS)
        assert Raced().append(name, rows, ["commit_lsn"]) == 1
    finally:
        spark.catalog.dropTempView(name)


def test_what_is_kept_is_not_pruned(spark: SparkSession):
    tables = Views()
    name = "points"
    assert tables.prune(spark, name, "commit_lsn", Maintenance()) == 0
    try:
        rows = spark.createDataFrame([(lsn, LONG_AGO) for lsn in range(5)], COLUMNS)
        tables.append(name, rows, ["commit_lsn"])
        assert tables.prune(spark, name, "commit_lsn", Maintenance(keep_s=0, keep_versions=5)) == 0
        assert tables.prune(spark, name, "commit_lsn", Maintenance(keep_s=2**32, keep_versions=1)) == 0
    finally:
        spark.catalog.dropTempView(name)
