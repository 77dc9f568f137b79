"""The checkpoint topic: one partition, compacted, one key, whose last valid record says where to resume.

The record is written in the Kafka transaction of the records that it covers, so the two are committed together or
not at all (KIP-98). Reading it back is right only after `init_transactions`, which has the transaction of an earlier
incarnation committed or aborted. That this shows in the partition may take a moment more, with a broker that has just
come back: so the reader goes on until all that was written is decided, as Kafka Streams does (KAFKA-10167), and not
only to where a `read_committed` reader finds an end. It may also never show, if the transaction hangs (KIP-664): that
is an error of its own, with what is needed to end the transaction.

Which record is valid is decided in `transactions/checkpoint_record.py`. The records are judged one by one while they
come, so that a reader needs memory for one of them, however many somebody has written.
"""

import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdcd.adapters.kafka.assigned import NO_TOPIC, answers, consumer_properties, watermarks
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.client_factory import make_consumer
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.adapters.kafka.hanging import HANGS_S
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords, Ignored, Judging
from cdcd.core.errors import TransientError

PARTITION: Final = 0

NO_ANSWER: Final = "no answer while reading the checkpoint"

TAIL_RECORDS: Final = 64
"""How far from the end to look first: every transaction writes a checkpoint, so it lies just before the end."""

TAIL_GROWTH: Final = 32
"""Aborted transactions, markers and records that do not count may fill the tail; then look this many times further
back."""

OnIgnored = Callable[[Ignored], None]
"""Called once a reading with the records that do not count, if there are any."""


def say_nothing(_ignored: Ignored) -> None:
    """For a reader whose caller reports the same records by another reading."""


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


