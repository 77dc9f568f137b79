"""Stage 7: batches -> Kafka, each with its checkpoint, each exactly once.

The rule: a batch's outcome is known before the next one begins. A batch and the checkpoint that covers it are one
Kafka transaction. Where the outcome of a transaction is unknown (a timeout, a lost coordinator), its producer is
thrown away: a new one with the same `transactional.id` fences it, `init_transactions` waits until the broker has
decided, and the checkpoint, read back, says what was decided (KAFKA-17754, KIP-890: a late EndTxn must not meet the
next transaction). That is the one way of recovery, whatever failed; a broker that is away is waited for, with the
batch in hand.

Before a new producer fences the old one, `prove_ownership` is called: only the holder of the advisory lock may, so
that an instance that was frozen and wakes up does not take the topics away from its successor. The same is asked before
a batch and, without Kafka transactions, before its checkpoint, when the last proof is older than the lease.

Everything here blocks, and runs in one thread that nothing else uses. No message is awaited by itself:
`commit_transaction` (or `flush`) is the acknowledgement, and the only callback is for messages that failed.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcd.errors import CdcdError, FatalError, FencedError, TransientError
from cdcd.kafka.checkpoint import PARTITION, read_checkpoint
from cdcd.kafka.client import Properties
from cdcd.kafka.errors import map_kafka_error
from cdcd.kafka.oversized import Oversized
from cdcd.transactions.batches import Batch
from cdcd.transactions.position import Checkpoint

SLICE_S: Final = 0.5
"""Blocking calls return this often to see whether we are being stopped."""

BATCH_SIZE: Final = 1_000_000
"""librdkafka's default `batch.size`, which fits into a topic's default `max.message.bytes`."""

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""What is in a request where a transaction holds more: the next one is filled while it is under way.

A topic takes 1 MB of compressed records in a request, which so much JSON usually is not.
"""

MESSAGE_BYTES_MAX: Final = 1_000_000_000
"""What librdkafka takes at most for `message.max.bytes`."""

BATCH_MESSAGES: Final = 1_000_000
"""What librdkafka takes at most for `batch.num.messages`."""

PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

TOPICS_REFUSED: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
)
"""What the coordinator says when it takes a topic into a transaction, without the topic's name."""

NAMED_MAX: Final = 8

NO_BROKER: Final = -1
"""The id of a bootstrap server, which does not say whose address it is."""

MARKERS_S: Final = 0.001
"""What the broker needs after its answer to a commit to write the markers, usually.

A transaction that comes earlier is refused (CONCURRENT_TRANSACTIONS), and librdkafka waits 20 ms before it tries again
(rdkafka_txnmgr.c, rd_kafka_txn_handle_AddPartitionsToTxn): one in twenty where the next one follows at once.
"""

SHRINK: Final = 4
SMALLEST_BATCH: Final = 16_384


