"""Mirrors that are partitioned for those who read them (`tables.partition_by`), in both formats."""

import datetime as dt
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, TimestampType

from cdcd.core.errors import ConfigError
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.partitions import OWN, Field
from cdcd.mirror.targets.target import Kind, New
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import frame
from tests.spark.test_target_tables import change, rows

ID = ColumnSchema("id", 1, "bigint", 20, -1, LongType())
AT = ColumnSchema("at", 2, "timestamptz", 1184, -1, TimestampType())
REGION = ColumnSchema("region", 3, "text", 25, -1, StringType())
FORM = TableSchema("shop.public.visits", "public", "visits", "form-1", ("id",), (ID, AT, REGION))
BY = (Field("at", "days"), Field("region"))


def day(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, number, 12, tzinfo=dt.UTC)


def visit(op: str, lsn: int, row: tuple[Any, ...] | None, **more: Any) -> dict[str, Any]:
    return change(op, lsn, row, topic=FORM.topic, **more)


def begun(spark: SparkSession, target: Lakehouse, layout: Layout) -> str:
    """Three rows: one without values, and one with an empty text."""
    name = target.name_of(FORM, Kind.MIRROR)
    target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1), layout)
    first = [(1, day(1), "eu"), (2, None, None), (3, day(3), "")]
    batch = [visit("c", 10 + row[0], row) for row in first]
    target.apply(name, frame(spark, batch, FORM))
    return name


def partitions(spark: SparkSession, target: Lakehouse, name: str) -> list[tuple[Any, ...]]:
    """By how many rows lie in which parts: (day, region), as the format has them."""
    if target.format == "iceberg":
        found = spark.sql(
            f"SELECT CAST(partition.at_day AS STRING), partition.region, record_count FROM {name}.partitions"
        )
    else:
        one, two = f"{OWN}1", f"{OWN}2"
        found = spark.table(name).groupBy(one, two).count()
        assert spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["partitionColumns"][:2] == [one, two]
    return sorted(map(tuple, found.collect()), key=str)


@pytest.mark.parametrize("buckets", [1, 4])
def test_a_row_whose_values_change_moves_to_its_partition(
    spark: SparkSession, make_target: MakeTarget, buckets: int
):
    # GIVEN rows in partitions, also without a value
    target = make_target()
    name = begun(spark, target, Layout(buckets, fields=BY))
    assert rows(spark, name, "id", "region") == [(1, "eu"), (2, None), (3, "")]
    # WHEN values come, go and change, and keys change with them and alone
    target = make_target()
    batch = [
        visit("u", 20, (1, day(2), "us"), key=(1,)),
        visit("u", 21, (2, day(2), "us"), key=(2,)),
        visit("d", 22, (3, day(3), ""), key=(3,)),
        visit("c", 22, (4, None, ""), key=(4,), event_no=2, offset=23),
    ]
    target.apply(name, frame(spark, batch, FORM))
    # THEN each row is there once, in the partition of its values
    assert rows(spark, name, "id", "at", "region") == [
        (1, day(2).replace(tzinfo=None), "us"), (2, day(2).replace(tzinfo=None), "us"), (4, None, ""),
    ]  # fmt: skip
    assert spark.table(name).filter("region = 'us'").count() == 2
    if target.format != "iceberg":
        # Delta reads an empty text in a partition column as NULL, so the source's column is no partition column.
        assert partitions(spark, target, name) == [("2026-01-02", "us", 2), (None, None, 1)]
    elif buckets == 1:
        assert ("2026-01-02", "us", 2) in partitions(spark, target, name)
    # AND a truncate and a snapshot find their places
    target.apply(name, frame(spark, [visit("t", 30, None, key=None)], FORM))
    assert spark.table(name).isEmpty()
    again = spark.createDataFrame([((7, day(5), "eu"),)], f"after {FORM.row_type.simpleString()}")
    target.load(name, again, 40, {0: 41})
    assert rows(spark, name, "id", "region") == [(7, "eu")]


def laid_out(fields: tuple[Field, ...], _size: int) -> Layout:
    return Layout(fields=fields)


