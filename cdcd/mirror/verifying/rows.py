"""Rows of both sides in one form, their sums by ranges of keys, and what differs in the ranges whose sums do.

Both sides are DataFrames with the columns

| column | |
|---|---|
| k STRING | the key's texts, as a JSON array; null in a row of the source that fits no type |
| v ARRAY<STRING> | the text of each compared column |
| unknown ARRAY<INT> | of the mirror: the numbers of columns whose value it never got (`_cdcd_unknown`) |

The sum of a range does not depend on the order of its rows, and is a sum, so that a row that is there twice does not
cancel itself. Spark adds up before it shuffles; only rows of ranges whose sums differ are shuffled, and of these no
more than `SHOWN_MAX` come to the driver, with values of bounded length.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.values import as_json
from cdcd.mirror.targets.layout import DELETED
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.reduction import LSN
from cdcd.mirror.verifying.forms import Compared, ComparedColumn, key_in
from cdcd.mirror.verifying.texts import row_hash, shown, text
from cdcd.mirror.verifying.waiting import Deletes
from cdcd.tools.verify.comparing import (
    DIFFERS,
    ONLY_SOURCE,
    SHOWN_MAX,
    ColumnDifference,
    ComparedOutcome,
    RowDifference,
)

RANGES: Final = 4096
ONLY_MIRROR: Final = "only in the mirror"

_UNKNOWN: Final = "unknown"
"""The kind of a row that differs in nothing but values that the mirror never got."""


class RangeSum(NamedTuple):
    """The rows of a range that are compared: how many, and the sum of their hashes."""

    rows: int
    total: int


@dataclass(frozen=True, slots=True)
class Sums:
    """Of one side.

    Attributes:
        rows: all of them, also those that are not compared.
        unfit: rows that fit no type of the mirror.
    """

    ranges: Mapping[int, RangeSum]
    rows: int
    unfit: int = 0

    def differing(self, other: "Sums") -> list[int]:
        """The ranges whose rows are not the same."""
        both = self.ranges.keys() | other.ranges.keys()
        none = RangeSum(0, 0)
        return sorted(at for at in both if self.ranges.get(at, none) != other.ranges.get(at, none))


def key_text(row: Column, key: Sequence[ComparedColumn]) -> Column:
    """`k` of a row at the source; null if one of its columns is."""
    values = [text(row[column.name], column.type) for column in key]
    whole = sf.lit(True)
    for value in values:
        whole = whole & value.isNotNull()
    return sf.when(whole, sf.to_json(sf.array(*values)))


def source_side(changes: DataFrame, what: Compared) -> DataFrame:
    """The rows of the source, as `read_rows` gives them."""
    after = sf.col("after")
    fits = sf.col(PROBLEM).isNull()
    values = [text(after[column.name], column.type) for column in what.columns]
    return changes.select(
        sf.when(fits, key_text(after, what.key)).alias("k"), sf.when(fits, sf.array(*values)).alias("v")
    )


def mirror_side(rows: DataFrame, what: Compared) -> DataFrame:
    """The rows of a version of the mirror, with `lsn` and `gone` (it is marked as deleted)."""
    texts = {column.name: text(sf.col(quoted(column.mirrored)), column.type) for column in what.columns}
    names = sf.array(*[sf.lit(column.mirrored) for column in what.columns])
    numbers = sf.array(*[sf.lit(at) for at in range(len(what.columns))])
    unknown = sf.filter(numbers, lambda at: sf.array_contains(UNKNOWN, sf.get(names, at)))
    return rows.select(
        sf.to_json(sf.array(*[texts[column.name] for column in what.key])).alias("k"),
        sf.array(*texts.values()).alias("v"),
        sf.when(sf.col(UNKNOWN).isNotNull(), unknown).alias("unknown"),
        sf.col(LSN).alias("lsn"),
        (sf.col(DELETED) if DELETED in rows.columns else sf.lit(False)).alias("gone"),
    )


def deleted_keys(deletes: Deletes, mirror: TableSchema, what: Compared) -> DataFrame:
    """The keys (`k`) of rows that were deleted. It is null for a truncate, and for a delete whose record does not tell
    the key that is compared, because the table was altered.

    Args:
        mirror: the form that the mirror's table is in.
    """
    records, found, known = deletes.records, [], []
    for id_, form in deletes.forms.items():
        key = key_in(form.schema, mirror, what)
        if key:
            known.append(id_)
            mine = as_json(records.filter(sf.col("form") == id_), form.values)
            parsed = parse(mine, form.schema, form.rules)
            found.append(
                parsed.select(sf.when(sf.col(PROBLEM).isNull(), key_text(sf.col("key"), key)).alias("k"))
            )
    other = ~sf.coalesce(sf.col("form").isin(known), sf.lit(False))
    return reduce(
        DataFrame.unionByName, found, records.filter(other).select(sf.lit(None).cast("string").alias("k"))
    )


def flagged(side: DataFrame, keys: DataFrame) -> DataFrame:
    """With a column `later`: whether the row's key is among `keys` (`k`, each once)."""
    marks = keys.select("k", sf.lit(True).alias("later"))
    return side.join(marks, "k", "left").withColumn("later", sf.coalesce("later", sf.lit(False)))