def read_checkpoint(  # noqa: PLR0917  what is read, and for how long
    client: Properties,
    topic: str,
    records: CheckpointRecords,
    timeout_s: float,
    stopping: threading.Event,
    told: int = 0,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """The newest valid committed checkpoint of the pipeline, or None where there is none yet.

    Args:
        client: librdkafka properties for the connection.
        records: judges them, and knows the pipeline.
        timeout_s: how long the broker may take for each answer.
        stopping: set from outside to make it give up soon.
        told: a position that PostgreSQL was told. If the checkpoint does not reach it, all of the topic is read.

    Raises:
        OpenTransactionError: a transaction stays open.
        KafkaException: the broker does not answer, or refuses; or `stopping` was set.
        PositionError: there are records of the pipeline, and none of them can be read.
        SinkError: there are only records of another pipeline.
    """
    group = f"{records.pipeline}-checkpoint"
    anything = make_consumer(consumer_properties(client, group, committed=False))
    try:
        low, high = watermarks(anything, TopicPartition(topic, PARTITION), timeout_s, stopping)
    finally:
        anything.close()
    consumer = make_consumer(consumer_properties(client, group))
    try:
        reading = _Reading(consumer, topic, records, timeout_s, stopping, told, on_ignored)
        return reading.search(low, high, high)
    finally:
        consumer.close()


def newest_checkpoint(  # noqa: PLR0917  as `read_checkpoint`
    client: Properties,
    topic: str,
    records: CheckpointRecords,
    timeout_s: float,
    stopping: threading.Event,
    told: int = 0,
) -> Checkpoint | None:
    """The newest valid checkpoint that was written, whether its transaction is committed, open or aborted.

    Raises as `read_checkpoint`.
    """
    return _peek(client, topic, records, timeout_s, stopping, exists=True, newest=True, told=told)


def peek_checkpoint(
    client: Properties,
    topic: str,
    records: CheckpointRecords,
    timeout_s: float,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """The newest valid committed checkpoint, for somebody who only looks: without a topic there is none either.

    Raises:
        TransientError: it cannot be read, for whatever reason.
        PositionError, SinkError: as `read_checkpoint`.
    """
    try:
        return _peek(
            client,
            topic,
            records,
            timeout_s,
            threading.Event(),
            exists=False,
            newest=False,
            on_ignored=on_ignored,
        )
    except KafkaException as error:
        raise TransientError(f"The checkpoint in {topic} cannot be read: {error.args[0].str()}") from error


def peek_at_start(
    client: Properties,
    topic: str,
    records: CheckpointRecords,
    timeout_s: float,
    stopping: threading.Event,
    *,
    exists: bool,
    newest: bool = False,
    told: int = 0,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """The newest valid committed checkpoint, to be judged before another writer is fenced.

    A writer may be at work: its transaction may be open, and what is returned may be out of date. So `read_checkpoint`
    after the fencing is the one that counts. Give it a short `timeout_s`.

    Args:
        exists: it is known that there is the topic, so a broker that does not list it is asked again. False: without a
            topic there is no checkpoint.
        newest: the last one that was written instead, whether its transaction is committed, open or aborted.
        told: as `read_checkpoint` has it.

    Raises:
        TransientError: the broker does not answer, or `stopping` was set.
        SinkError: it refuses us, or there are only records of another pipeline.
        PositionError: as `read_checkpoint`.
    """
    try:
        return _peek(
            client,
            topic,
            records,
            timeout_s,
            stopping,
            exists=exists,
            newest=newest,
            told=told,
            on_ignored=on_ignored,
        )
    except KafkaException as error:
        raise map_kafka_error(error.args[0], f"Reading the checkpoint from topic {topic}") from error


def _peek(
    client: Properties,
    topic: str,
    records: CheckpointRecords,
    timeout_s: float,
    stopping: threading.Event,
    *,
    exists: bool,
    newest: bool,
    told: int = 0,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """The same, by one consumer: to one that reads what is committed, the partition ends where that ends."""
    group = f"{records.pipeline}-checkpoint"
    reader = make_consumer(consumer_properties(client, group, committed=not newest))
    try:
        try:
            place = TopicPartition(topic, PARTITION)
            low, high = watermarks(reader, place, timeout_s, stopping, exists=exists)
        except KafkaException as error:
            if error.args[0].code() in NO_TOPIC and not exists:
                return None
            raise
        if low == high:
            return None
        reading = _Reading(reader, topic, records, timeout_s, stopping, told, on_ignored)
        return reading.search(low, high, high if newest else low)
    finally:
        reader.close()


class _Reading:
    """One reading of the partition, from its end."""

    def __init__(  # noqa: PLR0917  as `read_checkpoint`
        self,
        consumer: Consumer,
        topic: str,
        records: CheckpointRecords,
        timeout_s: float,
        stopping: threading.Event,
        told: int,
        on_ignored: OnIgnored,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._records = records
        self._timeout_s = timeout_s
        self._stopping = stopping
        self._told = told
        self._on_ignored = on_ignored

    def search(self, low: int, high: int, until: int) -> Checkpoint | None:
        """The checkpoint that counts between the offsets `low` and `high`. The end is not before the offset `until`."""
        reach = TAIL_RECORDS
        while True:
            start = max(low, high - reach)
            judging = self._records.judging(self._topic)
            self._take(judging, start, until)
            if start == low or judging.is_settled(self._told):
                if judging.ignored is not None:
                    self._on_ignored(judging.ignored)
                return judging.result()
            reach *= TAIL_GROWTH

    def _take(self, judging: Judging, start: int, until: int) -> None:
        """Give it the committed records from `start` to the end of the partition."""
        self._consumer.assign([TopicPartition(self._topic, PARTITION, start)])
        held, patience_s = -1, self._timeout_s
        try:
            while held < until:
                for message in answers(self._consumer, patience_s, self._stopping, lambda: NO_ANSWER):
                    if message.error() is not None:
                        held, patience_s = message.offset() or 0, min(self._timeout_s, HANGS_S)
                        break
                    judging.take(message.offset() or 0, message.key(), message.value())
        except KafkaException as error:
            if held < 0 or self._stopping.is_set() or error.args[0].code() != KafkaError._TIMED_OUT:
                raise
            raise OpenTransactionError(held, judging.result()) from None
