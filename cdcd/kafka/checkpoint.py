"""The checkpoint topic: one partition, compacted, one key, whose last committed record says where to resume.

The record is written in the Kafka transaction of the records that it covers, so the two are committed together or
not at all (KIP-98). Reading it back is right only after `init_transactions`, which has the transaction of an earlier
incarnation committed or aborted. That this shows in the partition may take a moment more, with a broker that has just
come back: so the reader goes on until all that was written is decided, as Kafka Streams does (KAFKA-10167), and not
only to where a `read_committed` reader finds an end. It may also never show, if the transaction hangs (KIP-664): that
is an error of its own, with what is needed to end the transaction. Without transactions, a writer that was frozen may
send one late; it is of an earlier epoch than its successor's, which stands shortly before it.
"""

import threading
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdcd.errors import PositionError, SinkError, TransientError
from cdcd.kafka.assigned import NO_TOPIC, answers, consumer_properties, watermarks
from cdcd.kafka.client import Properties
from cdcd.kafka.constructing import make_consumer
from cdcd.kafka.errors import map_kafka_error
from cdcd.kafka.hanging import HANGS_S
from cdcd.transactions.position import Checkpoint

PARTITION: Final = 0

NO_ANSWER: Final = "no answer while reading the checkpoint"

TAIL_RECORDS: Final = 64
"""How far from the end to look first: every transaction writes a checkpoint, so it lies just before the end."""

TAIL_GROWTH: Final = 32
"""Aborted transactions and markers may fill the tail; then look this many times further back."""


class OpenTransactionError(KafkaException):
    """A transaction in the checkpoint's partition stayed open for `HANGS_S` while the checkpoint was read.

    Attributes:
        offset: where it begins.
        visible: the last checkpoint before it, if there is one among the records that were read.
    """

    def __init__(self, offset: int, visible: Checkpoint | None) -> None:
        super().__init__(
            KafkaError(KafkaError._TIMED_OUT, f"a transaction in it is open, from offset {offset} on")
        )
        self.offset = offset
        self.visible = visible


def read_checkpoint(
    client: Properties,
    topic: str,
    key: str,
    timeout_s: float,
    stopping: threading.Event,
) -> Checkpoint | None:
    """The last committed checkpoint of the pipeline `key`, or None where there is none yet.

    Args:
        client: librdkafka properties for the connection.
        timeout_s: how long the broker may take for each answer.
        stopping: set from outside to make it give up soon.

    Raises:
        OpenTransactionError: a transaction stays open.
        KafkaException: the broker does not answer, or refuses; or `stopping` was set.
        PositionError: the record is not one of ours.
        SinkError: something else writes to the topic.
    """
    group = f"{key}-checkpoint"
    anything = make_consumer(consumer_properties(client, group, committed=False))
    try:
        low, high = watermarks(anything, TopicPartition(topic, PARTITION), timeout_s, stopping)
    finally:
        anything.close()
    consumer = make_consumer(consumer_properties(client, group))
    try:
        return _search(consumer, topic, key, low, high, high, timeout_s, stopping)
    finally:
        consumer.close()


def newest_checkpoint(
    client: Properties, topic: str, key: str, timeout_s: float, stopping: threading.Event
) -> Checkpoint | None:
    """The last checkpoint that was written, whether its transaction is committed, open or aborted.

    Raises as `read_checkpoint`.
    """
    return _peek(client, topic, key, timeout_s, stopping, exists=True, newest=True)


def peek_checkpoint(client: Properties, topic: str, key: str, timeout_s: float) -> Checkpoint | None:
    """The last committed checkpoint, for somebody who only looks: without a topic there is none either.

    Raises:
        TransientError: it cannot be read, for whatever reason.
        PositionError, SinkError: as `read_checkpoint`.
    """
    try:
        return _peek(client, topic, key, timeout_s, threading.Event(), exists=False, newest=False)
    except KafkaException as error:
        raise TransientError(f"The checkpoint in {topic} cannot be read: {error.args[0].str()}") from error


def peek_at_start(
    client: Properties,
    topic: str,
    key: str,
    timeout_s: float,
    stopping: threading.Event,
    *,
    exists: bool,
    newest: bool = False,
) -> Checkpoint | None:
    """The last committed checkpoint, to be judged before another writer is fenced.

    A writer may be at work: its transaction may be open, and what is returned may be out of date. So `read_checkpoint`
    after the fencing is the one that counts. Give it a short `timeout_s`.

    Args:
        exists: it is known that there is the topic, so a broker that does not list it is asked again. False: without a
            topic there is no checkpoint.
        newest: the last one that was written instead, whether its transaction is committed, open or aborted.

    Raises:
        TransientError: the broker does not answer, or `stopping` was set.
        SinkError: it refuses us, or something else writes to the topic.
        PositionError: the record is not one of ours.
    """
    try:
        return _peek(client, topic, key, timeout_s, stopping, exists=exists, newest=newest)
    except KafkaException as error:
        raise map_kafka_error(error.args[0], f"Reading the checkpoint from topic {topic}") from error


def _peek(
    client: Properties,
    topic: str,
    key: str,
    timeout_s: float,
    stopping: threading.Event,
    *,
    exists: bool,
    newest: bool,
) -> Checkpoint | None:
    """The same, by one consumer: to one that reads what is committed, the partition ends where that ends."""
    reader = make_consumer(consumer_properties(client, f"{key}-checkpoint", committed=not newest))
    try:
        try:
            place = TopicPartition(topic, PARTITION)
            low, high = watermarks(reader, place, timeout_s, stopping, exists=exists)
        except KafkaException as error:
            if error.args[0].code() in NO_TOPIC and not exists:
                return None
            raise
        until = high if newest else low
        return None if low == high else _search(reader, topic, key, low, high, until, timeout_s, stopping)
    finally:
        reader.close()


def _search(  # noqa: PLR0917  what is asked, of whom, and for how long
    consumer: Consumer,
    topic: str,
    key: str,
    low: int,
    high: int,
    until: int,
    timeout_s: float,
    stopping: threading.Event,
) -> Checkpoint | None:
    """The last checkpoint between the offsets `low` and `high`, looked for from the end; `until` as in `_records`."""
    reach = TAIL_RECORDS
    while True:
        start = TopicPartition(topic, PARTITION, max(low, high - reach))
        records = _records(consumer, start, until, key, timeout_s, stopping)
        if records:
            return _latest(topic, records)
        if start.offset == low:
            return None
        reach *= TAIL_GROWTH


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
    held, patience_s = -1, timeout_s
    try:
        while held < until:
            for message in answers(consumer, patience_s, stopping, lambda: NO_ANSWER):
                if message.error() is not None:
                    held, patience_s = message.offset() or 0, min(timeout_s, HANGS_S)
                    break
                if message.key() != key.encode():
                    raise SinkError(
                        f"The checkpoint topic {start.topic} holds a record of another pipeline "
                        f"(key {message.key()!r}, offset {message.offset()}).",
                        hint="Give each pipeline a name, or a topics.checkpoint, of its own.",
                    )
                found.append(message)
    except KafkaException as error:
        if held < 0 or stopping.is_set() or error.args[0].code() != KafkaError._TIMED_OUT:
            raise
        raise OpenTransactionError(held, _latest(start.topic, found)) from None
    return found
