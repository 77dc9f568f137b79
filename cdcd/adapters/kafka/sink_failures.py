"""Failures of the sink: which record was refused, and which error of cdcd a failed call is.

The rule: the first refused record is the cause, and whatever fails after it is a consequence. librdkafka may report the
consequence first.
"""

import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.checkpoint import OpenTransactionError
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.adapters.kafka.outage import Expiry
from cdcd.adapters.kafka.oversized import FailedRecord
from cdcd.adapters.kafka.producer import SLICE_S, SinkSettings
from cdcd.adapters.kafka.shared_id import find_sharers, shared_hint
from cdcd.adapters.kafka.topics import marker_problems
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.batch import GIVEN_AWAY, Batch
from cdcd.core.errors import CdcdError, FencedError, SinkError, TopicRefusedError, TransientError
from cdcd.core.records.encoder import record_bytes

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

MARKERS_S: Final = 30.0
"""Seconds between two looks at the settings of all topics, while Kafka does not end a transaction."""

SETTINGS_S: Final = 5.0
"""Seconds to wait for these settings. Without them, the error names no topic."""

OPEN_HINT: Final = (
    "cdcd tries again. If another producer has the transaction open, stop it. If no producer has it open, it hangs: "
    "docs/troubleshooting.md shows how to end it."
)
"""Hint for a transaction in the checkpoint topic whose outcome is unknown."""


class SilentError(KafkaException):
    """No answer arrived in time."""

    def __init__(self, why: str) -> None:
        super().__init__(KafkaError(KafkaError._TIMED_OUT, why))


class GivenUpError(SilentError):
    """The sink was stopped while it waited. Nothing indicates a failure of Kafka."""

    def __init__(self) -> None:
        super().__init__("the sink was stopped")


class SinkFailures:
    """Takes delivery reports, and maps failures to errors of cdcd.

    Args:
        topics: all topics that this process has created or checked. The caller adds to them.

    Attributes:
        where: names the cluster and the transactional id.
        context: what the sink is doing, for the messages of errors.
        record: the first record that was refused; None: none was.
    """

    def __init__(self, settings: SinkSettings, expiry: Expiry, topics: Collection[str]) -> None:
        self._settings = settings
        self._topics = topics
        self._refusing: SinkError | None = None
        """Error of a topic that refuses the markers of transactions; None: no topic is known to refuse them."""
        self._look_at = 0.0
        self._expiry = expiry
        self.where = f"Kafka at {settings.client.get('bootstrap.servers')}"
        if settings.exactly_once:
            self.where += f", transactional id {settings.transactional_id}"
        self.context = self.where
        self.record: FailedRecord | None = None

    def clear(self) -> None:
        """Forget the refused record, because the producer is replaced."""
        self.record = None

    def note_refused(self, error: KafkaError, batch: Batch) -> None:
        """Note that librdkafka refused the next record of the batch, unless another record was refused before."""
        if self.record is None:
            topic, key, value, headers = batch.records[batch.handed_over]
            size = record_bytes(key, value, headers)
            self.record = FailedRecord(error, whole_topic(topic), key, value, local=True, size=size)

    def raise_refused(self) -> None:
        if self.record is not None:
            raise KafkaException(self.record.error)

    def await_cause(self, error: KafkaException, producer: Producer | None) -> None:
        """Wait until the delivery reports say which record was refused, if `error` is a consequence of that.

        librdkafka fails the transaction before it reports the records of the request that failed
        (rdkafka_request.c, rd_kafka_handle_Produce_error), so a commit or the next record may fail first.
        """
        deadline = time.monotonic() + CAUSE_S
        while (
            producer is not None
            and self.record is None
            and error.args[0].code() in CONSEQUENCES
            and time.monotonic() < deadline
        ):
            producer.poll(SLICE_S)

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        # The first failure is the cause. Purged records are a consequence of this failure or of a failed commit.
        if error is not None and self.record is None and error.code() not in PURGED:
            key, value = message.key(), message.value()
            size = record_bytes(key, value, _as_given(message))
            self.record = FailedRecord(error, message.topic() or "", key, value, local=False, size=size)

    def mapped(
        self, error: KafkaException, batch: Batch | None, client: Properties, server: str
    ) -> CdcdError:
        """Return the error of cdcd for a failed call.

        Args:
            batch: the batch that is being delivered, if any.
            client: the client properties of the producer.
            server: `system_identifier` of the checkpoint; "" if there is none.
        """
        if isinstance(error, GivenUpError):
            return TransientError(
                "The session ended while Kafka had not yet acknowledged its last records.",
                hint="You need not do anything, because the next session sends them again.",
            )
        cause = error.args[0]
        context = self.context
        if batch is not None and cause.code() in TOPICS_REFUSED:
            topics = sorted(set(map(whole_topic, _topics_of(batch))) | {self._settings.checkpoint_topic})
            context += (
                f", writing to {', '.join(topics[:NAMED_MAX])}{' and others' * (len(topics) > NAMED_MAX)}"
            )
        failed = self.record
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
            return self._with_sharer(mapped, client, server)
        if cause.code() == KafkaError.CONCURRENT_TRANSACTIONS:
            return self._with_refusing_topic(mapped, batch, client)
        if type(mapped) is not SinkError or batch is None:
            return mapped
        if failed is not None:
            named = _shares_of(failed, batch)
        elif cause.code() in TOPICS_REFUSED:
            named = frozenset(_topics_of(batch))
        else:
            return mapped
        return TopicRefusedError(mapped.message, hint=mapped.hint, topics=named)

    def _with_refusing_topic(self, error: CdcdError, batch: Batch | None, client: Properties) -> CdcdError:
        """Return the error with a topic that refuses the marker of the former transaction, if settings show one.

        A topic may have been altered after cdcd had checked it.
        """
        now = time.monotonic()
        if now >= self._look_at:
            # The copy is one step, because another thread adds topics.
            topics = {*self._topics, *map(whole_topic, set() if batch is None else _topics_of(batch))}
            with suppress(CdcdError):
                found = marker_problems(Admin(client, SETTINGS_S), sorted(topics), [])
                self._refusing = next(iter(found.values()), None)
            self._look_at = time.monotonic() + MARKERS_S
        refusing = self._refusing
        if refusing is None:
            return error
        return TransientError(
            f"{error.message}. {refusing.message}",
            hint=f"{refusing.hint} Then restart the broker that is the transaction's coordinator, because only a new "
            "coordinator sends the marker again: docs/troubleshooting.md shows how to find the broker.",
        )

    def _with_sharer(self, error: FencedError, client: Properties, server: str) -> FencedError:
        """Return the error with the name of another pipeline that uses the transactional id, if a topic names one."""
        settings = self._settings
        found = find_sharers(client, settings.checkpoint_topic, settings.id_use, server)
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


def _as_given(message: Message) -> list[tuple[str, bytes]]:
    """Return the headers of a record of cdcd, whose values are bytes."""
    given = message.headers()
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    return [(name, value) for name, value in pairs if isinstance(value, bytes)]
