"""Columns that are added with a default: what they cost, and what rows and other readers have then."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.iceberg_defaults import add_with_default
from cdcd.mirror.targets.target import Kind
from tests.spark.source_model import frame
from tests.spark.test_target_tables import FORM, ID, N, change, rows

ADDED: list[tuple[DataType, str, str]] = [
    (BooleanType(), "boolean", "true"),
    (ShortType(), "int16", "7"),
    (IntegerType(), "int32", "-7"),
    (LongType(), "int64", "9007199254740993"),
    (FloatType(), "float32", "1.5"),
    (DoubleType(), "float64", "0.1"),
    (DecimalType(20, 3), "decimal(20,3)", '"12345678901234567.125"'),
    (DateType(), "date", "20000"),
    (TimestampNTZType(), "timestamp", "1767225600123456"),
    (TimestampType(), "timestamptz", '"2026-01-01T00:00:00.123456Z"'),
    (StringType(), "text", '"it\'s ☃"'),
    (BinaryType(), "bytes", '"AP8="'),
]
DEAR: list[tuple[DataType, str, str]] = [
    (ArrayType(StringType()), "text[]", '["a"]'),
    (DoubleType(), "float64", '"Infinity"'),
    (DateType(), "date", "2147483647"),
]
"""What Iceberg's metadata cannot say to every reader."""


def with_added(*added: tuple[DataType, str, str]) -> TableSchema:
    columns = [
        ColumnSchema(f"c{number}", 10 + number, form, 0, -1, kind, form=form, default=default)
        for number, (kind, form, default) in enumerate(added)
    ]
    return replace(FORM, schema_id="form-2", columns=(*FORM.columns, *columns))


def begun(spark: SparkSession, unique: str, version: int) -> tuple[IcebergTarget, str]:
    target = IcebergTarget("lake", unique, {"format-version": str(version)})
    name = target.name_of(FORM, Kind.MIRROR)
    target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1))
    target.apply(name, frame(spark, [change("c", 10 + each, (each, each, "x")) for each in range(3)], FORM))
    return target, name


def files(spark: SparkSession, name: str) -> set[str]:
    return {row.file_path for row in spark.sql(f"SELECT file_path FROM {name}.files").collect()}


def test_a_default_writes_no_row_in_iceberg_format_3(spark: SparkSession, unique: str, warehouse: Path):
    # GIVEN rows, some of them in a table of format 2, where the same is written into each
    target, name = begun(spark, unique, 3)
    other, written = begun(spark, f"{unique}v2", 2)
    had, form = files(spark, name), with_added(*ADDED)
    # WHEN columns of all types come with defaults, and the process dies before it can say so
    for column in form.columns[3:6]:
        assert add_with_default(spark, target._format._load(spark, name), column)  # type: ignore[attr-defined]
    target = IcebergTarget("lake", unique)
    target.prepare(spark, name, form, Kind.MIRROR, (20, 1))
    other.prepare(spark, written, form, Kind.MIRROR, (20, 1))
    # THEN no file was written, and the values are those that are written elsewhere
    assert files(spark, name) == had
    assert files(spark, written) != files(spark, name)
    names = [column.name for column in form.columns]
    assert rows(spark, name, *names) == rows(spark, written, *names)
    assert spark.table(name).filter("c2 IS NULL").isEmpty()
    # AND changes go on: a row that is written again keeps the value, and another one has what the source sent
    row = spark.table(name).select(*names).filter("id = 1").head()
    assert row is not None
    nothing = (5, 5, "y", *[None for _ in ADDED])
    batch = [change("u", 30, (1, 100, "z", *row[3:])), change("c", 31, nothing)]
    sent = frame(spark, [each | {"schema_id": "form-2"} for each in batch], form)
    for each, place in ((target, name), (other, written)):
        each.apply(place, sent)
    assert rows(spark, name, *names) == rows(spark, written, *names)
    assert rows(spark, name, "id", "c2") == [(0, -7), (1, -7), (2, -7), (5, None)]
    # AND PyIceberg reads the same
    folder = warehouse / "iceberg" / unique / "public_items" / "metadata"
    newest = max(folder.glob("*.metadata.json"), key=lambda file: file.stat().st_mtime)
    read = (
        StaticTable.from_metadata(str(newest))
        .scan(selected_fields=("id", "c2", "c6", "c10"))
        .to_arrow()
        .to_pylist()
    )
    expected = spark.table(name).select("id", "c2", "c6", "c10").collect()
    assert sorted(read, key=lambda each: each["id"]) == sorted(
        [each.asDict() for each in expected], key=lambda each: each["id"]
    )


@pytest.mark.parametrize("number", range(len(DEAR)))
def test_what_icebergs_metadata_cannot_say_is_written_into_each_row(
    spark: SparkSession, unique: str, number: int
):
    target, name = begun(spark, unique, 3)
    form = with_added(DEAR[number])
    target.prepare(spark, name, form, Kind.MIRROR, (20, 1))
    assert spark.table(name).filter("c0 IS NULL").isEmpty()
    assert spark.table(name).count() == 3
    target.apply(name, frame(spark, [change("d", 30, (1, 1, "x", None)) | {"schema_id": "form-2"}], form))
    assert rows(spark, name, ID.name, N.name) == [(0, 0), (2, 2)]


def test_a_table_that_is_brought_to_format_3_by_hand_goes_on_and_has_defaults_unwritten(
    spark: SparkSession, unique: str
):
    # GIVEN a table of format 2 with changed rows
    target, name = begun(spark, unique, 2)
    target.apply(name, frame(spark, [change("u", 20, (1, 100, "y"))], FORM))
    # WHEN it is brought to format 3 while the mirror is stopped
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '3')")
    target, had, form = IcebergTarget("lake", unique), files(spark, name), with_added(ADDED[2])
    target.prepare(spark, name, form, Kind.MIRROR, (30, 1))
    # THEN a default writes nothing, and changes go on
    assert files(spark, name) == had
    batch = [change("u", 40, (1, 101, "z", 5)), change("d", 41, (2, 2, "x", -7))]
    target.apply(name, frame(spark, [each | {"schema_id": "form-2"} for each in batch], form))
    assert rows(spark, name, "id", "n", "c0") == [(0, 0, -7), (1, 101, 5)]
