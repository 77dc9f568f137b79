"""Kafka as Spark reads it.

Everything is read with `read_committed`: what a transaction left open or aborted is never seen. Offsets of a
transaction's markers are gaps, not lost records, so `failOnDataLoss` stays on.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from cdcd.config.java_client import librdkafka_properties
from cdcd.mirror.session import is_connect

EARLIEST: Final = -2
"""Offsets that Spark's Kafka source takes for the ends of a partition."""

TASK_RECORDS: Final = 25_000
"""Number of records that justify a task of their own. A core parses so many in about a second."""

_SECRET: Final = re.compile(
    r"password|passphrase|jaas|secret|token|oauthbearer[.]config|key[.]pem|keystore[.]key", re.IGNORECASE
)

Offsets = Mapping[int, int]
"""By partition."""


class LooksUpEnds(Protocol):
    """A client that knows where topics end."""

    def ends(self, topics: Sequence[str], /) -> Mapping[str, Offsets]:
        """The offset after the last committed record of each partition, of those of `topics` that exist."""


_CHEAP: Final = {
    # Spark makes a client of Kafka for each partition. The client registers its metrics for JMX and for the broker
    # (KIP-714). That takes two fifths of the CPU of a client which reads a few records.
    "kafka.metric.reporters": "",
    "kafka.enable.metrics.push": "false",
    # In milliseconds. A client asks for records after the last one of a partition, and by default the broker waits half
    # a second for them. It answers one request of a client after the other, so the client's next question waits too.
    "kafka.fetch.max.wait.ms": "10",
}
"""Properties of Spark's clients of Kafka. The records that a mirror asks for are in the topic already, so its clients
need no metrics, and need not wait for records.
"""


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Where the topics are.

    Attributes:
        bootstrap_servers: brokers to begin with, host:port with commas between.
        properties: of Kafka's Java client, by which Spark reads topics, in its own names (`security.protocol`,
            `sasl.jaas.config`).
        client_properties: of librdkafka, by which cdcd looks at topics, in its own names. If none of them is a login
            (`security.protocol`, `sasl.*`, `ssl.*`), the client gets the login of `properties`.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)
    client_properties: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        given = [self.properties, *([self.client_properties] if self.client_properties else [])]
        shown = [{name: "***" if _SECRET.search(name) else each[name] for name in each} for each in given]
        return f"KafkaSource({', '.join(map(repr, [self.bootstrap_servers, *shown]))})"

    def librdkafka(self) -> dict[str, Any]:
        """The properties of the client that looks at topics. Holds secrets: never to be printed.

        ConfigError: the login of `properties` cannot be given to librdkafka, and `client_properties` has none.
        """
        return librdkafka_properties(self.bootstrap_servers, self.properties, self.client_properties)

    def options(self) -> dict[str, str]:
        """For Spark's Kafka source, in batch and in stream."""
        own = {f"kafka.{name}": value for name, value in self.properties.items()}
        return {
            **_CHEAP,
            **own,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            "failOnDataLoss": "true",
        }

    def read(self, spark: SparkSession, topic: str, start: Offsets, end: Offsets) -> DataFrame:
        """The records of `topic` from offset to offset: key, value, topic, partition, offset, timestamp, headers.

        Many records of few partitions are read by several tasks for each.
        """
        tasks_ = {} if is_connect(spark) else _tasks(spark, start, end)
        starts = {topic: {str(p): start.get(p, EARLIEST) for p in sorted(end)}}
        ends = {topic: {str(p): end[p] for p in sorted(end)}}
        return (
            spark.read.format("kafka")
            .options(**self.options(), **tasks_)
            .option("assign", json.dumps({topic: sorted(end)}))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .load()
        )


def _tasks(spark: SparkSession, start: Offsets, end: Offsets) -> dict[str, str]:
    return tasks(start, end, spark.sparkContext.defaultParallelism)


def tasks(start: Offsets, end: Offsets, cores: int) -> dict[str, str]:
    """The option that makes Spark read one partition in several tasks. It is left out if there are few records."""
    records = sum(max(0, offset - max(0, start.get(partition, 0))) for partition, offset in end.items())
    wanted = min(2 * cores, records // TASK_RECORDS)
    return {"minPartitions": str(wanted)} if wanted > len(end) else {}
