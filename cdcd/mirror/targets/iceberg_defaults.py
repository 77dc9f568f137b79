"""Columns that Iceberg adds with a value for the rows that are there (`initial-default`, of format 3).

The value is in the table's metadata, so that no file is written. Iceberg has such values for primitive types alone.
"""

from typing import Any, Final

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
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

from cdcd.mirror.platform.java import java
from cdcd.mirror.records.defaults import default_of
from cdcd.mirror.records.schema import ColumnSchema

SINCE: Final = 3
"""The version of Iceberg's format that has them."""

_PLAIN: Final = (BooleanType, ShortType, IntegerType, LongType, FloatType, DoubleType, StringType, BinaryType)
_YEARS: Final = (1, 9999)
"""Years of dates and timestamps that every reader of the metadata can read: PostgreSQL's infinity is beyond them."""


def add_with_default(spark: SparkSession, table: Any, column: ColumnSchema) -> bool:
    """Add a column whose default the rows have that are there. It may have been added so before.

    Args:
        table: Iceberg's own object.

    Returns:
        False if that cannot be. Nothing was done then.
    """
    if java(spark, "org.apache.iceberg.TableUtil").formatVersion(table) < SINCE:
        return False
    there = table.schema().findField(column.name)
    if there is not None:
        return there.initialDefault() is not None
    literal = _literal(spark, column.spark, _value(spark, column))
    if literal is None:
        return False
    described = spark._jsparkSession.parseDataType(column.spark.json())
    type_ = java(spark, "org.apache.iceberg.spark.SparkSchemaUtil").convert(described)
    table.updateSchema().addColumn(column.name, type_, None, literal.to(type_)).commit()
    return True


def _value(spark: SparkSession, column: ColumnSchema) -> Any:
    """The default as Python has it, times in days or microseconds since 1970. None: the metadata cannot have it."""
    value = default_of(column)
    row = (
        spark.range(1)
        .select(_countable(value, column.spark).alias("value"), _is_common(value, column.spark))
        .head()
    )
    return row[0] if row is not None and row[1] else None


def _countable(value: Column, kind: DataType) -> Column:
    if isinstance(kind, DateType):
        return sf.unix_date(value)
    if isinstance(kind, TimestampType | TimestampNTZType):
        # The session's time zone is UTC.
        return sf.unix_micros(value.cast(TimestampType()))
    if isinstance(kind, DecimalType):
        return value.cast(StringType())
    return value


def _is_common(value: Column, kind: DataType) -> Column:
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return sf.year(value).between(*_YEARS)
    if isinstance(kind, FloatType | DoubleType):
        return sf.abs(value) < sf.lit(float("inf"))
    return sf.lit(isinstance(kind, (*_PLAIN, DecimalType)))


def _literal(spark: SparkSession, kind: DataType, value: Any) -> Any:
    """Iceberg's literal. None: there is none."""
    if value is None:
        return None
    lit = java(spark, "org.apache.iceberg.expressions.Expressions").lit
    if isinstance(kind, DecimalType):
        return lit(java(spark, "java.math.BigDecimal")(value))
    if isinstance(kind, BinaryType):
        return lit(java(spark, "java.nio.ByteBuffer").wrap(value))
    if isinstance(kind, BooleanType | StringType | FloatType | DoubleType):
        return lit(value)
    return lit(value).to(java(spark, "org.apache.iceberg.types.Types$LongType").get())
