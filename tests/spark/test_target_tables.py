"""What a target does beyond merging rows: forms, changelogs, versions, tidying up."""

import datetime as dt
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    VariantType,
)

from cdcd.core.errors import PositionError
from cdcd.mirror.api import create_scd2_view, scd2
from cdcd.mirror.jars import ICEBERG
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.reduction import UNFIT
from cdcd.mirror.targets.state import Reach
from cdcd.mirror.targets.target import Files, Kind, Maintenance, New, UnfitError
from cdcd.mirror.targets.upgrading import upgrade
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import EPOCH, frame

ID = ColumnSchema("id", 1, "bigint", 20, -1, LongType())
N = ColumnSchema("n", 2, "integer", 23, -1, IntegerType())
NOTE = ColumnSchema("note", 3, "text", 25, -1, StringType())
FORM = TableSchema("shop.public.items", "public", "items", "form-1", ("id",), (ID, N, NOTE))


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


def start(spark: SparkSession, target: Lakehouse, form: TableSchema = FORM, kind: Kind = Kind.MIRROR) -> str:
    name = target.name_of(form, kind)
    target.prepare(spark, name, form, kind, (1, 1))
    return name


def rows(spark: SparkSession, name: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.table(name).select(*columns).collect()), key=str)


def test_a_truncate_is_in_order_with_rows_of_partitions_that_are_ahead_or_behind(
    spark: SparkSession, target: Lakehouse
):
    name = start(spark, target)
    ahead = [change("c", 10, (1, 1, "a")), change("c", 30, (2, 2, "b"), partition=1)]
    target.apply(name, frame(spark, ahead, FORM))
    # Partition 0 has the truncate; partition 2 lags and brings a row from before it.
    target.apply(name, frame(spark, [change("t", 20, None)], FORM))
    late = [change("c", 15, (3, 3, "c"), partition=2), change("c", 25, (4, 4, "d"), partition=2)]
    target.apply(name, frame(spark, late, FORM))
    assert rows(spark, name, "id") == [(2,), (4,)]


