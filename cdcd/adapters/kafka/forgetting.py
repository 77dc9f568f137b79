"""Writer of a pipeline's checkpoint without a daemon: removes or replaces the checkpoint.

The checkpoint is removed by a tombstone, as Kafka Connect does with the offsets of a connector (KIP-875). With
Kafka transactions, the record is written under the pipeline's own `transactional.id`, which fences a frozen daemon
and ends the open transaction of a killed daemon.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException

from cdcd.adapters.kafka.checkpoint import PARTITION, CheckpointTopic, read_checkpoint
from cdcd.adapters.kafka.client import Properties, prepare
from cdcd.adapters.kafka.client_factory import make_producer
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.core.engine.checkpoint import FORMER_FORMAT, Checkpoint
from cdcd.core.errors import TransientError

TRANSACTION_MS: Final = 60_000


Change = Callable[[Checkpoint | None], Checkpoint]
"""From the newest checkpoint, None if there is none, to the one that is written."""


@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """Writes a pipeline's checkpoint without its daemon, after every other writer was fenced. Each method blocks.

    Attributes:
        producer: librdkafka properties of a producer, beside those of the topic's connection.
        transactional_id: transactional id of the pipeline; None: the pipeline does not use Kafka transactions.

    Each method raises:
        TransientError: the broker does not answer.
        FatalError: the broker refuses, or cdcd did not write the checkpoint record.
    """

    topic: CheckpointTopic
    producer: Properties
    transactional_id: str | None

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
        if self.transactional_id is not None:
            properties |= {
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
            }
        prepare(properties)
        try:
            sender = make_producer(properties)
            if self.transactional_id is not None:
                sender.init_transactions(timeout_s)
            written = values()
            if self.transactional_id is not None:
                sender.begin_transaction()
            for data in written:
                sender.produce(topic.name, key=topic.records.key, value=data, partition=PARTITION)
            left = sender.flush(timeout_s)
            if refused:
                raise refused[0]
            if left:
                sender.purge()
                raise TransientError(f"{what}: no answer in {timeout_s:g} s")
            if self.transactional_id is not None:
                sender.commit_transaction(timeout_s)
        except KafkaException as error:
            raise map_kafka_error(error.args[0], what) from error
