"""The values of rows that came from another key and were not sent: they are at the old key.

An update that changes the key is a delete of the old key and a create of the new one. A TOAST value that it leaves as
it is is in neither: only the row that was at the old key has it. That row is in the batch (with its own gaps, perhaps,
or moved there from yet another key), or in the target.

The rule: for each column that is open, follow the key back through the batch until a change has the value. Where none
has, the target has it, if it holds the old key as it was before the move. A delete on the way ends the search: the row
that moved came after it, by a record that is in quarantine. Such batches are rare, so this may cost
several joins; a batch without them costs nothing.

The target is read where those old keys can lie: in their buckets, and of these only the rows with their hashes.

Both halves must be in one batch for that, although they may lie in different partitions. A fold ends at the complete
LSN, up to which every partition was read, so that it has both or none.
"""

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import hash_of, named
from cdcd.mirror.targets.layout import DELETED
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.reduction import EVENT, KEEP, LOST, LSN, MOVED

_AT = sf.struct


def resolved(
    reduced: DataFrame,
    changes: DataFrame,
    schema: TableSchema,
    partial: Iterable[str],
    target: DataFrame,
    *,
    buckets: int = 1,
) -> DataFrame:
    """`reduced` with the values of moved rows filled in, or named in LOST.

    Args:
        changes: of which it was made (`reduction.prepared`, `fresh`).
        target: the table as it is.
        buckets: how many it has.
    """
    names = [column.name for column in schema.columns]
    found: dict[str, DataFrame] = {}
    for name in partial:
        start = _open(reduced, schema, name, names.index(name))
        if not start.isEmpty():
            found[name] = _follow(start, changes, schema, name, (target, buckets))
    result = reduced
    for name, values in found.items():
        on = [result[quoted(part)] == values[f"_cdcd_new_{number}"] for number, part in enumerate(schema.key)]
        joined = result.join(values, on, "left")
        known = sf.col("_cdcd_found")
        columns = []
        for column in result.columns:
            if column == name:
                columns.append(
                    sf.when(known.isNull(), result[quoted(name)]).otherwise(sf.col("_cdcd_value")).alias(name)
                )
            elif column == KEEP:
                without = sf.array_remove(result[KEEP], name)
                columns.append(sf.when(known.isNull(), result[KEEP]).otherwise(without).alias(KEEP))
            elif column == LOST:
                with_ = sf.array_append(result[LOST], sf.lit(name))
                columns.append(sf.when(known == sf.lit(False), with_).otherwise(result[LOST]).alias(LOST))
            else:
                columns.append(result[quoted(column)])
        result = joined.select(columns)
    return result


def _open(reduced: DataFrame, schema: TableSchema, name: str, number: int) -> DataFrame:
    """Rows whose `name` is from before their last move: new key `_cdcd_new_i`, old key `_cdcd_old_i`, and
    `_cdcd_at` of the move."""
    move = _AT(sf.col(MOVED)["commit_lsn"].alias("commit_lsn"), sf.col(MOVED)["event_no"].alias("event_no"))
    value_at = sf.col(f"_cdcd_at_{number}")
    before = value_at.isNull() | (value_at < move)
    rows = reduced.filter(sf.col(MOVED).isNotNull() & sf.array_contains("_cdcd_partial", name) & before)
    news = [sf.col(quoted(part)).alias(f"_cdcd_new_{index}") for index, part in enumerate(schema.key)]
    olds = [sf.col(MOVED)["key"][part].alias(f"_cdcd_old_{index}") for index, part in enumerate(schema.key)]
    return rows.select(*news, *olds, move.alias("_cdcd_at")).localCheckpoint()


