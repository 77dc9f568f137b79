"""The checkpoint topic: one partition, compacted, one key, whose last committed record says where to resume.

The record is written in the Kafka transaction of the records that it covers, so the two are committed together or
not at all (KIP-98). Reading it back is right only after `init_transactions`, which has the transaction of an earlier
incarnation committed or aborted. That this shows in the partition may take a moment more, with a broker that has just
come back: so the reader goes on until all that was written is decided, as Kafka Streams does (KAFKA-10167), and not
only to where a `read_committed` reader finds an end. Without transactions, a writer that was frozen may send
one late; it is of an earlier epoch than its successor's, which stands shortly before it.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdcd.errors import PositionError, SinkError, TransientError
from cdcd.kafka.client import Properties
from cdcd.transactions.position import Checkpoint

PARTITION: Final = 0

TAIL_RECORDS: Final = 64
"""How far from the end to look first: every transaction writes a checkpoint, so it lies just before the end."""

TAIL_GROWTH: Final = 32
"""Aborted transactions and markers may fill the tail; then look this many times further back."""

NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)

FIRST_PATIENCE_S: Final = 0.5
"""Blocking calls return after so long to see whether we are being stopped."""


def read_checkpoint(
    client: Properties,
    topic: str,
    key: str,
    timeout_s: float,
    stopping: threading.Event,
    *,
    decided: bool = True,
) -> Checkpoint | None:
    """The last committed checkpoint of the pipeline `key`, or None where there is none yet.

    Args:
        client: librdkafka properties for the connection.
        timeout_s: how long the broker may take for each answer.
        stopping: set from outside to make it give up soon.
        decided: wait until every transaction in the topic is. For somebody who has not shut out the writer, there may
            always be one that is open.

    Raises:
        KafkaException: the broker does not answer, or refuses; or `stopping` was set; or a transaction stays open.
        PositionError: the record is not one of ours.
        SinkError: something else writes to the topic.
    """
    properties = {
        **client,
        "group.id": f"{key}-checkpoint",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    anything = Consumer({**properties, "isolation.level": "read_uncommitted"})
    try:
        low, high = _ends(anything, TopicPartition(topic, PARTITION), timeout_s, stopping)
    finally:
        anything.close()
    consumer = Consumer({**properties, "isolation.level": "read_committed"})
    try:
        reach = TAIL_RECORDS
        while True:
            start = TopicPartition(topic, PARTITION, max(low, high - reach))
            records = _records(consumer, start, high if decided else low, key, timeout_s, stopping)
            if records:
                return _latest(topic, records)
            if start.offset == low:
                return None
            reach *= TAIL_GROWTH
    finally:
        consumer.close()


def peek_checkpoint(client: Properties, topic: str, key: str, timeout_s: float) -> Checkpoint | None:
    """As `read_checkpoint`, for somebody who only looks: without a topic there is no checkpoint either.

    Raises:
        TransientError: it cannot be read, for whatever reason.
        PositionError, SinkError: as `read_checkpoint`.
    """
    try:
        return read_checkpoint(client, topic, key, timeout_s, threading.Event(), decided=False)
    except KafkaException as error:
        if error.args[0].code() in NO_TOPIC:
            return None
        raise TransientError(f"The checkpoint in {topic} cannot be read: {error.args[0].str()}") from error


def _ends(
    consumer: Consumer, partition: TopicPartition, timeout_s: float, stopping: threading.Event
) -> tuple[int, int]:
    """The first offset and the one after the last. Each attempt may take longer, for a broker that is slow."""
    deadline = time.monotonic() + timeout_s
    patience_s = FIRST_PATIENCE_S
    while True:
        try:
            ends: tuple[int, int] = consumer.get_watermark_offsets(partition, timeout=patience_s)
        except KafkaException as error:
            timed_out = error.args[0].code() == KafkaError._TIMED_OUT
            if not timed_out or stopping.is_set() or time.monotonic() > deadline:
                raise
            patience_s *= 2
        else:
            return ends


def _latest(topic: str, records: Sequence[Message]) -> Checkpoint | None:
    """The last one of the highest epoch; None where somebody took it away (a tombstone).

    One that cannot be read counts until another one is put in its place, or a tombstone.
    """
    latest: Checkpoint | None = None
    damage: PositionError | None = None
    for record in records:
        value = record.value()
        if value is None:
            latest = damage = None
            continue
        try:
            found = Checkpoint.decode(value, f"{topic}[{PARTITION}]@{record.offset()}")
        except PositionError as error:
            damage = error
            continue
        if latest is None or found.epoch >= latest.epoch:
            latest, damage = found, None
    if damage is not None:
        raise damage
    return latest


def _records(  # noqa: PLR0917  as above
    consumer: Consumer,
    start: TopicPartition,
    until: int,
    key: str,
    timeout_s: float,
    stopping: threading.Event,
) -> list[Message]:
    """The committed records from `start` to the end of the partition, which is not before the offset `until`."""
    consumer.assign([start])
    found: list[Message] = []
    why = "no answer while reading the checkpoint"
    deadline = time.monotonic() + timeout_s
    while True:
        message = consumer.poll(FIRST_PATIENCE_S)
        if message is None:
            if stopping.is_set() or time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, why))
            continue
        error = message.error()
        if error is None:
            deadline = time.monotonic() + timeout_s
            if message.key() != key.encode():
                raise SinkError(
                    f"The checkpoint topic {start.topic} holds a record of another pipeline "
                    f"(key {message.key()!r}, offset {message.offset()}).",
                    hint="Give each pipeline a name, or a topics.checkpoint, of its own.",
                )
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            if (message.offset() or 0) >= until:
                return found
            why = f"a transaction in it is open, from offset {message.offset()} on"
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            # librdkafka looks for the group's coordinator, of which we want nothing: partitions are assigned by hand.
            continue
        elif not error.retriable():
            raise KafkaException(error)
