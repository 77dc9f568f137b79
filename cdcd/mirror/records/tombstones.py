"""Tombstones of compacted topics: deletes of which compaction has left nothing else.

The daemon writes a delete, and after it a record with its key and no value (`topics.tombstones`). A compacted topic
keeps the last record of a key only, so the delete itself goes. A tombstone says neither when it committed nor in which
form. The rule: it lies right after the record before it in its partition, where its key's earlier changes lie too.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from cdcd.mirror.kafka import Offsets
from cdcd.mirror.records.changes import PROBLEM, head, key_of
from cdcd.mirror.records.rule import Rule
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.state import At

LOOK_BACK: Final = 16
"""Number of offsets before a batch that are read again. The delete of the batch's first tombstone is among them: the
daemon writes a tombstone right after its delete."""


def bare_tombstones(
    records: DataFrame,
    start: Offsets,
    schema: TableSchema,
    rules: Mapping[str, Rule],
    had: Mapping[int, At],
    *,
    keep: bool,
) -> DataFrame:
    """Make a delete, as `changes.parse` gives it, of each tombstone in `records` that does not stand behind its delete.

    Args:
        records: from `LOOK_BACK` offsets before `start` on.
        schema: of a table with a key. A tombstone whose key has other columns is left out.
        had: by partition, the last change that lies before `start`.
        keep: as in `parse`.
    """
    placed = records.withColumn("e", head())
    at = sf.struct(
        sf.col("e.source.commit_lsn").alias("lsn"),
        sf.coalesce("e.source.event_serial_no", sf.lit(0)).alias("event"),
        sf.col("e.op").alias("op"),
        sf.col("key").alias("key"),
    )
    known = sf.when(sf.col("e.source.commit_lsn").isNotNull(), at)
    order = Window.partitionBy("partition").orderBy("offset")
    before = sf.last(known, ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, -1))
    after = sf.first(known, ignorenulls=True).over(order.rowsBetween(1, Window.unboundedFollowing))
    found = placed.withColumns({"before_it": before, "after_it": after}).filter(
        sf.col("value").isNull() & (sf.col("offset") >= _of(start, 0))
    )
    is_told = (sf.col("before_it.op") == "d") & sf.col("before_it.key").eqNullSafe(sf.col("key"))
    found = found.filter(~sf.coalesce(is_told, sf.lit(False)))
    lsns, events = ({partition: at[part] for partition, at in had.items()} for part in range(2))
    last = sf.struct(_of(lsns).alias("lsn"), (_of(events) + 1).alias("event"))
    # The delete had a number of its own, so none of these is that of another change of the key.
    between = sf.greatest(
        _position("before_it", 1), _position("after_it", -1), sf.when(_of(lsns).isNotNull(), last)
    )
    lsn, event = sf.coalesce(between["lsn"], sf.lit(0)), sf.coalesce(between["event"], sf.lit(1))
    key = key_of(sf.col("key").cast("string"), schema, rules)
    row = sf.struct(
        *[
            (key[column.name] if column.name in schema.key else sf.lit(None))
            .cast(column.spark)
            .alias(column.name)
            for column in schema.columns
        ]
    )
    nothing = sf.lit(None)
    changes = found.select(
        sf.lit("d").alias("op"),
        row.alias("before"),
        nothing.cast(schema.row_type).alias("after"),
        nothing.cast("array<string>").alias("unchanged"),
        key.alias("key"),
        nothing.cast(schema.key_type).alias("old_key"),
        nothing.cast(schema.key_type).alias("new_key"),
        lsn.alias("commit_lsn"),
        event.alias("event_no"),
        nothing.cast(TimestampType()).alias("commit_time"),
        "topic",
        "partition",
        "offset",
        sf.lit(schema.schema_id).alias("schema_id"),
        nothing.cast("string").alias(PROBLEM),
        *(
            [sf.col("key").alias("key_bytes"), sf.col("value").alias("value_bytes"), sf.col("timestamp")]
            if keep
            else []
        ),
    )
    for name in schema.key:
        changes = changes.filter(sf.col("key")[name].isNotNull())
    return changes


def _position(column: str, more: int) -> Column:
    """The position of the record before or after, by so many events later."""
    lsn, event = sf.col(f"{column}.lsn"), sf.col(f"{column}.event") + more
    return sf.when(lsn.isNotNull(), sf.struct(lsn.alias("lsn"), event.alias("event")))


def _of(numbers: Mapping[int, int], otherwise: int | None = None) -> Column:
    """The number of a record's partition."""
    listed = [sf.lit(numbers.get(each)).cast("bigint") for each in range(max(numbers, default=0) + 1)]
    return sf.coalesce(sf.get(sf.array(*listed), sf.col("partition")), sf.lit(otherwise).cast("bigint"))
