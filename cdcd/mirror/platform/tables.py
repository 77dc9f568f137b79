"""What Spark's SQL says of a table in any format, and how its properties are set."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from cdcd.mirror.platform.sql import assigned


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
