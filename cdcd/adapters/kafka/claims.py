"""The topic in which the pipelines of a cluster claim topics: what it says, and claims that are written and released.

The records are in partition 0, whatever the number of partitions, because only the records of one partition have an
order. They are read also before their transaction has ended: a stranger's open transaction would hide all later ones.
"""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from cdcd.adapters.kafka.client import Properties, make_consumer, make_producer, prepare
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.adapters.kafka.reading import answers, consumer_properties, watermarks
from cdcd.core.catalog.claims import Claimant, Claims
from cdcd.core.errors import TransientError

PARTITION: Final = 0


@dataclass(frozen=True, slots=True)
class ClaimsTopic:
    """The existing topic with the claims. Each method blocks.

    The methods raise TransientError if the broker does not answer or `stopping` was set, and SinkError if the broker
    refuses.

    Attributes:
        client: librdkafka properties for the connection.
        producer: further librdkafka properties of a producer.
        claimant: this pipeline.
        transactional_id: id of the pipeline's Kafka transactions, which people read in a claim; "": it uses none.
        timeout_s: seconds that the broker may take for each answer.
        stopping: another thread sets it to end a method soon.
    """

    name: str
    client: Properties
    producer: Properties
    claimant: Claimant
    transactional_id: str
    timeout_s: float
    stopping: threading.Event

    def read(self, claims: Claims) -> None:
        """Pass the records that `claims` has not taken yet to it, up to the present end."""
        consumer = make_consumer(
            consumer_properties(self.client, f"{self.claimant.pipeline}-claims", committed=False)
        )
        try:
            low, high = watermarks(
                consumer, TopicPartition(self.name, PARTITION), self.timeout_s, self.stopping
            )
            if claims.next_offset > high:
                # The topic was deleted and created again.
                claims.start_over()
            if claims.next_offset >= high or low == high:
                return
            consumer.assign([TopicPartition(self.name, PARTITION, max(low, claims.next_offset))])
            for message in answers(
                consumer,
                self.timeout_s,
                self.stopping,
                lambda: "no answer",
                lambda _, last: claims.take(last, None, None),
            ):
                if message.error() is not None:
                    return
                claims.take(message.offset() or 0, message.key(), message.value())
        except KafkaException as error:
            raise map_kafka_error(error.args[0], f"Reading the claims from topic {self.name}") from error
        finally:
            consumer.close()

    def claim(self, topics: Collection[str]) -> None:
        """Write a claim on each of the topics, and wait until the broker has them."""
        value = self.claimant.value(self.transactional_id, int(time.time() * 1000))
        self._write([(self.claimant.key(topic), value) for topic in topics])

    def release(self, topics: Collection[str]) -> None:
        """Write a tombstone over each of this pipeline's claims on the topics."""
        self._write([(self.claimant.key(topic), None) for topic in topics])

    def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        what = f"Writing claims to topic {self.name}"
        refused: list[KafkaException] = []
        properties: dict[str, Any] = {
            **self.client,
            **self.producer,
            "enable.idempotence": True,
            "acks": "all",
            "on_delivery": lambda error, _: (
                refused.append(KafkaException(error)) if error is not None else None
            ),
        }
        prepare(properties)
        try:
            sender = make_producer(properties)
            for key, value in records:
                sender.produce(self.name, key=key, value=value, partition=PARTITION)
                sender.poll(0)
            left = sender.flush(self.timeout_s)
            if refused:
                raise refused[0]
            if left:
                sender.purge()
                raise TransientError(f"{what}: no answer in {self.timeout_s:g} s")
        except KafkaException as error:
            raise map_kafka_error(error.args[0], what) from error
