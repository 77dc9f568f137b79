"""Many changes -> one row for each key: what the key's row is after all of them, and what is not known of it yet.

The rule: of two changes of a key the later one is that with the greater (commit LSN, number of the event). When either
arrived says nothing.

A delete has no values. A mirror that marks deletes (`layout`) keeps those that the row had: in the reduced batch, a key
that was deleted has the values of its last change before the delete, and op `m`. Without such a change it has op `d`.

A change may lack values that the source did not send (unchanged TOAST). What such a column is, the latest change of
the key that has it says; if none of the batch has, the target's row. No value is carried across a delete: the row that
came after it had its own. If the batch lacks the record that made that row (it is in quarantine), the value is LOST.
Finding all this costs an aggregate for each such column, so it is done for those only that the caller names
(`partial`), which are few and the same in each batch; `Summary.partial` says which there were.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    ShortType,
)

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import hash_of
from cdcd.mirror.targets.name_lists import no_names
from cdcd.mirror.targets.state import At, Place, State

# The columns of a reduced batch beside those of the row.
OP: Final = "_cdcd_op"
LSN: Final = "_cdcd_commit_lsn"
EVENT: Final = "_cdcd_event_no"
KEEP: Final = "_cdcd_keep"
"""Array of the columns whose value is the target's."""
LOST: Final = "_cdcd_lost"
"""Array of the columns whose value is neither in the batch nor in the target."""
MARKED: Final = "m"
"""The op of a key that was deleted, and whose last values before that are in the batch."""
MOVED: Final = "_cdcd_moved"
"""Struct (commit_lsn, event_no, key, unchanged) of the key's last change that came from another key with values not
sent; null without one."""

UNFIT: Final = "unfit"
"""Of changes: whether it is none, or of another form than the caller takes it for. The target refuses a batch with such
(`UnfitError`) before it has an effect; so one pass over the records tells, and applies."""

_PRUNABLE: Final = (ShortType, IntegerType, LongType)


@dataclass(frozen=True, slots=True)
class Summary:
    """A reduced batch in a few numbers.

    Attributes:
        changes: how many went in, repeats left out.
        keys: how many rows came out.
        truncated: where the last truncate lies.
        partial: columns that some key's last change lacks.
        moves: some key's row came from another key and lacks values.
        key_range: around the values of the first column of the key (`rounded`), where files can be left out by it.
        hashes: of all keys (`buckets.hash_of`).
        unfit: how many went in that are UNFIT.
    """

    changes: int
    keys: int
    truncated: At | None
    partial: frozenset[str]
    moves: bool
    key_range: tuple[int, int] | None
    hashes: frozenset[int]
    unfit: int


def prepared(changes: DataFrame) -> DataFrame:
    """`changes` with 0 for a snapshot row's number, `old_key`, and UNFIT."""
    if UNFIT not in changes.columns:
        changes = changes.withColumn(UNFIT, sf.lit(False))
    if "old_key" not in changes.columns:
        changes = changes.withColumn("old_key", sf.lit(None).cast(changes.schema["key"].dataType))
    return changes.withColumn("event_no", sf.coalesce("event_no", sf.lit(0)))


def fresh(changes: DataFrame, state: State) -> DataFrame:
    """Those of `changes` (`prepared`) that a table in `state` does not have yet."""
    return changes.filter(is_new(state))


def is_new(state: State) -> Column:
    """Whether a table in `state` does not have a record (as `changes.parse` gives it) yet; also true for one that does
    not say where it lies. Neither its form nor whether it is sound matters.
    """
    lsn, event = sf.col("commit_lsn"), sf.coalesce("event_no", sf.lit(0))
    new = sf.lit(True)
    if state.partitions:
        # Looked up in arrays by the partition's number, for numbers in the condition would be numbers in the code that
        # Spark makes of it, which would be compiled again for each batch.
        places = [state.partitions.get(number) for number in range(max(state.partitions) + 1)]
        at = [sf.get(_numbers(places, part), sf.col("partition")) for part in range(len(Place._fields))]
        half = sf.when(sf.col("op") == "d", 0).otherwise(1)
        same = (event < at[1]) | ((event == at[1]) & (half <= at[2]))
        change = (lsn < at[0]) | ((lsn == at[0]) & same)
        had = sf.when(sf.col("op") == "r", sf.col("offset") <= at[3]).otherwise(change)
        new = ~sf.coalesce(had, sf.lit(False))
    if state.truncated is not None:
        new = new & sf.coalesce(is_after(lsn, event, state.truncated), sf.lit(True))
    return new


