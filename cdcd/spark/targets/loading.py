"""The rows of a snapshot in a target table, and what the table's commit says of them.

The rule: a snapshot is a truncate followed by its rows, both at one place among the changes. So everything that a
target does with a truncate holds here too: what lies before it, in whichever partition, is not new any more.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.errors import PositionError
from cdcd.protocol.lsn import Lsn
from cdcd.spark.schema import TableSchema
from cdcd.spark.sql import quoted
from cdcd.spark.targets import changelog
from cdcd.spark.targets.merge import UNKNOWN
from cdcd.spark.targets.reduction import EVENT, LSN, UNFIT
from cdcd.spark.targets.state import Origin, Place, State
from cdcd.spark.targets.table_format import as_view, having

FIRST: Final = 1
"""The number of every row: the truncate before it would be number 0."""

_ALL_ROWS: Final = {"spark.sql.sources.partitionOverwriteMode": "static"}
"""An INSERT OVERWRITE replaces all rows, also those in buckets that none of the new rows lies in."""


def loaded(
    name: str, state: State, commit_lsn: int, offsets: Mapping[int, int], origin: Origin | None = None
) -> State:
    """The state of a table in `state` when a snapshot is loaded into it. PositionError: it has later changes.

    `origin`: the topic that `offsets` are of; None: the one that it was.
    """
    if state.commit_lsn > commit_lsn:
        raise PositionError(
            f"{name} has changes up to {Lsn(state.commit_lsn)}, after the snapshot's {Lsn(commit_lsn)}.",
            hint="Another process mirrors into it: stop that one first, and take a new snapshot.",
        )
    places = {
        partition: Place(commit_lsn, FIRST, 1, offset - 1)
        for partition, offset in offsets.items()
        if offset > 0
    }
    if origin is not None and origin.topic_id != state.origin.topic_id:
        # Places in the former topic say nothing.
        state = replace(state, partitions={}, origin=origin)
    after = state.advanced(places, truncated=(commit_lsn, 0), consistent_lsn=commit_lsn)
    return replace(after, commit_lsn=commit_lsn, commit_time=None)


def mirrored_rows(changes: DataFrame, schema: TableSchema, commit_lsn: int) -> DataFrame:
    """The rows of a mirror."""
    return changes.select(
        *[sf.col("after")[column.name].alias(column.name) for column in schema.columns],
        sf.lit(commit_lsn).cast("bigint").alias(LSN),
        sf.lit(FIRST).cast("bigint").alias(EVENT),
        sf.lit(None).cast("array<string>").alias(UNKNOWN),
    )


def logged_rows(changes: DataFrame, schema: TableSchema, commit_lsn: int) -> DataFrame:
    """The rows of a changelog."""
    placed = changes.withColumn("commit_lsn", sf.lit(commit_lsn).cast("bigint")).withColumn(
        "event_no", sf.lit(FIRST).cast("bigint")
    )
    # Rows that fit nowhere were left out before.
    fitting = placed.withColumn(UNFIT, sf.lit(False))
    return changelog.rows(fitting, schema).select(changelog.columns(schema))


def overwrite(rows: DataFrame, name: str) -> None:
    """Replace all rows of a table, in one commit."""
    spark = rows.sparkSession
    # By name, because columns that were added stand behind the mirror's own.
    columns = ", ".join(quoted(column) for column in spark.table(name).columns)
    with as_view(rows) as view, having(spark, _ALL_ROWS):
        spark.sql(f"INSERT OVERWRITE {name} SELECT {columns} FROM {view}")
