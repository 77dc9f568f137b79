from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from cdcd.core.catalog.logical import form_of
from cdcd.mirror.records.defaults import default_of, fits
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.records.types import rule_for


def value(spark: SparkSession, column: ColumnSchema) -> Any:
    found = spark.range(1).select(default_of(column).alias("value"))
    assert found.schema["value"].dataType == column.spark
    return found.collect()[0]["value"]


def test_a_default_becomes_what_a_record_with_it_becomes(spark: SparkSession):
    written = {
        "int32": ("7", 7),
        "text": ('"it\'s ${x} \\\\"', "it's ${x} \\"),
        "bits": ('"pQ=="', b"\xa5"),
        "time": ("32400000000", 32_400_000_000),
        "decimal(8,3)": ('"NAN"', None),
        "decimal": ('"NAN"', "NaN"),
        "text[]": ("[]", []),
        "int32[][]": ("[[1,null]]", [[1, None]]),
        "point": ('{"x":1.0,"y":2.0,"wkb":"","srid":null}', (1.0, 2.0)),
    }
    for form, (json_, wanted) in written.items():
        spark_type = rule_for(form).spark
        column = ColumnSchema("a", 2, "x", 0, -1, spark_type, form=form, default=json_)
        assert (form, value(spark, column)) == (form, wanted)
        assert fits(spark, column)
    assert value(spark, ColumnSchema("a", 2, "x", 0, -1, IntegerType(), form="int32")) is None


def test_a_default_that_does_not_fit_is_told(spark: SparkSession):
    flat = ColumnSchema(
        "a", 2, "int[]", 1007, -1, rule_for("int32[][]").spark, form="int32[][]", default="[1]"
    )
    assert not fits(spark, flat)


@pytest.mark.parametrize(
    ("oid", "type_", "form", "wanted"),
    [
        (1560, "bit(8)", "bits", ("10100101", b"\xa5")),
        (1083, "time", None, ("09:00:00", 32_400_000_000)),
        (1009, "text[]", None, ("{a,NULL}", ["a", None])),
        (1186, "interval", "text", ("1 day", "P0Y0M1DT0H0M0S")),
        (90_001, "price", "decimal(10,2)", ("1.50", Decimal("1.50"))),
        (90_002, "mood", None, ("sad", "sad")),
        (90_003, "flag", "boolean", ("t", True)),
        (90_004, "extra.hstore", "json", ('"a"=>"1"', '{"a":"1"}')),
        (90_005, "numbers", "int32[]", ("{1,2}", [1, 2])),
    ],
)
def test_what_older_daemons_and_mirrors_wrote_down_is_understood(
    spark: SparkSession, oid: int, type_: str, form: str | None, wanted: tuple[str, Any]
):
    text, meant = wanted
    spark_type = rule_for(form or form_of(oid, -1, {})).spark
    column = ColumnSchema("a", 2, type_, oid, 8 if oid == 1560 else -1, spark_type, missing=text, form=form)
    assert value(spark, column) == meant


def test_a_domain_whose_form_an_older_mirror_did_not_keep_is_told_by_its_type(spark: SparkSession):
    price = ColumnSchema("a", 2, "price", 90_001, -1, DecimalType(10, 2), missing="1.50")
    assert value(spark, price) == Decimal("1.50")


def test_an_infinite_time_and_a_text_that_nothing_explains(spark: SparkSession):
    infinite = ColumnSchema("a", 2, "timestamptz", 1184, -1, TimestampType(), missing="infinity")
    found = spark.range(1).select(default_of(infinite).cast("double").alias("s")).collect()[0]["s"]
    assert found == pytest.approx(9_223_372_036_825.2)
    unknown = ColumnSchema("a", 2, "odd", 99_999, -1, LongType(), missing="x", form="int64")
    assert not fits(spark, unknown)


def test_what_an_older_mirror_kept_of_a_table_still_reads():
    schema = TableSchema(
        "t", "public", "t", "1", (), (ColumnSchema("a", 1, "text", 25, -1, StringType(), "x"),)
    )
    older = schema.to_json().replace(',"form":null,"default":null', "")
    assert "default" not in older
    assert TableSchema.from_json(older) == schema
