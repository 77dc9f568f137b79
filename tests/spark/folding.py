"""Folds of a pipeline's log in the test's own process."""

import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from cdcd.core.errors import CdcdError
from cdcd.mirror.api import consistent_points
from cdcd.mirror.base.formats import DeltaBase, IcebergBase
from cdcd.mirror.base.job import BaseJob, ReadAgain
from cdcd.mirror.base.topic_folds import Lake
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import lineage
from cdcd.mirror.log.job import LogJob
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.target import Kind, Target
from cdcd.mirror.watching.progress import Fact
from deploy.demo.mirrored import compare
from tests.spark.stage import Source


class Folds:
    """Base tables of one source in one format. Each run is a new job, as after a restart."""

    def __init__(self, spark: SparkSession, source: Source, folder: Path, table_format: str) -> None:
        self.facts: list[Fact] = []
        self._first, self._source, self._format = spark, source, table_format
        self.folder = folder / table_format
        self.target: Target = (
            IcebergTarget("lake", source.name) if table_format == ICEBERG else DeltaTarget(str(self.folder))
        )
        self.read_again: ReadAgain | None = None
        self.place = LogPlace(self.target.own_name("log"), table_format, str(self.folder / "checkpoint"))

    @property
    def spark(self) -> SparkSession:
        """A new session each time, because catalogs remember tables as a session first saw them."""
        return self._first.newSession()

    def once(self, *, replays: bool = False, **settings: Any) -> dict[str, CdcdError]:
        """Append and fold what is in the topics. Return the tables that stopped."""
        job = self.job(**settings)
        job.run(once=True, stop=threading.Event(), replays=replays)
        return job.stopped

    def job(self, **settings: Any) -> BaseJob:
        """A new job, which the caller runs."""
        form = IcebergBase() if self._format == ICEBERG else DeltaBase()
        client = {"bootstrap.servers": self._source.servers}
        given = self._settings(**settings)
        lake = Lake(self.place, form, self.target)
        return BaseJob(self.spark, given, lake, client, self.facts.append, self.read_again)

    def roll_back_log(self) -> None:
        """Let the owner of the log bring back the version before the current one."""
        spark, name = self.spark, self.place.name
        versions = lineage.read(spark, name, self._format, "").entries
        chosen = versions[-2].version
        if self._format == DELTA:
            spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {chosen}")
        else:
            table = name.replace("`", "").removeprefix("lake.")
            spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {chosen})")

    def append(self) -> None:
        """Append what is in the topics, and fold nothing."""
        client = {"bootstrap.servers": self._source.servers}
        job = LogJob(self.spark, self._settings(), self.place, client, self.facts.append)
        job.run(once=True, stop=threading.Event())

    def _settings(self, **settings: Any) -> MirrorSettings:
        name = self._source.name
        return MirrorSettings(
            name,
            KafkaSource(self._source.servers),
            name,
            f"{name}.schemas",
            f"{name}.checkpoint",
            "",
            not_tables=frozenset({f"{name}.message", f"{name}.dead_letter"}),
            **settings,
        )

    def name(self, table: str) -> str:
        """The name of a table in SQL."""
        return self.target.name_of(TableSchema("", "public", table, "", ("id",), ()), Kind.MIRROR)

    def table(self, source: Source, table: str) -> DataFrame:
        assert source is self._source
        return self.spark.table(self.name(table))

    def different(self, *tables: str) -> list[str]:
        """Return the verdicts of the tables that differ from the source."""
        named = [f"public.{table}" for table in tables]
        verdicts = compare(self._source.dsn, self.spark, self.target, named)
        return [str(verdict) for verdict in verdicts if not verdict.equal]

    def points(self) -> list[Row]:
        """The consistent points, newest first."""
        found: list[Row] = consistent_points(self.spark, self.target).collect()
        return found
