"""Folds of one table that race with other folds and with the table's owner, forced at each phase of a statement.

Each race ends with one more fold, after which the table equals the source. Before it, the position is right, or it says
that the table is not clean.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType

from cdcd.mirror.base import fold as folding
from cdcd.mirror.base.fold import Folded, OvertakenError
from cdcd.mirror.base.formats import BaseFormat, Version
from cdcd.mirror.jars import DELTA, ICEBERG
from tests.integration.daemon import until
from tests.spark.base_model import Lake, expected
from tests.spark.source_model import Source

PHASES = ("pinned", "analysed", "running")


class Slow:
    """A format whose fold stops once in one phase of its statement until somebody else has acted.

    - pinned: the version was read, and no statement was made.
    - analysed: the statement is planned, and its guard is evaluated.
    - running: the rows of the statement's source are read, after the guard.
    """

    def __init__(self, spark: SparkSession, inner: BaseFormat, phase: str, folder: Path) -> None:
        self.spark, self.inner, self.phase, self.waits = spark, inner, phase, True
        self.there, self.go = folder / f"{phase}-there", folder / f"{phase}-go"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def wait(self) -> None:
        self.there.touch()
        until(lambda: True if self.go.exists() else None, "told to go on", 120)

    def version(self, spark: SparkSession, name: str) -> Version:
        found = self.inner.version(spark, name)
        if self.phase == "pinned" and self.waits:
            self.waits = False
            self.wait()
        return found

    def guard(self, name: str, pin: str) -> str:
        there, go = str(self.there), str(self.go)

        def waits(_: Any) -> bool:
            import time
            from pathlib import Path

            Path(there).touch()
            end = time.monotonic() + 120
            while not Path(go).exists() and time.monotonic() < end:
                time.sleep(0.02)
            return True

        guard = self.inner.guard(name, pin)
        if self.phase == "pinned":
            return guard
        self.spark.udf.register("cdcd_waits", waits, BooleanType())
        if self.phase == "analysed" and guard != "true":
            return guard.replace("WHERE name", "WHERE cdcd_waits(name) AND name")
        return f"{guard} AND cdcd_waits(_cdcd_commit_lsn)"


class Race:
    """A table that is folded up to half of its changes, and a fold of the rest that somebody overtakes."""

    def __init__(self, lake: Lake, folder: Path, seed: int) -> None:
        self.lake, self.folder = lake, folder
        self.source = Source(seed, keys=8, moves=False)
        self.source.run(10)
        self.first = self.source.lsn
        lake.write(self.source)
        lake.fold(self.first)
        self.source.run(6)
        self.second = self.source.lsn
        lake.write(self.source)
        lake.fold(self.second)
        self.source.run(6)
        self.third = self.source.lsn
        lake.write(self.source)

    def version(self, spark: SparkSession | None = None) -> Version:
        return self.lake.format.version(spark or self.lake.spark, self.lake.table)

    def overtaken(self, phase: str, bound: int, act: Callable[[SparkSession], None]) -> None:
        """Fold up to `bound`, and let `act` happen in a phase of the statement."""
        own = self.lake.spark.newSession()
        slow = Slow(own, self.lake.format, phase, self.folder)
        errors: list[Exception] = []

        def run() -> None:
            try:
                folding.fold(own, slow, self.lake.place(), self.lake.described, bound)
            except Exception as error:  # noqa: BLE001  the test looks at it
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            until(lambda: True if slow.there.exists() or not thread.is_alive() else None, phase, 120)
            act(self.lake.spark)
        finally:
            slow.go.touch()
            thread.join(240)
        assert not thread.is_alive()
        for error in errors:
            # A fold that others overtake too often says so. Nothing else may come of it.
            assert isinstance(error, OvertakenError), error

    def check(self) -> None:
        """The position says the truth, and the next fold makes the table equal to the source."""
        self.agrees()
        self.source.run(2)
        self.lake.write(self.source)
        self.lake.fold(self.source.lsn)
        self.agrees()
        position = self.version().position
        assert position is not None
        assert (position.lsn, position.clean) == (self.source.lsn, True)
        assert self.lake.rows() == expected(self.source, self.source.lsn)

    def agrees(self) -> None:
        position = self.version().position
        if position is not None and position.clean:
            assert self.lake.rows() == expected(self.source, position.lsn)


def rolls_back(race: Race) -> Callable[[SparkSession], None]:
    """The owner brings back the version of the first fold."""
    version = next(
        version
        for version, node in race.version().nodes.items()
        if node.carried is not None and node.carried.lsn == race.first
    )

    def act(spark: SparkSession) -> None:
        if race.lake.table_format == DELTA:
            spark.sql(f"RESTORE TABLE {race.lake.table} TO VERSION AS OF {version}")
        else:
            table = race.lake.table.removeprefix("lake.")
            spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {version})")

    return act


def compacts(race: Race) -> Callable[[SparkSession], None]:
    def act(spark: SparkSession) -> None:
        if race.lake.table_format == DELTA:
            spark.sql(f"OPTIMIZE {race.lake.table}")
        else:
            table = race.lake.table.removeprefix("lake.")
            spark.sql(
                f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
            )

    return act


def compacts_and_expires(race: Race) -> Callable[[SparkSession], None]:
    """No version is left whose commit carries a position."""

    def act(spark: SparkSession) -> None:
        compacts(race)(spark)
        if race.lake.table_format == DELTA:
            spark.sql(f"VACUUM {race.lake.table} RETAIN 0 HOURS")
        else:
            table = race.lake.table.removeprefix("lake.")
            spark.sql(
                f"CALL lake.system.expire_snapshots(table => '{table}', older_than => timestamp '2999-01-01', "
                "retain_last => 1)"
            )

    return act


def folds_on(race: Race) -> Callable[[SparkSession], None]:
    """Another driver folds everything."""
    return lambda spark: _ignore(race.lake.fold(race.third, spark=spark))


def folds_less(race: Race) -> Callable[[SparkSession], None]:
    """Another driver, which is behind, folds a part of it."""
    between = [lsn for lsn in race.source.after if race.second < lsn < race.third]
    return lambda spark: _ignore(race.lake.fold(min(between), spark=spark))


def _ignore(_: Folded) -> None:
    pass


ACTS = {each.__name__: each for each in (rolls_back, compacts, compacts_and_expires, folds_on, folds_less)}


@pytest.fixture(params=[ICEBERG, DELTA])
def race(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Race:
    return Race(Lake(spark, str(tmp_path), unique, request.param), tmp_path, 3)


@pytest.mark.parametrize("act", list(ACTS))
@pytest.mark.parametrize("phase", PHASES)
def test_a_fold_that_is_overtaken_leaves_a_table_that_the_next_fold_makes_equal(
    race: Race, phase: str, act: str
) -> None:
    race.overtaken(phase, race.third, ACTS[act](race))
    race.check()


@pytest.mark.parametrize("act", ["folds_on"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_driver_that_was_frozen_behind_others_changes_nothing_for_long(
    race: Race, phase: str, act: str
) -> None:
    """The frozen fold has an older bound than the fold that overtakes it."""
    between = [lsn for lsn in race.source.after if race.second < lsn < race.third]
    race.overtaken(phase, min(between), ACTS[act](race))
    race.check()
