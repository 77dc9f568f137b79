"""What only Kafka's admin client knows: which topics there are, where they begin and end, and how they are kept.

The client is that of Spark's JVM. Spark Connect cannot call it: `read_ends.ReadEnds` reads the topics instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError, SinkUnavailableError
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.platform.java import LIST, elements, java, mapped
from cdcd.mirror.platform.read_ends import kafka_failure
from cdcd.mirror.session import check_classic

TIMEOUT_MS: Final = 15_000
"""How long the brokers may take to answer the admin client."""

_UNKNOWN_TOPIC: Final = "UnknownTopicOrPartitionException"
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of 128 zeros (KIP-516), which stands for none."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the admin client knows of a topic.

    Attributes:
        topic_id: None: the broker gives none.
        beginnings: by partition, the first offset that is still there.
    """

    topic_id: str | None
    beginnings: Offsets


_ADMIN: Final = "org.apache.kafka.clients.admin"
_COMMON: Final = "org.apache.kafka.common"


class Admin:
    """Kafka's admin client in Spark's JVM; a context manager.

    Raises in every method:
        SinkUnavailableError: no broker answers in time.
        SinkError: it refuses.
    """

    def __init__(self, spark: SparkSession, source: KafkaSource) -> None:
        check_classic(spark, "Kafka's admin client, by which this finds its topics,")
        self._source = source
        self._spark = spark
        properties = java(spark, "java.util.Properties")()
        timeouts = {"request.timeout.ms": TIMEOUT_MS // 3, "default.api.timeout.ms": TIMEOUT_MS}
        given = {"bootstrap.servers": source.bootstrap_servers, **timeouts, **source.properties}
        for name, value in given.items():
            properties.setProperty(name, str(value))
        self._milliseconds = java(spark, "java.util.concurrent.TimeUnit").MILLISECONDS
        try:
            self._client = java(spark, f"{_ADMIN}.AdminClient").create(properties)
        except Py4JJavaError as error:
            raise self._failure(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close(java(self._spark, "java.time.Duration").ofSeconds(1))

    def facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Look up those of `topics` that exist. The brokers are asked twice, however many topics there are."""
        described = self._described(topics)
        first = self._offsets_of(_partitions(described), "earliest", "READ_COMMITTED")
        return {topic: TopicFacts(_id(found), first[topic]) for topic, found in described.items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of those of `topics` that exist and have one; brokers give them since Kafka 2.8."""
        found = {topic: _id(described) for topic, described in self._described(topics).items()}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        """Those of `topics` that exist, as the client describes them."""
        names = self._list(topics)
        if not names:
            return {}
        found: dict[str, Any] = {}
        for topic, future in mapped(self._client.describeTopics(names).topicNameValues()).items():
            try:
                found[topic] = self._answer(future)
            except SinkError as error:
                if _UNKNOWN_TOPIC not in error.message:
                    raise
        return found

    def cleanup_policies(self, topics: Iterable[str]) -> dict[str, str]:
        """`cleanup.policy` of those of `topics` that exist, where the user may see it (DescribeConfigs)."""
        resource = java(self._spark, f"{_COMMON}.config.ConfigResource")
        kind = java(self._spark, f"{_COMMON}.config.ConfigResource$Type").valueOf("TOPIC")
        asked = self._list(resource(kind, topic) for topic in topics)
        if not asked:
            return {}
        found: dict[str, str] = {}
        for entry in elements(self._client.describeConfigs(asked).values().entrySet()):
            try:
                config = self._answer(entry.getValue())
            except SinkError:
                continue
            found[entry.getKey().name()] = config.get("cleanup.policy").value()
        return found

    def topics(self) -> list[str]:
        """Every topic that may be seen."""
        return sorted(elements(self._answer(self._client.listTopics().names())))

    def ends(self, topics: Iterable[str], *, committed: bool = True) -> dict[str, dict[int, int]]:
        """The offset after the last record of each partition: of those committed, or of all."""
        level = "READ_COMMITTED" if committed else "READ_UNCOMMITTED"
        return self._offsets(topics, "latest", level)

    def both_ends(self, topics: Iterable[str]) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        """Look up where partitions end: first with uncommitted records, then with committed records only."""
        partitions = _partitions(self._described(topics))
        written = self._offsets_of(partitions, "latest", "READ_UNCOMMITTED")
        return written, self._offsets_of(partitions, "latest", "READ_COMMITTED")

    def beginnings(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The first offset of each partition that is still there."""
        return self._offsets(topics, "earliest", "READ_COMMITTED")

    def _offsets(self, topics: Iterable[str], what: str, level: str) -> dict[str, dict[int, int]]:
        return self._offsets_of(_partitions(self._described(topics)), what, level)

    def _offsets_of(
        self, partitions: Mapping[str, Iterable[int]], what: str, level: str
    ) -> dict[str, dict[int, int]]:
        if not partitions:
            return {}
        spec = getattr(java(self._spark, f"{_ADMIN}.OffsetSpec"), what)()
        isolation = java(self._spark, f"{_COMMON}.IsolationLevel").valueOf(level)
        place_of = java(self._spark, f"{_COMMON}.TopicPartition")
        asked = java(self._spark, "java.util.HashMap")()
        for topic, numbers in partitions.items():
            for number in numbers:
                asked.put(place_of(topic, number), spec)
        options = java(self._spark, f"{_ADMIN}.ListOffsetsOptions")(isolation)
        answer = self._answer(self._client.listOffsets(asked, options).all())
        found: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        for entry in elements(answer.entrySet()):
            place = entry.getKey()
            found[place.topic()][place.partition()] = entry.getValue().offset()
        return found

    def _list(self, items: Iterable[Any]) -> Any:
        """A list for the JVM."""
        listed = java(self._spark, LIST)()
        for item in items:
            listed.add(item)
        return listed

    def _answer(self, future: Any) -> Any:
        try:
            return future.get(TIMEOUT_MS, self._milliseconds)
        except Py4JJavaError as error:
            raise self._failure(error) from None

    def _failure(self, error: Py4JJavaError) -> SinkError | SinkUnavailableError:
        return kafka_failure(_reason(error.java_exception), self._source.bootstrap_servers)


def _partitions(described: Mapping[str, Any]) -> dict[str, list[int]]:
    return {
        topic: [part.partition() for part in elements(found.partitions())]
        for topic, found in described.items()
    }


def _id(described: Any) -> str | None:
    topic_id = str(described.topicId().toString())
    return None if topic_id == _NO_ID else topic_id


def _reason(thrown: Any) -> str:
    """The innermost cause of a Java exception, in its own words."""
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return str(thrown.toString())


class Ends:
    """The ends of topics, each time from a client of its own: for who asks seldom, and for as long as a query runs."""

    def __init__(self, spark: SparkSession, source: KafkaSource) -> None:
        self._spark = spark
        self._source = source

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """As `Admin.ends`."""
        with Admin(self._spark, self._source) as admin:
            return admin.ends(topics)
