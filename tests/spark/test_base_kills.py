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
from tests.spark.base_model import WAITS_S, Lake, expected
from tests.spark.frozen_folds import fold_kind, lake_of, name_of
from tests.spark.source_model import Source
from tests.spark.test_base_changes import Changelog, order
from tests.spark.test_base_changes import expected as expected_changes
from tests.spark.test_states import States

NAMES = [
    f"{table_format}-{phase}"
    for table_format in (ICEBERG, DELTA)
    for phase in ("pinned", "altered", "running", "committed")
]
BESIDE = [name for name in NAMES if not name.endswith("altered")]


def kill_in_phases(kind: str, folder: Path, warehouse: Path, bound: int, names: list[str]) -> None:
    """Start a driver that folds tables of this kind, and kill it when each of them is in its phase."""
    command = [sys.executable, "-m", "tests.spark.frozen_folds", kind, str(folder), str(warehouse)]
    with subprocess.Popen([*command, str(bound), *names], cwd=REPOSITORY, start_new_session=True) as process:
        try:
            for name in names:
                there = folder / name / f"{name.partition('-')[2]}-there"
                failed = folder / name / "failed"

                def waits(there: Path = there, failed: Path = failed) -> bool | None:
                    assert not failed.exists(), failed.read_text()
                    assert process.poll() is None, "the process has ended"
                    return there.exists() or None

                until(waits, f"{name} in its phase", WAITS_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_in_any_phase_of_a_fold_leaves_a_table_that_the_next_fold_makes_equal(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    # GIVEN tables that are folded up to some of their changes, of which some have a new column later
    source = Source(5, wanders=True)
    lakes = {name: lake_of(spark, tmp_path, name, "docs") for name in NAMES}
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
    kill_in_phases("docs", tmp_path, warehouse, bound, NAMES)
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


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["changes", "scd2"])
def test_a_driver_that_is_killed_in_a_fold_of_states_or_changes_leaves_a_table_that_the_next_fold_makes_equal(
    spark: SparkSession, warehouse: Path, tmp_path: Path, kind: str
) -> None:
    # GIVEN such tables, which are folded up to some of the changes
    source = Source(6, wanders=True)
    lakes = {name: lake_of(spark, tmp_path, name, kind) for name in BESIDE}
    source.run(8)
    for lake in lakes.values():
        lake.write(source)
        fold_kind(spark, lake, kind, source.lsn)
    first = source.lsn
    source.run(6)
    bound = source.lsn
    for lake in lakes.values():
        lake.write(source)
    # WHEN a driver is killed in the middle of the next folds
    kill_in_phases(kind, tmp_path, warehouse, bound, BESIDE)
    # THEN the position tells the truth, and the next fold makes the table equal
    for name, lake in lakes.items():
        check(lake, kind, source, bound if name.endswith("committed") else first)
    source.run(3)
    for lake in lakes.values():
        lake.write(source)
        fold_kind(spark, lake, kind, source.lsn)
        check(lake, kind, source, source.lsn)


def check(lake: Lake, kind: str, source: Source, lsn: int) -> None:
    """The table of this kind is clean, and equals the source at this LSN."""
    position = lake.format.version(lake.spark, name_of(lake, kind)).position
    assert position is not None
    assert (position.clean, position.lsn) == (True, lsn)
    if kind == "changes":
        assert order(Changelog(lake).rows()) == order(expected_changes(source, lsn))
    else:
        assert States(lake).differences(source) == []
