"""What tells a topic from another one that had its name: Kafka's id of it, and the first offsets of its partitions."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from cdcd.adapters.kafka.client import make_admin
from cdcd.adapters.kafka.errors import UNANSWERED, passes
from cdcd.core.errors import ConfigError, SinkError, SinkUnavailableError

NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of 128 zeros (KIP-516), which a topic without an id has."""

_TIMEOUT_S: Final = 15.0
_AGAIN_S: Final = 0.1
"""Seconds after which a question is asked again whose error passes by itself."""


@dataclass(frozen=True, slots=True)
class TopicStart:
    """Identity of a topic.

    Attributes:
        topic_id: Kafka's id in base64; `NO_ID` of a broker before Kafka 2.8, which has no ids.
        first: by partition, the first offset that is still there.
    """

    topic_id: str
    first: Mapping[int, int]


class TopicStarts:
    """Asks the brokers for the identity of topics. `properties` are librdkafka's.

    ConfigError: librdkafka refuses a property.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._servers = properties["bootstrap.servers"]
        self._refusals: deque[str] = deque(maxlen=1)
        """The last refusal of the login since a broker accepted it.

        librdkafka tells refusals to a callback only, and the question ends as if no broker had answered.
        """
        try:
            self._client = make_admin({**properties, "error_cb": partial(_note, self._refusals)})
        except KafkaException as error:
            raise ConfigError(
                f"librdkafka refuses the properties of the client that looks at topics: {error.args[0].str()}",
                hint="Correct kafka.client_properties (librdkafka's names), or the login in kafka.properties. A job of "
                "one's own gives both to KafkaSource.",
            ) from None

    def look(self, topics: Sequence[str]) -> dict[str, TopicStart]:
        """Those of `topics` that exist.

        Raises:
            SinkUnavailableError: no broker answered in time.
            SinkError: the brokers refuse the request.
        """
        described = self._described(topics)
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        first = self._offsets(described, earliest, IsolationLevel.READ_COMMITTED)
        return {topic: TopicStart(str(each.topic_id), first[topic]) for topic, each in described.items()}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the ids of `topics`. A topic that does not exist, or has no id, is left out.

        Raises:
            SinkUnavailableError, SinkError: as `look`.
        """
        ids = {topic: str(each.topic_id) for topic, each in self._described(topics).items()}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id != NO_ID}

    def beginnings(self, topics: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return the first offset that each partition still has. A topic that does not exist is left out.

        Raises:
            SinkUnavailableError, SinkError: as `look`.
        """
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(self._described(topics), earliest, IsolationLevel.READ_COMMITTED)

    def ends(self, topics: Sequence[str]) -> dict[str, dict[int, int]]:
        """The offset after the last committed record of each partition, of those of `topics` that exist.

        Raises:
            SinkUnavailableError, SinkError: as `look`.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(self._described(topics), latest, IsolationLevel.READ_COMMITTED)

    def both_ends(self, topics: Sequence[str]) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        """Look up where partitions end: first with uncommitted records, then with committed records only.

        Raises:
            SinkUnavailableError, SinkError: as `look`.
        """
        described = self._described(topics)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        written = self._offsets(described, latest, IsolationLevel.READ_UNCOMMITTED)
        return written, self._offsets(described, latest, IsolationLevel.READ_COMMITTED)

    def cleanup_policies(self, topics: Sequence[str]) -> dict[str, str]:
        """`cleanup.policy` of those of `topics` that exist, where the user may see it (DescribeConfigs)."""
        if not topics:
            return {}
        asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        found: dict[str, str] = {}
        for resource, future in self._client.describe_configs(asked, request_timeout=_TIMEOUT_S).items():
            # The mirror goes on without the policy of a topic.
            with suppress(KafkaException, TimeoutError):
                found[resource.name] = str(future.result(_TIMEOUT_S)["cleanup.policy"].value)
        return found

    def _described(self, topics: Sequence[str]) -> dict[str, Any]:
        """Those of `topics` that exist, as the client describes them."""
        if not topics:
            return {}
        described: dict[str, Any] = {}
        asked = self._client.describe_topics(TopicCollection(list(topics)), request_timeout=_TIMEOUT_S)
        for topic, future in asked.items():
            try:
                described[topic] = future.result(_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._failure(str(error), retriable=passes(error.args[0])) from error
            except TimeoutError as error:
                raise self._failure("no answer in time", retriable=True) from error
        # The brokers have accepted the login.
        self._hear()
        self._refusals.clear()
        return described

    def _offsets(
        self, described: Mapping[str, Any], spec: OffsetSpec, level: IsolationLevel
    ) -> dict[str, dict[int, int]]:
        """The offset by `spec` of each partition of the topics.

        A partition of a new topic may have no leader yet, and a client may still know a former leader. Such partitions
        are asked for again, because librdkafka does not do so.
        """
        found: dict[str, dict[int, int]] = {topic: {} for topic in described}
        asked = {
            TopicPartition(topic, part.id): spec
            for topic, each in described.items()
            for part in each.partitions
        }
        deadline = time.monotonic() + _TIMEOUT_S
        while asked:
            answers = self._client.list_offsets(asked, isolation_level=level, request_timeout=_TIMEOUT_S)
            asked = {}
            for place, future in answers.items():
                try:
                    offset = future.result(_TIMEOUT_S).offset
                except KafkaException as error:
                    cause = error.args[0]
                    if not passes(cause) or cause.code() in UNANSWERED or time.monotonic() > deadline:
                        raise self._failure(str(error), retriable=passes(cause)) from error
                    asked[TopicPartition(place.topic, place.partition)] = spec
                    continue
                except TimeoutError as error:
                    raise self._failure("no answer in time", retriable=True) from error
                if offset < 0:
                    # librdkafka 2.x gives a negative offset and no error if no answer came in time.
                    raise self._failure("no answer in time", retriable=True)
                found[place.topic][place.partition] = offset
            if asked:
                time.sleep(_AGAIN_S)
        return found

    def _hear(self) -> None:
        """Call the callback with the errors that wait for it."""
        self._client.poll(0)

    def _failure(self, reason: str, *, retriable: bool) -> SinkError | SinkUnavailableError:
        self._hear()
        if retriable and self._refusals:
            return SinkError(
                f"Kafka at {self._servers} refuses the login: {self._refusals[0]}",
                hint="Correct the login in kafka.properties, or in kafka.client_properties if it has one. A job of "
                "one's own gives both to KafkaSource.",
            )
        if retriable:
            return SinkUnavailableError(
                f"Kafka at {self._servers} does not answer: {reason}",
                hint="Check that the brokers run and that kafka.bootstrap_servers has their addresses.",
            )
        return SinkError(
            f"Kafka at {self._servers} refuses: {reason}",
            hint="The user needs Describe on the topics. kafka.client_properties has librdkafka's names of its login.",
        )


def _note(refusals: deque[str], error: KafkaError) -> None:
    if error.code() == KafkaError._AUTHENTICATION:
        refusals.append(error.str())