def sums(side: DataFrame, columns: int) -> Sums:
    """The sums of a `flagged` side. Reads it once."""
    fits = sf.col("k").isNotNull()
    counts = fits & ~sf.col("later")
    found = (
        side.groupBy(sf.when(fits, _range()).alias("at"))
        .agg(
            sf.count(sf.lit(1)).alias("rows"),
            sf.count(sf.when(counts, 1)).alias("compared"),
            sf.sum(sf.when(counts, row_hash(sf.col("v"), columns))).alias("total"),
        )
        .collect()
    )
    ranges = {
        row["at"]: RangeSum(row["compared"], int(row["total"]))
        for row in found
        if row["at"] is not None and row["compared"]
    }
    unfit = sum(row["rows"] for row in found if row["at"] is None)
    return Sums(ranges, sum(row["rows"] for row in found), unfit)


def _range() -> Column:
    return sf.pmod(sf.xxhash64("k"), sf.lit(RANGES))


def in_ranges(side: DataFrame, ranges: Collection[int]) -> DataFrame:
    """The rows of a `flagged` side that are compared, in these ranges."""
    rows = side.filter(sf.col("k").isNotNull() & ~sf.col("later"))
    return rows if len(ranges) == RANGES else rows.filter(_range().isin(sorted(ranges)))


def differing(source: DataFrame, mirror: DataFrame, columns: int) -> DataFrame:
    """Rows that differ: `k`, `kind`, `times` (how often the mirror has it), `columns` (at, source, target) and `open`,
    the numbers of columns that differ because the mirror never got the value.
    """
    ours = source.groupBy("k").agg(sf.min("v").alias("ours"))
    theirs = mirror.groupBy("k").agg(
        sf.count(sf.lit(1)).alias("times"),
        sf.min(sf.struct("v", "unknown")).alias("least"),
        sf.max(sf.struct("v", "unknown")).alias("most"),
    )
    both = ours.join(theirs, "k", "full_outer")
    # Of a key that the mirror has twice, the row that differs.
    picked = sf.when(sf.col("least.v").eqNullSafe(sf.col("ours")), sf.col("most")).otherwise(sf.col("least"))
    with_pick = both.withColumn("theirs", picked)
    each = sf.transform(
        sf.array(*[sf.lit(at) for at in range(columns)]),
        lambda at: sf.struct(
            at.alias("at"),
            sf.get("ours", at).alias("source"),
            sf.get(sf.col("theirs.v"), at).alias("target"),
        ),
    )
    unlike = sf.filter(each, lambda one: ~one["source"].eqNullSafe(one["target"]))
    is_open = sf.coalesce(sf.col("theirs.unknown"), sf.array().cast("array<int>"))
    found = with_pick.withColumn("unlike", unlike)
    kind = (
        sf.when(sf.col("times").isNull(), ONLY_SOURCE)
        .when(sf.col("ours").isNull(), ONLY_MIRROR)
        .when((sf.col("times") > 1) | (sf.size("columns") > 0), DIFFERS)
        .when(sf.size("open") > 0, _UNKNOWN)
    )
    return (
        found.select(
            "k",
            "ours",
            "times",
            sf.filter("unlike", lambda one: ~sf.array_contains(is_open, one["at"])).alias("columns"),
            sf.when(
                sf.col("ours").isNotNull(),
                sf.filter(is_open, lambda at: sf.exists("unlike", lambda one: one["at"] == at)),
            ).alias("open"),
        )
        .withColumn("kind", kind)
        .filter("kind IS NOT NULL")
        .select(
            "k",
            "kind",
            "times",
            sf.transform(
                "columns",
                lambda one: sf.struct(
                    one["at"].alias("at"),
                    shown(one["source"]).alias("source"),
                    shown(one["target"]).alias("target"),
                ),
            ).alias("columns"),
            "open",
        )
    )


@dataclass(frozen=True, slots=True)
class Excuses:
    """Why rows may be on one side only; "" if nothing excuses it."""

    only_source: str = ""
    only_mirror: str = ""


def tell(found: DataFrame, what: Compared, outcome: ComparedOutcome, excuses: Excuses) -> None:
    """Add what `differing` found to a table's outcome. Reads it three times, so it should be kept."""
    counts: Counter[str] = Counter(
        {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    )
    unsent = found.select(sf.explode("open").alias("at")).groupBy("at").count().collect()
    excused = {
        kind: why
        for kind, why in ((ONLY_SOURCE, excuses.only_source), (ONLY_MIRROR, excuses.only_mirror))
        if why
    }
    named = [kind for kind in (DIFFERS, ONLY_SOURCE, ONLY_MIRROR) if counts[kind] and kind not in excused]
    rows = found.filter(sf.col("kind").isin(named)).limit(SHOWN_MAX).collect() if named else []
    # Nothing fails from here on, so that a table that is looked at again has nothing twice.
    for kind, why in excused.items():
        if counts[kind]:
            outcome.not_compared[f"rows that are {kind}: {why}"] += counts[kind]
    for row in unsent:
        name = what.columns[row["at"]].name
        outcome.not_compared[f"values of {name} that the mirror never got (_cdcd_unknown)"] += row["count"]
    for row in rows:
        outcome.add(_difference(row, what))
    outcome.differing += sum(counts[kind] for kind in named) - len(rows)


def _difference(row: Row, what: Compared) -> RowDifference:
    key = dict(zip([column.name for column in what.key], json.loads(row["k"]), strict=True))
    columns = []
    if row["kind"] == DIFFERS and row["times"] > 1:
        columns.append(ColumnDifference("(how often)", "1", str(row["times"])))
    for one in row["columns"]:
        name, source, target = what.columns[one["at"]].name, one["source"], one["target"]
        if row["kind"] == ONLY_SOURCE:
            target = ""
        elif row["kind"] == ONLY_MIRROR:
            source = ""
        columns.append(ColumnDifference(name, source, target))
    return RowDifference(
        row["kind"], json.dumps(key, ensure_ascii=False, separators=(",", ":")), tuple(columns)
    )