@pytest.mark.parametrize("kind", Kind)
def test_a_table_is_made_by_its_first_batch_and_not_by_one_that_does_not_fit(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    target = make_target()
    name = target.name_of(FORM, kind)
    new = New(FORM, kind)
    changes = frame(spark, [change("c", 10, (1, 1, "a")), change("c", 12, (2, 2, "b"), partition=1)], FORM)
    with pytest.raises(UnfitError):
        target.apply(name, changes.withColumn(UNFIT, sf.col("commit_lsn") == 12), new=new)
    own = replace(FORM, columns=(*FORM.columns, replace(N, name="_cdcd_n")))
    with pytest.raises(IncompatibleSchemaError):
        target.apply(name, frame(spark, [change("c", 10, (1, 1, "a", 0))], own), new=New(own, kind))
    assert target.schema(spark, name) is None
    target.apply(name, changes.withColumn(UNFIT, sf.lit(False)), new=new)
    # What it is like is as of the last change: an older form does not take it back.
    again = make_target()
    assert again.schema(spark, name) == FORM
    assert again.prepare(spark, name, replace(FORM, schema_id="old"), kind, (12, 1)) == FORM
    assert again.reached(spark, name).partitions.keys() == {0, 1}
    assert rows(spark, name, "id") == [(1,), (2,)]


def test_a_table_that_is_not_there_is_not_made_by_a_batch_that_needs_a_closer_look(
    spark: SparkSession, target: Lakehouse
):
    name = target.name_of(FORM, Kind.MIRROR)
    half = [change("c", 10, (1, 1, "a")), change("c", 11, (3, 1, None), old_key=(2,), unchanged=["note"])]
    with pytest.raises(UnfitError):
        target.apply(name, frame(spark, half, FORM), new=New(FORM, Kind.MIRROR))
    assert target.schema(spark, name) is None


@pytest.mark.usefixtures("all_tables_are_large")
def test_delta_merges_a_batch_without_a_copy_of_it_and_that_is_set_for_the_merge_alone(
    spark: SparkSession, warehouse: Path, unique: str
):
    target = DeltaTarget(str(warehouse / "delta" / unique))
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    java: Any = spark.sparkContext._jsc
    java.sc().setJobDescription(unique)
    try:
        target.apply(name, frame(spark, [change("u", 20, (1, 2, "b")), change("c", 21, (2, 2, "c"))], FORM))
    finally:
        java.sc().setJobDescription(None)
    found = java.sc().statusStore().jobsList(None).iterator()
    said: list[str] = []
    while found.hasNext():
        said.append(str(found.next().description()))
    mine = [each for each in said if unique in each]
    assert any("scanning files for matches" in each for each in mine)
    assert not any("materialize source" in each for each in mine)
    assert rows(spark, name, "id", "n") == [(1, 2), (2, 2)]
    assert spark.conf.get("spark.databricks.delta.merge.materializeSource") == "auto"


@pytest.mark.parametrize("marks", [False, True])
def test_delta_marks_rows_of_a_table_that_is_large_beside_the_batch_and_else_replaces_its_files(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, marks: bool
):
    if marks:
        request.getfixturevalue("all_tables_are_large")
    target = DeltaTarget(str(tmp_path))
    # GIVEN a table
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (key, key, "a")) for key in range(40)], FORM))
    folder = tmp_path / "public" / "items"
    # WHEN rows are changed and deleted, and another one comes
    batch = [change("u", 30, (0, 0, "b")), change("d", 31, (1, None, None)), change("c", 32, (99, 9, "c"))]
    target.apply(name, frame(spark, batch, FORM))
    # THEN the rows are right
    want = [(0, 0, "b"), *((key, key, "a") for key in range(2, 40)), (99, 9, "c")]
    assert rows(spark, name, "id", "n", "note") == sorted(want, key=str)
    # AND only a large table has marked rows
    assert bool(list(folder.rglob("deletion_vector_*.bin"))) is marks
    # WHEN a column with a default comes, which changes all rows
    more = ColumnSchema("more", 4, "text", 25, -1, StringType(), form="text", default='"x"')
    form = replace(FORM, schema_id="form-2", columns=(*FORM.columns, more))
    target.prepare(spark, name, form, Kind.MIRROR, (40, 1))
    # THEN no rows are marked for it
    assert len(list(folder.rglob("deletion_vector_*.bin"))) == int(marks)
    assert rows(spark, name, "id", "more") == sorted([(row[0], "x") for row in want], key=str)


def test_what_a_commit_looks_at_costs_no_statement_in_whatever_thread(spark: SparkSession, target: Lakehouse):
    # GIVEN a table with some commits
    name = start(spark, target)
    for lsn in (10, 20, 30):
        target.apply(name, frame(spark, [change("c", lsn, (lsn, 1, "a"))], FORM))
    tables = target._format

    def look() -> tuple[int, int | None, Files]:
        session = spark.newSession()
        commits = list(islice(tables.commits(session, name), 3))
        return len(commits), tables.current(session, name), tables.files(session, name)

    # WHEN a thread that had no session yet looks at its newest commits, version and files
    before = _statements(spark)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(look).result()
    # THEN it has them, and Spark ran nothing
    assert found == (3, tables.current(spark, name), tables.files(spark, name))
    assert _statements(spark) == before


def _statements(spark: SparkSession) -> int:
    """The number of the last statement that Spark has run."""
    session: Any = spark
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    last = session._jsparkSession.sharedState().statusStore().executionsList().last()
    return int(last.executionId())


