"""What a parsed batch consists of, where that must be known before it is applied: which forms, what is no change.

Reads the batch once, by which it is kept (`persist`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.records.changes import PROBLEM
from cdcd.mirror.targets.reduction import is_later, is_new
from cdcd.mirror.targets.state import At, State


@dataclass(frozen=True, slots=True)
class Group:
    """Records of a batch that have form, soundness and side of the cut in common.

    Attributes:
        new: for each target, whether they are new to it. What is new to none need not be understood.
    """

    schema_id: str | None
    sound: bool
    held: bool
    count: int
    last: tuple[int, int]
    commit_time: datetime | None
    first_held: Mapping[int, int]
    new: tuple[bool, ...] = (True,)

    @property
    def matters(self) -> bool:
        return any(self.new)


def grouped(changes: DataFrame, bound: At | None, states: Sequence[State] = (State(),)) -> list[Group]:
    """Of a batch as `changes.parse` gives it. What lies after `bound` is held.

    Args:
        states: of the targets.
    """
    new = sf.array(*[is_new(state) for state in states]).alias("new")
    lsn = sf.coalesce("commit_lsn", sf.lit(0))
    held = sf.lit(False) if bound is None else is_later(bound)
    rows = (
        changes.groupBy(
            "partition", "schema_id", sf.col(PROBLEM).isNull().alias("sound"), held.alias("held"), new
        )
        .agg(
            sf.count(sf.lit(1)).alias("count"),
            sf.max(sf.struct(lsn.alias("lsn"), sf.coalesce("event_no", sf.lit(0)).alias("event"))).alias(
                "last"
            ),
            sf.max("commit_time").alias("commit_time"),
            sf.min("offset").alias("first"),
        )
        .collect()
    )
    return [
        Group(
            row["schema_id"],
            row["sound"],
            row["held"],
            row["count"],
            (row["last"]["lsn"], row["last"]["event"]),
            row["commit_time"],
            {row["partition"]: row["first"]} if row["held"] else {},
            tuple(row["new"]),
        )
        for row in rows
    ]


def up_to(changes: DataFrame, bound: At | None) -> DataFrame:
    """Those of sound `changes` that do not lie after `bound`."""
    return changes if bound is None else changes.filter(~is_later(bound))


def reason(problem: Column) -> Column:
    """Why a record that names no form goes to the quarantine table."""
    return sf.coalesce(
        problem, sf.lit("it has no source.schema_id, as records that were written with topics.schemas off")
    )
