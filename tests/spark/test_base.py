"""Folds of a log into a base table: the table equals the source at its position, in both formats."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from deploy.demo.mirrored import compare
from tests.spark.base_model import Lake, expected
from tests.spark.source_model import Source
from tests.spark.stage import Stage, target_for
from tests.spark.workload import DEFINITIONS, MIRRORED, TABLES, TOUCH, Workload


@pytest.fixture(params=[ICEBERG, DELTA])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, request.param)


@pytest.mark.parametrize("seed", [1, 2])
def test_folds_follow_a_source_with_moved_keys_unsent_values_and_truncates(lake: Lake, seed: int) -> None:
    source = Source(seed, wanders=True)
    for _ in range(4):
        source.run(12)
        lake.write(source)
        done = lake.fold(source.lsn)
        assert done.lsn == source.lsn
        assert lake.rows() == expected(source, source.lsn)
        position = lake.format.version(lake.spark, lake.table).position
        assert position is not None
        assert position.clean
    # A fold that comes again changes nothing, and one in the middle of the log stops there.
    before = lake.format.version(lake.spark, lake.table).pin
    lake.fold(source.lsn)
    assert lake.format.version(lake.spark, lake.table).pin == before


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_tables_equal_their_source_through_changes_of_tables(
    stage: Stage, spark: SparkSession, table_format: str
) -> None:
    with stage.source(f"base_{table_format}", *TABLES) as source, source.connect() as connection:
        workload = Workload(connection, 7, source.deliver)
        mirror = source.mirror(table_format, tables={"exclude": ["public.log"]})
        mirror.config["change_log"] = "fold"
        # GIVEN a mirror, and a workload with all changes of definitions after it
        workload.run(20)
        source.deliver()
        assert mirror.once() == 0, mirror.errors()[-3000:]
        workload.run(20, definitions=len(DEFINITIONS))
        for statement in TOUCH:
            connection.execute(statement)
        source.deliver()
        # WHEN it has caught up
        assert mirror.once() == 0, mirror.errors()[-3000:]
        # THEN all tables equal the source
        target = target_for(spark, mirror, f"c_{source.name}")
        verdicts = compare(source.dsn, spark, target, MIRRORED)
        assert [str(verdict) for verdict in verdicts if not verdict.equal] == []
