"""A mirror that folds without an end: its query of the log stays up, in both formats."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log.live import FollowedLog
from cdcd.mirror.watching.progress import TableRolledBack
from tests.integration.daemon import until
from tests.spark.folding import Folds
from tests.spark.stage import Stage

WAITS_S = 300


@contextmanager
def running(folds: Folds, **settings: Any) -> Iterator[tuple[BaseJob, list[StreamingQuery]]]:
    """A mirror that runs on, and the list of the queries of its log. By default, it folds in each round."""
    job = folds.job(**{"interval_s": 2.0, "fold_interval_s": 0.0, **settings})
    stop = threading.Event()
    errors: list[BaseException] = []
    queries: list[StreamingQuery] = []
    start: Any = job._log._start

    def noted(writer: Any) -> StreamingQuery:
        queries.append(start(writer))
        return queries[-1]

    log: Any = job._log
    log._start = noted

    def run() -> None:
        try:
            job.run(once=False, stop=stop)
        except BaseException as error:  # noqa: BLE001  the test raises it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield job, queries
    finally:
        stop.set()
        thread.join(WAITS_S)
    assert not thread.is_alive()
    for error in errors:
        raise error


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_mirror_that_runs_on_follows_new_tables_and_a_log_that_its_owner_rolls_back(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    item = "CREATE TABLE item (id int PRIMARY KEY, n int); INSERT INTO item VALUES (1, 1), (2, 2)"
    with stage.source(f"live_{table_format}", item) as source:
        folds = Folds(spark, source, tmp_path, table_format)

        def await_equal(*tables: str) -> None:
            def equal() -> bool | None:
                try:
                    return folds.different(*tables) == [] or None
                except PySparkException:
                    # The table is not there yet.
                    return None

            until(equal, f"{tables} equal", WAITS_S)

        with running(folds) as (job, queries):
            await_equal("item")
            # WHEN rows change, THEN the query that runs appends them
            for n in range(2):
                source.execute(f"UPDATE item SET n = n + 1; INSERT INTO item VALUES ({n + 3}, 0)")
                await_equal("item")
            assert len(queries) == 2, "one that appended what was there, and the one that runs on"
            # WHEN a table joins
            source.execute("CREATE TABLE late (id int PRIMARY KEY, n int); INSERT INTO late VALUES (1, 1)")
            await_equal("late")
            # WHEN the owner of the log takes its last records away
            folds.roll_back_log()
            source.execute("UPDATE item SET n = -n; DELETE FROM late")
            await_equal("item", "late")
            told = [fact for fact in folds.facts if isinstance(fact, TableRolledBack)]
            assert [fact.table for fact in told] == [folds.place.name]
            assert job.stopped == {}
        # THEN a later process has nothing to do
        folds.facts.clear()
        assert folds.once() == {}
        assert folds.different("item", "late") == []


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_second_process_folds_on_demand_what_the_mirror_has_appended(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    tables = [
        f"CREATE TABLE {name} (id int PRIMARY KEY, n int); INSERT INTO {name} VALUES (1, 1)" for name in "ab"
    ]
    with stage.source(f"demand_{table_format}", *tables) as source:
        source.deliver()
        folds = Folds(spark, source, tmp_path, table_format)
        assert folds.once() == {}
        log = FollowedLog(folds.spark, folds.place, KafkaSource(source.servers), 120.0)

        def fold(**settings: Any) -> None:
            job = folds.job(**settings)
            job.run(once=True, stop=threading.Event(), followed=log)
            assert job.stopped == {}

        # Markers of transactions stand behind the last records, and nothing is appended.
        fold()
        # GIVEN a mirror that runs, and lets changes wait for an hour
        with running(folds, fold_interval_s=3600.0, fold_tables_min=0) as (job, _):
            until(lambda: job.lags() or None, "the first round", WAITS_S)
            source.execute("UPDATE a SET n = 7; INSERT INTO a VALUES (2, 2); UPDATE b SET n = 7")
            source.deliver()
            # WHEN a table is folded on demand
            fold(include=("public.a",))
            # THEN it is equal, and the other one waits
            assert folds.different("a") == []
            assert folds.different("b") != []
            fold()
            assert folds.different("a", "b") == []
            assert job.stopped == {}
        assert folds.once() == {}
        assert folds.different("a", "b") == []
