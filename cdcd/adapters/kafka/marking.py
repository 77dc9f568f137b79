"""Watermarks for every partition of topics (`engine/watermarks.py`), produced after the records of a batch.

The producer is asked for the partitions, because partitions may have been added, and because the producer accepts
records only for partitions that it knows. A topic that does not exist yet has no changes, so it gets no watermark
and is not created for one. If no broker lists the partitions, this round is skipped: a missing watermark promises
nothing.
"""

from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.adapters.kafka.errors import Partition
from cdcd.core.engine.queue import Watermark
from cdcd.core.records.encoder import HEADER_WATERMARK

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