def test_a_table_follows_its_source_through_added_renamed_widened_and_dropped_columns(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a")), change("c", 11, (2, 2, "b"))], FORM))
    wide = replace(N, name="amount", spark=LongType(), type="bigint")
    flag = ColumnSchema("flag", 4, "text", 25, -1, StringType(), form="text", default='"it\'s \\\\ ${x}"')
    new = replace(FORM, schema_id="form-2", columns=(ID, wide, flag))
    # A process is killed after the first steps and before it could say so.
    spark.sql(f"ALTER TABLE {name} DROP COLUMN note")
    target = make_target()
    assert target.prepare(spark, name, new, Kind.MIRROR, (20, 1)) == new
    target.apply(name, frame(spark, [change("u", 20, (2, 2**40, "x"))], new))
    assert rows(spark, name, "id", "amount", "flag") == [(1, 1, "it's \\ ${x}"), (2, 2**40, "x")]
    assert make_target().schema(spark, name) == new
    # A partition that lags still brings the old form; the table keeps the new one.
    assert target.prepare(spark, name, FORM, Kind.MIRROR, (15, 1)) == new
    old = upgrade(frame(spark, [change("c", 15, (3, 3, "c"), partition=1)], FORM), FORM, new)
    target.apply(name, old)
    assert rows(spark, name, "id", "amount", "flag")[2] == (3, 3, "it's \\ ${x}")
    # What it cannot follow is refused, and leaves it as it was.
    text = replace(new, schema_id="form-3", columns=(ID, replace(wide, spark=StringType()), flag))
    with pytest.raises(IncompatibleSchemaError, match=r"public\.items: column amount"):
        target.prepare(spark, name, text, Kind.MIRROR, (30, 1))
    assert target.schema(spark, name) == new


@pytest.mark.parametrize("kind", Kind)
def test_names_of_columns_in_rows_follow_the_columns(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    target = make_target()
    name = start(spark, target, kind=kind)
    names, dropped = {
        Kind.MIRROR: ("_cdcd_unknown", None),
        Kind.CHANGELOG: ("_cdcd_unchanged", ["remark__dropped"]),
    }[kind]
    # GIVEN a row that the target never had, whose update did not send a value
    half = change("u", 11, (2, 2, None), unchanged=["note"])
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a")), half], FORM))
    assert rows(spark, name, "id", names) == [(1, None), (2, ["note"])]
    # WHEN the column is renamed, THEN a later update that leaves it alone still does not know it
    renamed = replace(FORM, schema_id="form-2", columns=(ID, N, replace(NOTE, name="remark")))
    target = make_target()
    target.prepare(spark, name, renamed, kind, (20, 1))
    assert rows(spark, name, "id", names) == [(1, None), (2, ["remark"])]
    target.apply(name, frame(spark, [change("u", 21, (2, 3, None), unchanged=["remark"])], renamed))
    assert rows(spark, name, "id", names)[-1] == (2, ["remark"])
    # WHEN it is dropped, THEN a mirror names it no more, and a changelog by the name that it has now
    without = replace(FORM, schema_id="form-3", columns=(ID, N))
    target.prepare(spark, name, without, kind, (30, 1))
    assert rows(spark, name, "id", names)[-1] == (2, dropped)
    assert make_target().reached(spark, name).commit_lsn == 21


@pytest.mark.parametrize("kind", Kind)
def test_a_table_of_another_form_and_kind_takes_the_place_of_one_in_one_commit(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    target = make_target()
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM), consistent_lsn=10)
    key = ("id",) if kind is Kind.MIRROR else ()
    text = replace(FORM, schema_id="form-2", key=key, columns=(ID, replace(N, spark=StringType()), NOTE))
    with pytest.raises(IncompatibleSchemaError):
        target.prepare(spark, name, text, kind, (20, 0))
    # A killed one leaves what was there.
    two = change("r", 20, (2, "two", "b"), key=(2,) if key else None)
    broken = frame(spark, [two], text).withColumn(
        "after", sf.when(sf.raise_error(sf.lit("killed")).isNotNull(), sf.col("after"))
    )
    with pytest.raises(Exception, match="killed"):
        target.swap(name, New(text, kind), broken, 20, {0: 15})
    assert rows(spark, name, "id", "n") == [(1, 1)]
    assert make_target().schema(spark, name) == FORM
    # The snapshot at LSN 20 has another form, and rows of its own.
    loaded = frame(spark, [two], text)
    target.swap(name, New(text, kind), loaded, 20, {0: 15})
    assert rows(spark, name, "id", "n") == [(2, "two")]
    # Another process sees it, and what the topic has from before is skipped in either form.
    target = make_target()
    assert target.schema(spark, name) == text
    assert target.reached(spark, name).commit_lsn == 20
    assert target.prepare(spark, name, FORM, Kind.MIRROR, (15, 1)) == text
    old = [change("c", 15, (3, 3, "c"), partition=1), change("t", 16, None, partition=1)]
    assert target.apply(name, frame(spark, old, FORM)).changes == 0
    new = [change("c", 25, (4, "four", "d"), key=(4,) if key else None)]
    assert target.apply(name, frame(spark, new, text), consistent_lsn=25).changes == 1
    assert rows(spark, name, "id", "n") == [(2, "two"), (4, "four")]
    assert target.read(spark, name, 25).count() == 2
    if target.format == ICEBERG:
        with pytest.raises(PositionError):
            target.read(spark, name, 5)


ODD: tuple[str, ...] = (
    "_op", "_offset", "_keep", "_lost", "_moved", "_changes", "_partial", "_unfit", "_commit_time",
    "_half", "_halves_high", "_at_0", "_fill_1", "_key_0", "_value", "_found", "_new_0", "_old_0", "_then", "_image",
    "_unknown", "last", "at", "key", "op", "partition", "offset", "changes", "place", "after", "value", "t", "s",
)  # fmt: skip


@pytest.mark.parametrize("kind", Kind)
def test_a_source_may_call_its_columns_what_it_likes(spark: SparkSession, target: Lakehouse, kind: Kind):
    odd = tuple([ColumnSchema(name, at, "text", 25, -1, StringType()) for at, name in enumerate(ODD, 10)])
    form = replace(FORM, columns=(ID, *odd))

    def row(id_: int, value: str | None) -> tuple[Any, ...]:
        return (id_, *[value for _ in ODD])

    name = start(spark, target, form, kind)
    target.apply(name, frame(spark, [change("c", 10, row(1, "a")), change("c", 11, row(2, "b"))], form))
    # A key changes under values that are not sent, one row is updated without them, one goes.
    moved = [
        change("d", 20, row(1, None), new_key=(3,)),
        change("c", 20, row(3, None), old_key=(1,), unchanged=list(ODD), offset=21),
        change("u", 30, row(2, None), unchanged=[ODD[0]]),
    ]
    target.apply(name, frame(spark, moved, form))
    found = rows(spark, name, "id", *[f"`{column}`" for column in ODD])
    if kind is Kind.MIRROR:
        assert found == [(2, "b", *[None for _ in ODD[1:]]), row(3, "a")]
    else:
        assert len(found) == 5


def test_a_changelog_has_each_change_once_and_gives_the_states_between_commits(
    spark: SparkSession, target: Lakehouse, unique: str
):
    name = start(spark, target, kind=Kind.CHANGELOG)
    changes = [
        change("c", 10, (1, 1, "a")),
        change("u", 20, (1, 2, None), unchanged=["note"]),
        change("u", 20, (1, 3, None), unchanged=["note"], event_no=2, offset=21),
        change("c", 20, (2, 9, "z"), event_no=3, offset=22),
        change("d", 30, (1, None, None)),
        change("t", 40, None),
    ]
    assert target.apply(name, frame(spark, changes, FORM)).changes == 6
    assert target.apply(name, frame(spark, changes, FORM)).changes == 0
    assert [row[0] for row in rows(spark, name, "_cdcd_op")] == ["c", "c", "d", "t", "u", "u"]
    states = scd2(spark, target, "public.items")
    found = sorted(map(tuple, states.select("id", "n", "note", "valid_from_lsn", "valid_to_lsn").collect()))
    assert found == [(1, 1, "a", 10, 20), (1, 3, "a", 20, 30), (2, 9, "z", 20, 40)]
    assert states.filter("is_current").isEmpty()
    # AND as a view, of Spark's own catalog here, it goes on with the table.
    view = f"spark_catalog.default.{unique}"
    create_scd2_view(spark, target, "public.items", view)
    target.apply(name, frame(spark, [change("c", 50, (3, 1, "new"))], FORM))
    (current,) = spark.table(view).filter("is_current").collect()
    assert (current["id"], current["valid_from"].timestamp()) == (3, EPOCH.timestamp() + 50)
    spark.sql(f"DROP VIEW {view}")


def test_readers_of_a_delta_table_need_type_widening_only_when_a_column_has_grown(
    spark: SparkSession, warehouse: Path, unique: str
):
    target = DeltaTarget(str(warehouse / "delta" / unique))
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))

    def features() -> list[str]:
        (row,) = spark.sql(f"DESCRIBE DETAIL {name}").select("tableFeatures").collect()
        return list(row["tableFeatures"])

    assert "typeWidening" not in features()
    grown = replace(
        FORM,
        schema_id="2",
        columns=tuple(
            replace(column, type="bigint", type_oid=20, spark=LongType()) if column.name == "n" else column
            for column in FORM.columns
        ),
    )
    assert target.prepare(spark, name, grown, Kind.MIRROR, (20, 1)) == grown
    assert "typeWidening" in features()
    target.apply(name, frame(spark, [change("u", 20, (1, 2**40, "x"))], grown))
    assert rows(spark, name, "id", "n") == [(1, 2**40)]


