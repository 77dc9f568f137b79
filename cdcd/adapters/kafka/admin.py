"""librdkafka's admin client with synchronous calls, each of which has a deadline and raises errors of cdcd.

A call to a broker that is unreachable or refuses the connection ends with a mere timeout; librdkafka reports the
reason only to its error callback. So the callback's errors are collected while a call waits: wrong credentials end
the call at once, and other errors explain the timeout.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from cdcd.adapters.kafka.client import Properties, make_admin, prepare
from cdcd.adapters.kafka.errors import (
    UNANSWERED,
    Partition,
    map_kafka_error,
    no_leader,
    property_error,
    silent_leader,
)
from cdcd.adapters.kafka.outage import EndOffsets
from cdcd.core.errors import CdcdError, FatalError, SinkError

_SLICE_S: Final = 0.05

_ANYTHING: Final[Any] = None
"""Part of a filter that everything passes. The stub of confluent_kafka allows only texts."""

_ALL_OF_TOPICS: Final = AclBindingFilter(
    ResourceType.TOPIC,
    _ANYTHING,
    ResourcePatternType.ANY,
    _ANYTHING,
    _ANYTHING,
    AclOperation.ANY,
    AclPermissionType.ANY,
)

DESCRIBED_AT_ONCE: Final = 1000
"""Maximum number of topics in one request for descriptions or settings; the answer has about 150 bytes for each."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker describes it."""

    name: str
    partitions: int
    replicas: int
    """Number of replicas of the partition with the fewest."""
    has_leaders: bool
    """True if every partition has a leader now, so that it can be written to."""
    may_write: bool | None
    """True if this principal may write to the topic; None: the broker does not say."""
    may_read: bool | None = None
    """True if this principal may read the topic; None: the broker does not say."""
    may_delete: bool | None = field(default=None, compare=False)
    """True if this principal may delete the topic; None: the broker does not say."""


@dataclass(frozen=True, slots=True)
class NewTopicSpec:
    """Settings of a topic to be created."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as one of its brokers describes it."""

    cluster_id: str
    brokers: tuple[tuple[int, str], ...]
    """(id, host:port) of each broker."""
    may_create: bool | None
    """True if this principal may create topics; None: the broker does not say, or has no authorizer."""
    may_alter: bool | None = None
    """True if this principal may change ACLs, or the brokers have no authorizer; None: the broker does not say."""


