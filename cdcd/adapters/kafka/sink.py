"""Stage 7: writer of batches to Kafka, each with its checkpoint, each exactly once.

The rule: a batch and the checkpoint that covers it are one Kafka transaction, whose outcome is known before the
next transaction begins. `cdcd.adapters.kafka.transaction_state` decides the next steps, also after a failure. This
module carries the decisions out with librdkafka.

Before a new producer fences the old one, `prove_ownership` is called. Only the holder of the advisory lock may
fence, so that an instance that was frozen does not fence its successor when it wakes up. If the last proof is older
than the lease, ownership is also proved before each batch and, without Kafka transactions, before the batch's
checkpoint.

All calls here block, and run in one thread that nothing else uses. No message is awaited individually:
`commit_transaction` (or `flush`) is the acknowledgement, and the callback gets only failed messages.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcd.adapters.kafka.checkpoint import (
    PARTITION,
    CheckpointTopic,
    OnIgnored,
    OpenTransactionError,
    newest_checkpoint,
    read_checkpoint,
    say_nothing,
)
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.errors import UNANSWERED, map_kafka_error
from cdcd.adapters.kafka.outage import Expiry, Settling, is_acknowledged
from cdcd.adapters.kafka.oversized import FailedRecord, Fitting, FlushFirstError, Oversized, SizeLimits
from cdcd.adapters.kafka.partitions import Marking, ToPartitions, counter, to_whole_topics
from cdcd.adapters.kafka.producer import SinkSettings, construct, producer_properties
from cdcd.adapters.kafka.shared_id import find_sharers, shared_hint
from cdcd.adapters.kafka.transaction_state import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Action,
    CallEnd,
    Event,
    Step,
    TransactionState,
    error_of,
    event_of,
)
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.batch import GIVEN_AWAY, Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError, FencedError, SinkError, TopicRefusedError, TransientError
from cdcd.core.records.encoder import Produce, record_bytes

SLICE_S: Final = 0.5
"""Seconds after which a blocking call returns, to check whether the sink is being stopped."""

RELEASE_SLICE_S: Final = 0.002
"""Seconds between two checks for the acknowledgement of a part. The next part, already encoded, waits for this
acknowledgement."""

TAIL_S: Final = 0.1
"""Seconds without an acknowledgement after which the producer is flushed, because the records before a part may wait
for more records to fill a request. Most brokers answer sooner."""

ABORT_S: Final = 2.0
"""Longest wait in seconds for the abort of a transaction. If the abort fails, the next producer aborts it."""

DRAIN_S: Final = 2.0
"""Longest wait in seconds for answers to a producer without transactions, before it is dropped."""

PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

TOPICS_REFUSED: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
)
"""Codes of the coordinator's errors when it adds topics to a transaction. These errors do not name the topic."""

CONSEQUENCES: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._STATE})
"""Codes of a call's errors that may be the consequence of a refused request. The delivery reports of the request's
records show the refusal."""

CAUSE_S: Final = 0.5
"""Maximum seconds to wait for such a delivery report. The report arrives at once, if there is one."""

NAMED_MAX: Final = 8

NO_BROKER: Final = -1
"""Broker id of a bootstrap server in librdkafka's errors, which does not identify the broker."""

MARKERS_S: Final = 0.001
"""Seconds that a broker usually needs to write the markers of a transaction, after its answer to the commit.

The broker refuses a transaction that begins earlier (CONCURRENT_TRANSACTIONS), and librdkafka then waits 20 ms
before its next attempt (rdkafka_txnmgr.c, rd_kafka_txn_handle_AddPartitionsToTxn). Without this pause, one
transaction in twenty was refused.
"""


OPEN_HINT: Final = (
    "cdcd tries again. If another producer has the transaction open, stop it. If no producer has it open, it hangs: "
    "docs/troubleshooting.md shows how to end it."
)
"""Hint for a transaction in the checkpoint topic whose outcome is unknown."""


