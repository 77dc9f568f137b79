"""Topics whose names do not begin with the prefix: the mirror finds them by their descriptions, also later ones."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA
from cdcd.mirror.watching.progress import BatchDone
from tests.integration.daemon import until
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A pipeline whose daemon has the topics own-<table>-<number> from its first start on."""
    name = f"w{abs(hash(request.node.nodeid)) % 10**8}"
    # The daemon of a stage starts with it, and topics are chosen before the first start.
    with stage.source(name) as made:
        made.daemon.stop()
        made.daemon.config["topics"] = {**made.daemon.config["topics"], "name": f"own-{{table}}-{name}"}
        made.daemon.start()
        made.daemon.await_streaming()
        yield made


def mirrored(job: Job) -> set[str]:
    """The tables of all batches so far."""
    return {table.table for fact in job.facts if isinstance(fact, BatchDone) for table in fact.tables}


def test_a_mirror_reads_topics_of_other_names_and_those_of_later_tables(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    source.execute("INSERT INTO a VALUES (1, 1)")
    source.deliver()
    job = Job(spark, source, tmp_path, DELTA)
    job.once()
    assert job.rows(source, "a") == [(1, 1)]
    # WHEN a table comes while the mirror runs
    mirror, stop = job.mirror(), threading.Event()
    running = threading.Thread(target=partial(mirror.run, once=False, stop=stop))
    running.start()
    try:
        source.execute("CREATE TABLE b (id int PRIMARY KEY, n int)")
        source.execute("INSERT INTO b VALUES (2, 2)")
        source.execute("INSERT INTO a VALUES (3, 3)")
        source.deliver()
        # THEN its topic is read too
        until(lambda: "public.b" in mirrored(job) or None, "the table b", 180)
    finally:
        stop.set()
        running.join(60)
    job.once()
    assert (job.rows(source, "a"), job.rows(source, "b")) == ([(1, 1), (3, 3)], [(2, 2)])
