"""What a column, a table, a topic and a label of an enum are: a mirror is equal, or stopped by name with a way on."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import CdcdError
from cdcd.spark.job import Mirror
from cdcd.spark.kafka import KafkaSource
from cdcd.spark.progress import Fact
from cdcd.spark.settings import MirrorSettings
from cdcd.spark.targets.lakehouse import Lakehouse
from deploy.demo.mirrored import compare
from tests.spark.conftest import MakeTarget
from tests.spark.stage import Source, Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as stage:
        yield stage


class Mirrored:
    """Mirrors of one source in this process, each run a new one."""

    def __init__(self, spark: SparkSession, source: Source, make_target: MakeTarget, folder: Path) -> None:
        self.facts: list[Fact] = []
        self._spark = spark
        self._source = source
        self._make_target = make_target
        name = source.name
        self._settings = MirrorSettings(
            name,
            KafkaSource(source.servers),
            name,
            f"{name}.schemas",
            f"{name}.checkpoint",
            str(folder / "checkpoint"),
            maintenance_interval_s=None,
        )

    @property
    def target(self) -> Lakehouse:
        return self._make_target()

    def once(self) -> dict[str, CdcdError]:
        """Bring the tables to where the topics are; those that stopped, by table."""
        mirror = Mirror(self._spark, self._settings, self.target, self.facts.append)
        try:
            mirror.run(once=True, stop=threading.Event())
        finally:
            mirror.close()
        return {topic.removeprefix(f"{self._source.name}."): error for topic, error in mirror.stopped.items()}

    def different(self, *tables: str) -> list[str]:
        """Those of `tables` that are not as the source has them."""
        self._spark.catalog.clearCache()
        verdicts = compare(
            self._source.dsn, self._spark, self.target, [f"public.{table}" for table in tables]
        )
        return [str(verdict) for verdict in verdicts if not verdict.equal]


@pytest.fixture
def source_name(request: pytest.FixtureRequest) -> str:
    """Of a database and a pipeline that no other test has."""
    return f"i{abs(hash(request.node.nodeid)) % 10**8}"


COLUMNS = {
    # Columns that were dropped before: attribute numbers have a gap, so places do not tell.
    "renamed": (
        "CREATE TABLE renamed (id int PRIMARY KEY, gone int, v text); ALTER TABLE renamed DROP gone",
        "ALTER TABLE renamed RENAME v TO w",
    ),
    "renamed_and_added": (
        "CREATE TABLE renamed_and_added (id int PRIMARY KEY, v text)",
        "ALTER TABLE renamed_and_added RENAME v TO w; ALTER TABLE renamed_and_added ADD x text DEFAULT 'new'",
    ),
    "swapped": (
        "CREATE TABLE swapped (id int PRIMARY KEY, v text, u text)",
        "ALTER TABLE swapped RENAME v TO t; ALTER TABLE swapped RENAME u TO v; ALTER TABLE swapped RENAME t TO u",
    ),
    "swapped_and_added": (
        (
            "CREATE TABLE swapped_and_added (id int PRIMARY KEY, gone int, v text, u text);"
            " ALTER TABLE swapped_and_added DROP gone"
        ),
        (
            "ALTER TABLE swapped_and_added RENAME v TO t; ALTER TABLE swapped_and_added RENAME u TO v;"
            " ALTER TABLE swapped_and_added RENAME t TO u; ALTER TABLE swapped_and_added ADD x int"
        ),
    ),
    "renamed_and_dropped": (
        "CREATE TABLE renamed_and_dropped (id int PRIMARY KEY, v text, u text, z text)",
        "ALTER TABLE renamed_and_dropped DROP v; ALTER TABLE renamed_and_dropped RENAME u TO v",
    ),
}
"""Tables, and what becomes of their columns while the daemon is away."""


@pytest.mark.timeout(900)
def test_columns_that_are_renamed_while_the_daemon_is_away_keep_their_values(
    stage: Stage, spark: SparkSession, make_target: MakeTarget, source_name: str, tmp_path: Path
) -> None:
    with stage.source(source_name, *[table for table, _ in COLUMNS.values()]) as source:
        mirrored = Mirrored(spark, source, make_target, tmp_path)
        # GIVEN rows in a mirror
        for table in COLUMNS:
            source.execute(f"INSERT INTO {table} (id, v) SELECT g, 'v' || g FROM generate_series(1, 3) g")
        source.deliver()
        assert mirrored.once() == {}
        # AND a daemon that is away while rows come, columns get other names, and rows come again
        assert source.daemon.stop() == 0
        for table, (_, alter) in COLUMNS.items():
            source.execute(f"INSERT INTO {table} (id, v) VALUES (4, 'v4')")
            source.execute(alter)
        source.daemon.start()
        source.daemon.await_streaming()
        source.deliver()

        # WHEN the mirror has read rows of the old form that were described by today's catalog
        assert mirrored.once() == {}
        for table in COLUMNS:
            column = "w" if table in {"renamed", "renamed_and_added"} else "v"
            source.execute(f"INSERT INTO {table} (id, {column}) VALUES (5, 'after')")
        source.deliver()
        assert mirrored.once() == {}

        # THEN every table equals its source
        assert mirrored.different(*COLUMNS) == []
