"""A driver that is killed in each phase of a fold, in both formats: the next fold makes the table equal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.base.position import Position
from cdcd.mirror.jars import DELTA, ICEBERG
from deploy.local.cache import REPOSITORY
from tests.integration.daemon import until
from tests.spark.base_model import WAITS_S, expected
from tests.spark.frozen_folds import lake_of
from tests.spark.source_model import Source

NAMES = [
    f"{table_format}-{phase}"
    for table_format in (ICEBERG, DELTA)
    for phase in ("pinned", "altered", "running", "committed")
]


@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_in_any_phase_of_a_fold_leaves_a_table_that_the_next_fold_makes_equal(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    # GIVEN tables that are folded up to some of their changes, of which some have a new column later
    source = Source(5, wanders=True)
    lakes = {name: lake_of(spark, tmp_path, name) for name in NAMES}
    source.run(10)
    for lake in lakes.values():
        lake.write(source)
        lake.fold(source.lsn)
    first = source.lsn
    source.run(8)
    bound = source.lsn
    for name, lake in lakes.items():
        lake.write(source, form="form-2" if name.endswith("altered") else "form-1")
    # WHEN a driver is killed in the middle of the next folds
    command = [sys.executable, "-m", "tests.spark.frozen_folds", str(tmp_path), str(warehouse), str(bound)]
    with subprocess.Popen([*command, *NAMES], cwd=REPOSITORY, start_new_session=True) as process:
        try:
            for name in NAMES:
                there = tmp_path / name / f"{name.partition('-')[2]}-there"
                failed = tmp_path / name / "failed"

                def waits(there: Path = there, failed: Path = failed) -> bool | None:
                    assert not failed.exists(), failed.read_text()
                    assert process.poll() is None, "the process has ended"
                    return there.exists() or None

                until(waits, f"{name} in its phase", WAITS_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    # THEN the position tells the truth, and the next fold makes the table equal
    for name, lake in lakes.items():
        position = lake.format.version(spark, lake.table).position
        assert position is not None
        assert (position.clean, position.lsn) == (True, bound if name.endswith("committed") else first)
        assert lake.rows() == expected(source, position.lsn)
    source.run(3)
    for name, lake in lakes.items():
        lake.write(source, form="form-2" if name.endswith("altered") else "form-1")
        lake.fold(source.lsn)
        assert lake.rows() == expected(source, source.lsn)
        position = lake.format.version(spark, lake.table).position
        assert isinstance(position, Position)
        assert (position.clean, position.lsn) == (True, source.lsn)
        assert ("note" in spark.table(lake.table).columns) == name.endswith("altered")
