"""Records that are no changes: the table that keeps them, with what they are and why they were set aside."""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.records.changes import PROBLEM
from cdcd.mirror.targets.target import Target

QUARANTINE: Final = "quarantine"
"""The table for records that are no changes, of all tables together."""

PLACE: Final = ("topic", "partition", "offset")


def set_aside(target: Target, table: str, poison: Iterable[DataFrame]) -> int:
    """Keep records of a table (`changes.parse`, with `keep`) in quarantine. Returns how many were not there yet."""
    rows: DataFrame | None = None
    for part in poison:
        columns = part.select(
            sf.lit(table).alias("table"),
            *PLACE,
            sf.col("timestamp").alias("record_time"),
            sf.col("key_bytes").alias("key"),
            sf.col("value_bytes").alias("value"),
            sf.col(PROBLEM).alias("reason"),
            sf.col("schema_id"),
        )
        rows = columns if rows is None else rows.unionByName(columns)
    if rows is None:
        return 0
    rows = rows.persist()
    try:
        if rows.isEmpty():
            return 0
        return target.append(target.own_name(QUARANTINE), rows, list(PLACE))
    finally:
        rows.unpersist()
