"""librdkafka's admin client, made synchronous: every call has a deadline and raises one of our errors.

A call to a broker that cannot be reached, or does not let us in, ends as a mere timeout; why, librdkafka tells only its
error callback. So the callback is listened to while a call waits: wrong credentials end it at once, and what else was
heard explains the timeout.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic

from cdcd.errors import CdcdError, FatalError
from cdcd.kafka.errors import map_kafka_error

_SLICE_S: Final = 0.05

Properties = Mapping[str, str | int | float | bool | logging.Logger]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker has it."""

    name: str
    partitions: int
    replicas: int
    """Of the partition that has fewest."""
    has_leaders: bool
    """Whether every partition can be written to at this moment."""
    may_write: bool | None
    """Whether this principal may write to it; None: the broker does not say."""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as one of its brokers tells it."""

    cluster_id: str
    brokers: tuple[tuple[int, str], ...]
    """(id, host:port) of each."""
    may_create: bool | None
    """Whether this principal may create topics; None: the broker does not say, or without an authorizer."""


class Admin:
    """One admin client. It blocks: call it in a thread. `stopping`, set from outside, makes it give up soon.

    Raises from the constructor: SinkError (properties that librdkafka refuses). From every call: TransientError (no
    answer in time), SinkError (refused).
    """

    def __init__(
        self, properties: Properties, timeout_s: float = 15.0, stopping: threading.Event | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self._stopping = stopping
        self._heard: list[KafkaError] = []
        self._where = f"Kafka at {properties.get('bootstrap.servers')}"
        config: dict[str, Any] = {**properties, "error_cb": self._heard.append}
        try:
            self._client = AdminClient(config)
        except KafkaException as error:
            # A file that is not there or not a certificate, properties that exclude each other.
            raise map_kafka_error(error.args[0], self._where) from error

    def cluster(self) -> ClusterInfo:
        """Who is there."""
        found = self._wait(self._client.describe_cluster(include_authorized_operations=True, **self._limit))
        operations = found.authorized_operations
        return ClusterInfo(
            found.cluster_id,
            tuple((node.id, f"{node.host}:{node.port}") for node in found.nodes),
            AclOperation.CREATE in operations if operations else None,
        )

    def topics(self, names: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Each topic, or None where there is none. Never creates one, as a metadata request may."""
        if not names:
            return {}
        asked = self._client.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, **self._limit
        )
        return {name: self._topic(name, future) for name, future in asked.items()}

    def _topic(self, name: str, future: "Future[Any]") -> TopicInfo | None:
        try:
            found = self._wait_raw(future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._mapped(error, f"Topic {name}") from error
        operations = found.authorized_operations
        return TopicInfo(
            name,
            len(found.partitions),
            min((len(partition.replicas) for partition in found.partitions), default=0),
            all(partition.leader is not None and partition.leader.id >= 0 for partition in found.partitions),
            AclOperation.WRITE in operations if operations else None,
        )

    def names(self) -> set[str]:
        """The names of all topics that this principal may see."""
        try:
            return set(self._client.list_topics(timeout=self.timeout_s).topics)
        except KafkaException as error:
            raise self._mapped(error, self._where) from error

    def create(self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]) -> bool:
        """Create a topic; False if somebody did so in the meantime."""
        topic = NewTopic(name, partitions, replication_factor, config=dict(config))
        future = self._client.create_topics([topic], operation_timeout=self.timeout_s, **self._limit)[name]
        try:
            self._wait_raw(future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self._mapped(error, f"Creating topic {name}") from error
        return True

    def topic_config(self, name: str) -> dict[str, str]:
        """A topic's settings, defaults included."""
        return self._config(ConfigResource(ConfigResource.Type.TOPIC, name))

    def broker_config(self, broker: int) -> dict[str, str]:
        """A broker's settings."""
        return self._config(ConfigResource(ConfigResource.Type.BROKER, str(broker)))

    def _config(self, resource: ConfigResource) -> dict[str, str]:
        (future,) = self._client.describe_configs([resource], **self._limit).values()
        found = self._wait(future)
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    @property
    def _limit(self) -> dict[str, float]:
        return {"request_timeout": self.timeout_s}

    def _wait(self, future: "Future[T]") -> T:
        try:
            return self._wait_raw(future)
        except KafkaException as error:
            raise self._mapped(error, self._where) from error

    def _wait_raw(self, future: "Future[T]") -> T:
        """The result, or a KafkaException; earlier than that when the callback heard what is fatal."""
        deadline = time.monotonic() + self.timeout_s + 5
        while True:
            try:
                return future.result(_SLICE_S)
            except TimeoutError:
                self._client.poll(0)
                stopping = self._stopping is not None and self._stopping.is_set()
                if stopping or time.monotonic() > deadline or isinstance(self._explained(), FatalError):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time")) from None

    def _explained(self) -> CdcdError | None:
        """What the callback heard that says most: what is fatal, else the first that is not about all brokers."""
        heard = [error for error in self._heard if error.code() != KafkaError._ALL_BROKERS_DOWN]
        errors = [map_kafka_error(error, self._where) for error in heard]
        return next(
            (error for error in errors if isinstance(error, FatalError)), errors[0] if errors else None
        )

    def _mapped(self, error: KafkaException, what: str) -> CdcdError:
        cause: KafkaError = error.args[0]
        self._client.poll(0)
        if cause.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            explained = self._explained()
            if explained is not None:
                return explained
        return map_kafka_error(cause, what)
