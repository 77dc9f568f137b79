"""`cdcd mirror` that is killed while a merge is writing: what it wrote is in no version, and comes once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from deploy.demo.mirrored import compare
from tests.spark.stage import Source, Stage, target_for

ROWS = 20_000
KILLS = 2
WAIT_S = 300.0

COMMITS = {ICEBERG: "metadata/*.metadata.json", DELTA: "_delta_log/*.json"}
"""Below a table's folder: a file for each commit."""


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source(
        f"k{abs(hash(request.node.nodeid)) % 10**8}",
        "CREATE TABLE item (id int PRIMARY KEY, n int, note text)",
    ) as source:
        source.execute(
            f"INSERT INTO item SELECT n, 0, repeat(md5(n::text), 20) FROM generate_series(1, {ROWS}) n"
        )
        source.deliver()
        yield source


def written(table: Path) -> set[Path]:
    return set(table.rglob("*.parquet"))


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_mirror_that_is_killed_while_a_merge_writes_equals_its_source(
    source: Source, spark: SparkSession, table_format: str
) -> None:
    # GIVEN a table, and changes of all its rows
    mirror = source.mirror(table_format, maintenance={"interval_s": None})
    assert mirror.once() == 0, mirror.errors()[-3000:]
    table = Path(mirror.location) / "public" / "item"
    left: list[set[Path]] = []
    for kill in range(KILLS):
        source.execute(f"UPDATE item SET n = n + 1, note = md5(note) || '{kill}'")
        source.execute(f"UPDATE item SET id = -id WHERE id % 10 = {kill}")
        source.deliver()
        # WHEN the job is killed as soon as its merge has begun to write
        files, commits = written(table), set(table.glob(COMMITS[table_format]))
        mirror.start("--once")
        deadline = time.monotonic() + WAIT_S
        while written(table) == files:
            assert time.monotonic() < deadline, mirror.errors()[-3000:]
            time.sleep(0.002)
        mirror.kill()
        # THEN it was before the commit
        assert set(table.glob(COMMITS[table_format])) == commits
        left.append(written(table) - files)

    # AND what it had written is in the way of nothing: it comes again, and once
    assert mirror.once() == 0, mirror.errors()[-3000:]
    target = target_for(spark, mirror, f"c_{source.name}")
    (verdict,) = compare(source.dsn, spark, target, ["public.item"])
    assert verdict.equal, verdict
    assert verdict.source.rows == ROWS
    assert all(each and each <= written(table) for each in left)
