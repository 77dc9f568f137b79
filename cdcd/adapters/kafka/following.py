"""A `read_committed` reader that follows the topics of a pipeline, including new topics, and returns records on
arrival.

The partitions are assigned manually and no group stores an offset, so other readers are not affected.
"""

import time
from collections.abc import Callable, Collection
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from cdcd.adapters.kafka.assigned import consumer_properties, watermarks
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.client_factory import make_consumer
from cdcd.adapters.kafka.errors import map_kafka_error, passes, unavailable
from cdcd.core.errors import TransientError

DISCOVER_S: Final = 2.0
"""Seconds between two searches for new topics and partitions."""

AT_ONCE: Final = 1000
ANSWER_S: Final = 10.0


class Follower:
    """Reader of the topics for which `wants` returns True. Call `poll` repeatedly, and `close` at the end.

    Args:
        wants: returns True if a topic is to be read.
        beginning: True to read existing records; False: only later ones. A new topic is read from its beginning in
            both cases.

    The constructor and `poll` raise:
        SinkUnavailableError: the broker does not answer.
        SinkError: it refuses.
    """

    def __init__(
        self, client: Properties, group: str, wants: Callable[[str], bool], *, beginning: bool
    ) -> None:
        self._consumer = make_consumer(
            {**consumer_properties(client, group), "auto.offset.reset": "earliest", "fetch.wait.max.ms": 100}
        )
        self._wants = wants
        self._assigned: set[tuple[str, int]] = set()
        self._where = f"Kafka at {client.get('bootstrap.servers')}"
        self._ends: set[tuple[str, int]] = set()
        try:
            self._discover(OFFSET_BEGINNING if beginning else OFFSET_END)
        except BaseException:
            self.close()
            raise

    @property
    def topics(self) -> Collection[str]:
        """Topics that are being read."""
        return sorted({topic for topic, _ in self._assigned})

    @property
    def at_end(self) -> bool:
        """True if every partition has been read to its end at some moment."""
        return self._ends >= self._assigned

    def poll(self, timeout_s: float) -> list[Message]:
        """Return the records that have arrived, in the order of their partitions; wait `timeout_s` for the first."""
        if time.monotonic() > self._next_look:
            self._discover(OFFSET_BEGINNING)
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        found = []
        for message in (first, *self._consumer.consume(AT_ONCE, 0)):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends.add((message.topic() or "", message.partition() or 0))
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not passes(error):
                raise self._mapped(KafkaException(error))
        return found

    def close(self) -> None:
        self._consumer.close()

    def _discover(self, offset: int) -> None:
        try:
            listed = self._consumer.list_topics(timeout=ANSWER_S).topics
            new = [
                TopicPartition(name, partition, offset)
                for name, topic in listed.items()
                if self._wants(name)
                for partition in topic.partitions
                if (name, partition) not in self._assigned
            ]
            if offset == OFFSET_END:
                # The end at this moment, not the end at the first fetch.
                for each in new:
                    _, each.offset = watermarks(self._consumer, each, ANSWER_S)
            if new:
                self._consumer.incremental_assign(new)
        except KafkaException as error:
            raise self._mapped(error) from error
        self._assigned |= {(each.topic, each.partition) for each in new}
        self._next_look = time.monotonic() + DISCOVER_S

    def _mapped(self, error: KafkaException) -> Exception:
        found = map_kafka_error(error.args[0], self._where)
        return unavailable(found) if isinstance(found, TransientError) else found