def test_a_table_is_partitioned_otherwise_by_a_relayout_alone(spark: SparkSession, make_target: MakeTarget):
    target = make_target()
    name = begun(spark, target, Layout())
    had = rows(spark, name, "id", "at", "region")
    layouts: list[tuple[Field, ...]] = [BY, (Field("region", "truncate", 1), Field("id", "bucket", 4)), ()]
    for fields in layouts:
        # A configuration that says otherwise changes nothing by itself.
        before = make_target().layout(spark, name)
        target = make_target()
        target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1), Layout(fields=fields))
        assert target.layout(spark, name) == before
        done = target.relayout(spark, name, partial(laid_out, fields))
        assert done.after.fields == fields
        assert rows(spark, name, "id", "at", "region") == had
        assert [column for column in spark.table(name).columns if column.startswith(OWN)] == [
            f"{OWN}{number}" for number, _ in enumerate(done.after.own, 1)
        ]
        assert make_target().relayout(spark, name, partial(laid_out, fields)).before == done.after
    target.apply(name, frame(spark, [visit("u", 50, (3, day(9), "x"), key=(3,))], FORM))
    assert rows(spark, name, "id", "region") == [(1, "eu"), (2, None), (3, "x")]


def test_a_column_that_a_table_is_partitioned_by_is_renamed_and_not_dropped(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = begun(spark, target, Layout(fields=BY))
    # WHEN the column gets another name
    area = replace(REGION, name="area")
    form = replace(FORM, schema_id="form-2", columns=(ID, AT, area))
    target.prepare(spark, name, form, Kind.MIRROR, (20, 1))
    layout = make_target().layout(spark, name)
    assert layout is not None
    assert layout.fields == (BY[0], Field("area"))
    target = make_target()
    target.apply(name, frame(spark, [visit("u", 21, (1, day(1), "us"), key=(1,))], form))
    assert rows(spark, name, "id", "area") == [(1, "us"), (2, None), (3, "")]
    # AND when it is dropped, the table stops with what to do, and is as it was
    without = replace(FORM, schema_id="form-3", columns=(ID, AT))
    with pytest.raises(IncompatibleSchemaError) as stopped:
        target.prepare(spark, name, without, Kind.MIRROR, (30, 1))
    assert "column area is dropped, and the mirror is partitioned by area" in stopped.value.message
    assert "Take the field out of tables.partition_by" in stopped.value.hint
    assert rows(spark, name, "id", "area") == [(1, "us"), (2, None), (3, "")]
    # THEN the table that is read again takes its place, or says what comes before
    snapshot = spark.createDataFrame([((1, day(1)),)], f"after {without.row_type.simpleString()}")
    new = New(without, Kind.MIRROR, Layout(fields=BY[:1]))
    if target.format == "iceberg":
        with pytest.raises(IncompatibleSchemaError, match="partitioned by the column area") as stopped:
            target.swap(name, new, snapshot, 40, {0: 41})
        assert "Drop the target table" in stopped.value.hint
        spark.sql(f"DROP TABLE {name}")
        target.forget(name)
        target.prepare(spark, name, without, Kind.MIRROR, (40, 0), new.layout)
        target.load(name, snapshot, 40, {0: 41})
    else:
        target.swap(name, new, snapshot, 40, {0: 41})
    target.apply(name, frame(spark, [visit("u", 50, (1, day(2)), key=(1,), offset=51)], without))
    assert rows(spark, name, "id", "at") == [(1, day(2).replace(tzinfo=None))]


def test_a_column_that_is_called_as_icebergs_field_stops_the_table_by_name(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = begun(spark, target, Layout(fields=BY))
    added = ColumnSchema("at_day", 9, "text", 25, -1, StringType())
    form = replace(FORM, schema_id="form-2", columns=(*FORM.columns, added))
    if target.format != "iceberg":
        assert target.prepare(spark, name, form, Kind.MIRROR, (20, 1)) == form
        return
    snapshot = spark.createDataFrame([((1, day(1), "eu", "x"),)], f"after {form.row_type.simpleString()}")
    for refused in (
        lambda: target.prepare(spark, name, form, Kind.MIRROR, (20, 1)),
        lambda: target.swap(name, New(form, Kind.MIRROR), snapshot, 40, {0: 41}),
    ):
        with pytest.raises(IncompatibleSchemaError, match="called at_day now") as stopped:
            refused()
        assert "drop the target table" in stopped.value.hint
    assert rows(spark, name, "id", "region") == [(1, "eu"), (2, None), (3, "")]


def test_a_table_that_cannot_be_partitioned_so_is_not_made(spark: SparkSession, make_target: MakeTarget):
    target = make_target()
    name = target.name_of(FORM, Kind.MIRROR)
    with pytest.raises(ConfigError, match="names the column nope, which the table does not have"):
        target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1), Layout(fields=(Field("nope"),)))
    assert target.schema(spark, name) is None
    # A table that is there goes on, whatever the configuration says.
    name = begun(spark, target, Layout())
    with pytest.raises(ConfigError, match="days"):
        target.relayout(spark, name, lambda _: Layout(fields=(Field("region", "days"),)))
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]
