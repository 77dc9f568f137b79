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
from typing import Final

from confluent_kafka import KafkaException, Producer

from cdcd.adapters.kafka.checkpoint import (
    PARTITION,
    CheckpointTopic,
    OpenTransactionError,
    newest_checkpoint,
    read_checkpoint,
)
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.outage import Expiry, is_acknowledged
from cdcd.adapters.kafka.oversized import Fitting, FlushFirstError, Oversized
from cdcd.adapters.kafka.partitions import Marking, ToPartitions, counter, to_whole_topics
from cdcd.adapters.kafka.producer import SLICE_S, SinkSettings, construct, producer_properties
from cdcd.adapters.kafka.producer_calls import ProducerCalls
from cdcd.adapters.kafka.sink_failures import SilentError, SinkFailures
from cdcd.adapters.kafka.sink_inputs import KnownOfBrokers, Ownership, SinkReports
from cdcd.adapters.kafka.transaction_state import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Action,
    CallEnd,
    Step,
    TransactionEvent,
    TransactionState,
    error_of,
    event_of,
)
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError
from cdcd.core.records.late_records import Produce

ABORT_S: Final = 2.0
"""Longest wait in seconds for the abort of a transaction. If the abort fails, the next producer aborts it."""

DRAIN_S: Final = 2.0
"""Longest wait in seconds for answers to a producer without transactions, before it is dropped."""

MARKERS_S: Final = 0.001
"""Seconds that a broker usually needs to write the markers of a transaction, after its answer to the commit.

The broker refuses a transaction that begins earlier (CONCURRENT_TRANSACTIONS), and librdkafka then waits 20 ms
before its next attempt (rdkafka_txnmgr.c, rd_kafka_txn_handle_AddPartitionsToTxn). Without this pause, one
transaction in twenty was refused.
"""