def _follow(
    pending: DataFrame,
    changes: DataFrame,
    schema: TableSchema,
    name: str,
    target: tuple[DataFrame, int],
) -> DataFrame:
    """`_cdcd_new_i`, `_cdcd_value`, `_cdcd_found` for each row of `pending`.

    Args:
        target: as it is, and how many buckets it has.
    """
    keys = range(len(schema.key))
    news = [f"_cdcd_new_{index}" for index in keys]
    at = _AT("commit_lsn", "event_no")
    lacks = sf.array_contains("unchanged", name)
    knows = sf.col("op").isin("c", "u", "r") & ~sf.coalesce(lacks, sf.lit(False))
    moved = sf.col("old_key").isNotNull() & sf.coalesce(lacks, sf.lit(False))
    deleted = sf.col("op") == "d"
    facts = changes.filter(knows | moved | deleted).select(
        *[sf.col("key")[part].alias(f"_cdcd_key_{index}") for index, part in enumerate(schema.key)],
        at.alias("_cdcd_then"),
        sf.when(knows, _AT(sf.col("after")[name].alias("value"), at.alias("at"))).alias("_cdcd_fill"),
        sf.when(moved, _AT(sf.col("old_key").alias("key"), at.alias("at"))).alias("_cdcd_move"),
        sf.when(deleted, at).alias("_cdcd_gone"),
    )
    done: DataFrame | None = None
    roots: DataFrame | None = None
    while not pending.isEmpty():
        on = [pending[f"_cdcd_old_{index}"] == facts[f"_cdcd_key_{index}"] for index in keys]
        joined = pending.join(facts, [*on, facts["_cdcd_then"] < pending["_cdcd_at"]], "left")
        step = (
            joined.groupBy(*news)
            .agg(
                *[sf.first(f"_cdcd_old_{index}").alias(f"_cdcd_old_{index}") for index in keys],
                sf.first("_cdcd_at").alias("_cdcd_at"),
                sf.max_by("_cdcd_fill", sf.col("_cdcd_fill.at")).alias("fill"),
                sf.max_by("_cdcd_move", sf.col("_cdcd_move.at")).alias("move"),
                sf.max("_cdcd_gone").alias("gone"),
            )
            .localCheckpoint()
        )
        since = sf.col("gone").isNull()
        fill = sf.when(since | (sf.col("fill.at") > sf.col("gone")), sf.col("fill"))
        move = sf.when(since | (sf.col("move.at") > sf.col("gone")), sf.col("move"))
        has = fill.isNotNull() & (move.isNull() | (fill["at"] >= move["at"]))
        onward = move.isNotNull() & ~has
        done = _union(
            done,
            step.filter(has).select(
                *news, fill["value"].alias("_cdcd_value"), sf.lit(True).alias("_cdcd_found")
            ),
        )
        olds = [f"_cdcd_old_{index}" for index in keys]
        ends = step.filter(fill.isNull() & move.isNull())
        roots = _union(roots, ends.filter(since).select(*news, *olds, "_cdcd_at"))
        nothing = ends.filter(~since).select(
            *news, fill["value"].alias("_cdcd_value"), sf.lit(False).alias("_cdcd_found")
        )
        done = done.unionByName(nothing)
        nexts = [move["key"][part].alias(f"_cdcd_old_{index}") for index, part in enumerate(schema.key)]
        pending = step.filter(onward).select(*news, *nexts, move["at"].alias("_cdcd_at")).localCheckpoint()
    assert done is not None, "there was something to follow"
    assert roots is not None, "there was something to follow"
    roots = roots.localCheckpoint()
    near = _near(target[0], roots, schema, target[1])
    if near is None:
        return done.localCheckpoint()
    return done.unionByName(_in_target(roots, schema, name, near)).localCheckpoint()


def _near(target: DataFrame, roots: DataFrame, schema: TableSchema, buckets: int) -> DataFrame | None:
    """The part of the target that has the old keys of `roots`, or little more. None: there are no roots."""
    olds = {part: f"_cdcd_old_{index}" for index, part in enumerate(schema.key)}
    hashes = roots.agg(sf.collect_set(sf.expr(hash_of(schema, lambda part: olds[part])))).head()
    assert hashes is not None, "an aggregate of all rows has one row"
    if not hashes[0]:
        return None
    near = target.alias("t")
    for condition in named(schema, "t", hashes[0], buckets):
        near = near.filter(condition)
    return near


def _in_target(roots: DataFrame, schema: TableSchema, name: str, target: DataFrame) -> DataFrame:
    """The values of `roots` in the target, where it has the old key from before the move.

    A row that is marked as deleted is none: the row that moved came after it.
    """
    keys = range(len(schema.key))
    news = [f"_cdcd_new_{index}" for index in keys]
    live = target.filter(~sf.col(DELETED)) if DELETED in target.columns else target
    rows = live.select(
        *[sf.col(quoted(part)).alias(f"_cdcd_key_{index}") for index, part in enumerate(schema.key)],
        sf.col(quoted(name)).alias("_cdcd_value"),
        _AT(sf.col(LSN).alias("commit_lsn"), sf.col(EVENT).alias("event_no")).alias("_cdcd_then"),
        sf.coalesce(sf.array_contains(UNKNOWN, name), sf.lit(False)).alias("_cdcd_unknown"),
    )
    on: list[Column] = [roots[f"_cdcd_old_{index}"] == rows[f"_cdcd_key_{index}"] for index in keys]
    joined = roots.join(rows, [*on, rows["_cdcd_then"] < roots["_cdcd_at"]], "left")
    there = sf.col("_cdcd_then").isNotNull() & ~sf.col("_cdcd_unknown")
    return joined.select(*news, "_cdcd_value", there.alias("_cdcd_found"))


def _union(one: DataFrame | None, other: DataFrame) -> DataFrame:
    return other if one is None else one.unionByName(other)
