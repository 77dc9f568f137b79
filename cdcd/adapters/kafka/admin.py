"""librdkafka's admin client, made synchronous: every call has a deadline and raises one of our errors.

A call to a broker that cannot be reached, or does not let us in, ends as a mere timeout; why, librdkafka tells only its
error callback. So the callback is listened to while a call waits: wrong credentials end it at once, and what else was
heard explains the timeout.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, OffsetSpec

from cdcd.adapters.kafka.client import Properties, prepare
from cdcd.adapters.kafka.client_factory import make_admin
from cdcd.adapters.kafka.errors import (
    UNANSWERED,
    Partition,
    map_kafka_error,
    no_leader,
    property_error,
    silent_leader,
)
from cdcd.adapters.kafka.hanging import Ends
from cdcd.core.errors import CdcdError, FatalError, SinkError

_SLICE_S: Final = 0.05

TRANSACTION_TIMEOUT_MAX: Final = "transaction.max.timeout.ms"

DESCRIBED_AT_ONCE: Final = 1000
"""Topics in one request for their descriptions, or their settings: some 150 bytes each in the answer."""

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
    may_read: bool | None = None
    """Whether this principal may read it; None: the broker does not say."""


@dataclass(frozen=True, slots=True)
class NewTopicSpec:
    """A topic to be created."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as one of its brokers tells it."""

    cluster_id: str
    brokers: tuple[tuple[int, str], ...]
    """(id, host:port) of each."""
    may_create: bool | None
    """Whether this principal may create topics; None: the broker does not say, or without an authorizer."""
    may_alter: bool | None = None
    """Whether this principal may change the rights of principals, or the brokers have no authorizer; None: the broker
    does not say."""


