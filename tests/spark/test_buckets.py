"""A mirror in buckets: what a batch costs, what it is written again from, and what is replaced."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.targets.buckets import BUCKET
from cdcd.mirror.watching.progress import TableLaidOut
from deploy.demo.mirrored import compare
from tests.spark.jobs import Job
from tests.spark.stage import Stage


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_mirror_makes_new_tables_in_buckets_and_lays_former_ones_out_anew(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
):
    # GIVEN a mirror that was made without buckets, and a table that comes when the configuration has some
    tables = (
        "CREATE TABLE old (id text PRIMARY KEY, n int)",
        "CREATE TABLE young (id int PRIMARY KEY, n int)",
    )
    with stage.source(f"laid_{table_format}", *tables) as source:
        job = Job(spark, source, tmp_path, table_format)
        source.execute("INSERT INTO old SELECT 'k' || n, n FROM generate_series(1, 100) n")
        source.deliver()
        job.once()
        source.execute("INSERT INTO young SELECT n, n FROM generate_series(1, 100) n")
        source.deliver()
        sections = {"tables": {"buckets": 4, "buckets_for": {"public.old": 8}}}
        assert job.once(**sections) == {}
        assert BUCKET not in job.table(source, "old").columns
        assert job.table(source, "young").select(BUCKET).distinct().count() == 4
        # WHEN the former one is laid out again, and a name is wrong
        mirror = job.mirror(**sections)
        with pytest.raises(ConfigError, match=r"--relayout public\.gone"):
            mirror.relayout(["public.gone"])
        mirror.relayout(["public.old", "public.young"])
        done = [(fact.table, fact.before, fact.after) for fact in job.all(TableLaidOut)]
        assert done == [("public.old", 1, 8), ("public.young", 4, 4)]
        source.execute("UPDATE old SET n = -n, id = 'new' || n WHERE n < 20")
        source.execute("DELETE FROM young WHERE n < 50")
        source.execute("ALTER TABLE old RENAME id TO name")
        source.execute("UPDATE old SET n = 0 WHERE name IN ('new7', 'k30')")
        source.deliver()
        mirror.run(once=True, stop=threading.Event())
        # THEN both are equal, and the next process goes on
        assert mirror.stopped == {}
        source.execute("INSERT INTO old VALUES ('late', 1)")
        source.deliver()
        assert job.once() == {}
        verdicts = compare(source.dsn, spark, job.target, ["public.old", "public.young"])
        assert all(verdict.equal for verdict in verdicts), list(map(str, verdicts))
        assert job.table(source, "old").select(BUCKET).distinct().count() == 8
