"""Reads the last records of topics, backwards, as far as a caller wants to go."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdcd.adapters.kafka.assigned import answers, consumer_properties, watermarks
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.constructing import make_consumer
from cdcd.adapters.kafka.errors import map_kafka_error, unavailable
from cdcd.core.errors import TransientError

FIRST: Final = 1000
"""Records of the first look at a partition. Each further look takes twice as many."""

ANSWER_S: Final = 15.0


def read_tails(
    client: Properties,
    group: str,
    topics: Collection[str],
    is_enough: Callable[[Sequence[bytes | None]], bool],
) -> Iterator[bytes | None]:
    """The values of the last records of each partition, as a `read_committed` reader.

    Args:
        topics: those that are not there are passed over.
        is_enough: gets values of a partition in their order; the next call, those before them. True: nothing
            before them is wanted.

    Raises:
        SinkUnavailableError: the broker does not answer.
        SinkError: it refuses.
    """
    consumer = make_consumer(consumer_properties(client, group))
    try:
        listed = consumer.list_topics(timeout=ANSWER_S).topics
        for topic in sorted(set(topics) & listed.keys()):
            for partition in sorted(listed[topic].partitions):
                yield from _tail(consumer, TopicPartition(topic, partition), is_enough)
    except KafkaException as error:
        found = map_kafka_error(error.args[0], f"Kafka at {client.get('bootstrap.servers')}")
        raise (unavailable(found) if isinstance(found, TransientError) else found) from error
    finally:
        consumer.close()


def _tail(
    consumer: Consumer, partition: TopicPartition, is_enough: Callable[[Sequence[bytes | None]], bool]
) -> Iterator[bytes | None]:
    low, end = watermarks(consumer, partition, ANSWER_S)
    size = FIRST
    while end > low:
        begin = max(low, end - size)
        values = [message.value() for message in _between(consumer, partition, begin, end)]
        yield from values
        if is_enough(values):
            return
        end, size = begin, 2 * size


def _between(consumer: Consumer, partition: TopicPartition, begin: int, end: int) -> Iterator[Message]:
    """The records from offset `begin` to before `end`, or the end of the partition, where transactions have markers."""
    consumer.assign([TopicPartition(partition.topic, partition.partition, begin)])
    never = threading.Event()
    for message in answers(
        consumer, ANSWER_S, never, lambda: f"{partition.topic} cannot be read from offset {begin}"
    ):
        if message.error() is not None:
            # `answers` gives no other error than the end of the partition.
            return
        offset = message.offset()
        assert offset is not None, "a record has an offset"
        if offset >= end:
            return
        yield message
        if offset == end - 1:
            return
