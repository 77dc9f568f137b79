"""A key's records in several partitions: the mirror is equal, however far each partition has been read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.watching.progress import TableFailed
from deploy.demo.mirrored import compare
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage

TABLES = ("public.renamed", "public.stamped", "public.widened")

MIX = """
    DELETE FROM {table} WHERE n % 3 = 0;
    UPDATE {table} SET n = -n WHERE n % 3 = 1;
    UPDATE {table} SET {key} = {key} + {step} WHERE n % 3 = 2
"""
"""Deletes, updates that leave the large value alone, and changes of the key that leave it alone too."""


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    name = f"p{abs(hash(request.node.nodeid)) % 10**8}"
    tables = (
        "CREATE TABLE renamed (id int PRIMARY KEY, n int, big text)",
        "CREATE TABLE stamped (at timestamp(3) PRIMARY KEY, n int, big text)",
        "CREATE TABLE widened (id int PRIMARY KEY, n int, big text)",
    )
    with stage.source(name, *tables) as made:
        yield made


def fill(source: Source) -> None:
    big = "SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 150) j"
    rows = "FROM generate_series(1, 900) i"
    source.execute(f"INSERT INTO renamed SELECT i, i, ({big}) {rows}")
    source.execute(
        f"INSERT INTO stamped SELECT timestamp '2026-01-01' + i * interval '1 s', i, ({big}) {rows}"
    )
    source.execute(f"INSERT INTO widened SELECT i, i, ({big}) {rows}")


def move(source: Source) -> None:
    """From here on the records of all keys may lie in other partitions."""
    admin = AdminClient({"bootstrap.servers": source.servers})
    admin.create_partitions([NewPartitions(f"{source.name}.public.widened", 5)])[
        f"{source.name}.public.widened"
    ].result(30)
    # The producer learns of it.
    source.daemon.stop()
    source.daemon.start()
    source.daemon.await_streaming()
    source.execute("ALTER TABLE renamed RENAME id TO pk")
    source.execute("ALTER TABLE stamped ALTER at TYPE timestamp(6)")


def change(source: Source) -> None:
    source.execute(MIX.format(table="renamed", key="pk", step="10000"))
    source.execute(MIX.format(table="stamped", key="at", step="interval '1 year'"))
    source.execute(MIX.format(table="widened", key="id", step="10000"))


def different(job: Job, source: Source) -> list[str]:
    return [str(each) for each in compare(source.dsn, job.spark, job.target, TABLES) if not each.equal]


def unknown(job: Job, source: Source) -> int:
    tables = [job.table(source, table.partition(".")[2]) for table in TABLES]
    return sum(table.filter("_cdcd_unknown IS NOT NULL").count() for table in tables)


def test_keys_whose_records_lie_in_several_partitions_are_right_live_and_from_the_history(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    live = {form: Job(spark, source, tmp_path / form, form) for form in (ICEBERG, DELTA)}
    # GIVEN mirrors that are up to date
    fill(source)
    source.deliver()
    for job in live.values():
        assert job.once() == {}
    # WHEN a key column is renamed, the precision of a key changes, partitions are added, and rows change then
    move(source)
    change(source)
    source.deliver()
    # THEN they are equal, and so they are after a run with nothing new
    for job in live.values():
        for _ in range(2):
            assert (job.once(), job.all(TableFailed)) == ({}, [])
            assert different(job, source) == []
            assert unknown(job, source) == 0
    # AND so is a mirror that begins with the whole history
    late = Job(spark, source, tmp_path / "late", DELTA)
    assert late.once() == {}
    assert different(late, source) == []
    assert unknown(late, source) == 0
