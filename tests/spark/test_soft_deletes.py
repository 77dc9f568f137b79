"""A mirror that marks deleted rows: which rows stay, with which values, and what makes one live again."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.targets.layout import DELETED, Deletes, Layout
from cdcd.mirror.watching.progress import TableLaidOut, TableLoaded
from tests.spark.jobs import Job
from tests.spark.stage import Stage

MARKS = Layout(deletes=Deletes.MARK)


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