@dataclass(frozen=True, slots=True)
class _Failed:
    """A record that was not delivered; `local`: librdkafka refused it before it was sent."""

    error: KafkaError
    topic: str
    key: bytes | None
    value: bytes | None
    local: bool


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How to reach Kafka and what to promise.

    `client` holds librdkafka's connection properties (also for the checkpoint's consumer), `producer` those that only
    a producer knows. `key` is the checkpoint record's key, the pipeline's name. `batch_bytes_max`: about the size
    of a batch that small transactions share; a part of a large one has more.
    """

    client: Properties
    producer: Properties
    exactly_once: bool
    transactional_id: str
    checkpoint_topic: str
    key: str
    batch_bytes_max: int
    timeout_s: float
    backoff_initial_s: float
    backoff_max_s: float

    @property
    def record_bytes_max(self) -> int:
        """A record larger than this is taken for what the broker refuses, when it refuses something for its size."""
        return int(str(self.producer.get("message.max.bytes", BATCH_SIZE)))

    @property
    def batch_size(self) -> int:
        """librdkafka's `batch.size` to begin with: a batch's records for one partition in one request.

        An idempotent producer has one request for a partition under way, and while it is flushed and another request
        waits behind it, librdkafka's thread polls without a pause (rdkafka_broker.c, rd_kafka_toppar_producer_serve;
        rdkafka_msg.c, rd_kafka_msgq_allow_wakeup_at): as much CPU as all the rest of its work.
        """
        given = self.producer.get("batch.size")
        if given:
            return int(str(given))
        if self.batch_bytes_max > REQUEST_BYTES:
            return REQUEST_BYTES
        # A batch goes a little beyond that, and librdkafka counts some 40 bytes more for a record.
        return max(self.batch_bytes_max * 5 // 4, BATCH_SIZE)


class Sink:
    """The only writer to Kafka. `open`, then `deliver` batch after batch, then `close`.

    Args:
        prove_ownership: called before fencing; raises unless this instance holds the advisory lock at this moment.
        credentials: those of the client's properties that may have changed, as they are now; asked for each producer.
        lapsed: whether that was last proven longer ago than the lease allows.
        stopping: set from outside to make a waiting call give up with a `TransientError`.
        oversized: what to do with a record that the broker refuses for its size.
        on_retry: told of each failure that is waited out, with the seconds until the next attempt.
    """

    def __init__(
        self,
        settings: SinkSettings,
        *,
        prove_ownership: Callable[[], None],
        credentials: Callable[[], Properties],
        lapsed: Callable[[], bool],
        stopping: threading.Event,
        oversized: Oversized,
        on_retry: Callable[[CdcdError, float], None],
    ) -> None:
        self._settings = settings
        self._prove_ownership = prove_ownership
        self._credentials = credentials
        self._lapsed = lapsed
        self._stopping = stopping
        self._oversized = oversized
        self._on_retry = on_retry
        self._producer: Producer | None = None
        self._committed: Checkpoint | None = None
        self._answered_at = 0.0
        self._failed: _Failed | None = None
        self._batch_size = settings.batch_size
        self._where = f"Kafka at {settings.client.get('bootstrap.servers')}"
        if settings.exactly_once:
            self._where += f", transactional id {settings.transactional_id}"
        self._context = self._where

    def open(self) -> Checkpoint | None:
        """Fence any other producer of this pipeline and read where to resume.

        Raises:
            TransientError: the broker does not answer.
            FatalError: it refuses, or the record read is not ours.
        """
        self._batch_size = self._settings.batch_size
        try:
            self._open_producer()
            return self._committed
        except KafkaException as error:
            failure = self._map(error)
            self._discard()
            raise failure from error

    def close(self) -> None:
        """Give up whatever is not committed; the broker aborts it when the next producer comes."""
        self._discard()

    def deliver(self, batch: Batch, checkpoint: Checkpoint) -> None:
        """Return when the broker holds the batch and `checkpoint`; wait as long as that takes.

        Raises:
            FencedError: another instance took over.
            SinkError: the broker refuses a record, a topic or us.
            TransientError: stopped while waiting, or the topic's checkpoint is not what we left there: start over.
        """
        wait_s = self._settings.backoff_initial_s
        while True:
            try:
                if self._producer is None:
                    before = self._committed
                    self._open_producer()
                    if self._committed == checkpoint:
                        return
                    if self._committed is not None and self._committed.epoch > checkpoint.epoch:
                        raise FencedError(
                            "Another instance took over while the broker was away from this one.",
                            hint="Nothing is lost. Start this one again: it stands by.",
                        )
                    if self._settings.exactly_once and self._committed != before:
                        raise TransientError(
                            "The checkpoint changed while the broker was away.",
                            hint="Another instance wrote it; starting over from there.",
                        )
                assert self._producer is not None
                self._send(self._producer, batch, checkpoint)
            except KafkaException as error:
                if self._refit(batch):
                    self._discard()
                    continue
                failure = self._map(error, batch)
                self._discard()
                if isinstance(failure, FatalError):
                    raise failure from error
                self._on_retry(failure, wait_s)
                if self._stopping.wait(wait_s):
                    raise failure from error
                wait_s = min(2 * wait_s, self._settings.backoff_max_s)
            else:
                self._committed = checkpoint
                return

    def _open_producer(self) -> None:
        settings = self._settings
        self._prove_ownership()
        client = {**settings.client, **self._credentials()}
        properties: dict[str, object] = {
            "batch.num.messages": BATCH_MESSAGES,
            **client,
            **settings.producer,
            "enable.idempotence": True,
            "acks": "all",
            "delivery.report.only.error": True,
            "on_delivery": self._on_failed,
        }
        # What a single record may be, however small the requests have become: one for the dead letters is large.
        whole = max(2 * settings.batch_bytes_max, settings.batch_size, BATCH_SIZE)
        properties.setdefault("message.max.bytes", min(whole, MESSAGE_BYTES_MAX))
        if self._batch_size:
            properties["batch.size"] = self._batch_size
        else:
            properties["batch.num.messages"] = 1
        if settings.exactly_once:
            properties["transactional.id"] = settings.transactional_id
            properties["transaction.timeout.ms"] = int(settings.timeout_s * 1000)
        self._failed = None
        self._context = self._where
        self._producer = Producer(properties)
        if settings.exactly_once:
            self._await_broker(self._producer)
            self._insist(self._producer.init_transactions)
        self._context = f"Reading the checkpoint from topic {settings.checkpoint_topic}"
        self._committed = read_checkpoint(
            client, settings.checkpoint_topic, settings.key, settings.timeout_s, self._stopping
        )
        self._context = self._where

    def _await_broker(self, producer: Producer) -> None:
        """Wait until one is connected, for a moment: what is in the way of that, the next call says better.

        Without one that is, librdkafka looks again for one to ask for the coordinator only after half a second
        (rdkafka_txnmgr.c, rd_kafka_txn_coord_query). It lets go of a bootstrap server once it has told of the brokers.
        """
        deadline = time.monotonic() + SLICE_S
        with suppress(KafkaException):
            while producer.list_topics(self._settings.checkpoint_topic, SLICE_S).orig_broker_id == NO_BROKER:
                if time.monotonic() > deadline:
                    return

    def _send(self, producer: Producer, batch: Batch, checkpoint: Checkpoint) -> None:
        self._check_lease()
        if self._settings.exactly_once:
            time.sleep(max(0.0, self._answered_at + MARKERS_S - time.monotonic()))
            producer.begin_transaction()
            # First, so that one request takes its partition and those of the records into the transaction, and while
            # librdkafka's queue has room for it.
            self._produce_checkpoint(producer, checkpoint)
        batch.handed_over = 0
        while batch.handed_over < len(batch.records):
            try:
                batch.hand_over(producer.produce)
            except BufferError:
                self._make_room(producer)
            except KafkaException as error:
                topic, key, value, _ = batch.records[batch.handed_over]
                self._failed = _Failed(error.args[0], topic, key, value, local=True)
                self._abort(producer)
                raise
        if not self._settings.exactly_once:
            # The checkpoint must not outlive records that it covers: first they, then it.
            self._flush(producer)
            self._check_lease()
            self._produce_checkpoint(producer, checkpoint)
            self._flush(producer)
        else:
            self._insist(producer.commit_transaction)
            self._answered_at = time.monotonic()

    def _abort(self, producer: Producer) -> None:
        """End a transaction that has just begun, before its producer goes.

        librdkafka asserts, and takes the process with it, where a producer is destroyed at the moment at which it sends
        the first partitions of a transaction (rdkafka_txnmgr.c, rd_kafka_txn_handle_AddPartitionsToTxn).
        """
        if self._settings.exactly_once:
            with suppress(KafkaException):
                producer.abort_transaction(SLICE_S)

    def _produce_checkpoint(self, producer: Producer, checkpoint: Checkpoint) -> None:
        settings = self._settings
        producer.produce(settings.checkpoint_topic, checkpoint.encode(), settings.key, PARTITION)

    def _check_lease(self) -> None:
        if self._lapsed():
            self._prove_ownership()

    def _insist(self, call: Callable[[float], object]) -> None:
        """A call that may be repeated to go on waiting, as librdkafka's transaction calls may after a timeout."""
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            try:
                call(SLICE_S)
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or time.monotonic() > deadline or self._stopping.is_set():
                    raise
            else:
                return

    def _flush(self, producer: Producer) -> None:
        deadline = time.monotonic() + self._settings.timeout_s
        while producer.flush(SLICE_S):
            self._check_waiting(deadline)
        self._raise_failed()

    def _make_room(self, producer: Producer) -> None:
        """librdkafka's own queue is full: wait until it has sent something."""
        producer.poll(SLICE_S)
        self._raise_failed()
        self._check_waiting(None)

    def _check_waiting(self, deadline: float | None) -> None:
        if self._stopping.is_set() or (deadline is not None and time.monotonic() > deadline):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records were not acknowledged in time"))

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise KafkaException(self._failed.error)

    def _on_failed(self, error: KafkaError | None, message: Message) -> None:
        # The first failure is the cause; records purged are its consequence, or that of what the commit raises.
        if error is not None and self._failed is None and error.code() not in PURGED:
            self._failed = _Failed(error, message.topic() or "", message.key(), message.value(), local=False)

    def _refit(self, batch: Batch) -> bool:
        """After a refusal for size: replace a record that is too large by itself, or try smaller produce requests.

        librdkafka does not split a request that the broker refuses, and the broker's limit (`max.message.bytes`) is for
        the request's whole record batch, compressed. True when another attempt makes sense.
        """
        failed = self._failed
        if failed is None or failed.error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return False
        if self._batch_size and not failed.local:
            limit = self._settings.record_bytes_max
            for topic, key, value, _ in batch.records:
                # One that was sent to the dead letters is large, and may lie in the same batch.
                if topic == failed.topic and len(key or b"") + len(value or b"") > limit:
                    self._failed = failed = _Failed(failed.error, topic, key, value, local=True)
                    break
            else:
                smaller = BATCH_SIZE if self._batch_size > BATCH_SIZE else self._batch_size // SHRINK
                self._batch_size = smaller if smaller >= SMALLEST_BATCH else 0
                return True
        return self._oversized.replace(batch, failed.topic, failed.key, failed.value)

    def _map(self, error: KafkaException, batch: Batch | None = None) -> CdcdError:
        cause = error.args[0]
        context = self._context
        if batch is not None and cause.code() in TOPICS_REFUSED:
            topics = sorted({record[0] for record in batch.records} | {self._settings.checkpoint_topic})
            context += (
                f", writing to {', '.join(topics[:NAMED_MAX])}{' and others' * (len(topics) > NAMED_MAX)}"
            )
        failed = self._failed
        if failed is not None:
            cause = failed.error
            size = len(failed.key or b"") + len(failed.value or b"")
            context = f"A record of {size} bytes for topic {failed.topic} with key {_shorten(failed.key)}"
        return map_kafka_error(cause, context)

    def _discard(self) -> None:
        """Drop the producer and all that it has in flight, without waiting for a broker that may be away."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            # Raises what made the producer unusable, which is known by now.
            with suppress(KafkaException):
                producer.poll(0)
        self._failed = None


def _shorten(key: bytes | None) -> str:
    text = "none" if key is None else key.decode(errors="replace")
    return text if len(text) <= 200 else f"{text[:200]}…"