def test_a_table_without_a_key_has_the_old_row_of_an_update_beside_the_new_one(
    spark: SparkSession, target: Lakehouse
):
    form = replace(FORM, key=())
    name = start(spark, target, form, Kind.CHANGELOG)
    update = change("u", 10, (1, 2, "new"), key=None, before=(1, 1, "old"))
    target.apply(name, frame(spark, [update], form))
    assert rows(spark, name, "_cdcd_op", "id", "n", "note") == [("b", 1, 1, "old"), ("u", 1, 2, "new")]


@pytest.mark.usefixtures("all_tables_are_large")
def test_a_version_is_found_by_its_common_lsn_also_after_tidying_up(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = start(spark, target)
    for lsn in range(10, 18):
        one = [change("c", lsn, (lsn, lsn, "x"))]
        target.apply(name, frame(spark, one, FORM), batch_id=lsn, consistent_lsn=lsn)
    assert target.read(spark, name, 13).count() == 4
    done = target.maintain(spark, name, Maintenance(small_files_min=4, keep_s=3600))
    assert done.compacted_files >= 8 > done.written_files >= 1
    # The compaction carries the position on, for a process that has only the table to look at.
    later = make_target()
    assert later.reached(spark, name).consistent_lsn == 17
    assert later.read(spark, name, 13).count() == 4
    assert later.read(spark, name).count() == 8
    assert later.apply(name, frame(spark, [change("c", 17, (17, 0, "again"))], FORM)).changes == 0
    # Before its first commit it was empty; once versions are gone, that cannot be said any more.
    assert later.read(spark, name, 9).isEmpty()
    if later.format == ICEBERG:
        later.maintain(spark, name, Maintenance(keep_s=0, keep_versions=1))
        with pytest.raises(PositionError, match="no version from LSN 9"):
            later.read(spark, name, 9)


def test_rows_of_a_table_of_our_own_are_there_once(spark: SparkSession, target: Lakehouse):
    name = target.own_name("quarantine")
    one = spark.createDataFrame(
        [("t", 0, 1, "bad")], "topic string, partition int, offset bigint, reason string"
    )
    two = spark.createDataFrame([("t", 0, 2, "bad")], one.schema)
    place = ["topic", "partition", "offset"]
    assert target.append(name, one, place) == 1
    assert target.append(name, one.unionByName(two), place) == 1
    assert rows(spark, name, "offset") == [(1,), (2,)]
    # It is tidied up as the others are.
    policy = Maintenance(keep_s=0, keep_versions=1, small_files_min=2)
    ((tidied, done),) = target.maintain_own(spark.newSession(), policy)
    assert (tidied, done.compacted_files, done.written_files) == (name, 2, 1)
    assert rows(spark, name, "offset") == [(1,), (2,)]


def test_rows_of_a_table_of_our_own_go_as_former_versions_do(spark: SparkSession, target: Lakehouse):
    name = target.own_name("consistent")
    hours = "at > current_timestamp() - INTERVAL 1 HOUR"
    for lsn, at in ((1, "2026-01-01"), (2, "2026-01-02"), (3, "2026-01-03"), (4, "2999-01-01")):
        row = spark.range(1).select(sf.lit(lsn).alias("commit_lsn"), sf.to_timestamp(sf.lit(at)).alias("at"))
        target.append(name, row, ["commit_lsn"])
    # Whatever their age, so many stay.
    assert target.prune(spark, name, "commit_lsn", Maintenance(keep_s=3600, keep_versions=3)) == 1
    assert rows(spark, name, "commit_lsn") == [(2,), (3,), (4,)]
    # However few, what is young stays.
    assert target.prune(spark, name, "commit_lsn", Maintenance(keep_s=3600, keep_versions=1)) == 2
    assert target.prune(spark, name, "commit_lsn", Maintenance(keep_s=3600, keep_versions=1)) == 0
    assert spark.table(name).filter(hours).count() == spark.table(name).count() == 1
    assert target.prune(spark, target.own_name("nowhere"), "commit_lsn", Maintenance()) == 0


def test_files_that_a_killed_commit_left_go_when_they_are_old(
    spark: SparkSession, target: Lakehouse, warehouse: Path, unique: str
):
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    there, *_ = (warehouse / target.format / unique).rglob("*.parquet")
    old, young = there.with_name("00000-0-old.parquet"), there.with_name("00000-0-young.parquet")
    for file, days in ((old, 40), (young, 0)):
        file.write_bytes(there.read_bytes())
        at = time.time() - days * 86_400
        os.utime(file, (at, at))
    target.maintain(spark, name, Maintenance())
    assert (there.exists(), old.exists(), young.exists()) == (True, False, True)
    assert rows(spark, name, "id") == [(1,)]


def test_a_table_of_somebody_else_is_left_alone(spark: SparkSession, target: Lakehouse):
    target.append(target.own_name("other"), spark.range(1).toDF("id"), ["id"])
    with pytest.raises(PositionError, match="was not made by this program"):
        target.reached(spark, target.own_name("other"))


def test_json_can_be_variant_in_a_new_table_and_in_a_column_that_comes_later(
    spark: SparkSession, target: Lakehouse
):
    doc = ColumnSchema("doc", 4, "jsonb", 3802, -1, VariantType())
    more = ColumnSchema("more", 5, "json", 114, -1, VariantType(), form="json", default='"{\\"a\\": 0}"')

    def with_documents(form: TableSchema, *values: tuple[int, str]) -> DataFrame:
        """Inserts; the VARIANT columns have what `note` has."""
        plain = replace(form, columns=(ID, N, NOTE))
        changes = frame(spark, [change("c", lsn, (lsn, 1, text)) for lsn, text in values], plain)
        documents = [sf.parse_json("after.note").alias(column.name) for column in form.columns[3:]]
        return changes.withColumns(
            {
                "after": sf.struct("after.*", *documents),
                "before": sf.lit(None).cast(form.row_type),
                "schema_id": sf.lit(form.schema_id),
            }
        )

    # GIVEN a table without such a column, and with rows
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 1, (1, 1, "x"))], FORM))
    # WHEN it gets one, and another with a default
    form = replace(FORM, schema_id="form-2", columns=(*FORM.columns, doc))
    target.prepare(spark, name, form, Kind.MIRROR, (10, 1))
    target.apply(name, with_documents(form, (10, '{"a": 10}')))
    both = replace(form, schema_id="form-3", columns=(*form.columns, more))
    target.prepare(spark, name, both, Kind.MIRROR, (20, 1))
    target.apply(name, with_documents(both, (10, '{"a": 11}'), (20, '{"a": 20}')))
    # THEN paths into the documents can be read
    found = spark.table(name).selectExpr(
        "id", "variant_get(doc, '$.a', 'int') AS doc", "variant_get(more, '$.a', 'int') AS more"
    )
    assert sorted(map(tuple, found.collect())) == [(1, None, 0), (10, 10, 0), (20, 20, 20)]
    # AND a table may have it from the start
    other = replace(both, name="others")
    name = start(spark, target, other)
    target.apply(name, with_documents(other, (30, '{"a": 30}')))
    target.apply(name, with_documents(other, (40, '{"a": 40}')))
    got = spark.table(name).selectExpr("variant_get(more, '$.a', 'int')").collect()
    assert sorted(row[0] for row in got) == [30, 40]


