"""Mirrors of a source that changes at random: what may happen to them, and whether their tables equal the source.

A mirror dies at a commit, runs twice at the same time, is killed (SIGKILL), or runs to the end. The owner of its tables
rolls them back, compacts them, and loses Spark's checkpoint.
"""

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import CdcdError
from cdcd.mirror.base.formats import DeltaBase, IcebergBase
from cdcd.mirror.base.points import Points
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind
from tests.spark.jobs import Job
from tests.spark.stage import Source
from tests.spark.trial_world import TABLES, Content, World

RECORDS_MAX: Final = 1000
"""Records in a batch of all topics together: the smallest number that the configuration allows."""

SECTIONS: Final[Mapping[str, Any]] = {"tables": {"on_incompatible": "reload"}}
"""Of the mirror's configuration."""


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


class Mirrors:
    """Runs mirrors of one source, in this process and in others, and compares their tables with the source."""

    def __init__(
        self, spark: SparkSession, world: World, source: Source, table_format: str, warehouse: Path
    ) -> None:
        tags = {"tag_interval_s": 0} if table_format == ICEBERG else {}
        self._batches = {"interval_s": 0, "consistent": True, "records_max": RECORDS_MAX, **tags}
        self._sections = {"batches": self._batches, **SECTIONS}
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
            print(f"  overtaken: {failure}", flush=True)
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
        mirror.config |= SECTIONS
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
