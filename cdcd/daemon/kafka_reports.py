"""Takes what the threads of Kafka's clients report to the event loop: events, figures, and the end of the process.

The reports are those of the watch (`kafka_watch.py`), and of the tokens that cannot be obtained.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from cdcd.adapters.credentials.tokens import access
from cdcd.adapters.kafka.errors import Partition
from cdcd.adapters.kafka.sink_inputs import KnownOfBrokers
from cdcd.adapters.kafka.topic_watch import AddedPartitions
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError, FatalError, SinkError
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import KafkaTokenFailed, TransactionHanging
from cdcd.core.facts.tables import PartitionsAdded
from cdcd.daemon.kafka_watch import ANSWER_S, KafkaWatch
from cdcd.telemetry.state import Telemetry

TOKEN_S: Final = 60.0
"""Seconds between two events about unavailable tokens for Kafka."""

HANGING_HINT: Final = (
    "Change a row whose records lie in this partition, for example by an UPDATE that sets a column to its own value. "
    "Do not abort the transaction (kafka-transactions.sh abort): readers would never get its records."
)

PARTITIONS_HINT: Final = (
    "Let consumers read the topic to its end before they rely on the order of a key again. If the order must hold for "
    "all records, give the pipeline new topics (topics.prefix) and read the tables into them."
)


class KafkaReports:
    """Watches Kafka from `start` to `stop`. Both are called in the event loop.

    Args:
        config: returns the configuration in effect.
        known: what the process has learned of the brokers.
        answered: called whenever Kafka has answered.
        end_by: ends the process in good order with this error, unless it is ending already.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        telemetry: Telemetry,
        observe: Observer,
        known: KnownOfBrokers,
        *,
        answered: Callable[[], None],
        end_by: Callable[[FatalError], None],
    ) -> None:
        self._config = config
        self._telemetry = telemetry
        self._observe = observe
        self._known = known
        self._on_answer = answered
        self._end_by = end_by
        self._token_told_at = -TOKEN_S
        self._watch: KafkaWatch | None = None

    def start(self) -> None:
        """Start the watch, and take reports of tokens."""
        loop, config = asyncio.get_running_loop(), self._config()

        def report(asked_at: float, failure: CdcdError | None) -> None:
            loop.call_soon_threadsafe(self._asked, asked_at, failure)

        def no_token(error: CdcdError) -> None:
            loop.call_soon_threadsafe(self._no_token, error)

        _, tokens = access(config.kafka)
        if tokens is not None:
            tokens.on_failure = no_token

        def hanging(found: list[Partition], all_hanging: dict[Partition, int]) -> None:
            loop.call_soon_threadsafe(self._hanging, found, all_hanging)

        def added(found: list[AddedPartitions]) -> None:
            loop.call_soon_threadsafe(self._partitions_added, found)

        self._watch = KafkaWatch(
            config,
            report,
            lambda: self._telemetry.writing,
            self._known.settling,
            topics=self._known.topics,
            hanging=hanging,
            added=added,
        )
        self._watch.start()

    def stop(self) -> None:
        """Stop the watch."""
        if self._watch is not None:
            self._watch.stop()

    def _asked(self, asked_at: float, failure: CdcdError | None) -> None:
        now, reach = time.monotonic(), self._telemetry.reach
        if failure is None:
            self._on_answer()
            reach.answered("kafka", now)
        else:
            reach.failed("kafka", failure, asked_at=asked_at, patience_s=ANSWER_S, now=now)

    def _hanging(self, found: list[Partition], all_hanging: dict[Partition, int]) -> None:
        self._telemetry.hanging = all_hanging
        for topic, partition in found:
            offset = all_hanging[topic, partition]
            self._observe(
                TransactionHanging(topic=topic, partition=partition, offset=offset, hint=HANGING_HINT)
            )

    def _partitions_added(self, found: list[AddedPartitions]) -> None:
        for each in found:
            self._observe(
                PartitionsAdded(
                    topic=each.topic, before=each.before, partitions=each.now, hint=PARTITIONS_HINT
                )
            )
        if self._config().topics.on_added_partitions == "stop":
            named = ", ".join(f"{each.topic} ({each.before} to {each.now})" for each in found)
            self._end_by(
                SinkError(
                    f"Partitions were added to a topic: {named}. topics.on_added_partitions is stop.",
                    hint=f"{PARTITIONS_HINT} The next start goes on with the partitions that the topic has then.",
                )
            )

    def _no_token(self, error: CdcdError) -> None:
        self._telemetry.kafka_token_failures += 1
        now = time.monotonic()
        if now - self._token_told_at >= TOKEN_S:
            self._token_told_at = now
            self._observe(KafkaTokenFailed(message=error.message, hint=error.hint))
