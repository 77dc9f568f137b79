"""Checks that mirrors equal a source that changes at random, while daemons and mirrors are killed.

    python -m tests.spark.trial [--seeds N] [--seed S] [--format iceberg|delta …] [--rounds N]

The seed decides what happens, but not the exact moments at which processes are killed. In each round the source
changes: keys move to other partitions, columns are added, renamed, or swap their names, tables swap their names, a
topic is made again, one partition gets many more records than the others, a table is set aside and comes back, the
slot is lost and the gap is healed, and the daemon is killed or stopped meanwhile. Then a consistent mirror runs
(`trial_mirrors.py`), and one more mirror runs to the end. Then all tables must equal the source, and the tables at each
consistent point must equal the source at the LSN of that point.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from tests.spark.sessions import for_tests
from tests.spark.stage import Stage
from tests.spark.trial_mirrors import Mirrors
from tests.spark.trial_world import PARTITIONS, SETUP, World

TERMINATED_MS: Final = 10_000
"""How long the server waits until a connection that it terminates has ended, in milliseconds."""

REASON_CHARS: Final = 800
"""Length at which the message of a failure is cut off, because messages of Spark contain whole query plans."""


class Run(NamedTuple):
    """The trial of one seed in one format."""

    table_format: str
    seed: int
    rounds: int

    @property
    def name(self) -> str:
        """The name of the pipeline and of the database."""
        return f"trial_{self.table_format}_{self.seed}"

    def run(self, stage: Stage, spark: SparkSession, warehouse: Path) -> str:
        """Returns what happened, as text. AssertionError: a table differs."""
        dice = random.Random(self.seed)
        with stage.source(
            self.name, *SETUP, partitions=PARTITIONS, tables={"on_error": "set_aside"}
        ) as source:
            world = World(source, dice)
            try:
                mirrors = Mirrors(spark, world, source, self.table_format, warehouse)
                for _ in range(self.rounds):
                    for _ in range(dice.randrange(1, 6)):
                        world.change()
                    source.deliver()
                    mirrors.run(dice)
            except Exception as error:
                error.add_note(f"After: {world.told()}.")
                raise
            finally:
                world.close()
        return world.told()

    def forget(self, stage: Stage) -> None:
        """Drop the replication slot, because a server has few."""
        found = f"FROM pg_replication_slots WHERE slot_name = 'cdcd_{self.name}'"
        # If the daemon was killed, the server may still have its connection. A slot in use cannot be dropped.
        stage.postgres.execute(f"SELECT pg_terminate_backend(active_pid, {TERMINATED_MS}) {found} AND active")
        stage.postgres.execute(f"SELECT pg_drop_replication_slot(slot_name) {found}")


def main() -> int:
    """Run the seeds that the arguments name. Returns 1 if one of them failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--format", choices=[ICEBERG, DELTA], nargs="+", default=[ICEBERG, DELTA])
    given = parser.parse_args()
    runs = [
        Run(table_format, seed, given.rounds)
        for seed in range(given.seed, given.seed + given.seeds)
        for table_format in given.format
    ]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="cdcd-trial-") as folder, Stage.set_up() as stage:
        spark = for_tests(Path(folder))
        for run in runs:
            began = time.monotonic()
            try:
                told = run.run(stage, spark, Path(folder))
            except Exception as error:  # noqa: BLE001 - the other seeds are tried as well
                failed += 1
                traceback.print_exc()
                notes = " ".join(getattr(error, "__notes__", ()))
                told = f"FAILED: {type(error).__name__}: {str(error)[:REASON_CHARS]} {notes}"
            print(f"{run.table_format} {run.seed}: {told}; {time.monotonic() - began:.0f} s", flush=True)
            run.forget(stage)
        spark.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
