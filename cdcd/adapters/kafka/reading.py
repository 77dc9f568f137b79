"""Reading of manually assigned partitions: of the checkpoint topic, of the schemas topic, and by a `read_committed`
reader that follows the topics of a pipeline, including new topics, and returns records on arrival.

No group stores an offset, so other readers are not affected.

librdkafka needs a group name nevertheless, and looks for the group's coordinator. Its errors about the group are
ignored, because an assigned partition needs no group.

A broker that has just restarted may have no leader for a partition, or may not list a topic that exists. So a
reader that knows that the partition exists repeats the request for as long as the broker may take for an answer.
After that time, the last error of the broker is raised. A reader without this knowledge considers a topic missing
only if the broker lists other topics, because a broker that has just restarted lists none.

The partitions are assigned manually and no group stores an offset, so other readers are not affected.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from cdcd.adapters.kafka.client import Properties, make_consumer, prepare
from cdcd.adapters.kafka.errors import UNANSWERED, map_kafka_error, passes, unavailable
from cdcd.core.errors import TransientError
from cdcd.core.retry import Backoff

POLL_S: Final = 0.5
"""Maximum seconds of one blocking call. Between two calls, the reader checks whether it is to stop."""

LEADER_S: Final = 0.05
"""Seconds between two requests about a partition that has no leader, or that the broker does not list."""

NONE_LISTED_S: Final = 5.0
"""Seconds for which a broker must list no topic at all until cdcd concludes that there is none. A broker that has
just restarted lists its topics sooner. Only a new cluster, and a principal without rights, cost this time."""

NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
"""Codes of errors for a topic or partition that the broker does not list."""


def consumer_properties(client: Properties, group: str, *, committed: bool = True) -> dict[str, Any]:
    """Return librdkafka's properties for a consumer that reads assigned partitions and reports each partition's end.

    Args:
        client: the properties for the connection.
        committed: True if the consumer reads only records of committed transactions.

    Raises as `client.prepare`.
    """
    prepare(client)
    return {
        **client,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        # `pass_over` waits for this time after each record that cannot be decompressed.
        "fetch.error.backoff.ms": 50,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }


def watermarks(
    consumer: Consumer,
    partition: TopicPartition,
    timeout_s: float,
    stopping: threading.Event | None = None,
    *,
    exists: bool = True,
) -> tuple[int, int]:
    """Return the first offset of the partition, and the offset after the last record.

    A single attempt may exceed the time.

    Args:
        timeout_s: seconds within which the request is repeated.
        stopping: another thread sets it to make the function raise soon.
        exists: False: the topic may be missing, so an error of `NO_TOPIC` is raised sooner if the topic is missing.

    Raises:
        KafkaException: the last answer within the time, or a refusal; or `stopping` was set.
    """
    stopping = stopping or threading.Event()
    began = time.monotonic()
    patience = Backoff(POLL_S, max(POLL_S, timeout_s))
    while True:
        try:
            ends: tuple[int, int] = consumer.get_watermark_offsets(partition, timeout=patience.next(1.0))
            return ends
        except KafkaException as error:
            code, waited_s = error.args[0].code(), time.monotonic() - began
            if not may_change(error.args[0]) or stopping.is_set() or waited_s > timeout_s:
                raise
            if code not in UNANSWERED:
                listed = _listed(consumer, partition.topic if exists else None)
                is_listed = exists or partition.topic in listed
                if code in NO_TOPIC and not is_listed and (listed or waited_s > NONE_LISTED_S):
                    raise
        stopping.wait(LEADER_S)


def may_change(error: KafkaError) -> bool:
    """Return True if a repeated request may get another answer, for example because the broker has just restarted."""
    return error.code() in NO_TOPIC or passes(error)


def _listed(consumer: Consumer, topic: str | None) -> Collection[str]:
    """Return the topics that the broker lists, all or only `topic`; none if the broker does not answer.

    The request also refreshes the consumer's knowledge of topics and leaders.
    """
    try:
        found = (
            consumer.list_topics(timeout=POLL_S)
            if topic is None
            else consumer.list_topics(topic, timeout=POLL_S)
        )
    except KafkaException:
        return ()
    return set(found.topics)


def partitions_of(
    consumer: Consumer, topic: str, timeout_s: float, stopping: threading.Event
) -> Collection[int]:
    """Return the numbers of the partitions of a topic that exists. A single attempt may also take `timeout_s`.

    Raises:
        KafkaException: the last answer within the time, or a refusal; or `stopping` was set.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
        error = found.error
        if error is None and found.partitions:
            return set(found.partitions)
        error = error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        if not may_change(error) or stopping.is_set() or time.monotonic() > deadline:
            raise KafkaException(error)
        stopping.wait(LEADER_S)


