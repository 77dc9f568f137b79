"""Records for certain partitions: a wrapper of the producer for records whose partition the values of columns choose
(`partitioner.columns`), and watermarks for every partition of topics.

The rule: a producer asks once for the number of a topic's partitions. So if partitions are added, a topic keeps its
former distribution until another producer is created, after a restart or a failure. After that, rows may go to
another partition, as keys do with every producer.

The client's partitioner places records without a chosen partition by their key.

The producer is asked for the partitions, because partitions may have been added, and because the producer accepts
records only for partitions that it knows. A topic that does not exist yet has no changes, so it gets no watermark
and is not created for one. If no broker lists the partitions, this round is skipped: a missing watermark promises
nothing.
"""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.adapters.kafka.errors import Partition
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.batch import Watermark
from cdcd.core.records.encoder import HEADER_WATERMARK
from cdcd.core.records.late_records import Produce
from cdcd.core.records.shaping.partitioning import taken_out

Count = Callable[[str], int]
"""Returns the number of a topic's partitions."""

ANSWER_S: Final = 10.0


def counter(producer: Producer) -> Count:
    """Return a function that asks a producer for the number of a topic's partitions.

    The function raises KafkaException if the broker does not answer.
    """

    def count(topic: str) -> int:
        found = producer.list_topics(topic, ANSWER_S).topics.get(topic)
        if found is not None and found.error is not None:
            raise KafkaException(found.error)
        if found is None or not found.partitions:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"there is no topic {topic}"))
        return len(found.partitions)

    return count


def to_whole_topics(produce: Produce) -> Produce:
    """Return a replacement for `produce` that takes a table's share of a topic for the topic."""

    def to_topic(
        topic: str, value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]] | None = None
    ) -> None:
        if headers is None:
            produce(whole_topic(topic), value, key)
        else:
            produce(whole_topic(topic), value, key, headers=headers)

    return to_topic


class ToPartitions:
    """Replacement for `produce`. Calls raise the exceptions of `produce` and `count`."""

    def __init__(self, produce: Produce, count: Count) -> None:
        self._produce = produce
        self._count = count
        self._counts: dict[str, int] = {}

    def __call__(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Produce a record; see `confluent_kafka.Producer.produce`."""
        chosen, rest = taken_out(headers)
        if chosen is None:
            if headers is None:
                self._produce(topic, value, key)
            else:
                self._produce(topic, value, key, headers=headers)
            return
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._count(topic)
        if rest:
            self._produce(topic, value, key, chosen % count, headers=rest)
        else:
            self._produce(topic, value, key, chosen % count)


LIST_S: Final = 2.0
"""Seconds that a broker may take to list the topics."""

GONE: Final = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Codes of errors after which the producer knows that the topic or partition does not exist."""


class Marking:
    """The watermarks of one batch. Call `produce`, again after each BufferError."""

    def __init__(self, producer: Producer, watermark: Watermark) -> None:
        self._producer = producer
        self._headers = [(HEADER_WATERMARK, b"%d" % watermark.lsn)]
        self._left = _partitions(producer, watermark.topics)
        self._left.reverse()
        self.count = 0
        """Number of watermarks that were produced."""

    def produce(self) -> None:
        """Produce the remaining watermarks.

        Raises:
            BufferError: the producer's queue is full.
            KafkaException: the transaction has failed.
        """
        while self._left:
            topic, partition = self._left[-1]
            try:
                self._producer.produce(topic, None, None, partition, headers=list(self._headers))
                self.count += 1
            except KafkaException as error:
                if error.args[0].code() not in GONE:
                    raise
            self._left.pop()


def _partitions(producer: Producer, topics: tuple[str, ...]) -> list[Partition]:
    """Return all partitions of the topics that exist."""
    try:
        # All topics are listed, because a request for one by its name may create it (auto.create.topics.enable).
        listed = producer.list_topics(timeout=LIST_S).topics
    except KafkaException:
        return []
    there = [listed[topic] for topic in topics if topic in listed]
    return [(str(found.topic), number) for found in there for number in sorted(found.partitions)]
