"""What Spark's SQL says of tables in any format, and what statements about them need."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from cdcd.mirror.platform.sql import assigned, condition

_ABSENT: Final = ("DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")
"""Conditions of Spark's errors for a table that is not there."""

_NO_NAMESPACE: Final = re.compile(r"SCHEMA_NOT_FOUND|NoSuchNamespaceException")


def exists(spark: SparkSession, name: str) -> bool:
    """Return True if a table has this name in SQL."""
    try:
        return bool(spark.catalog.tableExists(name))
    except AnalysisException as error:
        # Delta's answer for a folder without a table.
        if condition(error) in _ABSENT:
            return False
        raise


def properties(spark: SparkSession, name: str) -> dict[str, str]:
    """The table's properties."""
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}


def set_properties(spark: SparkSession, name: str, values: Mapping[str, str]) -> None:
    """Set properties of the table."""
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({assigned(values)})")


def location(spark: SparkSession, name: str) -> str:
    """The table's folder."""
    about = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").filter("col_name = 'Location'").collect()
    return str(about[0]["data_type"])


def listed(spark: SparkSession, statement: str) -> list[Row]:
    """Return the rows of a SHOW statement. A namespace or folder that does not exist yet has no rows."""
    try:
        return list(spark.sql(statement).collect())
    except Exception as error:
        # An Iceberg catalog in a folder raises an exception of Java. Other catalogs raise an exception of Spark.
        if _NO_NAMESPACE.search(str(error)):
            return []
        raise


@contextmanager
def as_view(rows: DataFrame) -> Iterator[str]:
    """Give the rows a name for SQL, which is gone afterwards."""
    view = f"cdcd_rows_{uuid4().hex}"
    rows.createOrReplaceTempView(view)
    try:
        yield view
    finally:
        rows.sparkSession.catalog.dropTempView(view)


@contextmanager
def having(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session has `settings` meanwhile, and none of them afterwards."""
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)
