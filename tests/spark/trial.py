"""Checks that mirrors equal a source that changes at random, while daemons and mirrors are killed.

    python -m tests.spark.trial [--seeds N] [--seed S] [--format iceberg|delta …] [--rounds N]

The seed decides what happens, but not the exact moments at which processes are killed. In each round the source
changes: keys move to other partitions, columns are added, renamed, or swap their names, tables swap their names, a
topic is made again, one partition gets many more records than the others, and the daemon is killed or stopped
meanwhile. Then a consistent mirror runs: it dies at a commit, runs twice at the same time, is killed (SIGKILL), or
runs to the end. After that, one more mirror runs to the end. Then all tables must equal the source, and the tables at
each consistent point must equal the source at the LSN of that point.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from unittest import mock

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import FencedError
from cdcd.mirror.base.points import Points
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.target import Kind
from tests.spark.jobs import Job
from tests.spark.sessions import for_tests
from tests.spark.stage import Source, Stage
from tests.spark.trial_world import PARTITIONS, SETUP, TABLES, Content, World

RECORDS_MAX: Final = 1000
"""Records in a batch of all topics together: the smallest number that the configuration allows."""

TERMINATED_MS: Final = 10_000
"""How long the server waits until a connection that it terminates has ended, in milliseconds."""

REASON_CHARS: Final = 800
"""Length at which the message of a failure is cut off, because messages of Spark contain whole query plans."""


class DiedError(Exception):
    """Ends a mirror in the middle of its work, as if it were killed."""


@contextmanager
def dying(at: int) -> Iterator[None]:
    """Raise DiedError at the `at`-th step.

    Each commit of a table or of the list of points has a step before it and a step after it.
    """
    left = at
    lock = threading.Lock()

    def step() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left == 0:
                raise DiedError(DiedError.__name__)

    def around(done: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            step()
            found = done(*given, **named)
            step()
            return found

        return call

    with (
        mock.patch.object(Lakehouse, "apply", around(Lakehouse.apply)),
        mock.patch.object(Lakehouse, "load", around(Lakehouse.load)),
        mock.patch.object(Points, "list_", around(Points.list_)),
    ):
        yield


class Mirrors:
    """Runs mirrors of one source, in this process and in others, and compares their tables with the source."""

    sections: Mapping[str, Any] = MappingProxyType({"tables": {"on_incompatible": "reload"}})
    """Of the mirror's configuration."""

    def __init__(
        self, spark: SparkSession, world: World, source: Source, table_format: str, warehouse: Path
    ) -> None:
        tags = {"tag_interval_s": 0} if table_format == ICEBERG else {}
        self._batches = {"interval_s": 0, "consistent": True, "records_max": RECORDS_MAX, **tags}
        self._sections = {"batches": self._batches, **self.sections}
        self._spark, self._world, self._source, self._format = spark, world, source, table_format
        self._did = world.did
        self._warehouse, self._place = warehouse, warehouse / source.name
        self._job = Job(spark, source, self._place, table_format)
        self._compared: set[int] = set()

    def run(self, dice: random.Random) -> None:
        """Run a mirror that may fail, then a mirror that runs to the end, and compare the tables with the source."""
        kinds = self.kinds()
        (kind,) = dice.choices(list(kinds), list(kinds.values()))
        kind(dice)
        self._end(dice)
        self._world.is_mirrored = True
        self._check()

    def kinds(self) -> dict[Callable[[random.Random], None], int]:
        """What may happen in a round, with its weight."""
        return {self._die: 4, self._two: 3, self._kill: 2, self._end: 3}

    def _end(self, _dice: random.Random) -> None:
        self._did["ran to the end"] += 1
        stopped = self._job.once(**self._sections)
        assert stopped == {}, stopped

    def _die(self, dice: random.Random) -> None:
        with dying(dice.randrange(1, 14)):
            try:
                self._job.once(**self._sections)
            except Exception as error:
                if DiedError.__name__ not in str(error):
                    raise
                self._did["died at a commit"] += 1

    def _two(self, _dice: random.Random) -> None:
        """Run two mirrors at the same time, each with its own Spark checkpoint. A mirror may end with a FencedError."""
        self._did["two at once"] += 1
        other = Job(self._spark.newSession(), self._source, self._place, self._format)
        other._config["target"]["stream_checkpoint"] = str(self._place / f"checkpoint-{time.monotonic_ns()}")
        failures: list[BaseException] = []

        def run(job: Job) -> None:
            try:
                assert job.once(**self._sections) == {}
            except BaseException as error:  # noqa: BLE001 - it is judged below
                failures.append(error)

        beside = threading.Thread(target=run, args=(other,))
        beside.start()
        run(self._job)
        beside.join()
        for failure in failures:
            if not isinstance(failure, FencedError):
                raise failure
            self._did["fenced"] += 1

    def _kill(self, dice: random.Random) -> None:
        """Run a mirror in a process of its own, and kill it (SIGKILL) at a random moment."""
        location = self._place if self._format == DELTA else self._warehouse / "iceberg"
        namespace = {} if self._format == DELTA else {"namespace": self._source.name}
        mirror = self._source.mirror(
            self._format,
            target={
                "location": str(location),
                "stream_checkpoint": str(self._place / "checkpoint"),
                **namespace,
            },
            batches=self._batches,
            maintenance={"interval_s": None},
        )
        mirror.config |= self.sections
        if "tables" in self.sections:
            # A table that is read again is read from the source.
            mirror.config["source"] = str(self._source.daemon.config_path)
        mirror.start()
        time.sleep(dice.uniform(8, 25))
        mirror.kill()
        self._did["killed by SIGKILL"] += 1

    def _check(self) -> None:
        now = self._world.content()
        for table in TABLES:
            self._equal(table, self._rows(self._name(table)), now[table], "now")
        for point in self._job.points():
            if point["commit_lsn"] not in self._compared:
                self._compared.add(point["commit_lsn"])
                self._check_point(point)

    def _check_point(self, point: Row) -> None:
        moment = self._world.at(point["commit_lsn"])
        for table in TABLES:
            bare = self._job.target.bare_name(self._name(table))
            if table in moment.doubtful or bare not in point["versions"]:
                self._did["not compared"] += 1
                continue
            had = self._rows(f"{self._name(table)} VERSION AS OF {point['versions'][bare]}")
            self._equal(table, had, moment.content[table], f"at the point {point['lsn']}")
            self._did["compared at a point"] += 1

    def _name(self, table: str) -> str:
        return self._job.target.name_of(TableSchema("", "public", table, "", ("id",), ()), Kind.MIRROR)

    def _rows(self, relation: str) -> Content:
        frame = self._spark.sql(f"SELECT * FROM {relation}")
        columns = sorted(
            (field.name, field.dataType.typeName() == "string")
            for field in frame.schema.fields
            if not field.name.startswith("_cdcd_")
        )
        rows = frame.select(
            [sf.md5(name) if is_text else sf.col(name) for name, is_text in columns]
        ).collect()
        return tuple(name for name, _ in columns), sorted(map(tuple, rows), key=repr)

    def _equal(self, table: str, had: Content, want: Content, when: str) -> None:
        if had != want:
            missing, more = [
                list((Counter(one) - Counter(other)).elements())
                for one, other in ((want[1], had[1]), (had[1], want[1]))
            ]
            raise AssertionError(
                f"{table} differs {when}: columns {had[0]}, wanted {want[0]};"
                f" {len(missing)} rows are missing {missing[:5]}, {len(more)} are too many {more[:5]}"
            )


class Run(NamedTuple):
    """The trial of one seed in one format."""

    table_format: str
    seed: int
    rounds: int

    @property
    def name(self) -> str:
        """The name of the pipeline and of the database."""
        return f"trial_{self.table_format}_{self.seed}"

    def run(self, stage: Stage, spark: SparkSession, warehouse: Path, mirrors_of: type[Mirrors]) -> str:
        """Returns what happened, as text. AssertionError: a table differs."""
        dice = random.Random(self.seed)
        with stage.source(self.name, *SETUP, partitions=PARTITIONS) as source:
            world = World(source, dice, topics=mirrors_of is Mirrors)
            try:
                mirrors = mirrors_of(spark, world, source, self.table_format, warehouse)
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


def main(mirrors_of: type[Mirrors] = Mirrors) -> int:
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
                told = run.run(stage, spark, Path(folder), mirrors_of)
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