class Admin:
    """One admin client. It blocks: call it in a thread. `stopping`, set from outside, makes it give up soon.

    Raises from the constructor: ConfigError, SinkError (properties that librdkafka refuses), SinkUnavailableError (no
    token). From every call: TransientError (no answer in time), SinkError (refused).
    """

    def __init__(
        self, properties: Properties, timeout_s: float = 15.0, stopping: threading.Event | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self._stopping = stopping
        self._heard: list[KafkaError] = []
        self.where = f"Kafka at {properties.get('bootstrap.servers')}"
        config: dict[str, Any] = {**properties, "error_cb": self._heard.append}
        prepare(properties)
        try:
            self._client = make_admin(config)
        except KafkaException as error:
            # A file that is not there or not a certificate, a name or a value that librdkafka does not know.
            raise property_error(error.args[0], self.where) from error

    @property
    def is_stopping(self) -> bool:
        """Whether whoever waits is to give up."""
        return self._stopping is not None and self._stopping.is_set()

    def cluster(self) -> ClusterInfo:
        """Who is there."""
        found = self._wait(self._client.describe_cluster(include_authorized_operations=True, **self._limit))
        operations = found.authorized_operations
        return ClusterInfo(
            found.cluster_id,
            tuple((node.id, f"{node.host}:{node.port}") for node in found.nodes),
            AclOperation.CREATE in operations if operations else None,
            AclOperation.ALTER in operations if operations else None,
        )

    def ask(self, topic: str) -> None:
        """Ask a broker who leads the topic's first partition, and then that leader where the partition ends.

        Returns if the leader answers, or if there is no such topic. Both are asked, because librdkafka asks the leader
        that it remembers, which is the one of the first answer, and because other brokers go on naming a leader that
        is frozen or cut off. A leader that refuses to tell has answered.

        Raises:
            TransientError: no answer came in time, or the partition had no leader all the time.
            SinkError: no answer came in time, because the broker refuses the connection.
        """
        self._heard.clear()
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                found = self._client.list_topics(topic, timeout=max(deadline - time.monotonic(), _SLICE_S))
            except KafkaException as error:
                raise self._mapped(error, self.where) from error
            partition = found.topics[topic].partitions.get(0)
            if partition is None:
                return
            if partition.leader >= 0:
                self._ask_leader(topic, partition.leader, max(deadline - time.monotonic(), _SLICE_S))
                return
            if self.is_stopping or time.monotonic() > deadline:
                raise no_leader(self.where, (topic, 0))
            time.sleep(_SLICE_S)

    def _ask_leader(self, topic: str, leader: int, timeout_s: float) -> None:
        if not self.silent([(topic, 0)], timeout_s):
            return
        explained = self._explained()
        if isinstance(explained, FatalError):
            raise explained
        raise silent_leader(self.where, leader, (topic, 0))

    def silent(self, partitions: Sequence[Partition], timeout_s: float) -> list[Partition]:
        """Those of the partitions whose leaders do not answer in time. A leader that refuses to tell has answered."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._client.list_offsets(
            {TopicPartition(topic, number): latest for topic, number in partitions}, request_timeout=timeout_s
        )
        found = []
        for partition, future in asked.items():
            try:
                # Without an answer in time, the result of librdkafka 2.x is no error but an offset that there is not.
                is_silent = self._wait_raw(future).offset < 0
            except KafkaException as error:
                is_silent = error.args[0].code() in UNANSWERED
            if is_silent:
                found.append((partition.topic, partition.partition))
        return found

    def leaders(self, topics: Sequence[str], timeout_s: float) -> dict[Partition, int]:
        """The leader of each partition of these topics, -1 if it has none. What nobody tells of is left out."""
        asked = self._client.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        found: dict[Partition, int] = {}
        for name, future in asked.items():
            with suppress(KafkaException):
                for each in self._wait_raw(future).partitions:
                    found[name, each.id] = -1 if each.leader is None else each.leader.id
        return found

    def ends(self, topics: Sequence[str]) -> dict[Partition, Ends]:
        """Where the partitions of these topics end, and where for readers with `read_committed`.

        What nobody tells of is left out.
        """
        partitions = [TopicPartition(*place) for place in self.leaders(topics, self.timeout_s)]
        # The ends first: a transaction that begins and ends between the two questions then looks complete.
        ends = self._latest(partitions, IsolationLevel.READ_UNCOMMITTED)
        stable = self._latest(partitions, IsolationLevel.READ_COMMITTED)
        return {place: Ends(stable[place], end) for place, end in ends.items() if place in stable}

    def _latest(self, partitions: list[TopicPartition], isolation: IsolationLevel) -> dict[Partition, int]:
        if not partitions:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._client.list_offsets(
            dict.fromkeys(partitions, latest), isolation_level=isolation, **self._limit
        )
        found: dict[Partition, int] = {}
        for partition, future in asked.items():
            with suppress(KafkaException):
                offset = self._wait_raw(future).offset
                # librdkafka 2.x gives a negative offset, and no error, if no answer came in time.
                if offset >= 0:
                    found[partition.topic, partition.partition] = offset
        return found

    def topics(self, names: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Each topic, or None where there is none. Never creates one, as a metadata request may."""
        found: dict[str, TopicInfo | None] = {}
        for name, info in self.each_topic(names).items():
            if isinstance(info, CdcdError):
                raise info
            found[name] = info
        return found

    def each_topic(self, names: Sequence[str]) -> dict[str, TopicInfo | CdcdError | None]:
        """The same, with what the broker refuses as the answer for the topic. Raises TransientError only."""
        found: dict[str, TopicInfo | CdcdError | None] = {}
        for some in _slices(names, DESCRIBED_AT_ONCE):
            asked = self._client.describe_topics(
                TopicCollection(some), include_authorized_operations=True, **self._limit
            )
            for name, future in asked.items():
                try:
                    found[name] = self._topic(name, future)
                except FatalError as error:
                    found[name] = error
        return found

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
            AclOperation.READ in operations if operations else None,
        )

    def names(self) -> set[str]:
        """The names of all topics that this principal may see."""
        return set(self.partition_counts())

    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic has that this principal may see. Raises TransientError and SinkError."""
        try:
            topics = self._client.list_topics(timeout=self.timeout_s).topics
        except KafkaException as error:
            raise self._mapped(error, self.where) from error
        return {name: len(found.partitions) for name, found in topics.items()}

    def create(
        self, topics: Sequence[NewTopicSpec], *, only_ask: bool = False
    ) -> dict[str, bool | CdcdError]:
        """Create topics by one request: True, False where somebody did so in the meantime, or why it was refused.

        Args:
            only_ask: the broker answers in the same way, and creates nothing.

        Raises TransientError: the broker does not answer.
        """
        asked = self._client.create_topics(
            [
                NewTopic(topic.name, topic.partitions, topic.replication_factor, config=dict(topic.config))
                for topic in topics
            ],
            operation_timeout=self.timeout_s,
            validate_only=only_ask,
            **self._limit,
        )
        return {name: self._created(name, future) for name, future in asked.items()}

    def _created(self, name: str, future: "Future[Any]") -> bool | CdcdError:
        try:
            self._wait_raw(future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            failure = self._mapped(error, f"Creating topic {name}")
            if error.args[0].code() in UNANSWERED:
                raise failure from error
            return failure
        return True

    def delete(self, names: Sequence[str]) -> dict[str, bool | CdcdError]:
        """Delete topics: True, False where there is none, or why it was refused.

        Raises TransientError: the broker does not answer.
        """
        if not names:
            return {}
        asked = self._client.delete_topics(list(names), operation_timeout=self.timeout_s, **self._limit)
        return {name: self._deleted(name, future) for name, future in asked.items()}

    def _deleted(self, name: str, future: "Future[Any]") -> bool | CdcdError:
        try:
            self._wait_raw(future)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return False
            failure = self._mapped(error, f"Deleting topic {name}")
            if code in UNANSWERED:
                raise failure from error
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return SinkError(
                    failure.message,
                    hint=f"Allow this principal Delete on topic {name}, or delete the topic as another principal "
                    f"(kafka-topics --delete --topic {name}), and run the command again.",
                )
            return failure
        return True

    def offsets(self, topics: Mapping[str, int]) -> dict[str, int]:
        """About how many records each topic has: its offsets, of which some may be markers or compacted away.

        Args:
            topics: the number of partitions of each.
        """
        partitions = [TopicPartition(name, each) for name, count in topics.items() for each in range(count)]
        found = dict.fromkeys(topics, 0)
        if not partitions:
            return found
        ends: tuple[tuple[OffsetSpec, int], ...] = (
            (OffsetSpec.latest(), 1),  # type: ignore[no-untyped-call]
            (OffsetSpec.earliest(), -1),  # type: ignore[no-untyped-call]
        )
        for spec, sign in ends:
            asked = self._client.list_offsets(dict.fromkeys(partitions, spec), **self._limit)
            for partition, future in asked.items():
                found[partition.topic] += sign * self._wait(future).offset
        return found

    def topic_config(self, name: str) -> dict[str, str]:
        """A topic's settings, defaults included."""
        return self._config(ConfigResource(ConfigResource.Type.TOPIC, name))

    def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of many topics, defaults included, by few requests. Raises as `topic_config`."""
        found: dict[str, dict[str, str]] = {}
        for some in _slices(names, DESCRIBED_AT_ONCE):
            asked = self._client.describe_configs(
                [ConfigResource(ConfigResource.Type.TOPIC, name) for name in some], **self._limit
            )
            found.update((resource.name, self._settings(future)) for resource, future in asked.items())
        return found

    def broker_config(self, broker: int) -> dict[str, str]:
        """A broker's settings."""
        return self._config(ConfigResource(ConfigResource.Type.BROKER, str(broker)))

    def transaction_timeout_max_s(self) -> float:
        """For how long the brokers let a transaction be open at most, by the settings of one of them.

        Raises SinkError if this principal may not read settings (DescribeConfigs on the cluster).
        """
        settings = self.broker_config(self.cluster().brokers[0][0])
        return int(settings[TRANSACTION_TIMEOUT_MAX]) / 1000

    def _config(self, resource: ConfigResource) -> dict[str, str]:
        (future,) = self._client.describe_configs([resource], **self._limit).values()
        return self._settings(future)

    def _settings(self, future: "Future[Any]") -> dict[str, str]:
        found = self._wait(future)
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    @property
    def _limit(self) -> dict[str, float]:
        return {"request_timeout": self.timeout_s}

    def _wait(self, future: "Future[T]") -> T:
        try:
            return self._wait_raw(future)
        except KafkaException as error:
            raise self._mapped(error, self.where) from error

    def _wait_raw(self, future: "Future[T]") -> T:
        """The result, or a KafkaException; earlier than that when the callback heard what is fatal."""
        deadline = time.monotonic() + self.timeout_s + 5
        while True:
            try:
                return future.result(_SLICE_S)
            except TimeoutError:
                self._client.poll(0)
                if (
                    self.is_stopping
                    or time.monotonic() > deadline
                    or isinstance(self._explained(), FatalError)
                ):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time")) from None

    def _explained(self) -> CdcdError | None:
        """What the callback heard that says most: what is fatal, else the first that is not about all brokers."""
        heard = [error for error in self._heard if error.code() != KafkaError._ALL_BROKERS_DOWN]
        errors = [map_kafka_error(error, self.where) for error in heard]
        return next(
            (error for error in errors if isinstance(error, FatalError)), errors[0] if errors else None
        )

    def _mapped(self, error: KafkaException, what: str) -> CdcdError:
        cause: KafkaError = error.args[0]
        self._client.poll(0)
        if cause.code() in UNANSWERED:
            explained = self._explained()
            if explained is not None:
                return explained
        return map_kafka_error(cause, what)


def _slices(names: Sequence[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(names), size):
        yield list(names[start : start + size])