def test_what_is_rare_but_legal_is_in_the_table_as_it_was(spark: SparkSession, target: Lakehouse):
    form = replace(
        FORM,
        columns=(
            ID,
            ColumnSchema("day", 2, "date", 1082, -1, DateType()),
            ColumnSchema("at", 3, "timestamptz", 1184, -1, TimestampType()),
            ColumnSchema("ratio", 4, "double precision", 701, -1, DoubleType()),
            ColumnSchema("price", 5, "numeric(38,10)", 1700, -1, DecimalType(38, 10)),
        ),
    )
    name = start(spark, target, form)
    rare = {
        # 44 BC, the year 20000, infinity, and as far back as the type goes.
        1: (-735_000, -63_000_000_000_000_000, "NaN", "9999999999999999999999999999.0123456789"),
        2: (6_585_000, 569_000_000_000_000_000, "Infinity", "-0.0000000001"),
        3: (2_147_483_647, 9_223_372_036_825_200_000, "-Infinity", "0"),
        4: (-2_147_483_648, -9_223_372_036_832_400_000, "-0.0", "1"),
    }
    read = "unix_date(day)", "unix_micros(at)", "CAST(ratio AS STRING)", "CAST(price AS STRING)"
    for lsn in (10, 20):  # appended first, merged then
        empty = frame(spark, [change("u", lsn + key, (key,) + (None,) * 4) for key in rare], form)
        values = spark.createDataFrame(
            [(key, *row) for key, row in rare.items()],
            "_id bigint, _day int, _at bigint, _ratio string, _price string",
        )
        row = sf.struct(
            sf.col("_id").alias("id"),
            sf.date_from_unix_date("_day").alias("day"),
            sf.timestamp_micros("_at").alias("at"),
            sf.col("_ratio").cast("double").alias("ratio"),
            sf.col("_price").cast("decimal(38,10)").alias("price"),
        )
        changes = empty.join(values, sf.col("key.id") == sf.col("_id")).withColumn("after", row)
        target.apply(name, changes.select(empty.columns))
        found = spark.table(name).orderBy("id").selectExpr(*read).collect()
        want = values.orderBy("_id").selectExpr(
            "_day", "_at", "_ratio", "CAST(CAST(_price AS DECIMAL(38,10)) AS STRING)"
        )
        assert [tuple(row) for row in found] == [tuple(row) for row in want.collect()]


