"""The checkpoint topic: one partition, compacted, one key, whose last committed record says where to resume.

The record is written in the Kafka transaction of the records that it covers, so the two are committed together or
not at all (KIP-98). Reading it back is right only after `init_transactions`, which waits until the transaction of an
earlier incarnation is committed or aborted in every partition.
"""

from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdcd.errors import SinkError
from cdcd.kafka.client import Properties
from cdcd.transactions.position import Checkpoint

PARTITION: Final = 0

TAIL_RECORDS: Final = 64
"""How far from the end to look first: every transaction writes a checkpoint, so it lies just before the end."""

TAIL_GROWTH: Final = 32
"""Aborted transactions and markers may fill the tail; then look this many times further back."""


def read_checkpoint(client: Properties, topic: str, key: str, timeout_s: float) -> Checkpoint | None:
    """The last committed checkpoint of the pipeline `key`, or None where there is none yet.

    Args:
        client: librdkafka properties for the connection.
        timeout_s: how long the broker may take for each answer.

    Raises:
        KafkaException: the broker does not answer, or refuses.
        PositionError: the record is not one of ours.
        SinkError: something else writes to the topic.
    """
    consumer = Consumer(
        {
            **client,
            "group.id": f"{key}-checkpoint",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, PARTITION), timeout=timeout_s)
        reach = TAIL_RECORDS
        while True:
            start = max(low, high - reach)
            last = _last_record(consumer, TopicPartition(topic, PARTITION, start), key, timeout_s)
            if last is not None:
                value = last.value()
                if value is None:
                    return None
                return Checkpoint.decode(value, f"{topic}[{PARTITION}]@{last.offset()}")
            if start == low:
                return None
            reach *= TAIL_GROWTH
    finally:
        consumer.close()


def _last_record(consumer: Consumer, start: TopicPartition, key: str, timeout_s: float) -> Message | None:
    """The last committed record from `start` to the end of the partition."""
    consumer.assign([start])
    last: Message | None = None
    while True:
        message = consumer.poll(timeout_s)
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer while reading the checkpoint"))
        error = message.error()
        if error is None:
            if message.key() != key.encode():
                raise SinkError(
                    f"The checkpoint topic {start.topic} holds a record of another pipeline "
                    f"(key {message.key()!r}, offset {message.offset()}).",
                    hint="Give each pipeline a name, or a topics.checkpoint, of its own.",
                )
            last = message
        elif error.code() == KafkaError._PARTITION_EOF:
            return last
        elif not error.retriable():
            raise KafkaException(error)
