"""The checkpoint topic: one compacted partition with one key, whose last valid record is the position to resume from;
and its writer without a daemon, which removes or replaces the checkpoint.

The checkpoint is removed by a tombstone, as Kafka Connect does with the offsets of a connector (KIP-875). With
Kafka transactions, the record is written under the pipeline's own `transactional.id`, which fences a frozen daemon
and ends the open transaction of a killed daemon.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from cdcd.adapters.kafka.client import Properties, make_consumer, make_producer, prepare
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.adapters.kafka.outage import HANGS_S
from cdcd.adapters.kafka.reading import NO_TOPIC, answers, consumer_properties, watermarks
from cdcd.adapters.kafka.shared_id import IdUse, find_sharers, id_of, refusal
from cdcd.core.engine.checkpoint import FORMER_FORMAT, Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords, Ignored, Judging
from cdcd.core.errors import PositionError, TransientError

PARTITION: Final = 0

NO_ANSWER: Final = "no answer while reading the checkpoint"

TAIL_RECORDS: Final = 64
"""Number of records before the end to read first, because every transaction writes a checkpoint just before the end."""

TAIL_GROWTH: Final = 32
"""Factor by which the read goes further back if the tail has only aborted transactions, markers and ignored records."""


@dataclass(frozen=True, slots=True)
class CheckpointTopic:
    """The topic of a pipeline's checkpoint, and how the topic is reached.

    Attributes:
        client: librdkafka properties for the connection.
        records: rules for valid records, with the name of the pipeline.
        timeout_s: seconds that the broker may take for each answer.
    """

    client: Properties
    name: str
    records: CheckpointRecords
    timeout_s: float

    @property
    def group(self) -> str:
        """The consumer group that readers name."""
        return f"{self.records.pipeline}-checkpoint"

    def partition(self, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self.name, PARTITION, offset)


OnIgnored = Callable[[Ignored], None]
"""Called once for a read with the records that do not count, if there are any."""


def say_nothing(_ignored: Ignored) -> None:
    """Ignore the records, for a reader whose caller reports them after another read."""


class OpenTransactionError(KafkaException):
    """A transaction in the checkpoint's partition stayed open for `HANGS_S` while the checkpoint was read.

    Attributes:
        offset: first offset of the transaction.
        visible: last checkpoint before the transaction among the records that were read; None if there is none.
    """

    def __init__(self, offset: int, visible: Checkpoint | None) -> None:
        super().__init__(
            KafkaError(KafkaError._TIMED_OUT, f"a transaction in it is open, from offset {offset} on")
        )
        self.offset = offset
        self.visible = visible


def read_checkpoint(
    topic: CheckpointTopic,
    stopping: threading.Event,
    told: int = 0,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """Return the newest valid committed checkpoint of the pipeline, or None if there is no checkpoint yet.

    Args:
        stopping: another thread sets it to end the call soon.
        told: a position that cdcd confirmed to PostgreSQL. If the checkpoint does not reach this position, the
            whole topic is read.

    Raises:
        OpenTransactionError: a transaction stays open.
        KafkaException: the broker does not answer, or refuses; or `stopping` was set.
        PositionError: the pipeline has checkpoint records, but all are unreadable.
        SinkError: there are only records of another pipeline.
    """
    anything = make_consumer(consumer_properties(topic.client, topic.group, committed=False))
    try:
        low, high = watermarks(anything, topic.partition(), topic.timeout_s, stopping)
    finally:
        anything.close()
    consumer = make_consumer(consumer_properties(topic.client, topic.group))
    try:
        reading = _BackwardsReading(consumer, topic, stopping, told, on_ignored)
        return reading.search(low, high, high)
    finally:
        consumer.close()


def newest_checkpoint(
    topic: CheckpointTopic,
    stopping: threading.Event,
    told: int = 0,
) -> Checkpoint | None:
    """Return the newest valid checkpoint that was written, in a committed, open or aborted transaction.

    Raises as `read_checkpoint`.
    """
    return _peek(topic, stopping, exists=True, newest=True, told=told)


def peek_checkpoint(
    topic: CheckpointTopic,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """Return the newest valid committed checkpoint without writing; None also if the topic does not exist.

    Raises:
        TransientError: the checkpoint cannot be read, for any reason.
        PositionError, SinkError: as `read_checkpoint`.
    """
    try:
        return _peek(topic, threading.Event(), exists=False, newest=False, on_ignored=on_ignored)
    except KafkaException as error:
        raise TransientError(
            f"The checkpoint in {topic.name} cannot be read: {error.args[0].str()}"
        ) from error


def peek_at_start(
    topic: CheckpointTopic,
    stopping: threading.Event,
    *,
    exists: bool,
    newest: bool = False,
    told: int = 0,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """Return the newest valid committed checkpoint before another writer is fenced.

    A writer may be active: its transaction may be open, and the result may be out of date. So only the result of
    `read_checkpoint` after the fencing counts. Use a short `timeout_s`.

    Args:
        exists: True if the topic is known to exist, so that a broker that does not list it is asked again. False:
            without a topic there is no checkpoint.
        newest: True to return the last written checkpoint, in a committed, open or aborted transaction.
        told: as in `read_checkpoint`.

    Raises:
        TransientError: the broker does not answer, or `stopping` was set.
        SinkError: the broker refuses, or there are only records of another pipeline.
        PositionError: as `read_checkpoint`.
    """
    try:
        return _peek(
            topic,
            stopping,
            exists=exists,
            newest=newest,
            told=told,
            on_ignored=on_ignored,
        )
    except KafkaException as error:
        raise map_kafka_error(error.args[0], f"Reading the checkpoint from topic {topic.name}") from error


def _peek(
    topic: CheckpointTopic,
    stopping: threading.Event,
    *,
    exists: bool,
    newest: bool,
    told: int = 0,
    on_ignored: OnIgnored = say_nothing,
) -> Checkpoint | None:
    """Read the checkpoint by one consumer, for which the partition ends where its isolation level ends."""
    reader = make_consumer(consumer_properties(topic.client, topic.group, committed=not newest))
    try:
        try:
            low, high = watermarks(reader, topic.partition(), topic.timeout_s, stopping, exists=exists)
        except KafkaException as error:
            if error.args[0].code() in NO_TOPIC and not exists:
                return None
            raise
        if low == high:
            return None
        reading = _BackwardsReading(reader, topic, stopping, told, on_ignored)
        return reading.search(low, high, high if newest else low)
    finally:
        reader.close()


class _BackwardsReading:
    """A read of the partition, backwards from its end."""

    def __init__(
        self,
        consumer: Consumer,
        topic: CheckpointTopic,
        stopping: threading.Event,
        told: int,
        on_ignored: OnIgnored,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._stopping = stopping
        self._told = told
        self._on_ignored = on_ignored

    def search(self, low: int, high: int, until: int) -> Checkpoint | None:
        """Return the valid checkpoint between the offsets `low` and `high`.

        The read continues at least to the offset `until`.
        """
        reach = TAIL_RECORDS
        while True:
            start = max(low, high - reach)
            judging = self._topic.records.judging(self._topic.name)
            self._take(judging, start, until)
            if start == low or judging.is_settled(self._told):
                if judging.ignored is not None:
                    self._on_ignored(judging.ignored)
                return judging.result()
            reach *= TAIL_GROWTH

    def _take(self, judging: Judging, start: int, until: int) -> None:
        """Pass the committed records from `start` to the end of the partition to `judging`."""
        self._consumer.assign([self._topic.partition(start)])
        held, patience_s = -1, self._topic.timeout_s
        try:
            while held < until:
                for message in answers(
                    self._consumer, patience_s, self._stopping, lambda: NO_ANSWER, judging.unread
                ):
                    if message.error() is not None:
                        held, patience_s = message.offset() or 0, min(self._topic.timeout_s, HANGS_S)
                        break
                    judging.take(message.offset() or 0, message.key(), message.value(), id_of(message))
        except KafkaException as error:
            if held < 0 or self._stopping.is_set() or error.args[0].code() != KafkaError._TIMED_OUT:
                raise
            raise OpenTransactionError(held, judging.result()) from None


TRANSACTION_MS: Final = 60_000


Change = Callable[[Checkpoint | None], Checkpoint]
"""Returns the checkpoint to write. The argument is the newest checkpoint; None: the topic has no checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """Writes a pipeline's checkpoint without its daemon, after every other writer was fenced. Each method blocks.

    Attributes:
        producer: librdkafka properties of a producer, beside those of the topic's connection.
        use: the pipeline's use of its transactional id.

    Each method raises:
        TransientError: the broker does not answer.
        FencedError: another pipeline uses the transactional id, which this one has not used yet.
        FatalError: the broker refuses, or cdcd did not write the checkpoint record.
    """

    topic: CheckpointTopic
    producer: Properties
    use: IdUse

    def forget(self) -> None:
        """Write a tombstone over the checkpoint."""
        self._write(f"Taking back the checkpoint in topic {self.topic.name}", lambda: [None])

    def replace(self, change: Change) -> Checkpoint:
        """Write another checkpoint in place of the newest one, and return it.

        Args:
            change: gets the checkpoint that was read after every other writer was fenced, and returns the new one. Its
                exceptions are passed on.
        """
        made: list[Checkpoint] = []

        def values() -> list[bytes | None]:
            made.append(change(read_checkpoint(self.topic, threading.Event())))
            return [self.topic.records.encode(made[0], int(time.time() * 1000))]

        self._write(f"Writing the checkpoint in topic {self.topic.name}", values)
        return made[0]

    def downgrade(self, change: Change) -> None:
        """Write the checkpoint that `change` returns, and after it the same checkpoint in the former format."""

        def values() -> list[bytes | None]:
            made = change(read_checkpoint(self.topic, threading.Event()))
            encoded = self.topic.records.encode(made, int(time.time() * 1000))
            return [encoded, made.encode(version=FORMER_FORMAT)]

        self._write(f"Writing the checkpoint in topic {self.topic.name}", values)

    def _write(self, what: str, values: Callable[[], Sequence[bytes | None]]) -> None:
        """Write the records that `values` returns."""
        self.refuse_shared_id()
        topic, timeout_s = self.topic, self.topic.timeout_s
        refused: list[KafkaException] = []
        properties: dict[str, Any] = {
            **topic.client,
            **self.producer,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "on_delivery": lambda error, _: (
                refused.append(KafkaException(error)) if error is not None else None
            ),
        }
        if self.use.transactional_id:
            properties |= {
                "transactional.id": self.use.transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
            }
        prepare(properties)
        try:
            sender = make_producer(properties)
            if self.use.transactional_id:
                sender.init_transactions(timeout_s)
            written = values()
            if self.use.transactional_id:
                sender.begin_transaction()
            for data in written:
                headers = [] if data is None else self.use.headers
                sender.produce(
                    topic.name, key=topic.records.key, value=data, partition=PARTITION, headers=headers
                )
            left = sender.flush(timeout_s)
            if refused:
                raise refused[0]
            if left:
                sender.purge()
                raise TransientError(f"{what}: no answer in {timeout_s:g} s")
            if self.use.transactional_id:
                sender.commit_transaction(timeout_s)
        except KafkaException as error:
            raise map_kafka_error(error.args[0], what) from error

    def refuse_shared_id(self) -> None:
        """Raise FencedError if the producer would shut out another pipeline; see `shared_id.py`."""
        if not self.use.transactional_id:
            return
        system_identifier = ""
        # A record that cannot be read names no id.
        with suppress(PositionError):
            found = peek_checkpoint(self.topic)
            if found is not None:
                if self.topic.records.transactional_id == self.use.transactional_id:
                    return
                system_identifier = found.system_identifier
        others = find_sharers(self.topic.client, self.topic.name, self.use, system_identifier)
        if refused := refusal(others.sharers, self.use.transactional_id):
            raise refused