Unread = Callable[[int, int], None]
"""Called with the first offset and the last offset of records that cannot be decompressed."""


def answers(
    consumer: Consumer,
    timeout_s: float,
    stopping: threading.Event,
    why: Callable[[], str],
    unread: Unread = lambda _first, _last: None,
) -> Iterator[Message]:
    """Yield records and ends of partitions in the order of their arrival. The `error()` of a record is None.

    Records that librdkafka cannot decompress, because they have more than `receive.message.max.bytes`, are passed over.

    The iterator never ends by itself. The caller leaves it after the last end that it waits for.

    Args:
        timeout_s: maximum seconds between two records.
        stopping: another thread sets it to make the iterator raise soon.
        why: returns the reason for the timeout's exception.

    Raises:
        KafkaException: the broker does not answer in time, or refuses; or `stopping` was set.
    """
    deadline = time.monotonic() + timeout_s
    unlisted: KafkaError | None = None
    early: deque[Message] = deque()
    while True:
        message = early.popleft() if early else consumer.poll(POLL_S)
        if message is None:
            if stopping.is_set() or time.monotonic() > deadline:
                raise KafkaException(unlisted or KafkaError(KafkaError._TIMED_OUT, why()))
            continue
        error = message.error()
        if error is None:
            deadline, unlisted = time.monotonic() + timeout_s, None
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            unlisted = None
            yield message
        elif error.code() in NO_TOPIC:
            # librdkafka continues with the partition when a broker lists the topic again.
            unlisted = error
        elif error.code() == KafkaError._BAD_COMPRESSION:
            last, others = pass_over(consumer, message, timeout_s, stopping)
            early += others
            unread(message.offset() or 0, last)
            deadline, unlisted = time.monotonic() + timeout_s, None
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not passes(error):
            raise KafkaException(error)


def pass_over(
    consumer: Consumer, bad: Message, timeout_s: float, stopping: threading.Event
) -> tuple[int, list[Message]]:
    """Continue a partition after the batch of records that `bad` reports, which librdkafka would request for ever.

    The error names the first offset of the batch only, so the last offset is searched.

    Returns:
        The batch's last offset, and messages of other partitions that arrived meanwhile.

    Raises:
        KafkaException: the broker does not answer in time, or refuses; or `stopping` was set.
    """
    topic, partition, first = bad.topic() or "", bad.partition() or 0, bad.offset() or 0
    others: list[Message] = []

    def is_in_batch(offset: int) -> bool:
        consumer.seek(TopicPartition(topic, partition, offset))
        deadline = time.monotonic() + timeout_s
        while True:
            message = consumer.poll(POLL_S)
            if message is None:
                if stopping.is_set() or time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer after a large record"))
            elif (message.topic(), message.partition()) != (topic, partition):
                others.append(message)
            else:
                error = message.error()
                if error is None or not may_change(error):
                    is_bad = error is not None and error.code() == KafkaError._BAD_COMPRESSION
                    return is_bad and message.offset() == first

    last, step = first, 1
    while is_in_batch(last + step):
        last, step = last + step, 2 * step
    after = last + step
    while after - last > 1:
        middle = (last + after) // 2
        if is_in_batch(middle):
            last = middle
        else:
            after = middle
    consumer.seek(TopicPartition(topic, partition, after))
    return last, others


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
