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

from cdcd.mirror.base import fold as folding
from cdcd.mirror.base.formats import Version
from cdcd.mirror.base.part import OvertakenError
from cdcd.mirror.jars import DELTA, ICEBERG
from tests.integration.daemon import until
from tests.spark.base_model import WAITS_S, Lake, Slow, as_row, expected
from tests.spark.source_model import Source, change

pytestmark = pytest.mark.timeout(2400)
"""Each race takes some 60 s of CPU in Delta, so more than the limit of other tests beside other load."""


class Race:
    """A table that is folded up to half of its changes, and a fold of the rest that somebody overtakes."""

    def __init__(self, lake: Lake, folder: Path, seed: int, *, begun: bool = True) -> None:
        """`begun`: the table is folded up to `second`. Otherwise, there is no table yet."""
        self.lake, self.folder = lake, folder
        self.source = Source(seed, keys=8, moves=False)
        self.points: list[tuple[int, str]] = []
        """LSNs and versions of the table that folds gave for consistent points."""
        self.first, self.second, self.third = [self.step(number) for number in (10, 6, 6)]
        if begun:
            self.fold(self.first)
            self.fold(self.second)

    def step(self, transactions: int) -> int:
        """Let the source go on, and return its LSN."""
        self.source.run(transactions)
        self.lake.write(self.source)
        return self.source.lsn

    def fold(self, bound: int, *, spark: SparkSession | None = None, slow: Slow | None = None) -> None:
        lake = self.lake
        format_: Any = slow or lake.format
        done = folding.fold(spark or lake.spark, format_, lake.place(), lake.described, bound)
        if done.version:
            self.points.append((done.lsn, done.version))

    def version(self, spark: SparkSession | None = None) -> Version:
        return self.lake.format.version(spark or self.lake.spark, self.lake.table)

    def overtaken(self, phase: str, bound: int, act: Callable[[SparkSession], None]) -> None:
        """Fold up to `bound`, and let `act` happen in a phase of the statement."""
        own = self.lake.spark.newSession()
        slow = Slow(own, self.lake.format, phase, self.folder)
        errors: list[Exception] = []

        def run() -> None:
            try:
                self.fold(bound, spark=own, slow=slow)
            except Exception as error:  # noqa: BLE001  the test looks at it
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            until(lambda: True if slow.there.exists() or not thread.is_alive() else None, phase, WAITS_S)
            act(self.lake.spark)
        finally:
            slow.go.touch()
            thread.join(WAITS_S)
        assert not thread.is_alive()
        for error in errors:
            # A fold that others overtake too often says so. Nothing else may come of it.
            assert isinstance(error, OvertakenError), error

    def check(self) -> None:
        """The position says the truth, and the next fold makes the table equal to the source."""
        self.agrees()
        self.fold(self.step(2))
        self.agrees()
        position = self.version().position
        assert position is not None
        assert (position.lsn, position.clean) == (self.source.lsn, True)
        assert self.lake.rows() == expected(self.source, self.source.lsn)

    def agrees(self) -> None:
        for lsn, version in self.points:
            assert self.lake.rows(version) == expected(self.source, lsn)
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
            race.points.clear()
            spark.sql(f"VACUUM {race.lake.table} RETAIN 0 HOURS")
        else:
            race.points.clear()
            table = race.lake.table.removeprefix("lake.")
            spark.sql(
                f"CALL lake.system.expire_snapshots(table => '{table}', older_than => timestamp '2999-01-01', "
                "retain_last => 1)"
            )

    return act


def folds_on(race: Race) -> Callable[[SparkSession], None]:
    """Another driver folds everything."""
    return lambda spark: race.fold(race.third, spark=spark)


def folds_less(race: Race) -> Callable[[SparkSession], None]:
    """Another driver, which is behind, folds a part of it."""
    between = [lsn for lsn in race.source.after if race.second < lsn < race.third]
    return lambda spark: race.fold(min(between), spark=spark)


ACTS = {each.__name__: each for each in (rolls_back, compacts, compacts_and_expires, folds_on, folds_less)}


PHASES = [
    (DELTA, "pinned"),
    (DELTA, "running"),
    (ICEBERG, "pinned"),
    # Only Iceberg has a guard in the statement.
    (ICEBERG, "analysed"),
    (ICEBERG, "running"),
]


@pytest.fixture
def lake(table_format: str, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, table_format)


