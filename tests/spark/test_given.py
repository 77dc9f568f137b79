"""Changes that a job hands over. The table equals its source after each batch, or an error says why it cannot."""

import datetime as dt
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType

from cdcd.core.errors import PositionError, SinkError
from cdcd.mirror.api import apply_changes
from cdcd.mirror.base.commit import Committing
from cdcd.mirror.base.given import reached
from cdcd.mirror.jars import DELTA
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.target import Kind, Target
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import EPOCH, Source, frame
from tests.spark.source_model import FORM as DOCS

ID = ColumnSchema("id", 1, "bigint", 20, -1, LongType())
N = ColumnSchema("n", 2, "integer", 23, -1, IntegerType())
NOTE = ColumnSchema("note", 3, "text", 25, -1, StringType())
FORM = TableSchema("shop.public.items", "public", "items", "form-1", ("id",), (ID, N, NOTE), oid=16400)

KINDS = pytest.mark.parametrize("kind", [Kind.MIRROR, Kind.CHANGELOG])
BATCHES = 5


def change(op: str, lsn: int, row: tuple[Any, ...] | None, **more: Any) -> dict[str, Any]:
    """A change of partition 0, event 1, unless told otherwise; its offset is its LSN."""
    return {
        "op": op,
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "key": None if row is None else (row[0],),
        "commit_lsn": lsn,
        "event_no": 1,
        "commit_time": EPOCH + dt.timedelta(seconds=lsn),
        "topic": FORM.topic,
        "partition": 0,
        "offset": lsn,
        "schema_id": "form-1",
    } | more


def rows(spark: SparkSession, name: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.table(name).select(*columns).collect()), key=str)