class Admin:
    """One admin client. The calls block, so make them in a thread.

    If another thread sets `stopping`, a waiting call ends soon.

    Raises from the constructor: ConfigError, SinkError (properties that librdkafka refuses), SinkUnavailableError
    (no token). From every call: TransientError (no answer in time), SinkError (refused).
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
            # A missing file or invalid certificate, or a name or value that librdkafka does not know.
            raise property_error(error.args[0], self.where) from error

    @property
    def is_stopping(self) -> bool:
        """True if a waiting call should give up."""
        return self._stopping is not None and self._stopping.is_set()

    def cluster(self) -> ClusterInfo:
        """Return the cluster's id, brokers and rights."""
        found = self._wait(self._client.describe_cluster(include_authorized_operations=True, **self._limit))
        operations = found.authorized_operations
        return ClusterInfo(
            found.cluster_id,
            tuple((node.id, f"{node.host}:{node.port}") for node in found.nodes),
            AclOperation.CREATE in operations if operations else None,
            AclOperation.ALTER in operations if operations else None,
        )

    def ask(self, topic: str) -> None:
        """Ask a broker for the leader of the topic's first partition, and then this leader for the partition's end.

        Returns if the leader answers, or if the topic does not exist. Both are asked for two reasons: librdkafka
        asks the leader that it remembers from the first answer, and other brokers still name a leader that is
        frozen or disconnected. A refusal also counts as the leader's answer.

        Raises:
            TransientError: no answer arrived in time, or the partition had no leader all the time.
            SinkError: no answer arrived in time, because the broker refuses the connection.
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
        """Return the partitions whose leaders do not answer in time. A refusal counts as an answer."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._client.list_offsets(
            {TopicPartition(topic, number): latest for topic, number in partitions}, request_timeout=timeout_s
        )
        found = []
        for partition, future in asked.items():
            answer = self._outcome(future)
            # Without an answer in time, librdkafka 2.x returns no error but an invalid offset.
            is_silent = (
                answer.args[0].code() in UNANSWERED
                if isinstance(answer, KafkaException)
                else answer.offset < 0
            )
            if is_silent:
                found.append((partition.topic, partition.partition))
        return found

    def leaders(self, topics: Sequence[str], timeout_s: float) -> dict[Partition, int]:
        """Return the leader of each partition of these topics, -1 for a partition without leader.

        Topics without an answer are left out.
        """
        asked = self._client.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        found: dict[Partition, int] = {}
        for name, future in asked.items():
            answer = self._outcome(future)
            if isinstance(answer, KafkaException):
                continue
            for each in answer.partitions:
                found[name, each.id] = -1 if each.leader is None else each.leader.id
        return found

    def ends(self, topics: Sequence[str]) -> dict[Partition, EndOffsets]:
        """Return the end offsets of these topics' partitions, for all readers and for `read_committed` readers.

        Partitions without an answer are left out.
        """
        partitions = [TopicPartition(*place) for place in self.leaders(topics, self.timeout_s)]
        # The ends are read first, so that a transaction that begins and ends between the two requests looks complete.
        ends = self._latest(partitions, IsolationLevel.READ_UNCOMMITTED)
        stable = self._latest(partitions, IsolationLevel.READ_COMMITTED)
        return {place: EndOffsets(stable[place], end) for place, end in ends.items() if place in stable}

    def _latest(self, partitions: list[TopicPartition], isolation: IsolationLevel) -> dict[Partition, int]:
        if not partitions:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._client.list_offsets(
            dict.fromkeys(partitions, latest), isolation_level=isolation, **self._limit
        )
        found: dict[Partition, int] = {}
        for partition, future in asked.items():
            answer = self._outcome(future)
            # If no answer arrived in time, librdkafka 2.x returns a negative offset and no error.
            if not isinstance(answer, KafkaException) and answer.offset >= 0:
                found[partition.topic, partition.partition] = answer.offset
        return found

    def with_logs(self, topics: Mapping[str, int]) -> set[str]:
        """Return the topics whose leaders tell the end offset of every partition, as they do once they have its log.

        Args:
            topics: number of partitions by topic.
        """
        partitions = {name: [(name, each) for each in range(count)] for name, count in topics.items()}
        places = [TopicPartition(*place) for each in partitions.values() for place in each]
        found = self._latest(places, IsolationLevel.READ_UNCOMMITTED)
        return {name for name, each in partitions.items() if all(place in found for place in each)}

    def topics(self, names: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Return each topic's description, or None if the topic does not exist.

        Never creates a topic, as a metadata request may.
        """
        found: dict[str, TopicInfo | None] = {}
        for name, info in self.each_topic(names).items():
            if isinstance(info, CdcdError):
                raise info
            found[name] = info
        return found

    def each_topic(self, names: Sequence[str]) -> dict[str, TopicInfo | CdcdError | None]:
        """Return each topic's description, None if the topic does not exist, or the error with which the broker refuses
        it.

        Raises only TransientError.
        """
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
        found = self._outcome(future)
        if isinstance(found, KafkaException):
            if found.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._mapped(found, f"Topic {name}") from found
        operations = found.authorized_operations
        return TopicInfo(
            name,
            len(found.partitions),
            min((len(partition.replicas) for partition in found.partitions), default=0),
            all(partition.leader is not None and partition.leader.id >= 0 for partition in found.partitions),
            AclOperation.WRITE in operations if operations else None,
            AclOperation.READ in operations if operations else None,
            AclOperation.DELETE in operations if operations else None,
        )

    def names(self) -> set[str]:
        """Return the names of all topics that this principal may see."""
        return set(self.partition_counts())

    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic that this principal may see.

        Raises TransientError and SinkError.
        """
        try:
            topics = self._client.list_topics(timeout=self.timeout_s).topics
        except KafkaException as error:
            raise self._mapped(error, self.where) from error
        return {name: len(found.partitions) for name, found in topics.items()}

    def create(
        self, topics: Sequence[NewTopicSpec], *, only_ask: bool = False
    ) -> dict[str, bool | CdcdError]:
        """Create topics by one request; return True, False if the topic already exists, or an error for each topic.

        Args:
            only_ask: True to let the broker validate the request without creating topics.

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
        answer = self._outcome(future)
        if not isinstance(answer, KafkaException):
            return True
        if answer.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        failure = self._mapped(answer, f"Creating topic {name}")
        if answer.args[0].code() in UNANSWERED:
            raise failure from answer
        return failure

    def delete(self, names: Sequence[str]) -> dict[str, bool | CdcdError]:
        """Delete topics; return True, False if the topic does not exist, or an error for each topic.

        Raises TransientError: the broker does not answer.
        """
        if not names:
            return {}
        asked = self._client.delete_topics(list(names), operation_timeout=self.timeout_s, **self._limit)
        return {name: self._deleted(name, future) for name, future in asked.items()}

    def _deleted(self, name: str, future: "Future[Any]") -> bool | CdcdError:
        answer = self._outcome(future)
        if not isinstance(answer, KafkaException):
            return True
        code = answer.args[0].code()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        failure = self._mapped(answer, f"Deleting topic {name}")
        if code in UNANSWERED:
            raise failure from answer
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return SinkError(
                failure.message,
                hint=f"Allow this principal Delete on topic {name}, or delete the topic as another principal "
                f"(kafka-topics --delete --topic {name}), and run the command again.",
            )
        return failure

    def offsets(self, topics: Mapping[str, int]) -> dict[str, int]:
        """Return the approximate number of records of each topic: its offsets, some of which may be markers or
        compacted.

        Args:
            topics: number of partitions by topic.
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

    def topic_acls(self) -> list[AclBinding]:
        """Return all ACLs about topics.

        Raises SinkError also if this principal may not read them (Describe on the cluster).
        """
        return list(self._wait(self._client.describe_acls(_ALL_OF_TOPICS, **self._limit)))

    def topic_config(self, name: str) -> dict[str, str]:
        """Return a topic's settings, including defaults."""
        return self.topic_configs([name])[name]

    def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings of many topics, including defaults, by few requests. Raises as `topic_config`."""
        return {name: self._settings(future) for name, future in self._asked_settings(names)}

    def readable_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings of those topics that exist and whose settings this principal may read (DescribeConfigs).

        Raises TransientError if the broker does not answer.
        """
        found: dict[str, dict[str, str]] = {}
        for name, future in self._asked_settings(names):
            with suppress(SinkError):
                found[name] = self._settings(future)
        return found

    def _asked_settings(self, names: Sequence[str]) -> "Iterator[tuple[str, Future[Any]]]":
        for some in _slices(names, DESCRIBED_AT_ONCE):
            asked = self._client.describe_configs(
                [ConfigResource(ConfigResource.Type.TOPIC, name) for name in some], **self._limit
            )
            yield from ((resource.name, future) for resource, future in asked.items())

    def broker_config(self, broker: int) -> dict[str, str]:
        """Return a broker's settings."""
        asked = [ConfigResource(ConfigResource.Type.BROKER, str(broker))]
        (future,) = self._client.describe_configs(asked, **self._limit).values()
        return self._settings(future)

    def transaction_timeout_max_s(self) -> float:
        """Return the maximum seconds that brokers let a transaction stay open, by the settings of one broker.

        Raises SinkError if this principal may not read settings (DescribeConfigs on the cluster).
        """
        settings = self.broker_config(self.cluster().brokers[0][0])
        return int(settings["transaction.max.timeout.ms"]) / 1000

    def _settings(self, future: "Future[Any]") -> dict[str, str]:
        found = self._wait(future)
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    @property
    def _limit(self) -> dict[str, float]:
        return {"request_timeout": self.timeout_s}

    def _wait(self, future: "Future[T]") -> T:
        outcome = self._outcome(future)
        if isinstance(outcome, KafkaException):
            raise self._mapped(outcome, self.where) from outcome
        return outcome

    def _outcome(self, future: "Future[T]") -> T | KafkaException:
        """Return the result, or the error of the request: at once when the callback got a fatal error.

        An error that is raised and its future refer to each other until Python's garbage collector runs, which is rare
        (`daemon/process.py`). While 2,000 topics are created, thousands of requests have errors.
        """
        deadline = time.monotonic() + self.timeout_s + 5
        while True:
            try:
                error = future.exception(_SLICE_S)
            except TimeoutError:
                self._client.poll(0)
                if (
                    self.is_stopping
                    or time.monotonic() > deadline
                    or isinstance(self._explained(), FatalError)
                ):
                    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
                continue
            if error is None:
                return future.result()
            if isinstance(error, KafkaException):
                # The traceback of a request that fails as a whole refers to the futures of all its answers.
                return error.with_traceback(None)
            raise error

    def _explained(self) -> CdcdError | None:
        """Return the callback's most telling error: a fatal one, else the first that is not about all brokers."""
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
