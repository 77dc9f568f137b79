"""The rows of a snapshot in a target table, and what the table's commit says of them.

The rule: a snapshot is a truncate followed by its rows, both at one place among the changes. So everything that a
target does with a truncate holds here too: what lies before it, in whichever partition, is not new any more. A mirror
that marks deletes keeps the rows that the snapshot lacks, as it does after a truncate.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.core.errors import PositionError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets import changelog
from cdcd.mirror.targets.layout import DELETED, Layout
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.name_lists import no_names
from cdcd.mirror.targets.reduction import EVENT, LSN, UNFIT
from cdcd.mirror.targets.same_columns import crossed, is_other, pairs, widens
from cdcd.mirror.targets.state import Origin, Place, State
from cdcd.mirror.targets.table_format import as_view, having

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
            hint="Another process mirrors into the table: stop that process first, and take a new snapshot.",
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


def mirrored_rows(
    changes: DataFrame, schema: TableSchema, commit_lsn: int, layout: Layout, former: DataFrame | None
) -> DataFrame:
    """The rows of a mirror.

    Args:
        former: the rows that it has so far, in the form `schema` (`in_form`); None: it has none that can stay.
    """
    rows = changes.select(
        *[sf.col("after")[column.name].alias(column.name) for column in schema.columns],
        sf.lit(commit_lsn).cast("bigint").alias(LSN),
        sf.lit(FIRST).cast("bigint").alias(EVENT),
        sf.lit(None).cast("array<string>").alias(UNKNOWN),
    )
    if not layout.marks:
        return rows
    rows = rows.withColumn(DELETED, sf.lit(False))
    return rows if former is None else _outlived(rows, former, schema, commit_lsn)


def _outlived(rows: DataFrame, former: DataFrame, schema: TableSchema, commit_lsn: int) -> DataFrame:
    """`rows`, and those of `former` whose keys they lack, marked as deleted. Each of both is read once."""
    now, then = rows.alias("s"), former.alias("t")
    on = [sf.col(f"s.{quoted(name)}") == sf.col(f"t.{quoted(name)}") for name in schema.key]
    marked = sf.col(f"t.{DELETED}")
    stays = {
        LSN: sf.when(marked, sf.col(f"t.{LSN}")).otherwise(sf.lit(commit_lsn)),
        EVENT: sf.when(marked, sf.col(f"t.{EVENT}")).otherwise(sf.lit(0)),
        DELETED: sf.lit(True),
    }
    is_there = sf.col(f"s.{LSN}").isNotNull()
    columns = [
        sf.when(is_there, sf.col(f"s.{quoted(name)}"))
        .otherwise(stays.get(name, sf.col(f"t.{quoted(name)}")))
        .alias(name)
        for name in rows.columns
    ]
    return now.join(then, on, "full_outer").select(columns)


def in_form(former: DataFrame, old: TableSchema, new: TableSchema) -> DataFrame | None:
    """The rows of a mirror in the form `old` that marks deletes, in a form that it cannot be brought to in place.

    A column of another type has no value in these rows, and UNKNOWN names it. So it is with a column of which nothing
    says that it is the same (`crossed`).

    Returns:
        None if the rows cannot stay: they are of another relation, or have another key.
    """
    if is_other(old, new):
        return None
    same = {after.name: before for before, after in pairs(old, new)}
    doubtful = crossed(old, new)
    fits = {
        name: before.name
        for name, before in same.items()
        if name not in doubtful
        and (before.spark == new.column(name).spark or widens(before.spark, new.column(name).spark))
    }
    if {fits.get(name) for name in new.key} != set(old.key):
        return None
    columns = []
    for column in new.columns:
        value = sf.col(quoted(fits[column.name])) if column.name in fits else sf.lit(None)
        columns.append(value.cast(column.spark).alias(column.name))
    none = no_names()
    open_ = sf.array([sf.lit(name) for name in same if name not in fits]).cast("array<string>")
    renamed = sf.create_map(*[sf.lit(text) for name in fits for text in (fits[name], name)])
    still = sf.transform(sf.coalesce(UNKNOWN, none), lambda name: renamed[name])
    unknown = sf.array_union(sf.filter(still, lambda name: name.isNotNull()), open_)
    return former.select(*columns, LSN, EVENT, sf.nullif(unknown, none).alias(UNKNOWN), DELETED)


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
