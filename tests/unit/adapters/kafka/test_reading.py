"""What a reader of assigned partitions makes of a broker that has just come back."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdcd.adapters.kafka import reading
from cdcd.adapters.kafka.errors import RETRIABLE, UNANSWERED
from cdcd.adapters.kafka.reading import answers, partitions_of, watermarks

PARTITION = TopicPartition("shop.public.orders", 0)

NOT_YET = sorted(RETRIABLE)
NOT_LISTED = [
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
]


class Broker:
    """A consumer whose broker gives these error codes first, and then where the partition begins and ends."""

    def __init__(self, *codes: int, listed: Sequence[str] | None = None) -> None:
        self._codes = iter(codes)
        self._listed = listed
        self.asked = 0
        self.learned = 0

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert partition is PARTITION
        self.asked += 1
        for code in self._codes:
            raise KafkaException(KafkaError(code))
        return 3, 7

    def list_topics(self, topic: str | None = None, *, timeout: float) -> Any:
        self.learned += 1
        if self._listed is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        assert topic is None
        return SimpleNamespace(topics=dict.fromkeys(self._listed))


def ends(broker: Any, timeout_s: float = 60, stopping: threading.Event | None = None, **how: bool) -> Any:
    return watermarks(broker, PARTITION, timeout_s, stopping, **how)


@pytest.mark.parametrize("code", NOT_YET + NOT_LISTED)
def test_a_partition_that_exists_is_asked_for_again_until_the_broker_knows_it(code: int) -> None:
    broker = Broker(code, code)
    assert ends(broker) == (3, 7)
    assert broker.asked == 3
    assert broker.learned == (0 if code in UNANSWERED else 2)


@pytest.mark.parametrize("code", NOT_YET + NOT_LISTED)
def test_the_last_answer_is_raised_when_the_time_is_over_or_somebody_stops_it(code: int) -> None:
    stopping = threading.Event()
    stopping.set()
    asked: list[Callable[[Broker], Any]] = [
        lambda broker: ends(broker, timeout_s=-1),
        lambda broker: ends(broker, stopping=stopping),
    ]
    for ask in asked:
        broker = Broker(code, code)
        with pytest.raises(KafkaException) as caught:
            ask(broker)
        assert (caught.value.args[0].code(), broker.asked) == (code, 1)


@pytest.mark.parametrize("code", NOT_LISTED)
def test_a_topic_that_may_be_missing_is_missing_at_once_if_the_broker_lists_others(code: int) -> None:
    broker = Broker(code, listed=["shop.public.customers"])
    with pytest.raises(KafkaException):
        ends(broker, exists=False)
    assert broker.asked == 1


@pytest.mark.parametrize("code", NOT_LISTED)
@pytest.mark.parametrize("listed", [None, (), (PARTITION.topic,)], ids=["no answer", "none", "it"])
def test_a_topic_that_may_be_missing_is_asked_for_again_if_the_broker_lists_none_or_it(
    code: int, listed: Sequence[str] | None
) -> None:
    broker = Broker(code, code, listed=listed)
    assert ends(broker, exists=False) == (3, 7)
    assert (broker.asked, broker.learned) == (3, 2)


def test_a_broker_that_goes_on_listing_no_topic_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "NONE_LISTED_S", -1)
    broker = Broker(KafkaError.UNKNOWN_TOPIC_OR_PART, listed=())
    with pytest.raises(KafkaException):
        ends(broker, exists=False)
    assert broker.asked == 1


def test_a_refusal_is_raised_at_once() -> None:
    broker = Broker(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        ends(broker)
    assert broker.asked == 1


class Lister:
    """A consumer whose broker lists a topic with these answers: an error's code, or a number of partitions."""

    def __init__(self, *answers: tuple[int | None, int]) -> None:
        self._answers = iter(answers)

    def list_topics(self, topic: str, timeout: float) -> Any:
        code, count = next(self._answers)
        error = None if code is None else KafkaError(code)
        found = SimpleNamespace(error=error, partitions=dict.fromkeys(range(count)))
        return SimpleNamespace(topics={topic: found})


def listed(lister: Any, timeout_s: float = 60) -> Any:
    return partitions_of(lister, "shop.schemas", timeout_s, threading.Event())


@pytest.mark.parametrize("code", [*NOT_YET, *NOT_LISTED, None])
def test_a_topic_that_exists_is_asked_for_until_the_broker_lists_its_partitions(code: int | None) -> None:
    assert listed(Lister((code, 0), (code, 0), (None, 2))) == {0, 1}


def test_a_topic_that_the_broker_does_not_list_in_time_is_missing() -> None:
    for code in (KafkaError.UNKNOWN_TOPIC_OR_PART, None):
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            listed(Lister((code, 0)), timeout_s=-1)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        listed(Lister((KafkaError.TOPIC_AUTHORIZATION_FAILED, 0)))


class Polled:
    """What a consumer's `poll` gives: a record where the code is None."""

    def __init__(self, code: int | None) -> None:
        self._error = None if code is None else KafkaError(code)

    def error(self) -> KafkaError | None:
        return self._error


class Reader:
    """A consumer that gives these messages, and then nothing."""

    def __init__(self, messages: Sequence[Polled]) -> None:
        self._messages: Iterator[Polled | None] = chain(messages, repeat(None))

    def poll(self, timeout: float) -> Polled | None:
        return next(self._messages)


def read(messages: Sequence[Polled], timeout_s: float) -> Iterator[Any]:
    reader: Any = Reader(messages)
    return answers(reader, timeout_s, threading.Event(), lambda: "no answer")


@pytest.mark.parametrize("code", NOT_LISTED)
def test_a_topic_that_is_not_listed_for_a_moment_is_read_on(code: int) -> None:
    record, end = Polled(None), Polled(KafkaError._PARTITION_EOF)
    found = read([Polled(code), record, Polled(code), end], 60)
    assert [next(found), next(found)] == [record, end]


@pytest.mark.parametrize("code", NOT_LISTED)
def test_a_topic_that_is_not_listed_in_time_is_said_to_be_missing(code: int) -> None:
    with pytest.raises(KafkaException) as caught:
        next(read([Polled(code)], -1))
    assert caught.value.args[0].code() == code


def test_a_broker_that_gives_nothing_in_time_did_not_answer() -> None:
    with pytest.raises(KafkaException, match="no answer") as caught:
        next(read([], -1))
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT


@pytest.mark.parametrize(
    "passing",
    [
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError._ALL_BROKERS_DOWN,
    ],
)
def test_errors_about_the_group_and_those_that_pass_are_passed_over_and_others_are_raised(
    passing: int,
) -> None:
    found = read([Polled(passing), Polled(KafkaError.TOPIC_AUTHORIZATION_FAILED)], 60)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        next(found)
