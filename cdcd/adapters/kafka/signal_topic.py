"""Reader of the topic in which programs write requests (`snapshot.signal_topic`).

The rule: the group of the pipeline has the offset behind the last signal that was carried out or refused. A pipeline
that has no offset yet begins at the end of the topic, and stores that place at once, so that it misses no later signal.
"""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdcd.adapters.kafka.client import Properties, make_consumer
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.adapters.kafka.reading import consumer_properties, pass_over
from cdcd.core.engine.checkpoint_record import TOO_LARGE
from cdcd.core.errors import CdcdError

ANSWER_S: Final = 10.0

_MEMORY: Final = {
    "queued.max.messages.kbytes": 2048,
    "fetch.max.bytes": 1 << 20,
    "fetch.message.max.bytes": 128 << 10,
}
"""Limits of the memory for waiting records. A larger record arrives alone."""


class SignalTopic:
    """A reader of the records of one topic, in the order of each partition. Use it as a context manager.

    Args:
        stopping: another thread sets it to end a call of `read` soon.
        refuse: called with the reason where records cannot be decompressed. They are done.

    Every method raises the CdcdError of `map_kafka_error`.
    """

    def __init__(
        self,
        client: Properties,
        topic: str,
        group: str,
        *,
        stopping: threading.Event,
        refuse: Callable[[str], object],
    ) -> None:
        self._context = f"Topic {topic} (snapshot.signal_topic)"
        self._topic = topic
        self._stopping = stopping
        self._refuse = refuse
        self._early: deque[Message] = deque()
        """Messages of other partitions that arrived while records were passed over."""
        properties = {**consumer_properties(client, group), **_MEMORY}
        try:
            self._consumer: Consumer = make_consumer(properties)
        except KafkaException as error:
            raise self._mapped(error.args[0]) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def begin(self) -> None:
        """Begin at the stored offset of each partition. A partition without one begins at its end, which is stored."""
        try:
            listed = self._consumer.list_topics(self._topic, timeout=ANSWER_S).topics[self._topic]
            if listed.error is not None:
                raise KafkaException(listed.error)
            partitions = [TopicPartition(self._topic, number) for number in listed.partitions]
            known = self._consumer.committed(partitions, timeout=ANSWER_S)
            new = [place for place in known if place.offset < 0]
            for place in new:
                _, place.offset = self._consumer.get_watermark_offsets(place, timeout=ANSWER_S)
            if new:
                self._consumer.commit(offsets=new, asynchronous=False)
            self._consumer.assign(known)
        except KafkaException as error:
            raise self._mapped(error.args[0]) from error

    def read(self, timeout_s: float) -> Message | None:
        """Return the next record; None if no record comes within the time."""
        message = self._early.popleft() if self._early else self._consumer.poll(timeout_s)
        if message is None:
            return None
        error = message.error()
        if error is None:
            return message
        if error.code() == KafkaError._BAD_COMPRESSION:
            self._pass_over(message)
        elif error.code() != KafkaError._PARTITION_EOF:
            raise self._mapped(error)
        return None

    def _pass_over(self, bad: Message) -> None:
        try:
            last, early = pass_over(self._consumer, bad, ANSWER_S, self._stopping)
            self._early += early
            place = TopicPartition(self._topic, bad.partition() or 0, last + 1)
            self._consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            raise self._mapped(error.args[0]) from error
        self._refuse(TOO_LARGE)

    def done(self, message: Message) -> None:
        """Store that the record is carried out or refused, and is not to be read again."""
        partition, offset = message.partition(), message.offset()
        assert partition is not None, "it was read"
        assert offset is not None, "it was read"
        place = TopicPartition(self._topic, partition, offset + 1)
        try:
            self._consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            raise self._mapped(error.args[0]) from error

    def _mapped(self, error: KafkaError) -> CdcdError:
        return map_kafka_error(error, self._context)
