"""Tables with one row for each change: what a table without a key gets, and what `history` adds to one that has a key.

Such a table only grows. A row has where and when the change happened, its kind, and the row of the source as it was
after it (before it, for a delete). A truncate is one row without values. Where the source sent the whole old row of an
update of a table without a key, that is a row of its own before it, with op `b`: nothing else tells which row it was.

Columns that are dropped at the source stay, under another name, with what they had.
"""

from collections.abc import Collection
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.reduction import EVENT, LSN, UNFIT

CHANGE: Final = "_cdcd_op"
TIME: Final = "_cdcd_commit_time"
UNCHANGED: Final = "_cdcd_unchanged"

COLUMNS: Final = {
    CHANGE: "STRING",
    LSN: "BIGINT",
    EVENT: "BIGINT",
    TIME: "TIMESTAMP",
    UNCHANGED: "ARRAY<STRING>",
}
"""The table's own columns, with their types: op (c u d r t, and b), commit LSN and number of the event, time of the
commit, and the columns whose value the source did not send (they are null here)."""


def columns(schema: TableSchema) -> list[str]:
    return [*COLUMNS, *[quoted(column.name) for column in schema.columns]]


def rows(changes: DataFrame, schema: TableSchema) -> DataFrame:
    """Rows of `changes` (`reduction.prepared`), with `_cdcd_` partition, offset, half and unfit."""
    wide: list[Column] = []
    images = sf.array(sf.struct(sf.col("op"), image("after", "before", schema)))
    if not schema.key:
        old = sf.struct(sf.lit("b").alias("op"), image("before", "before", schema))
        new = sf.struct(sf.col("op"), image("after", "before", schema))
        both = (sf.col("op") == "u") & sf.col("before").isNotNull()
        images = sf.when(both, sf.array(old, new)).otherwise(sf.array(new))
    wide += [
        sf.col("commit_lsn").alias(LSN),
        sf.col("event_no").alias(EVENT),
        sf.col("commit_time").alias(TIME),
        sf.when(sf.size("unchanged") > 0, sf.col("unchanged")).alias(UNCHANGED),
        sf.col("partition").alias("_cdcd_partition"),
        sf.col("offset").alias("_cdcd_offset"),
        sf.when(sf.col("op") == "d", 0).otherwise(1).alias("_cdcd_half"),
        sf.col(UNFIT).alias("_cdcd_unfit"),
    ]
    flat = changes.select(*wide, sf.explode(images).alias("_cdcd_image"))
    values = [sf.col("_cdcd_image.row")[column.name].alias(column.name) for column in schema.columns]
    return flat.select(
        sf.col("_cdcd_image.op").alias(CHANGE),
        LSN,
        EVENT,
        TIME,
        UNCHANGED,
        "_cdcd_partition",
        "_cdcd_offset",
        "_cdcd_half",
        "_cdcd_unfit",
        *values,
    )


def image(first: str, second: str, schema: TableSchema) -> Column:
    """The row, in the table's own order; null values where there is none."""
    empty = sf.lit(None).cast(schema.row_type)
    return sf.coalesce(sf.col(first), sf.col(second), empty).alias("row")


def once(rows_: DataFrame) -> DataFrame:
    """The rows, each change once. A daemon that delivers at least once may have sent it again, to any partition."""
    # Rows of a snapshot have no number of their own, so each of them is another one.
    place = sf.when(sf.col(CHANGE) == "r", sf.struct("_cdcd_partition", "_cdcd_offset"))
    placed = rows_.withColumn("_cdcd_place", place)
    return placed.dropDuplicates([CHANGE, LSN, EVENT, "_cdcd_half", "_cdcd_place"]).drop("_cdcd_place")


def dropped(column: str, there: Collection[str]) -> str:
    """A free name for a column that the source has no more."""
    number, name = 1, f"{column}__dropped"
    while name in there:
        number += 1
        name = f"{column}__dropped_{number}"
    return name