@pytest.mark.parametrize("act", list(ACTS))
@pytest.mark.parametrize(("table_format", "phase"), PHASES)
def test_a_fold_that_is_overtaken_leaves_a_table_that_the_next_fold_makes_equal(
    lake: Lake, tmp_path: Path, phase: str, act: str
) -> None:
    race = Race(lake, tmp_path, 3)
    race.overtaken(phase, race.third, ACTS[act](race))
    race.check()


@pytest.mark.parametrize("act", ["rolls_back", "compacts_and_expires"])
@pytest.mark.parametrize("table_format", [DELTA, ICEBERG])
def test_what_an_owner_does_after_the_commit_of_a_fold_is_seen_by_the_fold(
    lake: Lake, tmp_path: Path, act: str
) -> None:
    race = Race(lake, tmp_path, 3)
    race.overtaken("committed", race.third, ACTS[act](race))
    race.check()


@pytest.mark.parametrize(("table_format", "phase"), PHASES)
def test_a_driver_that_was_frozen_behind_others_changes_nothing_for_long(
    lake: Lake, tmp_path: Path, phase: str
) -> None:
    """The frozen fold has an older bound than the fold that overtakes it."""
    race = Race(lake, tmp_path, 3)
    between = [lsn for lsn in race.source.after if race.second < lsn < race.third]
    race.overtaken(phase, min(between), folds_on(race))
    race.check()


@pytest.mark.parametrize(("table_format", "phase"), PHASES)
def test_two_drivers_that_make_one_table_insert_each_key_once(lake: Lake, tmp_path: Path, phase: str) -> None:
    """Both insert the same keys into a table without rows. `Lake.rows` finds keys that are there twice."""
    race = Race(lake, tmp_path, 3, begun=False)
    race.overtaken(phase, race.second, folds_on(race))
    race.check()


@pytest.mark.parametrize("other", ["ahead", "behind", "same", "taken away"])
@pytest.mark.parametrize(("table_format", "phase"), [each for each in PHASES if each[0] == DELTA])
def test_two_folds_that_insert_one_key_in_delta_leave_it_once(
    lake: Lake, tmp_path: Path, phase: str, other: str
) -> None:
    """Delta has no guard in the statement: the pinned version and Delta's own check of conflicts must suffice.

    `other`: the bound of the fold that overtakes, beside that of the fold that is overtaken. "taken away": its owner
    restores the version before it at once.
    """
    # GIVEN a table with rows, and a key that is inserted and then updated
    race = Race(lake, tmp_path, 3)
    race.fold(race.third)
    before = race.version().pin
    inserted, updated = race.third + 10, race.third + 20
    more = {"schema_id": "form-1", "before": None, "partition": 0}
    lake.append(
        [as_row(change(op, lsn, 100, n) | more) for op, lsn, n in (("c", inserted, 1), ("u", updated, 2))]
    )
    slow, fast = {"ahead": (inserted, updated), "behind": (updated, inserted)}.get(other, (updated, updated))

    def act(spark: SparkSession) -> None:
        race.fold(fast, spark=spark)
        if other == "taken away":
            spark.sql(f"RESTORE TABLE {lake.table} TO VERSION AS OF {before}")

    # WHEN one fold overtakes another one
    race.overtaken(phase, slow, act)
    # THEN the key is there once after the next fold
    lake.fold(updated)
    assert lake.rows() == expected(race.source, race.third) | {(100, 2, "title 2", "body 2")}
    position = race.version().position
    assert position is not None
    assert (position.lsn, position.clean) == (updated, True)


@pytest.mark.parametrize("table_format", [DELTA])
def test_a_fold_that_changes_no_row_goes_on_behind_a_compaction(lake: Lake, tmp_path: Path) -> None:
    """Delta makes no commit of such a fold, so the only new commit is the compaction, which carries no position."""
    # GIVEN changes that leave no row: a key that is inserted and deleted
    race = Race(lake, tmp_path, 3)
    inserted, deleted = race.second + 1, race.second + 2
    assert not [lsn for lsn in race.source.after if race.second < lsn <= deleted]
    more = {"schema_id": "form-1", "partition": 0}
    made, gone = change("c", inserted, 100, before=None), change("d", deleted, 100, 0)
    lake.append([as_row(each | more) for each in (made, gone)])
    # WHEN the table is compacted while they are folded
    before = race.version().pin
    race.overtaken("pinned", deleted, compacts(race))
    # THEN the table has the position of the fold
    assert race.version().pin != before
    position = race.version().position
    assert position is not None
    assert (position.lsn, position.clean) == (deleted, True)
    assert lake.rows() == expected(race.source, race.second)
