"""Writer of replayed records to topics, in Kafka transactions like the daemon's but without a checkpoint.

The rule: a replay never writes where a pipeline writes. If the checkpoint topic has a checkpoint of a pipeline with
this name, the replay is refused, because its consumers would see changes twice.
"""

import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException, Producer

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.checkpoint import CheckpointTopic, peek_checkpoint
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.adapters.kafka.partitions import ToPartitions, counter
from cdcd.adapters.kafka.producer import SinkSettings, construct, producer_properties
from cdcd.adapters.kafka.topics import TopicSpec, ensure_topics
from cdcd.core.engine.batch import Batch
from cdcd.core.errors import ConfigError

ANSWER_S: Final = 30.0


class ReplayedTopics:
    """Replayed records' destination; call `emit` for each batch, and `close` last.

    Args:
        settings: the daemon's settings; `-replay` is appended to the transactional id.
        schemas: topic of table descriptions; "": no such topic.

    Raises (each method):
        ConfigError: a pipeline writes to these topics.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """

    def __init__(self, settings: SinkSettings, spec: TopicSpec, schemas: str) -> None:
        self._spec = spec
        self._checkpoint_topic = settings.checkpoint_topic
        self._schemas = schemas
        self._known: set[str] = set()
        self._admin = Admin(settings.client, ANSWER_S, threading.Event())
        topic = CheckpointTopic(settings.client, settings.checkpoint_topic, settings.records, ANSWER_S)
        if peek_checkpoint(topic):
            raise ConfigError(
                f"The pipeline {settings.records.pipeline} writes to these topics: {settings.checkpoint_topic} has its "
                "checkpoint.",
                hint="Give --config a file with another name and another topics.prefix.",
            )
        self._where = f"replaying to Kafka at {settings.client.get('bootstrap.servers')}"
        self._failed: list[str] = []
        properties = producer_properties(settings, settings.client, settings.batch_size, self._on_delivery)
        properties["transactional.id"] = f"{settings.transactional_id}-replay"
        properties["transaction.timeout.ms"] = 60_000
        self._producer: Producer = construct(properties, self._where)
        # The daemon that made the recording may have chosen partitions by columns, which its settings do not show.
        self._to_partitions = ToPartitions(self._producer.produce, counter(self._producer))
        self._open = False
        self._call(lambda: self._producer.init_transactions(ANSWER_S))

    def emit(self, batch: Batch) -> None:
        """Write the batch. Readers see the batch when its Kafka transaction is committed."""
        topics = {record[0] for record in batch.records} - self._known
        if topics:
            ensure_topics(
                self._admin,
                sorted(topics),
                self._spec,
                checkpoint=self._checkpoint_topic,
                schemas=self._schemas,
            )
            self._known |= topics
        if batch.count and not self._open:
            self._call(self._producer.begin_transaction)
            self._open = True
        self._call(lambda: batch.hand_over(self._produce))
        if batch.closes and self._open:
            self._call(lambda: self._producer.commit_transaction(ANSWER_S))
            self._open = False

    def close(self) -> None:
        """Abort an open transaction, whose end is not in the recording."""
        if self._open:
            self._call(lambda: self._producer.abort_transaction(ANSWER_S))

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        while True:
            try:
                self._to_partitions(topic, value, key, headers)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _on_delivery(self, error: object, _message: object) -> None:
        self._failed.append(str(error))

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaException as error:
            raise map_kafka_error(error.args[0], self._where) from error