def _numbers(places: Sequence[Place | None], part: int) -> Column:
    return sf.array(*[sf.lit(None if place is None else place[part]).cast("bigint") for place in places])


def is_after(lsn: Column, event: Column, at: At) -> Column:
    """The change lies after the position `at`."""
    return (lsn > at[0]) | ((lsn == at[0]) & (event > at[1]))


def reduced(
    changes: DataFrame, schema: TableSchema, partial: Collection[str], *, marks: bool = False
) -> DataFrame:
    """One row for each key of `changes` (`prepared`, `fresh`), and one with op `t` for all truncates together.

    Columns: OP, LSN, EVENT, those of the table, KEEP, LOST, MOVED, and for `summary` and others `_cdcd_changes` (how
    many), `_cdcd_partial` (columns that the last change with values lacks), and for each column of `partial`
    `_cdcd_at_<i>`, where its value is from (struct commit_lsn, event_no, or null), i being its place in the table. All
    but the table's begin with `_cdcd_`, which no column of a source does.

    Args:
        partial: the columns that changes may lack. Where a change lacks another one, the result is wrong and
            `Summary.partial` has it.
        marks: the target marks deleted rows, so that their values are wanted (MARKED).
    """
    at = sf.struct("commit_lsn", "event_no")
    last = sf.struct("op", "after", "unchanged")
    lacks = sf.size("unchanged") > 0
    aggregates = [
        sf.max_by(last, at).alias("last"),
        sf.max(at).alias("at"),
        sf.count(sf.lit(1)).alias("_cdcd_changes"),
    ]
    aggregates += [
        sf.count_if(UNFIT).alias("_cdcd_unfit"),
    ]
    names = [column.name for column in schema.columns]
    has = sf.col("op").isin("c", "u", "r")
    if marks:
        aggregates.append(sf.max_by(sf.when(has, last), sf.when(has, at)).alias("row"))
    filled = {name: number for number, name in enumerate(names) if name in partial}
    for name, number in filled.items():
        knows = has & ~sf.coalesce(sf.array_contains("unchanged", name), sf.lit(False))
        value = sf.struct(sf.col("after")[name].alias("value"), at.alias("at"))
        aggregates.append(sf.max_by(sf.when(knows, value), sf.when(knows, at)).alias(f"_cdcd_fill_{number}"))
    moved = sf.col("old_key").isNotNull() & lacks
    origin = sf.struct("commit_lsn", "event_no", sf.col("old_key").alias("key"), "unchanged")
    if partial:
        aggregates.append(sf.max_by(sf.when(moved, origin), sf.when(moved, at)).alias(MOVED))
        aggregates.append(sf.collect_list(sf.when(sf.col("op") == "d", at)).alias("deletes"))
        aggregates.append(sf.max(sf.when(has, at)).alias("row_at"))
    else:
        aggregates.append(sf.lit(None).cast("struct<commit_lsn:bigint>").alias(MOVED))
    parts = {name: f"_cdcd_key_{number}" for number, name in enumerate(schema.key)}
    by = [sf.col("key")[name].alias(part) for name, part in parts.items()]
    grouped = changes.groupBy(by).agg(*aggregates)
    op, row = sf.col("last.op"), sf.col("last")
    if marks:
        op = sf.when((op == "d") & sf.col("row").isNotNull(), MARKED).otherwise(op)
        row = sf.coalesce("row", "last")
    unknown = sf.coalesce(row["unchanged"], no_names())
    moved_in = sf.col(MOVED)
    if partial:
        # The last delete before the change whose row it is; with marks, there may be one after it.
        gone = sf.array_max(sf.filter("deletes", lambda delete: delete < sf.col("row_at")))
        moved_at = sf.struct(
            moved_in["commit_lsn"].alias("commit_lsn"), moved_in["event_no"].alias("event_no")
        )
        moved_in = sf.when(gone.isNull() | (moved_at > gone), moved_in)
    columns: list[Column | str] = [
        op.alias(OP),
        sf.col("at.commit_lsn").alias(LSN),
        sf.col("at.event_no").alias(EVENT),
        sf.col("_cdcd_changes"),
        sf.col("_cdcd_unfit"),
        unknown.alias("_cdcd_partial"),
        moved_in.alias(MOVED),
    ]
    kept, lost = [], []
    for number, name in enumerate(names):
        value = row["after"][name]
        if name in parts:
            value = sf.col(parts[name])
        if name in filled:
            fill = sf.col(f"_cdcd_fill_{number}")
            fill = sf.when(gone.isNull() | (fill["at"] > gone), fill)
            open_ = sf.array_contains(unknown, name)
            value = sf.when(open_, fill["value"]).otherwise(value)
            nowhere = gone.isNotNull() & moved_in.isNull()
            kept.append(sf.when(open_ & fill.isNull() & ~nowhere, sf.lit(name)))
            lost.append(sf.when(open_ & fill.isNull() & nowhere, sf.lit(name)))
            columns.append(fill["at"].alias(f"_cdcd_at_{number}"))
        columns.append(value.alias(name))
    return grouped.select(*columns, _names(kept).alias(KEEP), _names(lost).alias(LOST))