def bring(spark: SparkSession, target: Target, lsn: int, kind: Kind = Kind.MIRROR) -> int:
    """Bring in one row, whose key is a tenth of its LSN. Return how many changes were new."""
    batch = frame(spark, [change("c", lsn, (lsn // 10, lsn, "x"))], FORM)
    return apply_changes(target, batch, FORM, kind=kind).changes


@pytest.mark.parametrize(("seed", "wanders"), [(2, False), (4, True)])
def test_the_table_equals_the_source_whatever_the_batches_are_and_however_often_they_come(
    spark: SparkSession, make_target: MakeTarget, seed: int, *, wanders: bool
):
    # GIVEN keys that change, truncates, and TOAST that is not sent, in partitions that arrive out of step
    source = Source(seed, wanders=wanders)
    source.run(60)
    chance = random.Random(seed)
    target = make_target()
    name = target.name_of(DOCS, Kind.MIRROR)
    # WHEN batches go to an LSN that all partitions have passed, and some come twice, also to a process that is new
    for number, ends in enumerate(source.ends(BATCHES)):
        before = reached(spark, target, name).partitions
        bound = source.reach(ends)
        batch = [
            row
            for row in source.read(before, ends)
            if bound is None or (row["commit_lsn"], row["event_no"]) <= bound
        ]
        apply_changes(target, frame(spark, batch), DOCS, batch_id=number)
        if chance.random() < 0.5:
            target = make_target()
        if chance.random() < 0.5:
            was = reached(spark, target, name)
            assert apply_changes(target, frame(spark, batch), DOCS, batch_id=number).changes == 0
            assert reached(spark, target, name) == was
    # THEN nothing differs, and nothing is unknown
    assert rows(spark, name, *DOCS.row_type.fieldNames()) == sorted(source.expected(), key=str)
    assert spark.table(name).filter("_cdcd_unknown IS NOT NULL").isEmpty()
    assert reached(spark, target, name).commit_lsn == max(
        record["commit_lsn"] for records in source.log for record in records
    )


@KINDS
def test_two_processes_that_bring_in_the_same_changes_leave_each_once(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    one, other = make_target(), make_target()
    name = one.name_of(FORM, kind)
    assert bring(spark, one, 10, kind) == 1
    # WHEN another process goes on, and the first one comes with the same changes and with later ones
    assert bring(spark, other, 20, kind) == 1
    assert bring(spark, one, 20, kind) == 0
    assert bring(spark, one, 30, kind) == 1
    # THEN each row is there once
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]
    assert reached(spark, make_target(), name).commit_lsn == 30


@KINDS
def test_a_process_whose_statement_another_commit_comes_before_brings_in_what_is_still_new(
    spark: SparkSession, make_target: MakeTarget, kind: Kind, monkeypatch: pytest.MonkeyPatch
):
    one, other = make_target(), make_target()
    name = one.name_of(FORM, kind)
    bring(spark, one, 10, kind)
    commit, came = Committing.commit, False

    def late(self: Committing, *given: Any) -> bool:
        # WHEN another process commits the same change after this one has looked, and before it commits
        nonlocal came
        if not came:
            came = True
            bring(spark.newSession(), other, 20, kind)
        return commit(self, *given)

    monkeypatch.setattr(Committing, "commit", late)
    batch = [change("c", 20, (2, 20, "x")), change("c", 30, (3, 30, "x"))]
    apply_changes(one, frame(spark, batch, FORM), FORM, kind=kind)
    # THEN no row is there twice, and none is missing
    assert came
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]
    assert reached(spark, other, name).commit_lsn == 30


@KINDS
def test_two_processes_that_make_a_table_together_leave_each_row_once(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    targets = make_target(), make_target()
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda target: bring(spark.newSession(), target, 10, kind), targets))
    assert sum(done) >= 1
    assert rows(spark, targets[0].name_of(FORM, kind), "id") == [(1,)]


@KINDS
def test_a_commit_that_failed_leaves_nothing_of_the_batch(
    spark: SparkSession, make_target: MakeTarget, kind: Kind, monkeypatch: pytest.MonkeyPatch
):
    target = make_target()
    name = target.name_of(FORM, kind)
    bring(spark, target, 10, kind)

    def die(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Committing, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            bring(spark, target, 20, kind)
    assert rows(spark, name, "id") == [(1,)]
    assert bring(spark, make_target(), 20, kind) == 1
    assert rows(spark, name, "id") == [(1,), (2,)]


def roll_back(spark: SparkSession, target: Target, name: str) -> None:
    """Bring back the version before the last one that has rows, as the owner of a table does."""
    if target.format == DELTA:
        history = spark.sql(f"DESCRIBE HISTORY {name}").filter("operation IN ('MERGE', 'WRITE')")
        versions = sorted(row[0] for row in history.select("version").collect())
        spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {versions[-2]}")
        return
    snapshots = spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()
    table = name.partition(".")[2].replace("`", "")
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {snapshots[-2][0]})")


@KINDS
def test_a_table_that_was_rolled_back_is_told_of_and_gets_the_later_changes_again(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    # GIVEN a table with two batches, whose owner brings the first one back
    target = make_target()
    name = target.name_of(FORM, kind)
    bring(spark, target, 10, kind)
    bring(spark, target, 20, kind)
    roll_back(spark, target, name)
    assert rows(spark, name, "id") == [(1,)]
    # WHEN the next batch comes, THEN nothing is committed
    with pytest.raises(PositionError, match="was rolled back or restored"):
        bring(spark, target, 30, kind)
    assert rows(spark, name, "id") == [(1,)]
    # AND everybody knows which changes the rows have
    assert reached(spark, target, name).commit_lsn == 10
    # AND the topic from there on makes the table whole
    assert [bring(spark, target, lsn, kind) for lsn in (20, 30)] == [1, 1]
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]


def test_a_table_without_any_version_that_says_what_it_has_is_refused(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    if target.format == DELTA:
        pytest.skip("Delta's history ends with the files of its log, which tests cannot wait for")
    name = target.name_of(FORM, Kind.MIRROR)
    for lsn in (10, 20):
        bring(spark, target, lsn)
    # GIVEN an owner whose program compacts the table, and lets go of all other versions
    table = name.partition(".")[2].replace("`", "")
    spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
    )
    spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{table}', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01')"
    )
    # THEN neither the process that runs nor a new one takes the table for empty
    for each in (target, make_target()):
        with pytest.raises(PositionError, match="says which changes it has"):
            bring(spark, each, 30)
        with pytest.raises(PositionError, match="says which changes it has"):
            reached(spark, each, name)
    assert rows(spark, name, "id") == [(1,), (2,)]


def test_a_table_of_somebody_else_is_left_alone(spark: SparkSession, target: Target):
    name = target.name_of(FORM, Kind.MIRROR)
    target.append(name, spark.range(1).toDF("id"), ["id"])
    with pytest.raises(SinkError, match="something else than apply_changes"):
        bring(spark, target, 10)
    with pytest.raises(SinkError, match="something else than apply_changes"):
        reached(spark, target, name)
    assert rows(spark, name, "id") == [(0,)]