class _StoppedError(Exception):
    """`stopping` is set, so nothing is retried."""


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
        self._calls: ProducerCalls | None = None
        self._produce: Produce | None = None
        self._client: Properties = settings.client
        self._found: Checkpoint | None = None
        self._told = 0
        self._batch: Batch | None = None
        self._former: Batch | None = None
        self._checkpoint: Checkpoint | None = None
        self._expiry = Expiry(settings.timeout_s)
        self._failures = SinkFailures(settings, self._expiry, known.topics)
        self._answered_at = 0.0
        self._failure: CdcdError | None = None
        self._cause: BaseException | None = None
        self._checkpoint_headers = settings.id_use.headers
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
            action = (
                self._state.done(self._found) if event is TransactionEvent.DONE else self._state.failed(event)
            )
        failure, cause = self._failure, self._cause
        self._failure = self._cause = None
        if action.end is not CallEnd.RETURN:
            raise error_of(action.end, failure) from cause

    def _attempt(self, action: Action) -> TransactionEvent:
        """Carry out the steps of an action. Returns the resulting event."""
        try:
            for step in action.steps:
                self._steps[step]()
        except _StoppedError:
            return TransactionEvent.STOPPED
        except CdcdError as error:
            # The error is not Kafka's: the lock is lost, cdcd did not write the checkpoint, or a file cannot be
            # written.
            self._failure, self._cause = error, error.__cause__
            return TransactionEvent.REFUSED
        except KafkaException as error:
            self._failures.await_cause(error, self._producer)
            self._failure = self._mapped(error)
            self._cause = error
            failed = self._failures.record
            too_large = failed is not None and failed.is_too_large
            silent = isinstance(error, SilentError) and self._credentials_hold()
            return event_of(self._failure, too_large=too_large, silent=silent)
        return TransactionEvent.DONE

    # Creating a producer.

    def _create(self) -> None:
        settings = self._settings
        self._client = {**settings.client, **self._credentials()}
        self._failures.clear()
        self._expiry.replaced()
        self._failures.context = self._failures.where
        self._producer = construct(
            producer_properties(settings, self._client, self._fitting.batch_size, self._failures.on_delivery),
            self._failures.where,
        )
        self._calls = ProducerCalls(self._producer, settings, self._failures, self._settling, self._stopping)
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
        calls = self._live_calls
        calls.await_broker()
        now = time.monotonic()
        if self._settling.wait_s(now, now):
            # `init_transactions` makes the coordinator abort the transaction that the former producer left open. An
            # abort needs leaders as a commit does. librdkafka would send the request as soon as a broker is reachable
            # again.
            calls.await_answer()
            calls.settle()
        calls.insist(self._live.init_transactions)

    def _read(self) -> None:
        settings = self._settings
        client = {**settings.client, **self._credentials()}
        topic = CheckpointTopic(client, settings.checkpoint_topic, settings.records, settings.answer_s)
        self._failures.context = f"Reading the checkpoint from topic {settings.checkpoint_topic}"
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
        self._failures.context = self._failures.where

    def _end_hanging(self, checkpoint: Checkpoint) -> None:
        """Commit `checkpoint` once more: this commit also ends the hanging transaction that contains it."""
        self._begin()
        self._produce_checkpoint(checkpoint)
        self._commit()

    @property
    def _live(self) -> Producer:
        assert self._producer is not None, "the machine created one"
        return self._producer

    @property
    def _live_calls(self) -> ProducerCalls:
        assert self._calls is not None, "it is made with the producer"
        return self._calls

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
        producer, calls, produce, batch = self._live, self._live_calls, self._produce, self._given
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
                calls.await_acknowledged(0)
                alone.flushed()
                silent_at = time.monotonic() + self._settings.answer_s
            except BufferError:
                # librdkafka's own queue is full: wait until it has sent some records.
                if batch.handed_over > before:
                    silent_at = time.monotonic() + self._settings.answer_s
                producer.poll(SLICE_S)
                calls.check_waiting(silent_at)
            except KafkaException as error:
                if not self._fitting.replace_here(batch, error.args[0]):
                    # librdkafka accepts no record after a failed request of the transaction; that request is the
                    # cause.
                    self._failures.await_cause(error, producer)
                    self._failures.note_refused(error.args[0], batch)
                    # The transaction is aborted first: an assertion in librdkafka ends the process if a producer is
                    # destroyed while it sends the first partitions of a transaction (rdkafka_txnmgr.c,
                    # rd_kafka_txn_handle_AddPartitionsToTxn).
                    self._abort()
                    raise
        if alone is not None and alone.is_unanswered:
            calls.await_acknowledged(0)
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
                self._live_calls.check_waiting(silent_at)
            except KafkaException as error:
                self._failures.await_cause(error, producer)
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
        self._live_calls.await_former_parts(self._given.count)

    def _flush(self) -> None:
        self._live_calls.await_acknowledged(0)

    def _commit(self) -> None:
        # Otherwise the commit would send the end of the transaction as soon as the last record is acknowledged.
        calls = self._live_calls
        calls.await_acknowledged(0)
        calls.settle()
        calls.insist(self._live.commit_transaction)
        self._expiry.committed()
        self._answered_at = time.monotonic()

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
                self._live_calls.settle()
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
        self._calls = None
        self._produce = None
        if producer is not None:
            producer.purge()
            # poll raises the error that made the producer unusable, which has been handled already.
            with suppress(KafkaException):
                producer.poll(0)
        self._failures.clear()
        self._former = None

    def _fit(self) -> None:
        """Plan the next attempt after a refusal for size. Raises the failure if no plan helps."""
        refused = self._failures.record
        assert refused is not None, "a record was refused"
        sent = [batch for batch in (self._former, self._batch) if batch is not None]
        culprit = self._fitting.learn(refused, sent)
        if culprit is not None:
            self._failures.record = culprit
            raise self._mapped(KafkaException(culprit.error)) from self._cause

    def _mapped(self, error: KafkaException) -> CdcdError:
        known = self._checkpoint or self._found
        server = "" if known is None else known.system_identifier
        return self._failures.mapped(error, self._batch, self._client, server)