class _SilentError(KafkaException):
    """No answer arrived in time."""

    def __init__(self, why: str) -> None:
        super().__init__(KafkaError(KafkaError._TIMED_OUT, why))


class _GivenUpError(_SilentError):
    """The sink was stopped while it waited. Nothing indicates a failure of Kafka."""

    def __init__(self) -> None:
        super().__init__("the sink was stopped")


class _StoppedError(Exception):
    """`stopping` is set, so nothing is retried."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The advisory lock, as the sink needs it.

    Attributes:
        prove: called before fencing. Raises an exception if this instance does not hold the advisory lock now.
        lapsed: returns True if the last proof of ownership is older than the lease.
    """

    prove: Callable[[], None]
    lapsed: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SinkReports:
    """The functions by which the sink reports.

    Attributes:
        on_retry: called for each failure after which the sink tries again, with the seconds until then.
        on_ended: called with the offset of a hanging transaction that the sink has ended in the checkpoint topic.
        on_ignored: called with the records of the checkpoint topic that do not count, if there are any.
    """

    on_retry: Callable[[CdcdError, float], None]
    on_ended: Callable[[int], None] = lambda _offset: None
    on_ignored: OnIgnored = say_nothing


@dataclass(frozen=True, slots=True)
class KnownOfBrokers:
    """What a process has learned of the brokers. All of its sinks share these objects.

    Attributes:
        sizes: sizes that brokers have refused.
        settling: delay of the end of a transaction after an outage.
        topics: topics that sessions of this process have created or checked.
    """

    sizes: SizeLimits = field(default_factory=SizeLimits)
    settling: Settling = field(default_factory=Settling)
    topics: set[str] = field(default_factory=set)


