"""What an operator asks of the tables of a mirror while it does not run."""

import time
from collections.abc import Collection
from functools import partial

from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.stream.replay import replay_quarantine
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.stream.topics import Topics
from cdcd.mirror.targets.target import Kind, Target
from cdcd.mirror.watching.progress import Observer


class Commands:
    """`replay` and `relayout` of a `Mirror`."""

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        target: Target,
        observe: Observer,
        *,
        admin: Admin,
        descriptions: Descriptions,
        topics: Topics,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._target = target
        self._observe = observe
        self._admin = admin
        self._descriptions = descriptions
        self._topics = topics

    def replay(self) -> None:
        """Bring records from quarantine into their tables that are understood by now; before `run`.

        Raises:
            SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
        """
        settings = self._settings
        done = replay_quarantine(
            self._spark.newSession(), settings.kafka, self._admin, self._descriptions, self._target, settings
        )
        for replayed in done:
            self._observe(replayed)

    def relayout(self, tables: Collection[str]) -> None:
        """Write the mirrors of these tables (`schema.table`) again, each in its layout; before `run`.

        Raises:
            SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
            ConfigError: there is no such mirror.
            FencedError: another process writes to it.
        """
        self._descriptions.refresh()
        topics = {
            self._topics.name(topic): topic for topic in self._topics.wanted(self._descriptions.topics())
        }
        spark, settings = self._spark.newSession(), self._settings
        for table in tables:
            name = self._mirror_of(spark, topics.get(table))
            if name is None:
                raise ConfigError(
                    f"--relayout {table}: the mirror has no such table with a key.",
                    hint="Name a table that is mirrored, as schema.table.",
                )
            began = time.monotonic()
            done = self._target.relayout(spark, name, partial(settings.layout_of, table))
            self._observe(done.told(table, time.monotonic() - began))

    def _mirror_of(self, spark: SparkSession, topic: str | None) -> str | None:
        """The name in SQL of a topic's mirror. None: there is none."""
        if topic is None:
            return None
        schema = self._descriptions.newest(topic).schema
        name = self._target.name_of(schema, Kind.MIRROR)
        return name if schema.key and self._target.schema(spark, name) is not None else None
