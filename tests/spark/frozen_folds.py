"""A process that folds tables and stops in the middle of each fold, so that a test can kill it.

    python -m tests.spark.frozen_folds KIND FOLDER WAREHOUSE BOUND NAME…

KIND is a kind of tables in `FOLDS`. Each NAME is `FORMAT-PHASE`, a table of `lake_of`.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from cdcd.mirror.base.changes import fold_changes
from cdcd.mirror.base.fold import fold
from cdcd.mirror.base.states import fold_states
from tests.spark.base_model import Lake, Slow
from tests.spark.sessions import for_tests

FOLDS: Final[Mapping[str, Callable[..., object]]] = {
    "docs": fold,
    "changes": fold_changes,
    "scd2": fold_states,
}
"""The folds of the table `docs`, of its changelog and of its states."""


def name_of(lake: Lake, kind: str) -> str:
    """The name of a table of this kind in SQL."""
    return lake.table if kind == "docs" else lake.table.replace("docs", f"docs_{kind}")


def fold_kind(spark: SparkSession, lake: Lake, kind: str, bound: int, slow: Any = None) -> None:
    """Fold the table of this kind. `slow`: instead of the lake's format."""
    place = replace(lake.place(), name=name_of(lake, kind))
    FOLDS[kind](spark, slow or lake.format, place, lake.described, bound)


def lake_of(spark: SparkSession, folder: Path, name: str, kind: str) -> Lake:
    """The log and the tables `FORMAT-PHASE` in the folder, for folds of a kind."""
    own = folder / name
    own.mkdir(exist_ok=True)
    return Lake(spark, str(own), f"{name.replace('-', '_')}_{kind}", name.partition("-")[0])


def main(kind: str, folder: Path, warehouse: Path, bound: int, names: list[str]) -> int:
    # In a process that lives for minutes, Java's second compiler takes a third of the CPU and gives little back.
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    spark = for_tests(warehouse, cores=2 + len(names), conf=conf)

    def run(name: str) -> None:
        try:
            own = spark.newSession()
            lake = lake_of(own, folder, name, kind)
            column = "valid_from_lsn" if kind == "scd2" else "_cdcd_commit_lsn"
            slow = Slow(own, lake.format, name.partition("-")[2], folder / name, column=column)
            fold_kind(own, lake, kind, bound, slow)
        except BaseException:  # noqa: BLE001  the test reads it
            (folder / name / "failed").write_text(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]))
