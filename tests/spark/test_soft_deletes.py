"""A mirror that marks deleted rows: which rows stay, with which values, and what makes one live again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

from cdcd.core.errors import SinkError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.schema import ColumnSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.layout import DELETED, PLAIN, Deletes, Layout
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.target import Kind, LaidOut, New
from cdcd.mirror.watching.progress import TableLaidOut, TableLoaded
from tests.spark.conftest import MakeTarget
from tests.spark.jobs import Job
from tests.spark.source_model import frame
from tests.spark.stage import Stage
from tests.spark.test_target_tables import FORM, ID, NOTE, N, change, rows

MARKS = Layout(deletes=Deletes.MARK)


def marked(spark: SparkSession, target: Lakehouse, layout: Layout = MARKS) -> str:
    name = target.name_of(FORM, Kind.MIRROR)
    target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1), layout)
    return name


def contents(spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    return rows(spark, name, "id", "n", "note", DELETED)


def test_a_deleted_row_stays_with_its_last_values_until_its_key_is_inserted_again(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = marked(spark, target)
    first = [change("c", 10 + number, (number, 0, "a")) for number in range(1, 5)]
    # Whether a row is inserted, changed and deleted by one batch or by several makes no difference.
    first += [change("c", 20, (5, 1, "x")), change("u", 21, (5, 2, "y")), change("d", 22, (5, None, None))]
    assert target.apply(name, frame(spark, first, FORM)).changes == 7
    second = [
        change("u", 30, (1, 7, None), unchanged=["note"]),
        change("d", 31, (1, None, None)),
        change("d", 32, (2, None, None)),
        change("d", 33, (3, None, None), new_key=(6,)),
        change("c", 33, (6, 3, None), old_key=(3,), unchanged=["note"]),
        change("d", 34, (99, None, None)),
    ]
    target = make_target()
    target.apply(name, frame(spark, second, FORM))
    expected = [(1, 7, "a", True), (2, 0, "a", True), (3, 0, "a", True), (4, 0, "a", False)]
    assert contents(spark, name) == [*expected, (5, 2, "y", True), (6, 3, "a", False)]
    assert rows(spark, name, "_cdcd_commit_lsn")[0] == (14,)
    # An older change that comes late revives nothing, and neither does the batch if it comes again.
    late = [change("u", 25, (2, 9, "late"), partition=1, offset=0), *second]
    target.apply(name, frame(spark, late, FORM))
    assert contents(spark, name) == [*expected, (5, 2, "y", True), (6, 3, "a", False)]
    # A truncate marks all rows, also those of its own batch, and an insert makes one live again.
    third = [change("c", 40, (7, 7, "g")), change("t", 41, None), change("c", 42, (2, 5, "new"))]
    target.apply(name, frame(spark, third, FORM))
    found = contents(spark, name)
    assert (2, 5, "new", False) in found
    assert {row[0]: row[1:3] for row in found if row[3]} == {
        1: (7, "a"), 3: (0, "a"), 4: (0, "a"), 5: (2, "y"), 6: (3, "a"), 7: (7, "g"),
    }  # fmt: skip
    # Each mark has the place of what deleted the row.
    places = dict(rows(spark, name, "id", "_cdcd_commit_lsn"))
    assert places == {1: 31, 2: 42, 3: 33, 4: 41, 5: 22, 6: 41, 7: 41}


def test_a_value_of_a_marked_row_is_not_taken_for_one_of_a_row_that_came_later(
    spark: SparkSession, target: Lakehouse
):
    name = marked(spark, target)
    gone = [change("c", 10, (number, 0, "former")) for number in (1, 2)]
    gone += [change("d", 11, (number, None, None)) for number in (1, 2)]
    target.apply(name, frame(spark, gone, FORM))
    # The inserts in between are not known: they may be in quarantine.
    later = [
        change("u", 20, (1, 5, None), unchanged=["note"]),
        change("d", 21, (2, None, None), new_key=(3,)),
        change("c", 21, (3, 6, None), old_key=(2,), unchanged=["note"]),
    ]
    target.apply(name, frame(spark, later, FORM))
    assert rows(spark, name, "id", "n", "note", UNKNOWN, DELETED) == [
        (1, 5, None, ["note"], False),
        (2, 0, "former", None, True),
        (3, 6, None, ["note"], False),
    ]


def test_marked_rows_follow_the_columns_of_their_table(spark: SparkSession, make_target: MakeTarget):
    target = make_target()
    name = marked(spark, target, Layout(4, Deletes.MARK))
    first = [change("c", 10, (1, 1, "a")), change("c", 11, (2, 2, "b")), change("d", 12, (1, None, None))]
    target.apply(name, frame(spark, first, FORM))
    flag = ColumnSchema("flag", 4, "text", 25, -1, StringType(), form="text", default='"yes"')
    new = replace(FORM, schema_id="form-2", columns=(ID, replace(N, name="amount"), NOTE, flag))
    assert target.prepare(spark, name, new, Kind.MIRROR, (20, 1)) == new
    target.apply(name, frame(spark, [change("d", 20, (2, None, None, None))], new))
    assert rows(spark, name, "id", "amount", "flag", DELETED) == [(1, 1, "yes", True), (2, 2, "yes", True)]


@pytest.mark.parametrize("buckets", [1, 4])
def test_a_snapshot_marks_the_rows_that_it_lacks_and_keeps_those_that_were_marked(
    spark: SparkSession, make_target: MakeTarget, buckets: int
):
    target = make_target()
    name = marked(spark, target, Layout(buckets, Deletes.MARK))
    first = [change("c", 10 + number, (number, number, "a")) for number in range(1, 5)]
    target.apply(name, frame(spark, [*first, change("d", 15, (1, None, None))], FORM))
    loaded = frame(spark, [change("r", 30, (2, 20, "b")), change("r", 30, (5, 50, "b"))], FORM)
    target.load(name, loaded, 30, {0: 40})
    live = [(2, 20, "b", False), (5, 50, "b", False)]
    gone = [(1, 1, "a", True), (3, 3, "a", True), (4, 4, "a", True)]
    assert contents(spark, name) == sorted(live + gone, key=str)
    # A form that the mirror cannot be brought to: what does not fit is not known of the rows that are gone.
    text = replace(FORM, schema_id="form-2", columns=(ID, replace(N, spark=StringType(), type="text"), NOTE))
    with pytest.raises(IncompatibleSchemaError):
        target.prepare(spark, name, text, Kind.MIRROR, (40, 0))
    again = frame(spark, [change("r", 40, (5, "fifty", "b"))], text)
    new = New(text, Kind.MIRROR, Layout(buckets, Deletes.MARK))
    target.swap(name, new, again, 40, {0: 41})
    found = rows(spark, name, "id", "n", "note", UNKNOWN, DELETED, "_cdcd_commit_lsn")
    assert found == [
        (1, None, "a", ["n"], True, 15),
        (2, None, "b", ["n"], True, 40),
        (3, None, "a", ["n"], True, 30),
        (4, None, "a", ["n"], True, 30),
        (5, "fifty", "b", None, False, 40),
    ]
    target = make_target()
    target.apply(name, frame(spark, [change("c", 50, (1, "one", "c"))], text))
    assert rows(spark, name, "id", "n", UNKNOWN, DELETED)[0] == (1, "one", None, False)
    # Another key: which rows are gone cannot be told any more.
    rekeyed = replace(text, schema_id="form-3", key=("n",))
    last = frame(spark, [change("r", 60, (5, "fifty", "b"), key=("fifty",))], rekeyed)
    target.swap(name, new._replace(schema=rekeyed), last, 60, {0: 61})
    assert rows(spark, name, "id", DELETED) == [(5, False)]


def test_a_mirror_is_written_anew_to_mark_deletes_and_to_remove_them_again(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = marked(spark, target, PLAIN)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a")), change("c", 11, (2, 2, "b"))], FORM))
    assert make_target().relayout(spark, name, lambda _: MARKS) == LaidOut(PLAIN, MARKS)
    target = make_target()
    assert target.layout(spark, name) == MARKS
    target.apply(name, frame(spark, [change("d", 20, (1, None, None))], FORM))
    assert contents(spark, name) == [(1, 1, "a", True), (2, 2, "b", False)]
    assert target.relayout(spark, name, lambda _: PLAIN) == LaidOut(MARKS, PLAIN)
    assert rows(spark, name, "id") == [(2,)]
    assert DELETED not in spark.table(name).columns
    target.apply(name, frame(spark, [change("d", 30, (2, None, None))], FORM))
    assert rows(spark, name, "id") == []


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_mirror_marks_what_its_source_deletes_and_stops_where_it_was_made_to_remove_it(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
):
    tables = (
        "CREATE TABLE kept (id int PRIMARY KEY, n int, big text)",
        "CREATE TABLE gone (id int PRIMARY KEY, n int)",
    )
    with stage.source(f"soft_{table_format}", *tables) as source:
        job = Job(spark, source, tmp_path, table_format)
        source.execute("INSERT INTO kept SELECT n, n, repeat('x', 5000) FROM generate_series(1, 6) n")
        source.execute("INSERT INTO gone SELECT n, n FROM generate_series(1, 6) n")
        source.deliver()
        # GIVEN two mirrors that remove deleted rows, with a changelog beside
        history = {"history": ["public.kept"]}
        assert job.once(tables=history) == {}
        # WHEN the configuration says that one of them marks them
        marking = {**history, "deletes_for": {"public.kept": "mark"}, "deletes": "remove"}
        source.execute("DELETE FROM gone WHERE id < 3; UPDATE kept SET n = n WHERE id = 6")
        source.deliver()
        stopped = job.once(tables=marking)
        # THEN this one stops, by name and with a way on that works; the other one goes on
        (error,) = stopped.values()
        assert isinstance(error, SinkError)
        assert "removes deleted rows, and the configuration says tables.deletes: mark" in error.message
        assert f"SET {DELETED} = false" in error.hint
        assert job.rows(source, "gone") == [(number, number) for number in range(3, 7)]
        job.mirror(tables=marking).relayout(["public.kept"])
        (done,) = job.all(TableLaidOut)
        assert (done.deletes_before, done.deletes_after) == ("remove", "mark")
        # AND what is deleted from then on stays
        source.execute("UPDATE kept SET n = 0 WHERE id = 1")
        source.execute("DELETE FROM kept WHERE id <= 2")
        source.execute("UPDATE kept SET id = 10 WHERE id = 3")
        source.execute("ALTER TABLE kept ADD note text DEFAULT 'n'")
        source.execute("INSERT INTO kept VALUES (2, 22, 'back')")
        source.deliver()
        assert job.once(tables=marking) == {}

        def found() -> list[tuple[Any, ...]]:
            table = job.table(source, "kept").selectExpr("id", "n", "length(big)", "note", DELETED)
            return sorted(map(tuple, table.collect()))

        gone = [(1, 0, 5000, "n", True), (3, 3, 5000, "n", True)]
        rest = [(number, number, 5000, "n") for number in (4, 5, 6)]
        live = [(2, 22, 4, "n", False), *[(*row, False) for row in rest], (10, 3, 5000, "n", False)]
        assert found() == sorted(gone + live)
        log = job.table(source, "kept_changes")
        assert log.filter("_cdcd_op = 'd'").count() == 3
        # AND so does everything after a truncate
        source.execute("TRUNCATE kept")
        source.execute("INSERT INTO kept VALUES (5, 55, 'again')")
        source.deliver()
        assert job.once(tables=marking) == {}
        truncated = [(*row[:4], True) for row in gone + live if row[0] != 5]
        assert found() == sorted([*truncated, (5, 55, 5, "n", False)])
        # WHEN the table is read by Spark, at a snapshot that lacks a row
        source.execute("DELETE FROM kept")
        source.execute("INSERT INTO kept VALUES (6, 66, 'read')")
        job.load(["public.kept"], {"tables": marking})
        # THEN this row is marked, and what the stream brings of it changes nothing
        (loaded,) = job.all(TableLoaded)
        assert loaded.rows == 1
        snapshot = [row for row in truncated if row[0] != 6] + [(5, 55, 5, "n", True), (6, 66, 4, "n", False)]
        assert found() == sorted(snapshot)
        source.deliver()
        assert job.once(tables=marking) == {}
        assert found() == sorted(snapshot)
        # AND deletes are marked under a common LSN as well
        source.execute("DELETE FROM kept")
        source.deliver()
        assert job.once(tables=marking, batches={"interval_s": 0, "consistent": True}) == {}
        assert {row[-1] for row in found()} == {True}
        assert len(found()) == len(snapshot)
        # WHEN a column gets a type that marked rows cannot get, THEN the table stops, and no row is lost
        source.execute("ALTER TABLE kept ALTER n TYPE text")
        source.execute("INSERT INTO kept VALUES (7, 'text')")
        source.deliver()
        (error,) = job.once(tables={**marking, "on_incompatible": "reload"}).values()
        assert "marked rows cannot get it" in error.message
        assert error.hint.startswith("Rename ")
        assert len(found()) == len(snapshot)


def test_a_new_process_knows_that_a_mirror_removes_deletes_again(
    spark: SparkSession, make_target: MakeTarget
):
    # GIVEN a mirror that marked deletes, and was written again to remove them
    target = make_target()
    name = target.name_of(FORM, Kind.MIRROR)
    target.prepare(spark, name, FORM, Kind.MIRROR, (1, 1), Layout(deletes=Deletes.MARK))
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    target.relayout(spark, name, lambda _: Layout())
    # WHEN another process goes on
    target = make_target()
    assert target.layout(spark, name) == Layout()
    target.apply(name, frame(spark, [change("u", 20, (1, 2, "b"))], FORM))
    # THEN its changes are there (Iceberg keeps the properties of a table that is replaced)
    assert rows(spark, name, "id", "n") == [(1, 2)]
