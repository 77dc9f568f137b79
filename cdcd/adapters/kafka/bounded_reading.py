"""Readers of topics between bounds: forward from the first record up to the ends at some moment, and later on from
there; or backward from the ends, as far as a caller needs the last records.

The rule: everything that was committed when `ends` was called is read. The ends include uncommitted records,
because the answer to a commit arrives before all partitions show it to a `read_committed` reader. So the reader
waits for transactions that are open at that moment, until they are committed or aborted.

The partitions are assigned manually, and no group stores an offset.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdcd.adapters.kafka.client import Properties, make_consumer
from cdcd.adapters.kafka.errors import map_kafka_error, unavailable
from cdcd.adapters.kafka.reading import answers, consumer_properties, may_change, watermarks
from cdcd.core.errors import SinkError, SinkUnavailableError, TransientError

AT_ONCE: Final = 1000
POLL_S: Final = 0.5
ANSWER_S: Final = 15.0

_MEMORY: Final = {
    "queued.max.messages.kbytes": 8192,
    "fetch.max.bytes": 1 << 20,
    "fetch.message.max.bytes": 128 << 10,
    "fetch.queue.backoff.ms": 20,
}
"""Limits of the memory for waiting records. The limits of a fetch apply to compressed records, which take several
times as much memory after decompression. A record that is larger than a fetch still arrives, alone (KIP-74). When
the queue is full, librdkafka fetches again after 20 ms. With its default of one second, the reader would empty the
queue before."""

Place = tuple[str, int]
"""(topic, number of the partition)."""


class BoundedReader:
    """A `read_committed` reader. The caller owes `close`.

    Every method raises SinkUnavailableError (the broker does not answer) and SinkError (the broker refuses).
    """

    def __init__(self, client: Properties, group: str) -> None:
        self._where = f"Kafka at {client.get('bootstrap.servers')}"
        limits = {**_MEMORY, "fetch.wait.max.ms": 100}
        self._all = make_consumer({**consumer_properties(client, group, committed=False), **limits})
        # A record that retention removes before it is read is an error, and not a reason to continue later.
        self._committed = make_consumer(
            {**consumer_properties(client, group), **limits, "auto.offset.reset": "error"}
        )
        self._at: dict[Place, int] = {}
        self._held: dict[Place, int] = {}

    def close(self) -> None:
        self._all.close()
        self._committed.close()

    def add(self, topics: Collection[str]) -> dict[Place, int]:
        """Add these topics as far as they exist; return the first offset of each new partition."""
        try:
            listed = self._all.list_topics(timeout=ANSWER_S).topics
            new = {
                (name, partition): self._ends_of((name, partition))[0]
                for name in topics
                if name in listed
                for partition in listed[name].partitions
                if (name, partition) not in self._at
            }
            if new:
                self._committed.incremental_assign(
                    [TopicPartition(*place, offset) for place, offset in new.items()]
                )
        except KafkaException as error:
            raise self._mapped(error) from error
        self._at |= new
        return new

    def ends(self) -> dict[Place, int]:
        """Return the end offset of each partition, including uncommitted records."""
        try:
            return {place: self._ends_of(place)[1] for place in self._at}
        except KafkaException as error:
            raise self._mapped(error) from error

    def read(self, ends: Mapping[Place, int], timeout_s: float) -> Iterator[tuple[Place, int, Message]]:
        """Yield the records from the end of the last call up to before `ends`, in order within each partition.

        Each item has the record's place and offset.

        Raises:
            SinkUnavailableError: no record arrived for `timeout_s` seconds, for example because a transaction stays
                open.
        """
        self._release()
        due = {place for place, end in ends.items() if self._at[place] < end}
        deadline = time.monotonic() + timeout_s
        while due:
            messages = self._consume()
            if messages:
                deadline = time.monotonic() + timeout_s
            elif time.monotonic() > deadline:
                raise self._stuck(due, timeout_s)
            for message in messages:
                place = (message.topic() or "", message.partition() or 0)
                offset = message.offset() or 0
                error = message.error()
                if place in self._held:
                    continue
                if error is None:
                    if offset >= ends[place]:
                        # The record was written after `ends`; the next call begins with it.
                        self._hold(place, offset)
                    else:
                        self._at[place] = offset + 1
                        yield place, offset, message
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._at[place] = max(self._at[place], offset)
                else:
                    raise self._mapped(KafkaException(error))
                if self._at[place] >= ends[place]:
                    due.discard(place)

    def find(self, place: Place, is_before: Callable[[Message], bool | None]) -> int:
        """Find by binary search the offset after all records of a partition for which `is_before` holds.

        Args:
            is_before: True if the record and all records before it are before the target; None: the record does not
                tell.
        """
        low, high = self._ends_of(place)
        while low < high:
            middle = (low + high) // 2
            at, before = self._first_from(place, middle, high, is_before)
            if before:
                low = at + 1
            else:
                high = middle
        return low

    def _first_from(
        self, place: Place, offset: int, end: int, is_before: Callable[[Message], bool | None]
    ) -> tuple[int, bool]:
        """Return the first offset from `offset` on with an answer of `is_before`, and the answer; at `end`, False."""
        self._all.assign([TopicPartition(*place, offset)])
        deadline = time.monotonic() + ANSWER_S
        try:
            while True:
                message = self._all.poll(POLL_S)
                if message is None:
                    if time.monotonic() > deadline:
                        raise self._stuck([place], ANSWER_S)
                    continue
                at, error = message.offset() or 0, message.error()
                if at >= end or (error is not None and error.code() == KafkaError._PARTITION_EOF):
                    return end, False
                if error is not None and not _may_pass(message):
                    raise self._mapped(KafkaException(error))
                before = None if error is not None else is_before(message)
                if before is not None:
                    return at, before
        finally:
            self._all.unassign()

    def rewind(self, place: Place, offset: int) -> None:
        """Continue with this offset in the next call, in a partition that was read to its end."""
        if place not in self._held:
            self._committed.incremental_unassign([TopicPartition(*place)])
        self._held[place] = self._at[place] = offset

    def _hold(self, place: Place, offset: int) -> None:
        """Stop reading the partition for this call."""
        self._committed.incremental_unassign([TopicPartition(*place)])
        self._held[place] = self._at[place] = offset

    def _release(self) -> None:
        if self._held:
            self._committed.incremental_assign(
                [TopicPartition(*place, offset) for place, offset in self._held.items()]
            )
        self._held.clear()

    def _consume(self) -> list[Message]:
        try:
            found = self._committed.consume(AT_ONCE, POLL_S)
        except KafkaException as error:
            raise self._mapped(error) from error
        return [message for message in found if not _may_pass(message)]

    def _ends_of(self, place: Place) -> tuple[int, int]:
        return watermarks(self._all, TopicPartition(*place), ANSWER_S)

    def _stuck(self, due: Collection[Place], timeout_s: float) -> SinkUnavailableError:
        where = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(due)[:3])
        return SinkUnavailableError(
            f"{self._where} gave nothing for {timeout_s:g} s, and there are records in {where}.",
            hint="Start the daemon if it was killed, or wait for kafka.transaction.timeout_s: a killed daemon leaves a "
            "transaction open until then. Then run the command again. A deleted topic gives the same error.",
        )

    def _mapped(self, error: KafkaException) -> Exception:
        if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET:
            return SinkError(
                f"{self._where} deleted records before they were read: {error.args[0].str()}",
                hint="Retention of the topic is shorter than the reading takes. Run the command again, or raise "
                "retention.ms and retention.bytes of the topic.",
            )
        found = map_kafka_error(error.args[0], self._where)
        return unavailable(found) if isinstance(found, TransientError) else found


def _may_pass(message: Message) -> bool:
    """Return True if the message is an error that passes by itself, or an error about the unused group.

    A broker that has just restarted may not list a topic. librdkafka continues with it when the broker lists it
    again.
    """
    error = message.error()
    return error is not None and (error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED or may_change(error))


FIRST: Final = 1000
"""Number of records in the first read of a partition. Each further read has twice as many."""

TAILS_ANSWER_S: Final = 15.0

_TAIL: Final = -2000
"""Offset that stands for the end of a partition, less the number of offsets before it (RD_KAFKA_OFFSET_TAIL in
librdkafka's rdkafka.h)."""

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
        listed = consumer.list_topics(timeout=TAILS_ANSWER_S).topics
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

    All partitions are read at the same time, so the records of two partitions have no order. Topics that are not
    there are passed over.

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
        # For a partition whose first records were deleted, so that fewer offsets are left.
        "auto.offset.reset": "earliest",
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
        left = dict.fromkeys(found[: last.partitions], last.offsets)
        if not left:
            return
        consumer.assign([TopicPartition(*place, _TAIL - last.offsets) for place in left])
        for message in answers(consumer, last.timeout_s, threading.Event(), lambda: "no answer"):
            place = (message.topic() or "", message.partition() or 0)
            if place in left:
                if message.error() is None:
                    yield message
                    left[place] -= 1
                if message.error() is not None or not left[place]:
                    del left[place]
            if not left:
                return
            if time.monotonic() > deadline:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, f"{len(left)} partitions have more records")
                )
    except KafkaException as error:
        refused = map_kafka_error(error.args[0], f"Kafka at {client.get('bootstrap.servers')}")
        raise (unavailable(refused) if isinstance(refused, TransientError) else refused) from error
    finally:
        consumer.close()


def _tail(
    consumer: Consumer, partition: TopicPartition, is_enough: Callable[[Sequence[bytes | None]], bool]
) -> Iterator[bytes | None]:
    low, end = watermarks(consumer, partition, TAILS_ANSWER_S)
    size = FIRST
    while end > low:
        begin = max(low, end - size)
        values = [message.value() for message in _between(consumer, partition, begin, end)]
        yield from values
        if is_enough(values):
            return
        end, size = begin, 2 * size


def _between(consumer: Consumer, partition: TopicPartition, begin: int, end: int) -> Iterator[Message]:
    """Yield the records from `begin` to before `end`, or to the partition's end, where transactions have markers."""
    consumer.assign([TopicPartition(partition.topic, partition.partition, begin)])
    never = threading.Event()
    for message in answers(
        consumer, TAILS_ANSWER_S, never, lambda: f"{partition.topic} cannot be read from offset {begin}"
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
