"""The calls of a producer that wait: for acknowledgements, for an answer, for the time at which a transaction may end.

Each of them returns at least every `SLICE_S` to check whether the sink is being stopped, and raises KafkaException.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaException, Producer

from cdcd.adapters.kafka.errors import UNANSWERED
from cdcd.adapters.kafka.outage import Settling
from cdcd.adapters.kafka.producer import SLICE_S, SinkSettings
from cdcd.adapters.kafka.sink_failures import GivenUpError, SilentError, SinkFailures

RELEASE_SLICE_S: Final = 0.002
"""Seconds between two checks for the acknowledgement of a part. The next part, already encoded, waits for this
acknowledgement."""

TAIL_S: Final = 0.1
"""Seconds without an acknowledgement after which the producer is flushed, because the records before a part may wait
for more records to fill a request. Most brokers answer sooner."""

NO_BROKER: Final = -1
"""Broker id of a bootstrap server in librdkafka's errors, which does not identify the broker."""


class ProducerCalls:
    """Waits for one producer."""

    def __init__(
        self,
        producer: Producer,
        settings: SinkSettings,
        failures: SinkFailures,
        settling: Settling,
        stopping: threading.Event,
    ) -> None:
        self._producer = producer
        self._settings = settings
        self._failures = failures
        self._settling = settling
        self._stopping = stopping
        self._flushes_parts = False
        """True if records before a part have been seen to wait for more records; see `await_former_parts`."""

    def await_former_parts(self, own: int) -> None:
        """Wait until the parts before this one, which has `own` records, are acknowledged.

        Their last records leave in one request with the first records of this part, so the producer need not be
        flushed. While it is flushed and a request waits behind another, librdkafka's thread polls without a pause
        (rdkafka_msg.c, rd_kafka_msgq_allow_wakeup_at), so that a large transaction takes 7 % more time on two
        cores. If this part does not fill a request for each partition, the records before it wait for `linger.ms`.
        So if no acknowledgement arrives for `TAIL_S`, the producer is flushed, and for later parts it is flushed at
        once.
        """
        producer = self._producer
        left = len(producer)
        flushed_at = time.monotonic() + TAIL_S
        while left > own and not self._flushes_parts and not self._stopping.is_set():
            producer.poll(RELEASE_SLICE_S)
            self._failures.raise_refused()
            before, left = left, len(producer)
            now = time.monotonic()
            if left < before:
                flushed_at = now + TAIL_S
            self._flushes_parts = now > flushed_at
        self.await_acknowledged(own, RELEASE_SLICE_S)

    def await_acknowledged(self, but: int, slice_s: float = SLICE_S) -> None:
        """Send all records of the producer, and wait until at most `but` records are unacknowledged."""
        producer = self._producer
        left = len(producer)
        silent_at = time.monotonic() + self._settings.answer_s
        while left > but:
            before, left = left, producer.flush(slice_s)
            if left < before:
                silent_at = time.monotonic() + self._settings.answer_s
            self.check_waiting(silent_at)
        self._failures.raise_refused()

    def check_waiting(self, deadline: float) -> None:
        self._failures.raise_refused()
        if self._stopping.is_set():
            raise GivenUpError
        if time.monotonic() > deadline:
            raise SilentError("records were not acknowledged in time")

    def settle(self) -> None:
        """Wait until a transaction may end (`outage.py`). KafkaException: the sink is being stopped."""
        asked_at = time.monotonic()
        while (wait_s := self._settling.wait_s(asked_at, time.monotonic())) > 0:
            if self._stopping.wait(min(wait_s, SLICE_S)):
                raise GivenUpError

    def insist(self, call: Callable[[float], object]) -> None:
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

    def await_answer(self) -> None:
        """Wait until a broker answers. KafkaException: no broker answered, or the request was refused."""
        deadline = time.monotonic() + self._settings.answer_s
        while True:
            try:
                self._producer.list_topics(self._settings.checkpoint_topic, SLICE_S)
            except KafkaException as error:
                is_silent = error.args[0].code() in UNANSWERED
                if not is_silent or time.monotonic() > deadline or self._stopping.is_set():
                    raise
            else:
                return

    def await_broker(self) -> None:
        """Wait briefly until a broker is connected; without one, the next call raises the better error.

        If no broker is connected, librdkafka looks for the coordinator again only after half a second
        (rdkafka_txnmgr.c, rd_kafka_txn_coord_query). A bootstrap server does not count, because librdkafka
        disconnects from it after it has returned the list of brokers.
        """
        deadline = time.monotonic() + SLICE_S
        topic = self._settings.checkpoint_topic
        with suppress(KafkaException):
            while self._producer.list_topics(topic, SLICE_S).orig_broker_id == NO_BROKER:
                if time.monotonic() > deadline:
                    return
