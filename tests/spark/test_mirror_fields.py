"""Renamed fields and partitions by columns: the mirror is equal under the new names, or stopped by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage

FIELDS = {
    "public.line": {
        "rename": {"id": "number", "note": "remark"},
        "constants": {"region": "eu", "tenant_name": "x"},
    }
}
PARTITIONS = {"public.line": ["tenant"], "public.moving": ["n"]}


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    name = f"f{abs(hash(request.node.nodeid)) % 10**8}"
    tables = (
        "CREATE TABLE line (id int, tenant text, note text, PRIMARY KEY (tenant, id))",
        "CREATE TABLE moving (id int PRIMARY KEY, n int)",
        "ALTER TABLE moving REPLICA IDENTITY FULL",
        "INSERT INTO line SELECT i, 't' || i % 5, 'n' FROM generate_series(1, 200) i",
        "INSERT INTO moving VALUES (1, 1)",
    )
    with stage.source(name, *tables, partitions=4) as made:
        yield made


def rows(job: Job, source: Source) -> list[tuple[Any, ...]]:
    table = job.table(source, "line").select("number", "tenant", "remark")
    return sorted(tuple(row) for row in table.collect())


def test_a_mirror_has_the_fields_whatever_partition_a_row_moves_to_with_its_key(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    # GIVEN a mirror of a table without rules
    job = Job(spark, source, tmp_path, DELTA)
    source.deliver()
    assert job.once(tables={"on_incompatible": "stop"}) == {}

    # WHEN its fields get other names, rows move, and a column comes
    source.daemon.stop()
    source.daemon.config = {
        **source.daemon.config, "fields": {"tables": FIELDS}, "partitioner": {"columns": PARTITIONS},
    }  # fmt: skip
    source.daemon.start()
    source.daemon.await_streaming()
    source.execute("TRUNCATE line")
    source.execute("INSERT INTO line SELECT i, 't' || i % 5, 'n' FROM generate_series(1, 200) i")
    source.execute("UPDATE line SET tenant = 'u' || id % 3 WHERE id % 2 = 0")
    source.execute("UPDATE line SET note = 'o' WHERE id % 7 = 0")
    source.execute("DELETE FROM line WHERE id % 11 = 0")
    source.execute("UPDATE moving SET n = 2")
    source.deliver()
    stopped = job.once(tables={"on_incompatible": "stop"})

    # THEN the mirror has the rows, and stops by name where records of a key have no order
    expected = "SELECT id, tenant, note FROM line ORDER BY 1, 2, 3"
    with source.connect() as connection:
        assert rows(job, source) == connection.execute(expected.encode()).fetchall()
    assert list(stopped) == ["public.moving"]
    assert "region" not in job.table(source, "line").columns
