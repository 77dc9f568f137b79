"""The ends of topics by Spark's public API alone, and what Kafka's client says when it fails."""

import re
from collections.abc import Iterable
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SinkError, SinkUnavailableError
from cdcd.mirror.kafka import KafkaSource

_AWAY: Final = re.compile(
    r"Timeout|timed out|DisconnectException|No resolvable bootstrap|NetworkException|refused|BrokerNotAvailable"
)


def kafka_failure(reason: str, servers: str) -> SinkError | SinkUnavailableError:
    """What an exception of Kafka's client, in its words, means to us."""
    if _AWAY.search(reason):
        return SinkUnavailableError(
            f"Kafka at {servers} does not answer: {reason}",
            hint="Check that the brokers run and that kafka.bootstrap_servers has their addresses.",
        )
    return SinkError(
        f"Kafka at {servers} refuses: {reason}",
        hint="kafka.properties of the mirror are those of Kafka's Java client; the user needs Read and Describe on the "
        "topics, and on their group.",
    )


class ReadEnds:
    """The ends of topics as Spark finds them, which reads the topics.

    A client of Spark Connect may be where no broker can be reached, and a reader of tables needs no client of Kafka.
    """

    def __init__(self, spark: SparkSession, source: KafkaSource) -> None:
        self._spark = spark
        self._source = source

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """By topic and partition, the offset after the last committed record. Partitions without records are left out.

        Raises:
            SinkUnavailableError: no broker answers in time.
            SinkError: it refuses, or a topic has no record.
        """
        return {topic: self._ends(topic) for topic in topics}

    def _ends(self, topic: str) -> dict[int, int]:
        records = (
            self._spark.read.format("kafka")
            .options(**self._source.options())
            .option("subscribe", topic)
            .load()
        )
        last = records.groupBy("partition").agg(sf.max("offset").alias("last"))
        try:
            ends = {row["partition"]: row["last"] + 1 for row in last.collect()}
        except PySparkException as error:
            raise kafka_failure(str(error), self._source.bootstrap_servers) from error
        if not ends:
            raise SinkError(
                f"The topic {topic} has no committed record.",
                hint="Start the daemon, which writes it, or give the prefix that the daemon has as topics.prefix.",
            )
        return ends
