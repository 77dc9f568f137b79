"""What a `read_committed` reader finds in the topics: all of it up to now, or what comes as it comes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

POLL_S: Final = 0.2
AT_ONCE: Final = 5_000
PATIENCE_S: Final = 20.0
SILENT_S: Final = 5.0
# What a broker and its client say while the broker comes back: rd_kafka_query_watermark_offsets has no leader, or the
# metadata of a moment in which the broker listed no topic yet.
_NO_LEADER: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    # The broker that led the partition was away, so the client has forgotten it.
    KafkaError._DESTROY_BROKER,
)


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as it lies in its partition. A `value` of None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class TopicError(Exception):
    """The topics cannot be read to their end; the message says where and why."""


class Reader:
    """All topics `<prefix>.*`, from their beginnings, in every partition, also those that come later."""

    def __init__(
        self, bootstrap_servers: str, prefix: str, *, leave_out: frozenset[str] = frozenset()
    ) -> None:
        """`leave_out`: topics that hold no changes; those of checkpoint and descriptions are always left out."""
        self._bootstrap_servers = bootstrap_servers
        self._prefix = f"{prefix}."
        self._leave_out = leave_out | {f"{prefix}.checkpoint", f"{prefix}.schemas"}
        self._consumer = self._open(isolation="read_committed")
        self._assigned: set[tuple[str, int]] = set()
        self._next: dict[tuple[str, int], int] = {}
        """The offset that comes next, by partition."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def discover(self) -> int:
        """Begin to read partitions that are new; returns how many there are by now."""
        found = {
            (name, partition)
            for name, topic in self._consumer.list_topics(timeout=PATIENCE_S).topics.items()
            if name.startswith(self._prefix) and name not in self._leave_out
            for partition in topic.partitions
        }
        new = sorted(found - self._assigned)
        if new:
            self._consumer.incremental_assign([TopicPartition(*each, OFFSET_BEGINNING) for each in new])
            self._assigned |= found
        return len(self._assigned)

    def poll(self, timeout_s: float = POLL_S) -> list[Raw]:
        """What has come; waits so long for the first."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        found = [
            _raw(message) for message in (first, *self._consumer.consume(AT_ONCE, 0)) if _is_record(message)
        ]
        self._next.update({(raw.topic, raw.partition): raw.offset + 1 for raw in found})
        return found

    def read_all(self, timeout_s: float = 120) -> Iterator[Raw]:
        """Everything that was written before this call, when it is committed.

        Waits for transactions that are open, as a reader would. TopicError when one stays open too long.
        """
        self.discover()
        ends = self._ends()
        due = {each for each, end in ends.items() if end > 0}
        heard_at = time.monotonic()
        deadline = heard_at + timeout_s
        while due:
            for message in self._consumer.consume(AT_ONCE, POLL_S):
                is_record = _is_record(message)
                if not is_record and message.offset() is None:
                    continue  # the broker has just come back, see `_is_record`
                raw = _raw(message)
                self._next[raw.topic, raw.partition] = raw.offset + is_record
                if (raw.topic, raw.partition) in due:
                    heard_at = time.monotonic()
                end = ends[raw.topic, raw.partition]
                if is_record and raw.offset < end:
                    yield raw
                # Otherwise it is the end that a read_committed reader is told, which is where the first open
                # transaction begins, or behind the markers of the last one.
                if raw.offset + is_record >= end:
                    due.discard((raw.topic, raw.partition))
            if time.monotonic() > heard_at + SILENT_S:
                self._begin_again(due)
                heard_at = time.monotonic()
            if time.monotonic() > deadline:
                where = ", ".join(
                    f"{topic}/{partition} (end: {ends[topic, partition]})" for topic, partition in sorted(due)
                )
                raise TopicError(
                    f"Not read to the end within {timeout_s:.0f} s: {where}. Is a transaction open there?"
                )

    def _begin_again(self, places: set[tuple[str, int]]) -> None:
        """Assign partitions again, each at its next record.

        A consumer that is assigned while the leader of a partition changes may hear nothing of the partition any more.
        """
        self._consumer.incremental_unassign([TopicPartition(*each) for each in places])
        self._consumer.incremental_assign(
            [TopicPartition(*each, self._next.get(each, OFFSET_BEGINNING)) for each in places]
        )

    def _ends(self) -> dict[tuple[str, int], int]:
        uncommitted = self._open(isolation="read_uncommitted")
        deadline = time.monotonic() + PATIENCE_S
        try:
            ends = {}
            for topic, partition in self._assigned:
                while (end := self._end(uncommitted, topic, partition)) is None:
                    if time.monotonic() > deadline:
                        raise TopicError(
                            f"The end of {topic}/{partition} was not told within {PATIENCE_S:.0f} s."
                        )
                    # Makes the consumer learn the leaders of now.
                    uncommitted.list_topics(topic, timeout=PATIENCE_S)
                ends[topic, partition] = end
            return ends
        finally:
            uncommitted.close()

    def _end(self, consumer: Consumer, topic: str, partition: int) -> int | None:
        """Where the partition ends, 0 if it is empty. None: it has no leader yet, as after a broker has come back."""
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() in _NO_LEADER:
                return None
            raise
        return high if high > low else 0

    def _open(self, *, isolation: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": f"{self._prefix}{uuid4().hex}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "allow.auto.create.topics": False,
                # A broker that has just come back may list a topic without a leader, or not at all. The consumer waits
                # for its next look then, by default for five minutes.
                "topic.metadata.refresh.interval.ms": 1000,
                # A broker that is killed on purpose is no news.
                "log_level": 0,
            }
        )


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    # A consumer goes on with a topic when a broker that has come back lists it again.
    if error.code() != KafkaError._PARTITION_EOF and error.code() not in _NO_LEADER:
        raise KafkaException(error)
    return False


def _raw(message: Message) -> Raw:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers: tuple[tuple[str, bytes], ...] = tuple(message.headers() or ())  # type: ignore[arg-type]
    return Raw(topic, partition, offset, _bytes(message.key()), _bytes(message.value()), headers)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
