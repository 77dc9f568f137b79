"""A mirror in buckets: what a batch costs, what it is written again from, and what is replaced."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType

from cdcd.core.errors import ConfigError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets import applying
from cdcd.mirror.targets.buckets import BUCKET
from cdcd.mirror.targets.layout import PLAIN, Layout
from cdcd.mirror.targets.target import Kind, LaidOut, New
from cdcd.mirror.watching.progress import TableLaidOut
from deploy.demo.mirrored import compare
from tests.spark.conftest import MakeTarget
from tests.spark.counters import READ, SHUFFLED, counted
from tests.spark.jobs import Job
from tests.spark.source_model import frame
from tests.spark.stage import Stage
from tests.spark.test_target_tables import change, rows

ROWS = int(os.environ.get("CDCD_TEST_ROWS", "40000"))
CHANGES = int(os.environ.get("CDCD_TEST_CHANGES", "20"))
BUCKETS = int(os.environ.get("CDCD_TEST_BUCKETS", "512"))
"""The figures in docs/evidence.md were taken with 3 million rows, 100 changes, and 2,048 and 4,096 buckets."""

KEYED = TableSchema(
    "shop.public.keyed",
    "public",
    "keyed",
    "form-1",
    ("id",),
    (ColumnSchema("id", 1, "text", 25, -1, StringType()), ColumnSchema("n", 2, "bigint", 20, -1, LongType())),
)


def key(number: int) -> str:
    """A text in whose order the numbers are scattered."""
    return f"{number * 2654435761 % 2**32:010d}-{number}"


def filled(spark: SparkSession, make_target: MakeTarget, count: int, buckets: int) -> tuple[Any, str]:
    """A mirror that a snapshot filled."""
    target = make_target()
    name = target.name_of(KEYED, Kind.MIRROR)
    target.prepare(spark, name, KEYED, Kind.MIRROR, (1, 0), Layout(buckets))
    target.load(name, loaded(spark, count), 10, {0: 5})
    return target, name


def loaded(spark: SparkSession, count: int) -> Any:
    numbers = spark.range(count)
    scattered = sf.lpad((sf.col("id") * 2654435761 % 2**32).cast("string"), 10, "0")
    text = sf.concat(scattered, sf.lit("-"), sf.col("id").cast("string"))
    return numbers.select(sf.struct(text.alias("id"), sf.col("id").alias("n")).alias("after"))


def update(number: int, lsn: int, value: int) -> dict[str, Any]:
    row = (key(number), value)
    return change("u", lsn, row, key=(row[0],), topic=KEYED.topic)


def test_a_batch_reads_its_buckets_and_shuffles_next_to_nothing_of_the_table(
    spark: SparkSession, make_target: MakeTarget
):
    target, name = filled(spark, make_target, ROWS, BUCKETS)
    # A row that was there at first, and others all over the table.
    numbers = [0, *range(17, ROWS, ROWS // (CHANGES - 1))][:CHANGES]
    batch = [update(number, 100 + place, -number) for place, number in enumerate(numbers)]
    scan = name if target.format == "iceberg" else "parquet"
    with counted(spark, scan.replace("`", "")) as counts:
        assert target.apply(name, frame(spark, batch, KEYED)).changes == CHANGES
    print(
        f"{target.format}: {counts[READ] / ROWS:.2%} of the rows read, {counts[SHUFFLED] / ROWS:.3%} shuffled"
    )
    passes = 1 if target.format == "iceberg" else 3
    assert 0 < counts[READ] <= passes * 0.05 * ROWS, counts
    assert counts[SHUFFLED] <= 0.01 * ROWS, counts
    # The row of number 0 keeps its value.
    assert spark.table(name).filter("n < 0").count() == CHANGES - 1
    assert spark.table(name).count() == ROWS


def test_a_value_that_stayed_at_an_old_key_is_looked_for_in_its_bucket(
    spark: SparkSession, make_target: MakeTarget
):
    target, name = filled(spark, make_target, ROWS, BUCKETS)
    # An update that changes the key, and leaves the other column as it is.
    old, new = (key(17), None), (key(ROWS + 17), None)
    moved = [
        change("d", 100, old, topic=KEYED.topic, new_key=new[:1]),
        change("c", 100, new, topic=KEYED.topic, old_key=old[:1], unchanged=["n"]),
    ]
    scan = name if target.format == "iceberg" else "parquet"
    with counted(spark, scan.replace("`", "")) as counts:
        assert target.apply(name, frame(spark, moved, KEYED)).changes == 2
    # The bucket of the old key for the value, and both buckets in each pass of the merge.
    assert 0 < counts[READ] <= 10 * ROWS / BUCKETS * 2, counts
    found = spark.table(name).filter(sf.col("id") == new[0]).collect()
    assert [row["n"] for row in found] == [17]
    assert spark.table(name).count() == ROWS


def test_a_large_table_without_buckets_shuffles_only_rows_of_the_batchs_hashes(
    spark: SparkSession, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(applying, "SMALL_BYTES", 0)
    target, name = filled(spark, make_target, ROWS, 1)
    with counted(spark, "") as counts:
        target.apply(name, frame(spark, [update(7, 100, -7)], KEYED))
    assert counts[SHUFFLED] <= 0.01 * ROWS, counts
    assert rows(spark, name, "n")[:1] == [(-7,)]


def test_a_table_is_laid_out_anew_in_one_commit_that_keeps_its_position(
    spark: SparkSession, make_target: MakeTarget
):
    target, name = filled(spark, make_target, 1000, 1)
    target.apply(name, frame(spark, [update(7, 100, -7)], KEYED), consistent_lsn=100)
    had, reached = rows(spark, name, "id", "n"), target.reached(spark, name)
    # WHEN it gets buckets, by its own process or by a new one, and is asked for again
    assert make_target().relayout(spark, name, lambda _: Layout(8)) == LaidOut(PLAIN, Layout(8))
    target = make_target()
    assert target.relayout(spark, name, lambda _: Layout(8)) == LaidOut(Layout(8), Layout(8))
    # THEN rows and position are the same, and a batch that comes again changes nothing
    assert spark.table(name).select(BUCKET).distinct().count() == 8
    assert (rows(spark, name, "id", "n"), target.reached(spark, name).commit_lsn) == (had, reached.commit_lsn)
    assert target.apply(name, frame(spark, [update(7, 100, 0)], KEYED)).changes == 0
    # AND changes, new rows and new columns find their places, and a smaller number of buckets is taken too
    new = [update(7, 110, 1), update(8, 111, 2), update(5000, 112, 3)]
    assert target.apply(name, frame(spark, new, KEYED)).changes == 3
    assert target.relayout(spark, name, lambda _: PLAIN) == LaidOut(Layout(8), Layout(2))
    assert spark.table(name).select(BUCKET).distinct().count() == 2
    gone = change("d", 120, (key(8), 2), key=(key(8),), topic=KEYED.topic)
    assert target.apply(name, frame(spark, [gone], KEYED)).changes == 1
    expected = dict(had) | {key(7): 1, key(5000): 3}
    del expected[key(8)]
    assert dict(rows(spark, name, "id", "n")) == expected


def test_a_mirror_with_buckets_becomes_a_changelog_and_a_mirror_again(
    spark: SparkSession, make_target: MakeTarget
):
    target, name = filled(spark, make_target, 100, 4)
    numbers = loaded(spark, 10).withColumns({"op": sf.lit("r"), "before": sf.lit(None).cast(KEYED.row_type)})
    keyless = replace(KEYED, schema_id="form-2", key=())
    changes = frame(spark, [change("r", 20, (key(1), 1), key=(), topic=KEYED.topic)], keyless)
    target.swap(name, New(keyless, Kind.CHANGELOG), changes, 20, {0: 6})
    new = change("r", 21, (key(2), 2), key=(), topic=KEYED.topic)
    assert make_target().apply(name, frame(spark, [new], keyless)).changes == 1
    assert rows(spark, name, "n", BUCKET) == [(1, None), (2, None)]
    target = make_target()
    target.swap(name, New(KEYED, Kind.MIRROR), numbers, 30, {0: 7})
    assert target.apply(name, frame(spark, [update(7, 100, -7)], KEYED)).changes == 1
    assert len(rows(spark, name, "id")) == 10
    assert spark.table(name).select(BUCKET).distinct().count() == 2


def test_a_snapshot_replaces_rows_in_every_bucket_whatever_the_session_says(
    spark: SparkSession, make_target: MakeTarget
):
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        target, name = filled(spark, make_target, 500, 16)
        target.load(name, loaded(spark, 3), 20, {0: 6})
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert rows(spark, name, "id", "n") == sorted((key(number), number) for number in range(3))


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
