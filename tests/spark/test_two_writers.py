"""Two processes that mirror into one table: the later one ends by name. And changes that a topic has twice."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cdcd.core.errors import FencedError
from cdcd.mirror.targets.delta import LOOKED_AT, DeltaTarget
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, after, plan
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.making import SCHEMA
from cdcd.mirror.targets.target import Kind, Maintenance
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import frame
from tests.spark.test_target_tables import FORM, ID, NOTE, change, rows, start

KINDS = pytest.mark.parametrize("kind", [Kind.MIRROR, Kind.CHANGELOG])


@KINDS
def test_a_process_that_does_not_know_a_commit_ends_and_what_is_there_stays(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    old, new = make_target(), make_target()
    name = start(spark, old, kind=kind)
    old.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    # GIVEN a new process that goes on where the old one is
    assert new.reached(spark, name).commit_lsn == 10
    new.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    # WHEN the old one, which is behind, commits or tidies up, THEN it ends, also when it looks again
    for _ in range(2):
        with pytest.raises(FencedError, match="Another process mirrors into"):
            old.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    with pytest.raises(FencedError):
        old.maintain(spark, name, Maintenance())
    # AND the new one goes on
    new.apply(name, frame(spark, [change("c", 30, (3, 3, "c"))], FORM))
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]
    assert make_target().reached(spark, name).commit_lsn == 30


@KINDS
def test_two_processes_that_begin_a_table_together_do_not_both_fill_it(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    one, other = make_target(), make_target()
    first = frame(spark, [change("c", 10, (1, 1, "a"))], FORM)
    # GIVEN a table that both of them know to be empty
    name = start(spark, one, kind=kind)
    assert other.reached(spark, name).commit_lsn == 0
    one.apply(name, first)
    with pytest.raises(FencedError):
        other.apply(name, first)
    assert rows(spark, name, "id") == [(1,)]


def test_two_processes_that_fill_a_table_at_the_same_moment_leave_each_row_once(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
):
    one, other = make_target(), make_target()
    name = start(spark, one)
    other.reached(spark, name)
    first = [change("c", 10, (1, 1, "a"))]

    carrying = one._applying._format.carrying

    def late(*given: Any) -> AbstractContextManager[None]:
        # WHEN another process fills the table after this one has looked, and before it commits
        beside = spark.newSession()
        other.apply(name, frame(beside, [*first, change("c", 20, (2, 2, "b"))], FORM))
        return carrying(*given)

    monkeypatch.setattr(one._applying._format, "carrying", late)
    with pytest.raises(FencedError):
        one.apply(name, frame(spark, first, FORM))
    # THEN the rows of the table and its position belong to the same commit: that of this process replaces the other one
    third = make_target()
    assert rows(spark, name, "id") == [(1,)]
    assert third.reached(spark, name).commit_lsn == 10
    third.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    assert rows(spark, name, "id") == [(1,), (2,)]


def test_a_process_whose_commit_another_one_lies_under_ends_as_well(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
):
    old, new = make_target(), make_target()
    name = start(spark, old)
    old.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    new.reached(spark, name)
    carrying = old._applying._format.carrying

    def late(*args: Any) -> AbstractContextManager[None]:
        # WHEN another process commits after this one has looked, and before it commits
        new.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
        return carrying(*args)

    monkeypatch.setattr(old._applying._format, "carrying", late)
    with pytest.raises(FencedError):
        old.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    # THEN no row is there twice
    assert rows(spark, name, "id") == [(1,), (2,)]


@pytest.mark.parametrize("in_catalog", [True, False])
def test_delta_finds_the_newest_commits_without_a_job_and_also_below_those_of_others(
    spark: SparkSession, warehouse: Path, unique: str, in_catalog: bool
):
    def make() -> DeltaTarget:
        return DeltaTarget(namespace=unique) if in_catalog else DeltaTarget(str(warehouse / "delta" / unique))

    target = make()
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    target.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    context = spark.sparkContext
    context.setJobGroup(unique, "the look at the newest commits")
    try:
        target._known.check_writer(spark, name)
        assert list(context.statusTracker().getJobIdsForGroup(unique)) == []
        list(cast("Any", target._format)._history(spark, name))
        assert list(context.statusTracker().getJobIdsForGroup(unique)) != []
    finally:
        java: Any = context._jsc
        java.sc().clearJobGroup()
    # WHEN others tidy up, more often than is looked at one by one
    spark.sql(f"OPTIMIZE {name}")
    for number in range(LOOKED_AT):
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('others' = '{number}')")
    # THEN the position is found, and the process goes on
    assert make().reached(spark, name).commit_lsn == 20
    other = make()
    other.reached(spark, name)
    target.apply(name, frame(spark, [change("c", 30, (3, 3, "c"))], FORM))
    # AND the commit of another process below those
    spark.sql(f"OPTIMIZE {name}")
    with pytest.raises(FencedError):
        other.apply(name, frame(spark, [change("c", 30, (3, 3, "c"))], FORM))
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("key", [(), FORM.key])
def test_a_change_that_was_sent_again_is_in_a_changelog_once(
    spark: SparkSession, make_target: MakeTarget, key: tuple[str, ...]
):
    target, form = make_target(), replace(FORM, key=key)
    name = start(spark, target, form, Kind.CHANGELOG)
    more = {} if key else {"key": None}

    def sent(lsn: int, partition: int, offset: int) -> dict[str, object]:
        return change("c", lsn, (lsn, lsn, "x"), partition=partition, offset=offset, **more)

    # Within a batch, in the same partition and in another one, and in a later batch.
    batches = (
        [sent(10, 0, 1), sent(20, 0, 2), sent(10, 0, 3), sent(20, 1, 1)],
        [sent(20, 2, 1), sent(30, 2, 2), sent(15, 3, 1)],
        [sent(30, 0, 4), sent(15, 1, 2)],
    )
    for batch in batches:
        target.apply(name, frame(spark, batch, form))
    assert rows(spark, name, "id") == [(10,), (15,), (20,), (30,)]


def before_it_appends(monkeypatch: pytest.MonkeyPatch, target: Lakehouse, act: Callable[[], object]) -> None:
    """Call `act` whenever the target is about to append rows, after it has looked for other processes."""
    append = target._applying._format.append

    def late(*given: Any) -> None:
        act()
        append(*given)

    monkeypatch.setattr(target._applying._format, "append", late)


@pytest.mark.parametrize("key", [(), FORM.key])
@pytest.mark.parametrize("begins", [True, False], ids=["a new one", "one with rows"])
def test_changes_that_two_processes_append_at_the_same_moment_are_in_a_changelog_once_after_the_next_start(
    spark: SparkSession,
    make_target: MakeTarget,
    monkeypatch: pytest.MonkeyPatch,
    key: tuple[str, ...],
    begins: bool,
):
    form = replace(FORM, key=key)
    more = {} if key else {"key": None}
    one, other = make_target(), make_target()
    name = start(spark, one, form, Kind.CHANGELOG)
    had = [] if begins else [change("c", 5, (0, 0, "z"), **more)]
    if had:
        one.apply(name, frame(spark, had, form))
    other.reached(spark, name)
    first, second = change("c", 10, (1, 1, "a"), **more), change("c", 20, (2, 2, "b"), **more)
    # WHEN another process appends after this one has looked, and before it appends
    before_it_appends(monkeypatch, one, lambda: other.apply(name, frame(spark.newSession(), [first], form)))
    with pytest.raises(FencedError):
        one.apply(name, frame(spark, [first, second], form))
    with pytest.raises(FencedError):
        other.apply(name, frame(spark, [second], form))
    # THEN the next process goes on from the earlier commit, AND each change is there once when it has committed
    third = make_target()
    assert third.reached(spark, name).commit_lsn == 10
    third.apply(name, frame(spark, [second], form))
    ids = [(0,)] if had else []
    assert rows(spark, name, "id") == [*ids, (1,), (2,)]
    third.apply(name, frame(spark, [change("c", 30, (3, 3, "c"), **more)], form))
    # AND one that starts later takes nothing back
    fourth = make_target()
    assert fourth.reached(spark, name).commit_lsn == 30
    fourth.maintain(spark, name, Maintenance())
    assert rows(spark, name, "id") == [*ids, (1,), (2,), (3,)]


def test_a_changelog_with_a_misplaced_commit_is_tidied_up_without_its_changes(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
):
    one, other = make_target(), make_target()
    name = start(spark, one, kind=Kind.CHANGELOG)
    other.reached(spark, name)
    first = [change("c", 10, (1, 1, "a"))]
    before_it_appends(monkeypatch, one, lambda: other.apply(name, frame(spark.newSession(), first, FORM)))
    with pytest.raises(FencedError):
        one.apply(name, frame(spark, first, FORM))
    # GIVEN each change twice
    assert rows(spark, name, "id") == [(1,), (1,)]
    third = make_target()
    third.maintain(spark, name, Maintenance())
    assert rows(spark, name, "id") == [(1,)]
    third.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    assert rows(spark, name, "id") == [(1,), (2,)]


TEXTS = replace(FORM, columns=(ID, replace(NOTE, name="n", id=2), replace(NOTE, name="note", id=3)))
SWAPPED = replace(
    TEXTS, schema_id="form-2", columns=(ID, replace(NOTE, name="note", id=2), replace(NOTE, name="n", id=3))
)


@KINDS
@pytest.mark.parametrize("step", [1, 2, 3])
def test_two_processes_that_swap_columns_at_the_same_moment_leave_each_value_under_its_name(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch, kind: Kind, step: int
):
    one, other = make_target(), make_target()
    name = start(spark, one, TEXTS, kind)
    one.apply(name, frame(spark, [change("c", 10, (1, "n", "note"))], TEXTS))
    take, taken = one._following._take, []

    def late(*given: Any) -> None:
        taken.append(given)
        if len(taken) < step:
            take(*given)
            return
        # WHEN another process takes all steps that are left after this one has looked, and before it takes one
        monkeypatch.undo()
        monkeypatch.setattr(one._known, "check_writer", lambda *_: None)
        other.prepare(spark.newSession(), name, SWAPPED, kind, (20, 1))
        try:
            take(*given)
        finally:
            monkeypatch.undo()

    monkeypatch.setattr(one._following, "_take", late)
    with pytest.raises((FencedError, AnalysisException)):
        one.prepare(spark, name, SWAPPED, kind, (20, 1))
    # THEN the next process finds the columns, each with its own values
    third = make_target()
    third.prepare(spark, name, SWAPPED, kind, (20, 1))
    third.apply(name, frame(spark, [change("c", 30, (2, "n", "note"), schema_id="form-2")], SWAPPED))
    assert rows(spark, name, "id", "n", "note") == [(1, "note", "n"), (2, "note", "n")]


def begun(spark: SparkSession, target: Lakehouse, kind: Kind) -> str:
    """A table whose columns are being swapped: the first step was taken and recorded."""
    name = start(spark, target, TEXTS, kind)
    target.apply(name, frame(spark, [change("c", 10, (1, "n", "note"))], TEXTS))
    table = target._known.look(spark, name)
    assert table is not None
    first, *_ = plan(table.schema, SWAPPED, kind)
    target._following._take(spark, name, table, first)
    table.schema = after(table.schema, first)
    target._known.record(spark, name, {SCHEMA: table.schema.to_json()})
    return name


@KINDS
def test_a_column_that_another_process_gave_its_name_back_in_the_middle_of_a_swap_is_swapped(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    # GIVEN a table whose form has the temporary name, and whose column has its own name again
    name = begun(spark, make_target(), kind)
    aside = next(part.name for part in spark.table(name).schema if part.name.startswith("_cdcd_rename_"))
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN {aside} TO {aside.removeprefix('_cdcd_rename_')}")
    # THEN the next process swaps the columns
    third = make_target()
    third.prepare(spark, name, SWAPPED, kind, (20, 1))
    third.apply(name, frame(spark, [change("c", 30, (2, "n", "note"), schema_id="form-2")], SWAPPED))
    assert rows(spark, name, "id", "n", "note") == [(1, "note", "n"), (2, "note", "n")]


@KINDS
def test_columns_that_were_swapped_by_another_process_are_not_swapped_by_their_names_alone(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    # GIVEN a table whose columns have been swapped, and whose form says that the swap has begun
    name = begun(spark, make_target(), kind)
    aside = next(part.name for part in spark.table(name).schema if part.name.startswith("_cdcd_rename_"))
    one = aside.removeprefix("_cdcd_rename_")
    other = {"n": "note", "note": "n"}[one]
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN {other} TO {one}")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN {aside} TO {other}")
    with pytest.raises(AnalysisException):
        make_target().prepare(spark, name, SWAPPED, kind, (20, 1))
    assert rows(spark, name, "id", "n", "note") == [(1, "note", "n")]


def test_a_process_finds_that_another_one_gave_a_column_its_name_back(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
):
    one, other = make_target(), make_target()
    name = start(spark, one, TEXTS)
    one.apply(name, frame(spark, [change("c", 10, (1, "n", "note"))], TEXTS))
    take = one._following._take

    def before_it_is_recorded(*given: Any) -> None:
        take(*given)
        monkeypatch.undo()
        table = other._known.look(spark, name)
        assert table is not None
        other._following.complete(spark.newSession(), name, table)

    monkeypatch.setattr(one._following, "_take", before_it_is_recorded)
    with pytest.raises(FencedError):
        one.prepare(spark, name, SWAPPED, Kind.MIRROR, (20, 1))
    other.prepare(spark, name, SWAPPED, Kind.MIRROR, (20, 1))
    assert rows(spark, name, "id", "n", "note") == [(1, "note", "n")]


def test_a_target_that_lacks_a_column_is_not_written_to(spark: SparkSession, make_target: MakeTarget):
    one = make_target()
    name = start(spark, one)
    one.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    spark.sql(f"ALTER TABLE {name} DROP COLUMN note")
    two = make_target()
    with pytest.raises(IncompatibleSchemaError, match="lacks the column note"):
        two.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
