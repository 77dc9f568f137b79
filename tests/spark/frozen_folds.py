"""A process that folds tables and stops in the middle of each fold, so that a test can kill it.

    python -m tests.spark.frozen_folds FOLDER WAREHOUSE BOUND NAME…

Each NAME is `FORMAT-PHASE`, a table of `lake_of`.
"""

import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cdcd.mirror.base.fold import fold
from tests.spark.base_model import Lake, Slow
from tests.spark.sessions import for_tests


def lake_of(spark: SparkSession, folder: Path, name: str) -> Lake:
    """The log and the table `FORMAT-PHASE` in the folder."""
    own = folder / name
    own.mkdir(exist_ok=True)
    return Lake(spark, str(own), name.replace("-", "_"), name.partition("-")[0])


def main(folder: Path, warehouse: Path, bound: int, names: list[str]) -> int:
    spark = for_tests(warehouse, cores=2 + len(names))

    def run(name: str) -> None:
        try:
            own = spark.newSession()
            lake = lake_of(own, folder, name)
            slow: Any = Slow(own, lake.format, name.partition("-")[2], folder / name)
            fold(own, slow, lake.place(), lake.described, bound)
        except BaseException:  # noqa: BLE001  the test reads it
            (folder / name / "failed").write_text(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
