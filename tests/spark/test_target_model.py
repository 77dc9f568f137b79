"""Random workloads, cut into batches at random, against the table that the source had in the end."""

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.targets.applying import Applying
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.layout import DELETED, Deletes, Layout
from cdcd.mirror.targets.partitions import Field
from cdcd.mirror.targets.target import Kind
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import FORM, Source, frame

NAMES = FORM.row_type.fieldNames()
BATCHES = 5


def contents(spark: SparkSession, name: str, *more: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.table(name).select(*NAMES, *more).collect()), key=str)


def deliver(spark: SparkSession, source: Source, target: Lakehouse, ends: list[int], number: int) -> None:
    name = target.name_of(FORM, Kind.MIRROR)
    rows = source.read(target.reached(spark, name).partitions, ends)
    target.apply(name, frame(spark, rows), batch_id=number, reach=source.reach(ends))


MARK = Deletes.MARK

BY = (Field("n"), Field("title", "truncate", 1), Field("body", "bucket", 3))
"""Values that change, that are not there, and that the source does not always send."""


@pytest.mark.parametrize(("seed", "wanders"), [(2, False), (4, True)])
def test_the_table_equals_the_source_whatever_the_batches_are_and_however_often_they_come(
    spark: SparkSession, make_target: MakeTarget, seed: int, *, wanders: bool
):
    equals_the_source(spark, make_target, seed, Layout(), wanders=wanders)


@pytest.mark.parametrize(
    ("seed", "wanders", "layout"),
    [
        (1, True, Layout(4)),
        (1, True, Layout(4, MARK)),
        (3, False, Layout(1, MARK)),
        (5, True, Layout(1, MARK)),
        (6, True, Layout(fields=BY)),
        (3, True, Layout(4, MARK, BY[1:])),
    ],
)
def test_so_does_a_table_in_another_layout(
    spark: SparkSession, make_target: MakeTarget, seed: int, layout: Layout, *, wanders: bool
):
    equals_the_source(spark, make_target, seed, layout, wanders=wanders)


def equals_the_source(
    spark: SparkSession, make_target: MakeTarget, seed: int, layout: Layout, *, wanders: bool
) -> None:
    # GIVEN keys that change, truncates, TOAST that is not sent, in partitions that arrive out of step
    source = Source(seed, wanders=wanders)
    source.run(60)
    chance = random.Random(seed)
    target = make_target()
    name = target.name_of(FORM, Kind.MIRROR)
    target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1), layout)
    # WHEN some batches come twice, some of them to a process that knows nothing of the first time
    for number, ends in enumerate(source.ends(BATCHES)):
        before = target.reached(spark, name).partitions
        deliver(spark, source, target, ends, number)
        if chance.random() < 0.5:
            target = make_target()
        if chance.random() < 0.5:
            again = frame(spark, source.read(before, ends))
            reached = target.reached(spark, name)
            assert target.apply(name, again, batch_id=number, reach=source.reach(ends)).changes == 0
            assert target.reached(spark, name) == reached
    # THEN nothing differs, and nothing is unknown
    if layout.marks:
        assert contents(spark, name, DELETED) == sorted(source.marked(), key=str)
    else:
        assert contents(spark, name) == sorted(source.expected(), key=str)
    assert spark.table(name).filter("_cdcd_unknown IS NOT NULL").isEmpty()
    assert target.reached(spark, name).commit_lsn == max(
        record["commit_lsn"] for records in source.log for record in records
    )


def test_a_commit_that_failed_leaves_nothing_of_the_batch(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
):
    source = Source(7)
    source.run(20)
    target = make_target()
    name = target.name_of(FORM, Kind.MIRROR)
    target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1))
    last = [len(records) for records in source.log]
    first = [end // 2 for end in last]
    deliver(spark, source, target, first, 0)
    had = contents(spark, name)
    assert had

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Applying, "merge", die)
        patch.setattr(type(target._format), "append", die)
        with pytest.raises(KeyboardInterrupt):
            deliver(spark, source, target, last, 1)
    assert contents(spark, name) == had
    deliver(spark, source, make_target(), last, 1)
    assert contents(spark, name) == sorted(source.expected(), key=str)
