"""Folds of a log into a base table: the table equals the source at its position, in both formats."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from tests.spark.base_model import Lake, expected
from tests.spark.source_model import Source


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
