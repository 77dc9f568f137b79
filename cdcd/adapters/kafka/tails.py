"""Backward reader of the last records of topics, as far as a caller needs them."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdcd.adapters.kafka.assigned import answers, consumer_properties, watermarks
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.client_factory import make_consumer
from cdcd.adapters.kafka.errors import map_kafka_error, unavailable
from cdcd.core.errors import TransientError

FIRST: Final = 1000
"""Number of records in the first read of a partition. Each further read has twice as many."""

ANSWER_S: Final = 15.0

BATCH_BYTES_MAX: Final = 4 << 20
"""Size of the largest batch that `read_last` reads. The daemon calls it, and the daemon's memory has a limit."""


@dataclass(frozen=True, slots=True)
class Last:
    """Limits of `read_last`: offsets of each partition, partitions in all, and seconds in all."""

    offsets: int
    partitions: int
    timeout_s: float


def read_tails(
    client: Properties,
    group: str,
    topics: Collection[str],
    is_enough: Callable[[Sequence[bytes | None]], bool],
) -> Iterator[bytes | None]:
    """Yield the values of the last records of each partition, as a `read_committed` reader sees them.

    Args:
        topics: names of topics; missing topics are skipped.
        is_enough: called with values of a partition in their order, and at the next call with the values before
            them. Returns True if no earlier values are needed.

    Raises:
        SinkUnavailableError: the broker does not answer.
        SinkError: the broker refuses.
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


def read_last(client: Properties, group: str, topics: Collection[str], last: Last) -> Iterator[Message]:
    """The records among the last offsets of each partition, as a `read_committed` reader. Memory is limited.

    Topics that are not there are passed over.

    Raises:
        SinkUnavailableError: the broker does not answer in time, or a batch is larger than `BATCH_BYTES_MAX`.
        SinkError: the broker refuses.
    """
    limits = {
        "fetch.message.max.bytes": BATCH_BYTES_MAX,
        "fetch.max.bytes": BATCH_BYTES_MAX,
        "message.max.bytes": BATCH_BYTES_MAX,
        "receive.message.max.bytes": BATCH_BYTES_MAX + 1024,
        "queued.max.messages.kbytes": BATCH_BYTES_MAX // 1024,
    }
    consumer = make_consumer({**consumer_properties(client, group), **limits})
    deadline = time.monotonic() + last.timeout_s
    try:
        listed = consumer.list_topics(timeout=last.timeout_s).topics
        found = [
            (topic, each)
            for topic in sorted(set(topics) & listed.keys())
            for each in listed[topic].partitions
        ]
        for topic, number in found[: last.partitions]:
            partition = TopicPartition(topic, number)
            left_s = max(0.1, deadline - time.monotonic())
            low, end = watermarks(consumer, partition, left_s)
            if end > low:
                yield from _between(consumer, partition, max(low, end - last.offsets), end, left_s)
    except KafkaException as error:
        refused = map_kafka_error(error.args[0], f"Kafka at {client.get('bootstrap.servers')}")
        raise (unavailable(refused) if isinstance(refused, TransientError) else refused) from error
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


def _between(
    consumer: Consumer, partition: TopicPartition, begin: int, end: int, timeout_s: float = ANSWER_S
) -> Iterator[Message]:
    """Yield the records from `begin` to before `end`, or to the partition's end, where transactions have markers."""
    consumer.assign([TopicPartition(partition.topic, partition.partition, begin)])
    never = threading.Event()
    for message in answers(
        consumer, timeout_s, never, lambda: f"{partition.topic} cannot be read from offset {begin}"
    ):
        if message.error() is not None:
            # `answers` yields no other error than the end of the partition.
            return
        offset = message.offset()
        assert offset is not None, "a record has an offset"
        if offset >= end:
            return
        yield message
        if offset == end - 1:
            return
