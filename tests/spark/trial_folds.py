"""The trial (`trial.py`) of tables that are folded from a log.

    python -m tests.spark.trial_folds [--seeds N] [--seed S] [--format iceberg|delta …] [--rounds N]

An owner also rolls tables back, compacts them, and loses Spark's checkpoint. No topic is made again, because its table
must be read again then.
"""

import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from cdcd.core.errors import CdcdError
from cdcd.mirror.base.formats import DeltaBase, IcebergBase
from cdcd.mirror.base.plan import exists
from cdcd.mirror.base.points import Points
from cdcd.mirror.jars import DELTA
from tests.spark.trial import Mirrors, main
from tests.spark.trial_world import TABLES


class KilledError(BaseException):
    """Ends a job in the middle of its work, as if it were killed: no handler of a table's faults takes it."""


@contextmanager
def killed(at: int) -> Iterator[None]:
    """Raise KilledError at the `at`-th step. Each commit of a table or of the list of points has one before it and one
    after it.
    """
    left = at

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    def around(carrying: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def call(*given: Any) -> Iterator[str]:
            step()
            with carrying(*given) as to:
                yield to
            step()

        return call

    def listed(*given: Any) -> None:
        step()
        list_(*given)
        step()

    list_ = Points.list_
    with (
        mock.patch.object(IcebergBase, "carrying", around(IcebergBase.carrying)),
        mock.patch.object(DeltaBase, "carrying", around(DeltaBase.carrying)),
        mock.patch.object(Points, "list_", listed),
    ):
        yield


class FoldedMirrors(Mirrors):
    """Folds of one source's log, and what its owner does meanwhile."""

    sections: Mapping[str, Any] = MappingProxyType({"change_log": "fold"})

    def kinds(self) -> dict[Callable[[random.Random], None], int]:
        return {
            self._die: 3,
            self._two: 2,
            self._kill: 2,
            self._end: 2,
            self._roll_back: 3,
            self._lose_checkpoint: 1,
            self._compact: 1,
        }

    def _end(self, _dice: random.Random) -> None:
        self._did["ran to the end"] += 1
        stopped = self._job.once(**self._sections)
        assert stopped == {}, stopped

    def _die(self, dice: random.Random) -> None:
        with killed(dice.randrange(1, 9)):
            try:
                self._job.once(**self._sections)
            except KilledError:
                self._did["died at a commit"] += 1

    def _two(self, _dice: random.Random) -> None:
        """Run two drivers at the same time. A driver that is overtaken may end with an error that says so."""
        self._did["two at once"] += 1
        failures: list[BaseException] = []

        def run() -> None:
            try:
                failures.extend(self._job.once(**self._sections).values())
            except BaseException as error:  # noqa: BLE001 - it is judged below
                failures.append(error)

        beside = threading.Thread(target=run)
        beside.start()
        run()
        beside.join()
        for failure in failures:
            if not isinstance(failure, CdcdError):
                raise failure
            self._did[f"overtaken ({type(failure).__name__})"] += 1

    def _roll_back(self, dice: random.Random) -> None:
        """The owner brings back some former version of a table."""
        table = self._name(dice.choice(TABLES))
        if not exists(self._spark, table):
            return
        self._did["rolled back"] += 1
        if self._format == DELTA:
            history = self._spark.sql(f"DESCRIBE HISTORY {table}").select("version").collect()
            version = dice.choice(sorted(row[0] for row in history))
            self._spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
            return
        ancestors = self._spark.sql(
            f"SELECT snapshot_id FROM {table}.history WHERE is_current_ancestor ORDER BY made_current_at"
        )
        version = dice.choice([row[0] for row in ancestors.collect()])
        bare = table.removeprefix("lake.")
        self._spark.sql(f"CALL lake.system.rollback_to_snapshot('{bare}', {version})")

    def _lose_checkpoint(self, _dice: random.Random) -> None:
        self._did["lost the checkpoint"] += 1
        for folder in Path(self._place).glob("checkpoint*"):
            shutil.rmtree(folder)

    def _compact(self, dice: random.Random) -> None:
        table = self._name(dice.choice(TABLES))
        if not exists(self._spark, table):
            return
        self._did["compacted"] += 1
        if self._format == DELTA:
            self._spark.sql(f"OPTIMIZE {table}")
            return
        options = "options => map('rewrite-all', 'true')"
        bare = table.removeprefix("lake.")
        self._spark.sql(f"CALL lake.system.rewrite_data_files(table => '{bare}', {options})")


if __name__ == "__main__":
    sys.exit(main(FoldedMirrors))
