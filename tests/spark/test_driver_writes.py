"""When the driver leaves the files of small tables to Spark: encrypted, in another format, or by the configuration."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.targets import delta_small, iceberg_small, small_files
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.table_format import is_written_otherwise
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import frame
from tests.spark.test_target_tables import FORM, change, rows, start


@contextmanager
def setting(spark: SparkSession, key: str, value: str = "x") -> Iterator[None]:
    """Have a setting in the session meanwhile."""
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.unset(key)


SPARKS_WRITER = "parquet-mr"
"""What a file of Spark's names as its writer; that of the driver's names parquet-cpp."""


def writers(spark: SparkSession, target: Lakehouse, name: str) -> set[bool]:
    """Whether the files of the table are Spark's, of each file."""
    if target.format == DELTA:
        files = [row[0] for row in spark.sql(f"SELECT DISTINCT _metadata.file_path FROM {name}").collect()]
    else:
        files = [row[0] for row in spark.sql(f"SELECT file_path FROM {name}.files").collect()]
    assert files
    return {SPARKS_WRITER.encode() in Path(file.removeprefix("file:")).read_bytes()[-4096:] for file in files}


@pytest.mark.parametrize("way", ["setting", "column keys", "driver_writes"])
def test_spark_writes_all_files(
    spark: SparkSession, make_target: MakeTarget, warehouse: Path, unique: str, way: str
):
    target = make_target()
    if way == "driver_writes":
        target = (
            DeltaTarget(str(warehouse / "delta" / unique), driver_writes=False)
            if target.format == DELTA
            else IcebergTarget("lake", unique, driver_writes=False)
        )
    name = start(spark, target)
    key = {"setting": "parquet.encryption.kms.instance.id", "column keys": "parquet.encryption.column.keys"}
    # A setting that encrypts nothing by itself: there is no factory.
    with setting(spark, key[way]) if way in key else nullcontext():
        for number in (1, 2, 3):
            target.apply(name, frame(spark, [change("c", 10 * number, (number, number, "a"))], FORM))
        assert writers(spark, target, name) == {True}
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]


def test_the_driver_writes_a_small_table_otherwise(spark: SparkSession, target: Lakehouse):
    name = start(spark, target)
    for number in (1, 2):
        target.apply(name, frame(spark, [change("c", 10 * number, (number, number, "a"))], FORM))
    assert writers(spark, target, name) == {False}


def test_hadoops_and_sparks_names_of_the_settings_are_both_known(spark: SparkSession):
    assert not is_written_otherwise(spark)
    for key in (
        "parquet.crypto.factory.class",
        "spark.hadoop.parquet.encryption.uniform.key",
        "parquet.bloom.filter.enabled",
        "spark.sql.iceberg.compression-level",
        "spark.databricks.delta.optimizeWrite.enabled",
    ):
        with setting(spark, key, "true"):
            assert is_written_otherwise(spark)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("parquet.crypto.factory.class", "x")
    try:
        assert is_written_otherwise(spark)
    finally:
        hadoop.unset("parquet.crypto.factory.class")


PROPERTIES = {
    ICEBERG: (("write.parquet.compression-level", "3"), ("write.metadata.metrics.default", "full")),
    DELTA: (("delta.dataSkippingStatsColumns", "n"), ("delta.dataSkippingNumIndexedCols", "1")),
}
"""By format, properties that Spark's writer observes, and values."""


@pytest.mark.parametrize("number", [0, 1])
def test_spark_writes_the_files_of_a_table_whose_properties_only_its_writer_observes(
    spark: SparkSession, make_target: MakeTarget, number: int
):
    target = make_target()
    key, value = PROPERTIES[target.format][number]
    name = start(spark, target)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{key}' = '{value}')")
    target.forget(name)
    for lsn in (1, 2):
        target.apply(name, frame(spark, [change("c", 10 * lsn, (lsn, lsn, "a"))], FORM))
    assert writers(spark, target, name) == {True}
    # WHEN the property is gone, THEN the driver writes again
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{key}')")
    target.forget(name)
    target.apply(name, frame(spark, [change("c", 30, (3, 3, "a"))], FORM))
    assert writers(spark, target, name) == {False}
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "error", [pa.ArrowInvalid("no Parquet"), OSError("encrypted"), MemoryError()], ids=repr
)
def test_whatever_the_driver_cannot_read_or_write_is_left_to_spark(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fails(*_: object, **_more: object) -> bytes:
        raise error

    target = make_target()
    name = start(spark, target)
    for place in (
        f"{small_files.__name__}.read",
        f"{delta_small.__name__}.content",
        f"{iceberg_small.__name__}.content",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, fails)
            lsn = 10 * (1 + len(rows(spark, name, "id")))
            target.apply(name, frame(spark, [change("c", lsn, (lsn, 1, "a"))], FORM))
    assert rows(spark, name, "id") == [(10,), (20,), (30,)]


def test_a_file_that_the_driver_cannot_read_is_left_to_spark(spark: SparkSession, unique: str):
    # GIVEN files in ORC, in a table whose next files will be Parquet
    target = IcebergTarget("lake", unique, {"write.format.default": "orc"})
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('write.format.default')")
    # WHEN few changes come, THEN Spark brings them in
    target.forget(name)
    target.apply(name, frame(spark, [change("u", 20, (1, 2, "b")), change("c", 20, (2, 2, "b"))], FORM))
    assert rows(spark, name, "id", "note") == [(1, "b"), (2, "b")]
