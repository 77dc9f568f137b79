"""Mirrors in the test's own process, which say what they do as facts."""

import shutil
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import yaml
from pyspark.sql import DataFrame, Row, SparkSession

from cdcd.cli.mirror_parts import lake_of, load_folded, load_tables, log_place, settings_of, target_of
from cdcd.config.mirror import MirrorConfig, parse_mirror
from cdcd.core.errors import CdcdError
from cdcd.mirror.api import consistent_points
from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.base.load import read_again
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.snapshot.reading import SnapshotSource
from cdcd.mirror.targets.target import Target
from cdcd.mirror.watching.log_status import read_quarantine
from cdcd.mirror.watching.progress import Fact
from cdcd.telemetry.mirror_status import Quarantined
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
        self._first = spark
        self.facts: list[Fact] = []
        self._place = place
        self._config: dict[str, Any] = {
            "name": source.name,
            "kafka": {"bootstrap_servers": source.servers},
            "target": {
                "format": table_format,
                "stream_checkpoint": str(place / "checkpoint"),
                **({"location": str(place)} if table_format == DELTA else {"namespace": source.name}),
            },
            "batches": {"interval_s": 0},
            "maintenance": {"interval_s": None},
        }

    @property
    def spark(self) -> SparkSession:
        """A new session each time, because catalogs remember tables as a session first saw them."""
        return self._first.newSession()

    def mirror(self, **sections: Any) -> BaseJob:
        """A new job, which the caller runs. It can read tables again if the sections say so."""
        self.facts.clear()
        spark, config = self.spark, self._parsed(sections)
        settings = settings_of(config)
        load_one = load_folded(spark, config, settings)
        reads = partial(read_again, spark, self.database, load_one, self.facts.append)
        client = config.kafka.librdkafka()
        return BaseJob(spark, settings, lake_of(config), client, self.facts.append, reads)

    def once(self, **sections: Any) -> dict[str, CdcdError]:
        """Append the topics' records to the log and fold the tables. Return the errors of what stopped, by name."""
        job = self.mirror(**sections)
        job.run(once=True, stop=threading.Event())
        return job.stopped

    def load(self, tables: Sequence[str], sections: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Read these tables (`schema.table`) from the database, as `cdcd mirror --snapshot` does."""
        spark, config = self.spark, self._parsed(sections)
        settings = settings_of(config)
        load_one = load_folded(spark, config, settings)
        load_tables(spark, self.database, tables, self.facts.append, load_one)

    def settings(self, **sections: Any) -> MirrorSettings:
        return settings_of(self._parsed(sections))

    @property
    def target(self) -> Target:
        return target_of(self._parsed({}))

    def _parsed(self, sections: Mapping[str, Any]) -> MirrorConfig:
        return parse_mirror(yaml.safe_dump({**self._config, **sections}), {})

    def quarantine(self) -> list[Quarantined]:
        """The records in quarantine, the newest first."""
        config = self._parsed({})
        return read_quarantine(self.spark, self.target, log_place(config).name, settings_of(config), 1000)

    def table(self, source: Source, table: str) -> DataFrame:
        place = source.name if self._config["target"]["format"] == ICEBERG else None
        name = f"lake.{place}.public_{table}" if place else f"delta.`{self._place}/public/{table}`"
        return self.spark.table(name)

    def drop(self, source: Source, table: str) -> None:
        """Drop the target table of `public.<table>`, as an operator does."""
        if self._config["target"]["format"] == DELTA:
            shutil.rmtree(self._place / "public" / table)
        else:
            self.spark.sql(f"DROP TABLE lake.{source.name}.public_{table}")

    def rows(self, source: Source, table: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.table(source, table).select("id", "n").collect())

    def points(self) -> list[Row]:
        """The common points, newest first."""
        found: list[Row] = consistent_points(self.spark, self.target).collect()
        return found

    def all(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]