def test_many_small_batches_leave_few_files(
    spark: SparkSession, make_target: MakeTarget, warehouse: Path, unique: str
):
    # GIVEN a target that is tidied up after every few batches
    target = make_target()
    name = start(spark, target)
    policy = Maintenance(keep_s=0, keep_versions=1, small_files_min=4)
    # As the mirror does it: in a session of the table's own, in a thread of a pool.
    own = spark.newSession()
    for lsn in range(10, 34):
        changes = [change("c", lsn, (lsn, lsn, "x")), change("u", lsn, (lsn - 3, lsn, "y"), event_no=2)]
        target.apply(name, frame(spark, changes, FORM), batch_id=lsn)
        if lsn % 6 == 3:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(target.maintain, own, name, policy).result()
    # THEN the files do not pile up, neither those of the table nor those that it has no more use for
    assert len(list((warehouse / target.format / unique).rglob("*.parquet"))) <= 6
    # AND nothing is lost
    assert rows(spark, name, "id", "n") == sorted(
        [*[(lsn - 3, lsn) for lsn in range(10, 34)], (31, 31), (32, 32), (33, 33)], key=str
    )
    assert make_target().reached(spark, name).commit_lsn == 33


@pytest.mark.parametrize("kind", Kind)
def test_a_table_says_without_a_scan_what_its_last_batch_with_changes_brought(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    target = make_target()
    name = start(spark, target, kind=kind)
    assert list(target.list_tables(spark)) == [name]
    empty = target.inspect(spark, name)
    assert empty is not None
    assert (empty.state, empty.written_at, empty.files.data) == (None, None, 0)
    # Of the batch one change lies after the bound and waits.
    batch = [change("c", 10, (1, 1, "a")), change("c", 20, (2, 2, "b"))]
    target.apply(name, frame(spark, batch, FORM), reach=Reach({0: 21}, (15, 0)))
    first = make_target().inspect(spark, name)
    assert first is not None
    assert first.state is not None
    assert (first.state.commit_lsn, first.state.held) == (10, 1)
    assert first.state.commit_time == (EPOCH + dt.timedelta(seconds=10)).astimezone(dt.UTC)
    assert (first.schema, first.kind, first.files.data) == (FORM, kind, 1)
    assert first.files.size > 0
    target.apply(name, frame(spark, batch, FORM), reach=Reach({0: 21}))
    second = make_target().inspect(spark, name)
    # Commits that bring no change, those of maintenance and of a property, take the time along.
    target.maintain(spark, name, Maintenance(keep_s=3600, small_files_min=2))
    target.prepare(spark, name, replace(FORM, schema_id="form-2"), kind, (30, 1))
    third = make_target().inspect(spark, name)
    assert second is not None
    assert third is not None
    assert second.state is not None
    assert third.state is not None
    assert (third.state.held, third.state.commit_time) == (0, second.state.commit_time)
    assert third.written_at == second.written_at
    assert first.written_at is not None
    assert second.written_at is not None
    assert second.written_at > first.written_at


def test_rows_of_a_table_of_our_own_are_replaced_and_taken_away(spark: SparkSession, target: Lakehouse):
    name = target.own_name("notes")
    columns = "id string, note string, gone boolean"
    target.put(name, spark.createDataFrame([("a", "1", False), ("b", "1", False)], columns), "id", "gone")
    changes = [("a", "2", False), ("b", None, True), ("c", None, True), ("d", "1", False)]
    target.put(name, spark.createDataFrame(changes, columns), "id", "gone")
    assert rows(spark, name, "*") == [("a", "2"), ("d", "1")]
    # Maintenance finds the table among the mirror's own. A look at the source's tables passes over it.
    assert [own for own, _ in target.maintain_own(spark, Maintenance())] == [name]
    assert target.inspect(spark, name) is None


def test_versions_of_an_iceberg_table_go_by_number_as_well_as_by_age(spark: SparkSession, unique: str):
    # GIVEN a table with a version for each of many commits, all of them young
    target = IcebergTarget("lake", unique)
    name = start(spark, target)

    def commit(*numbers: int) -> int:
        for number in numbers:
            target.apply(name, frame(spark, [change("c", 10 * number, (number, 1, "a"))], FORM))
        found = target.inspect(spark, name)
        assert found is not None
        assert found.metadata is not None
        return found.metadata.size

    first = commit(*range(1, 11))
    grown = commit(*range(11, 31))
    inspected = target.inspect(spark, name)
    assert inspected is not None
    assert inspected.metadata is not None
    assert inspected.metadata.versions >= 30
    assert grown > 2 * first
    # WHEN it is maintained with a limit on their number, THEN the metadata is small again, and later commits stay so
    assert target.maintain(spark, name, Maintenance(versions_max=10)).expired_versions >= 20
    assert commit(31) < 1.5 * first
    assert [row[0] for row in rows(spark, name, "id")] == sorted(range(1, 32), key=str)
    assert target.reached(spark, name).commit_lsn == 310
