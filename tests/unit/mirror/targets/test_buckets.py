from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.buckets import BUCKETS_MAX, HASHES, bucket_of, buckets_for, hash_of, named
from cdcd.mirror.targets.same_columns import widens

MIB = 1 << 20


def keyed(**types: DataType) -> TableSchema:
    columns = [
        ColumnSchema(name, number, "", 0, -1, kind) for number, (name, kind) in enumerate(types.items(), 1)
    ]
    return TableSchema("p.public.t", "public", "t", "1", tuple(types), tuple(columns))


@pytest.fixture
def hashes(spark: SparkSession) -> Callable[..., list[int]]:
    def of(schema: TableSchema, *rows: tuple[Any, ...]) -> list[int]:
        fields = [StructField(column.name, column.spark) for column in schema.columns]
        frame = spark.createDataFrame(rows, StructType(fields))
        return [row[0] for row in frame.selectExpr(hash_of(schema, quoted)).collect()]

    return of


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (7, [ByteType(), ShortType(), IntegerType(), LongType()]),
        (0.25, [FloatType(), DoubleType()]),
        (Decimal("1.50"), [DecimalType(4, 2), DecimalType(18, 2), DecimalType(19, 2), DecimalType(38, 2)]),
    ],
)
def test_a_key_keeps_its_hash_when_its_type_grows(
    hashes: Callable[..., list[int]], value: Any, kinds: list[DataType]
):
    assert all(widens(before, after) for before, after in pairwise(kinds))
    assert len({hashes(keyed(id=kind), (value,))[0] for kind in kinds}) == 1


def test_a_key_keeps_its_hash_under_other_names_and_in_another_order(hashes: Callable[..., list[int]]):
    one = keyed(a=IntegerType(), b=StringType())
    renamed = keyed(x=IntegerType(), y=StringType())
    turned = replace(one, key=("b", "a"))
    assert hashes(one, (1, "k")) == hashes(renamed, (1, "k")) == hashes(turned, (1, "k"))


def test_keys_that_are_equal_have_one_hash(hashes: Callable[..., list[int]]):
    zero, minus, nan, other = hashes(
        keyed(id=DoubleType()), (0.0,), (-0.0,), (float("nan"),), (float("-nan"),)
    )
    assert (zero, nan) == (minus, other)


def test_hashes_are_spread_over_every_number_of_buckets(
    hashes: Callable[..., list[int]], spark: SparkSession
):
    schema = keyed(id=LongType(), day=DateType())
    found = hashes(schema, *[(number, date(2024, 2, 29)) for number in range(4000)])
    assert all(0 <= each < HASHES for each in found)
    assert {each % 256 for each in found} == set(range(256))
    frame = spark.range(10).selectExpr("id", "DATE'2024-02-29' AS day")
    rows = frame.selectExpr(hash_of(schema, quoted), bucket_of(schema, 8)).collect()
    assert all(row[0] % 8 == row[1] for row in rows)


def test_a_row_meets_the_conditions_that_name_its_hash(spark: SparkSession):
    schema = keyed(id=LongType())
    table = spark.range(1000).selectExpr("id", f"{bucket_of(schema, 16)} AS _cdcd_bucket")
    wanted = [3, 500, 999]
    numbers = {
        row[0]
        for row in spark.createDataFrame([(each,) for each in wanted], "id bigint")
        .selectExpr(hash_of(schema, quoted))
        .collect()
    }
    bucket, by_hash = named(schema, "t", numbers, 16)
    in_buckets = table.alias("t").filter(bucket)
    found = {row.id for row in in_buckets.filter(by_hash).collect()}
    assert found >= set(wanted)
    assert len(found) < 10 < in_buckets.count() < 400


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 1), (127 * MIB, 1), (300 * MIB, 2), (400 * MIB, 4), (1 << 50, BUCKETS_MAX)],
)
def test_a_table_gets_about_one_bucket_for_each_file(size: int, expected: int):
    assert buckets_for(size, 128 * MIB) == expected
