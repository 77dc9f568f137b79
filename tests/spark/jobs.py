"""Mirrors in the test's own process, which say what they do as facts."""

import threading
from pathlib import Path
from typing import Any, Protocol

import yaml
from pyspark.sql import DataFrame, Row, SparkSession

from cdcd.cli.mirror_parts import lake_of, settings_of, target_of
from cdcd.config.mirror import parse_mirror
from cdcd.mirror.api import consistent_points
from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.snapshot.reading import SnapshotSource
from cdcd.mirror.stream.job import Mirror
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.target import Target
from cdcd.mirror.watching.progress import Fact
from tests.spark.stage import Source


class HasTables(Protocol):
    """Target tables of one source."""

    def table(self, source: Source, table: str) -> DataFrame:
        """The target table of `public.<table>`."""


class Job:
    """Mirrors of one source in this process, one after the other, and what they said."""

    def __init__(self, spark: SparkSession, source: Source, place: Path, table_format: str = ICEBERG) -> None:
        self.database = SnapshotSource(
            source.dsn, f"cdcd_{source.name}", f"cdcd_{source.name}", source.name, KafkaSource(source.servers)
        )
        self.spark = spark
        self.facts: list[Fact] = []
        self._place = place
        self._config: dict[str, Any] = {
            "name": source.name,
            "kafka": {"bootstrap_servers": source.servers},
            "change_log": "none",
            "target": {
                "format": table_format,
                "stream_checkpoint": str(place / "checkpoint"),
                **({"location": str(place)} if table_format == DELTA else {"namespace": source.name}),
            },
            "batches": {"interval_s": 0},
            "maintenance": {"interval_s": None},
        }

    def mirror(self, **sections: Any) -> Mirror:
        self.facts.clear()
        config = parse_mirror(yaml.safe_dump({**self._config, **sections}), {})
        return Mirror(
            self.spark, self.settings(**sections), target_of(config), self.facts.append, self.database
        )

    def settings(self, **sections: Any) -> MirrorSettings:
        return settings_of(parse_mirror(yaml.safe_dump({**self._config, **sections}), {}))

    @property
    def target(self) -> Target:
        return target_of(parse_mirror(yaml.safe_dump(self._config), {}))

    def once(self, **sections: Any) -> Mirror:
        mirror = self.mirror(**sections)
        try:
            mirror.run(once=True, stop=threading.Event())
        finally:
            mirror.close()
        return mirror

    def folded(self, **sections: Any) -> BaseJob:
        """Run a new job once, which appends the topics' records to the log and folds the tables, and return the job."""
        self.facts.clear()
        config = parse_mirror(yaml.safe_dump({**self._config, **sections}), {})
        # A session of its own, because catalogs remember tables as a session first saw them.
        job = BaseJob(
            self.spark.newSession(),
            settings_of(config),
            lake_of(config),
            config.kafka.librdkafka(),
            self.facts.append,
        )
        job.run(once=True, stop=threading.Event())
        return job

    def table(self, source: Source, table: str) -> DataFrame:
        place = source.name if self._config["target"]["format"] == ICEBERG else None
        name = f"lake.{place}.public_{table}" if place else f"delta.`{self._place}/public/{table}`"
        return self.spark.table(name)

    def rows(self, source: Source, table: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.table(source, table).select("id", "n").collect())

    def points(self) -> list[Row]:
        """The common points, newest first."""
        found: list[Row] = consistent_points(self.spark, self.target).collect()
        return found

    def all(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]
