"""Where topics end, asked of brokers that do not know it at once."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdcd.adapters.kafka import topic_facts
from cdcd.adapters.kafka.topic_facts import NO_ID, TopicStarts
from cdcd.core.errors import SinkError, SinkUnavailableError

TOPIC = "shop.public.orders"


class Client:
    """An admin client that knows one topic of two partitions. Partition 1 answers with each of `errors` first."""

    def __init__(self, errors: Iterator[int]) -> None:
        self._errors = errors
        self.properties: dict[str, Any] = {}
        self.topic_id = "id"
        self.is_away = False
        self.heard: list[KafkaError] = []
        """What librdkafka tells the callback at the next poll."""
        self.asked: list[list[int]] = []

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[Any]]:
        if self.is_away:
            return {TOPIC: _failed(KafkaError._TIMED_OUT)}
        partitions = [SimpleNamespace(id=0), SimpleNamespace(id=1)]
        return {TOPIC: _answered(SimpleNamespace(topic_id=self.topic_id, partitions=partitions))}

    def poll(self, _: float) -> int:
        for error in self.heard:
            self.properties["error_cb"](error)
        return len(self.heard)

    def list_offsets(
        self, asked: Mapping[TopicPartition, object], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        self.asked.append(sorted(place.partition for place in asked))
        return {place: self._offset(place.partition) for place in asked}

    def _offset(self, partition: int) -> Future[Any]:
        code = next(self._errors, None) if partition else None
        if code is None:
            return _answered(SimpleNamespace(offset=10 + partition))
        return _failed(code)


def _answered(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def _asking(monkeypatch: pytest.MonkeyPatch, *codes: int) -> tuple[TopicStarts, Client]:
    client = Client(iter(codes))

    def made(properties: dict[str, Any]) -> Client:
        client.properties = properties
        return client

    monkeypatch.setattr(topic_facts, "make_admin", made)
    return TopicStarts({"bootstrap.servers": "127.0.0.1:9"}), client


def test_a_partition_without_a_leader_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = KafkaError.NOT_LEADER_FOR_PARTITION
    starts, client = _asking(monkeypatch, moved, KafkaError.LEADER_NOT_AVAILABLE)
    assert starts.ends([TOPIC]) == {TOPIC: {0: 10, 1: 11}}
    assert client.asked == [[0, 1], [1], [1]]


def test_a_partition_that_never_gets_a_leader_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_facts, "_TIMEOUT_S", 0.0)
    starts, client = _asking(monkeypatch, KafkaError.LEADER_NOT_AVAILABLE)
    with pytest.raises(SinkUnavailableError, match="does not answer"):
        starts.ends([TOPIC])
    assert len(client.asked) == 1


def test_brokers_that_do_not_answer_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, client = _asking(monkeypatch, KafkaError._ALL_BROKERS_DOWN)
    with pytest.raises(SinkUnavailableError, match="does not answer"):
        starts.ends([TOPIC])
    assert len(client.asked) == 1


def test_a_right_that_is_missing_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, _ = _asking(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SinkError, match="refuses") as refused:
        starts.ends([TOPIC])
    assert "Describe" in refused.value.hint


def test_a_login_that_the_brokers_refuse_is_no_outage_until_they_accept_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN brokers that refuse the login, which librdkafka tells its callback only
    down = KafkaError._ALL_BROKERS_DOWN
    starts, client = _asking(monkeypatch, down)
    client.heard = [KafkaError(KafkaError._AUTHENTICATION, "bad"), KafkaError(down)]
    client.is_away = True
    with pytest.raises(SinkError, match="refuses the login: bad") as refused:
        starts.ends([TOPIC])
    assert "KafkaSource" in refused.value.hint
    # WHEN they accept it, THEN a later silence is an outage
    client.heard, client.is_away = [], False
    with pytest.raises(SinkUnavailableError, match="does not answer"):
        starts.ends([TOPIC])


def test_topics_have_ids_unless_the_brokers_give_none(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, client = _asking(monkeypatch)
    assert starts.topic_ids([TOPIC]) == {TOPIC: "id"}
    client.topic_id = NO_ID
    assert starts.topic_ids([TOPIC]) == {}
    assert starts.beginnings([TOPIC]) == {TOPIC: {0: 10, 1: 11}}