class Sink:
    """The only writer to Kafka. Call `open`, then `deliver` for each batch, then `close`.

    Args:
        credentials: returns the current values of the client properties that may change. Called for each new
            producer.
        stopping: another thread sets it to end a waiting call with a `TransientError`.
        oversized: policy for a record that the broker refuses for its size.
    """

    def __init__(
        self,
        settings: SinkSettings,
        ownership: Ownership,
        reports: SinkReports,
        known: KnownOfBrokers,
        *,
        credentials: Callable[[], Properties],
        stopping: threading.Event,
        oversized: Oversized,
    ) -> None:
        self._settings = settings
        self._ownership = ownership
        self._reports = reports
        self._credentials = credentials
        self._stopping = stopping
        self._oversized = oversized
        self._fitting = Fitting(settings, oversized, known.sizes)
        self._settling = known.settling
        self._state = TransactionState(EXACTLY_ONCE if settings.exactly_once else AT_LEAST_ONCE)
        self._backoff = settings.retry.backoff()
        self._producer: Producer | None = None
        self._produce: Produce | None = None
        self._client: Properties = settings.client
        self._found: Checkpoint | None = None
        self._told = 0
        self._batch: Batch | None = None
        self._former: Batch | None = None
        self._checkpoint: Checkpoint | None = None
        self._expiry = Expiry(settings.timeout_s)
        self._answered_at = 0.0
        self._flushes_parts = False
        """True if records before a part have been seen to wait for more records; see `_release`."""
        self._failed: FailedRecord | None = None
        self._failure: CdcdError | None = None
        self._cause: BaseException | None = None
        self._checkpoint_headers = settings.id_use.headers
        self._where = f"Kafka at {settings.client.get('bootstrap.servers')}"
        if settings.exactly_once:
            self._where += f", transactional id {settings.transactional_id}"
        self._context = self._where
        self._steps: Mapping[Step, Callable[[], None]] = {
            Step.PROVE: ownership.prove,
            Step.CREATE: self._create,
            Step.FENCE: self._fence,
            Step.READ: self._read,
            Step.LEASE: self._check_lease,
            Step.BEGIN: self._begin,
            Step.NOTE: self._note,
            Step.HAND_OVER: self._hand_over,
            Step.GIVE_AWAY: self._give_away,
            Step.RELEASE: self._release,
            Step.FLUSH: self._flush,
            Step.COMMIT: self._commit,
            Step.FIT: self._fit,
            Step.PAUSE: self._pause,
            Step.ABORT: self._abort,
            Step.DRAIN: self._drain,
            Step.DISCARD: self._discard,
        }

    def open(self, told: int = 0) -> Checkpoint | None:
        """Fence any other producer of this pipeline, and read the checkpoint to resume from.

        Args:
            told: a position that was confirmed to PostgreSQL because of a checkpoint in Kafka.

        Raises:
            TransientError: the broker, or the store for claim checks, does not answer.
            FatalError: the broker refuses, or cdcd did not write the record in the checkpoint topic.
            LimitError: the place for claim checks refuses a value.
        """
        self._oversized.prove()
        self._told = told
        self._carry_out(self._state.open())
        return self._state.committed

    @property
    def outcome_unknown(self) -> bool:
        """True if Kafka may hold the checkpoint of the last `deliver`, which failed."""
        return self._state.outcome_unknown

    def close(self) -> None:
        """Discard everything that is not committed. An open transaction is aborted, now or by the next producer."""
        self._carry_out(self._state.close())

    def deliver(self, batch: Batch, checkpoint: Checkpoint) -> None:
        """Return when the broker has stored the batch and `checkpoint`, without a time limit.

        A batch with `closes` False is a part, and leaves its Kafka transaction open for the next part. For a part,
        the call returns when all earlier parts are acknowledged and this part is in flight. The checkpoint is not
        written for a part.

        Raises:
            FencedError: another instance has taken over.
            TopicRefusedError: the broker refuses a record or a topic. After `open`, the batch can be delivered without.
            SinkError: the broker refuses this principal.
            TransientError: the session must start again. The sink was stopped while it waited, another client
                changed the checkpoint, or the transaction failed after memory of a part was released.
        """
        self._batch, self._checkpoint = batch, checkpoint
        batch.handed_over = 0
        self._backoff.reset()
        self._carry_out(self._state.deliver(checkpoint, closes=batch.closes))
        self._former = None if batch.closes else batch
        if batch.closes:
            self._fitting.committed()

    def _carry_out(self, action: Action) -> None:
        """Carry out actions, one after the other, until an action ends the call."""
        while True:
            event = self._attempt(action)
            if action.end is not None:
                break
            action = self._state.done(self._found) if event is Event.DONE else self._state.failed(event)
        failure, cause = self._failure, self._cause
        self._failure = self._cause = None
        if action.end is not CallEnd.RETURN:
            raise error_of(action.end, failure) from cause

    def _attempt(self, action: Action) -> Event:
        """Carry out the steps of an action. Returns the resulting event."""
        try:
            for step in action.steps:
                self._steps[step]()
        except _StoppedError:
            return Event.STOPPED
        except CdcdError as error:
            # The error is not Kafka's: the lock is lost, cdcd did not write the checkpoint, or a file cannot be
            # written.
            self._failure, self._cause = error, error.__cause__
            return Event.REFUSED
        except KafkaException as error:
            self._hear_cause(error)
            self._failure = _stopped() if isinstance(error, _GivenUpError) else self._map(error)
            self._cause = error
            failed = self._failed
            too_large = failed is not None and failed.is_too_large
            silent = isinstance(error, _SilentError) and self._credentials_hold()
            return event_of(self._failure, too_large=too_large, silent=silent)
        return Event.DONE

    # Creating a producer.

    def _create(self) -> None:
        settings = self._settings
        self._client = {**settings.client, **self._credentials()}
        self._failed = None
        self._expiry.replaced()
        self._flushes_parts = False
        self._context = self._where
        self._producer = construct(
            producer_properties(settings, self._client, self._fitting.batch_size, self._on_failed),
            self._where,
        )
        produce: Produce = self._producer.produce
        if settings.parted:
            produce = ToPartitions(produce, counter(self._producer))
        self._produce = to_whole_topics(produce) if settings.shares else produce
        if self._batch is not None:
            self._batch.handed_over = 0

    def _credentials_hold(self) -> bool:
        """Return True if the credentials are still those of the producer.

        If they are not, a new producer may get an answer.
        """
        return self._client == {**self._settings.client, **self._credentials()}

    def _fence(self) -> None:
        self._await_broker()
        now = time.monotonic()
        if self._settling.wait_s(now, now):
            # `init_transactions` makes the coordinator abort the transaction that the former producer left open. An
            # abort needs leaders as a commit does. librdkafka would send the request as soon as a broker is reachable
            # again.
            self._await_answer()
            self._settle()
        self._insist(self._live.init_transactions)

    def _await_answer(self) -> None:
        """Wait until a broker answers. KafkaException: no broker answered, or the request was refused."""
        deadline = time.monotonic() + self._settings.answer_s
        while True:
            try:
                self._live.list_topics(self._settings.checkpoint_topic, SLICE_S)
            except KafkaException as error:
                is_silent = error.args[0].code() in UNANSWERED
                if not is_silent or time.monotonic() > deadline or self._stopping.is_set():
                    raise
            else:
                return

    def _await_broker(self) -> None:
        """Wait briefly until a broker is connected; without one, the next call raises the better error.

        If no broker is connected, librdkafka looks for the coordinator again only after half a second
        (rdkafka_txnmgr.c, rd_kafka_txn_coord_query). A bootstrap server does not count, because librdkafka
        disconnects from it after it has returned the list of brokers.
        """
        deadline = time.monotonic() + SLICE_S
        topic = self._settings.checkpoint_topic
        with suppress(KafkaException):
            while self._live.list_topics(topic, SLICE_S).orig_broker_id == NO_BROKER:
                if time.monotonic() > deadline:
                    return

    def _read(self) -> None:
        settings = self._settings
        client = {**settings.client, **self._credentials()}
        topic = CheckpointTopic(client, settings.checkpoint_topic, settings.records, settings.answer_s)
        self._context = f"Reading the checkpoint from topic {settings.checkpoint_topic}"
        try:
            self._found = read_checkpoint(topic, self._stopping, self._told, self._reports.on_ignored)
        except OpenTransactionError as held:
            hidden = newest_checkpoint(topic, self._stopping, self._told) if settings.exactly_once else None
            committed = self._state.committed
            if not is_acknowledged(hidden, held.visible, committed=committed, told=self._told):
                raise
            assert hidden is not None, "it is acknowledged"
            self._end_hanging(hidden)
            self._found = read_checkpoint(topic, self._stopping, self._told, self._reports.on_ignored)
            self._reports.on_ended(held.offset)
        self._context = self._where

    def _end_hanging(self, checkpoint: Checkpoint) -> None:
        """Commit `checkpoint` once more: this commit also ends the hanging transaction that contains it."""
        self._begin()
        self._produce_checkpoint(checkpoint)
        self._commit()

    @property
    def _live(self) -> Producer:
        assert self._producer is not None, "the machine created one"
        return self._producer

    # Steps of a transaction.

    def _check_lease(self) -> None:
        if self._ownership.lapsed():
            self._ownership.prove()

    def _begin(self) -> None:
        time.sleep(max(0.0, self._answered_at + MARKERS_S - time.monotonic()))
        self._expiry.begun(time.monotonic())
        self._live.begin_transaction()

    def _note(self) -> None:
        assert self._checkpoint is not None
        self._produce_checkpoint(self._checkpoint)

    def _produce_checkpoint(self, checkpoint: Checkpoint) -> None:
        records = self._settings.records
        value = records.encode(checkpoint, int(time.time() * 1000))
        topic = self._settings.checkpoint_topic
        self._live.produce(topic, value, records.key, PARTITION, headers=self._checkpoint_headers)

    def _hand_over(self) -> None:
        self._give(self._given.hand_over)

    def _give_away(self) -> None:
        batch, keep_over = self._given, self._settings.record_bytes_max
        self._give(lambda produce: batch.give_away(produce, keep_over))

    def _give(self, hand_over: Callable[[Produce], None]) -> None:
        producer, produce, batch = self._live, self._produce, self._given
        assert produce is not None, "it is made with the producer"
        self._fitting.prepare(batch)
        alone = None if self._settings.exactly_once else self._fitting.alone(batch, produce)
        if alone is not None:
            produce = alone
        silent_at = time.monotonic() + self._settings.answer_s
        count = batch.count
        while batch.handed_over < count:
            before = batch.handed_over
            try:
                hand_over(produce)
            except FlushFirstError:
                assert alone is not None, "it raised the exception"
                self._await_acknowledged(0, SLICE_S)
                alone.flushed()
                silent_at = time.monotonic() + self._settings.answer_s
            except BufferError:
                # librdkafka's own queue is full: wait until it has sent some records.
                if batch.handed_over > before:
                    silent_at = time.monotonic() + self._settings.answer_s
                producer.poll(SLICE_S)
                self._check_waiting(silent_at)
            except KafkaException as error:
                if not self._fitting.replace_here(batch, error.args[0]):
                    # librdkafka accepts no record after a failed request of the transaction; that request is the
                    # cause.
                    self._hear_cause(error)
                    if self._failed is None:
                        topic, key, value, headers = batch.records[batch.handed_over]
                        size = record_bytes(key, value, headers)
                        self._failed = FailedRecord(
                            error.args[0], whole_topic(topic), key, value, local=True, size=size
                        )
                    # The transaction is aborted first: an assertion in librdkafka ends the process if a producer is
                    # destroyed while it sends the first partitions of a transaction (rdkafka_txnmgr.c,
                    # rd_kafka_txn_handle_AddPartitionsToTxn).
                    self._abort()
                    raise
        if alone is not None and alone.is_unanswered:
            self._await_acknowledged(0, SLICE_S)
        self._mark()

    def _mark(self) -> None:
        """Produce the watermarks of the batch, if it has any, after its records."""
        producer, batch = self._live, self._given
        if batch.watermark is None:
            return
        silent_at = time.monotonic() + self._settings.answer_s
        marking = Marking(producer, batch.watermark)
        while True:
            try:
                marking.produce()
            except BufferError:
                producer.poll(SLICE_S)
                self._check_waiting(silent_at)
            except KafkaException as error:
                self._hear_cause(error)
                # As for a record.
                self._abort()
                raise
            else:
                batch.marks = marking.count
                return

    @property
    def _given(self) -> Batch:
        assert self._batch is not None, "a batch was given"
        return self._batch

    def _release(self) -> None:
        """Wait until the parts before this one are acknowledged.

        Their last records leave in one request with the first records of this part, so the producer need not be
        flushed. While it is flushed and a request waits behind another, librdkafka's thread polls without a pause
        (rdkafka_msg.c, rd_kafka_msgq_allow_wakeup_at), so that a large transaction takes 7 % more time on two
        cores. If this part does not fill a request for each partition, the records before it wait for `linger.ms`.
        So if no acknowledgement arrives for `TAIL_S`, the producer is flushed, and for later parts it is flushed at
        once.
        """
        producer, own = self._live, self._given.count
        left = len(producer)
        flushed_at = time.monotonic() + TAIL_S
        while left > own and not self._flushes_parts and not self._stopping.is_set():
            producer.poll(RELEASE_SLICE_S)
            self._raise_failed()
            before, left = left, len(producer)
            now = time.monotonic()
            if left < before:
                flushed_at = now + TAIL_S
            self._flushes_parts = now > flushed_at
        self._await_acknowledged(own, RELEASE_SLICE_S)

    def _flush(self) -> None:
        self._await_acknowledged(0, SLICE_S)

    def _await_acknowledged(self, but: int, slice_s: float) -> None:
        """Send all records of the producer, and wait until at most `but` records are unacknowledged."""
        producer = self._live
        left = len(producer)
        silent_at = time.monotonic() + self._settings.answer_s
        while left > but:
            before, left = left, producer.flush(slice_s)
            if left < before:
                silent_at = time.monotonic() + self._settings.answer_s
            self._check_waiting(silent_at)
        self._raise_failed()

    def _check_waiting(self, deadline: float) -> None:
        self._raise_failed()
        if self._stopping.is_set():
            raise _GivenUpError
        if time.monotonic() > deadline:
            raise _SilentError("records were not acknowledged in time")

    def _commit(self) -> None:
        # Otherwise the commit would send the end of the transaction as soon as the last record is acknowledged.
        self._await_acknowledged(0, SLICE_S)
        self._settle()
        self._insist(self._live.commit_transaction)
        self._expiry.committed()
        self._answered_at = time.monotonic()

    def _settle(self) -> None:
        """Wait until a transaction may end (`outage.py`). KafkaException: the sink is being stopped."""
        asked_at = time.monotonic()
        while (wait_s := self._settling.wait_s(asked_at, time.monotonic())) > 0:
            if self._stopping.wait(min(wait_s, SLICE_S)):
                raise _GivenUpError

    def _insist(self, call: Callable[[float], object]) -> None:
        """Repeat a call until it succeeds. librdkafka's transaction calls may be repeated after a timeout."""
        deadline = time.monotonic() + self._settings.answer_s
        while True:
            try:
                call(SLICE_S)
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or time.monotonic() > deadline or self._stopping.is_set():
                    raise
            else:
                return

    # Steps after a failure.

    def _pause(self) -> None:
        assert self._failure is not None
        if self._stopping.is_set():
            # If the end of the session were reported as a failure of Kafka, an operator would search on the wrong
            # side.
            raise _StoppedError
        wait_s = self._backoff.next(random.random())  # noqa: S311  spreads attempts, guards nothing
        self._reports.on_retry(self._failure, wait_s)
        if self._stopping.wait(wait_s):
            raise _StoppedError

    def _abort(self) -> None:
        if self._settings.exactly_once and self._producer is not None:
            with suppress(KafkaException):
                self._settle()
                self._producer.abort_transaction(ABORT_S)

    def _drain(self) -> None:
        """Drop unsent records, and wait for the answers to sent ones, because none may arrive after later records."""
        if self._producer is not None:
            self._producer.purge(in_flight=False)
            with suppress(KafkaException):
                self._producer.flush(DRAIN_S)

    def _discard(self) -> None:
        """Drop the producer and all its records, without waiting for a broker that may be unreachable."""
        producer, self._producer = self._producer, None
        self._produce = None
        if producer is not None:
            producer.purge()
            # poll raises the error that made the producer unusable, which has been handled already.
            with suppress(KafkaException):
                producer.poll(0)
        self._failed = None
        self._former = None

    def _fit(self) -> None:
        """Plan the next attempt after a refusal for size. Raises the failure if no plan helps."""
        assert self._failed is not None, "a record was refused"
        sent = [batch for batch in (self._former, self._batch) if batch is not None]
        culprit = self._fitting.learn(self._failed, sent)
        if culprit is not None:
            self._failed = culprit
            raise self._map(KafkaException(culprit.error)) from self._cause

    # Failures, as errors of cdcd.

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise KafkaException(self._failed.error)

    def _hear_cause(self, error: KafkaException) -> None:
        """Wait until the delivery reports say which record was refused, if `error` is a consequence of that.

        librdkafka fails the transaction before it reports the records of the request that failed
        (rdkafka_request.c, rd_kafka_handle_Produce_error), so a commit or the next record may fail first.
        """
        producer = self._producer
        deadline = time.monotonic() + CAUSE_S
        while (
            producer is not None
            and self._failed is None
            and error.args[0].code() in CONSEQUENCES
            and time.monotonic() < deadline
        ):
            producer.poll(SLICE_S)

    def _on_failed(self, error: KafkaError | None, message: Message) -> None:
        # The first failure is the cause. Purged records are a consequence of this failure or of a failed commit.
        if error is not None and self._failed is None and error.code() not in PURGED:
            key, value = message.key(), message.value()
            size = record_bytes(key, value, _as_given(message))
            self._failed = FailedRecord(error, message.topic() or "", key, value, local=False, size=size)

    def _map(self, error: KafkaException) -> CdcdError:
        cause = error.args[0]
        context = self._context
        batch = self._batch
        if batch is not None and cause.code() in TOPICS_REFUSED:
            topics = sorted(set(map(whole_topic, _topics_of(batch))) | {self._settings.checkpoint_topic})
            context += (
                f", writing to {', '.join(topics[:NAMED_MAX])}{' and others' * (len(topics) > NAMED_MAX)}"
            )
        failed = self._failed
        if failed is not None:
            cause, context = failed.error, str(failed)
        mapped = map_kafka_error(cause, context)
        if isinstance(error, OpenTransactionError):
            return TransientError(mapped.message, hint=OPEN_HINT)
        if isinstance(mapped, FencedError) and self._expiry.may_have_happened(time.monotonic()):
            return TransientError(
                f"The broker ended a Kafka transaction that was open for longer than its timeout of "
                f"{self._settings.timeout_s:g} s.",
                hint="Raise kafka.transaction.timeout_s (and transaction.max.timeout.ms of the brokers), or lower "
                "kafka.transaction.whole_bytes_max, so that a large transaction is sent within that time.",
            )
        if isinstance(mapped, FencedError):
            return self._with_sharer(mapped)
        if type(mapped) is not SinkError or batch is None:
            return mapped
        if failed is not None:
            named = _shares_of(failed, batch)
        elif cause.code() in TOPICS_REFUSED:
            named = frozenset(_topics_of(batch))
        else:
            return mapped
        return TopicRefusedError(mapped.message, hint=mapped.hint, topics=named)

    def _with_sharer(self, error: FencedError) -> FencedError:
        """Return the error with the name of another pipeline that uses the transactional id, if a topic names one."""
        settings = self._settings
        known = self._checkpoint or self._found
        server = "" if known is None else known.system_identifier
        found = find_sharers(self._client, settings.checkpoint_topic, settings.id_use, server)
        for each in found.sharers:
            if each.is_recent:
                message = f"{error.message}. Another pipeline uses the id: {each.told}"
                return FencedError(message, hint=shared_hint(each, settings.transactional_id))
        return error


def _topics_of(batch: Batch) -> set[str]:
    """Return the topics, and the shares of topics, that have records of the batch."""
    return {record[0] for record in batch.records if record is not GIVEN_AWAY} | batch.topics


def _shares_of(failed: FailedRecord, batch: Batch) -> frozenset[str]:
    """Return the topic of a refused record; if tables share the topic, the shares that may have the record."""
    shares = {each for each in _topics_of(batch) if whole_topic(each) == failed.topic}
    if failed.error.code() not in TOPICS_REFUSED:
        sent = [
            record[0]
            for record in batch.records
            if record[0] in shares and record[1] == failed.key and record[2] == failed.value
        ]
        shares = set(sent) or shares
    return frozenset(shares) or frozenset({failed.topic})


def _stopped() -> TransientError:
    return TransientError(
        "The session ended while Kafka had not yet acknowledged its last records.",
        hint="You need not do anything, because the next session sends them again.",
    )


def _as_given(message: Message) -> list[tuple[str, bytes]]:
    """Return the headers of a record of cdcd, whose values are bytes."""
    given = message.headers()
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    return [(name, value) for name, value in pairs if isinstance(value, bytes)]
