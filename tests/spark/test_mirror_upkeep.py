"""Maintenance beside the stream: one table waits for its own, and the others go on."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.stream.upkeep import POOL
from cdcd.mirror.targets.pinned import Pinned
from cdcd.mirror.targets.target import Maintained, Maintenance
from cdcd.mirror.watching.progress import BatchDone, Fact, TableFailed, TableMaintained, first_lines
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage

LIMIT_S = 120.0
OFTEN = {"interval_s": 1, "small_files_min": 2, "keep_s": 0, "keep_versions": 1}


class Facts(list[Fact]):
    """Facts that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def append(self, fact: Fact) -> None:
        with self._more:
            super().append(fact)
            self._more.notify_all()

    def await_changes(self, table: str, count: int) -> None:
        """Wait until batches have brought this number of changes into a table."""

        def brought() -> int:
            done = [progress for fact in self if isinstance(fact, BatchDone) for progress in fact.tables]
            return sum(progress.changes for progress in done if progress.table == table)

        with self._more:
            assert self._more.wait_for(lambda: brought() >= count, LIMIT_S), self


class LongMaintenance:
    """The first maintenance of a table has a job that takes all cores for ten minutes, if nobody cancels it."""

    def __init__(self, table: str, target: Any) -> None:
        self._table = table
        self.begun = threading.Event()
        self.ended: list[str] = []
        maintain = target.maintain

        def held(
            spark: SparkSession, name: str, policy: Maintenance, pinned: Pinned | None = None
        ) -> Maintained:
            done: Maintained = maintain(spark, name, policy, pinned)
            if self._table in name and not self.begun.is_set():
                self.begun.set()
                try:
                    slow = spark.range(0, 20_000, 1, 20_000).selectExpr(
                        "java_method('java.lang.Thread', 'sleep', 50L)"
                    )
                    slow.toDF("slept").write.format("noop").mode("append").save()
                except (PySparkException, Py4JError) as error:
                    self.ended.append(first_lines(error))
            return done

        target.maintain = held


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    name = f"u{abs(hash(request.node.nodeid)) % 10**8}"
    tables = [f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in ("one", "two")]
    with stage.source(name, *tables, partitions=1) as made:
        insert(made, 1)
        yield made


def insert(source: Source, key: int) -> None:
    for table in ("one", "two"):
        source.execute(f"INSERT INTO {table} VALUES ({key}, {key})")
    source.deliver()


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_tables_get_their_changes_while_another_one_is_maintained(
    source: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    job = Job(spark, source, tmp_path, table_format)
    facts = job.facts = Facts()
    mirror = job.without_log(maintenance=OFTEN)
    stop = threading.Event()
    maintenance = LongMaintenance("one", mirror._target)
    running = threading.Thread(target=mirror.run, kwargs={"once": False, "stop": stop}, daemon=True)
    running.start()
    try:
        # GIVEN the maintenance of a table, which lasts and has all cores
        assert maintenance.begun.wait(LIMIT_S), job.facts
        # WHEN both tables change, THEN the other one has its changes
        insert(source, 2)
        facts.await_changes("public.two", 2)
        assert job.rows(source, "two") == [(1, 1), (2, 2)]
        assert job.rows(source, "one") == [(1, 1)]
        # AND the table has them when its maintenance has ended, though nothing more is written
        assert maintenance.ended == []
        spark.sparkContext.cancelJobsWithTag(POOL)
        facts.await_changes("public.one", 2)
        assert job.rows(source, "one") == [(1, 1), (2, 2)]
    finally:
        stop.set()
        running.join(LIMIT_S)
        mirror.close()
    assert not running.is_alive()
    assert job.all(TableFailed) == []


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_mirror_that_is_stopped_ends_its_maintenance_and_goes_on_where_it_was(
    source: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    job = Job(spark, source, tmp_path, table_format)
    mirror = job.without_log(maintenance=OFTEN)
    stop = threading.Event()
    maintenance = LongMaintenance("one", mirror._target)
    running = threading.Thread(target=mirror.run, kwargs={"once": False, "stop": stop}, daemon=True)
    running.start()
    try:
        assert maintenance.begun.wait(LIMIT_S), job.facts
    finally:
        # WHEN it is stopped in the middle of a maintenance
        stop.set()
        running.join(LIMIT_S)
        mirror.close()
    # THEN it ends, and so does the maintenance
    assert not running.is_alive()
    assert not mirror._upkeep._is_under_way
    assert len(maintenance.ended) == 1
    # AND a later run has all changes, and maintains the tables at its end
    insert(source, 2)
    assert job.once_without_log(maintenance={**OFTEN, "interval_s": 3600}).stopped == {}
    assert job.all(TableFailed) == []
    assert job.rows(source, "one") == job.rows(source, "two") == [(1, 1), (2, 2)]
    assert len({fact.table for fact in job.all(TableMaintained)}) == 2
