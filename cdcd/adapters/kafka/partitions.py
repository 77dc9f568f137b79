"""Producer wrapper that sends records to the partitions that the values of columns choose (`partitioner.columns`).

The rule: a producer asks once for the number of a topic's partitions. So if partitions are added, a topic keeps its
former distribution until another producer is created, after a restart or a failure. After that, rows may go to
another partition, as keys do with every producer.

The client's partitioner places records without a chosen partition by their key.
"""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.core.records.encoder import Produce
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