def _names(names: Sequence[Column]) -> Column:
    """An array of those that are not null."""
    return sf.filter(sf.array(*names), lambda name: name.isNotNull()) if names else no_names()


def summary(reduced_: DataFrame, schema: TableSchema) -> Summary:
    """What is in a reduced batch; reads it once."""
    truncate = sf.col(OP) == "t"
    first = schema.key[0] if schema.key and _prunable(schema.column(schema.key[0]).spark) else None
    row = reduced_.agg(
        sf.sum("_cdcd_changes").alias("changes"),
        sf.count(sf.when(~truncate, 1)).alias("keys"),
        sf.max(sf.when(truncate, sf.struct(LSN, EVENT))).alias("truncated"),
        sf.collect_set(sf.when(sf.size("_cdcd_partial") > 0, sf.col("_cdcd_partial"))).alias("partial"),
        sf.bool_or(sf.col(MOVED).isNotNull()).alias("moves"),
        sf.sum("_cdcd_unfit").alias("unfit"),
        sf.min(reduced_[quoted(first)]).alias("least") if first else sf.lit(None).alias("least"),
        sf.max(reduced_[quoted(first)]).alias("greatest") if first else sf.lit(None).alias("greatest"),
        sf.collect_set(sf.when(~truncate, sf.expr(hash_of(schema, quoted)))).alias("hashes"),
    ).collect()[0]
    return Summary(
        changes=row["changes"] or 0,
        keys=row["keys"],
        truncated=None if row["truncated"] is None else (row["truncated"][0], row["truncated"][1]),
        partial=frozenset([name for names in row["partial"] for name in names]),
        moves=bool(row["moves"]),
        key_range=None if row["least"] is None else rounded(row["least"], row["greatest"]),
        hashes=frozenset(row["hashes"]),
        unfit=row["unfit"] or 0,
    )


def rounded(least: int, greatest: int) -> tuple[int, int]:
    """A range around this one that stays the same while keys grow by little.

    It is part of the code that Spark makes of a merge, which is compiled again when it changes; files are left out
    by it nearly as well. The bounds are multiples of an eighth of the power of two above the greater of the two.
    """
    unit = 1 << max(0, max(abs(least), abs(greatest)).bit_length() - 3)
    low, high = least // unit * unit, -(-greatest // unit) * unit
    return max(low, -(2**63)), min(high, 2**63 - 1)


def _prunable(kind: DataType) -> bool:
    """Whether files are left out by the range of such a column."""
    return isinstance(kind, _PRUNABLE)
