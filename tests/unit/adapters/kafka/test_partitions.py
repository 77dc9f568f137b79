from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.adapters.kafka.partitions import Marking, ToPartitions, counter
from cdcd.core.engine.batch import Watermark
from cdcd.core.records.encoder import HEADER_PARTITION

CHOSEN = (HEADER_PARTITION, (10).to_bytes(4, "big"))


class Recorder:
    """A producer's `produce`."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, *arguments: Any, headers: Any = None) -> None:
        self.calls.append((arguments, headers))


def test_a_chosen_partition_is_the_rest_of_the_hash():
    produce, asked = Recorder(), []

    def count(topic: str) -> int:
        asked.append(topic)
        return 4

    to = ToPartitions(produce, count)
    to("t", b"v", b"k", [CHOSEN])
    to("t", None, b"k", headers=[("a", b"b"), CHOSEN])
    assert produce.calls == [(("t", b"v", b"k", 2), None), (("t", None, b"k", 2), [("a", b"b")])]
    assert asked == ["t"]


def test_other_records_are_handed_over_as_they_are():
    produce = Recorder()
    to = ToPartitions(produce, lambda _: 1 // 0)
    to("t", b"v", b"k")
    to("t", b"v", None, headers=[("a", b"b")])
    assert produce.calls == [(("t", b"v", b"k"), None), (("t", b"v", None), [("a", b"b")])]


class Topic:
    def __init__(self, partitions: int, error: KafkaError | None = None) -> None:
        self.partitions = dict.fromkeys(range(partitions))
        self.error = error


class Producer:
    def __init__(self, **topics: Topic) -> None:
        self.topics = topics

    def list_topics(self, _topic: str, _timeout: float) -> "Producer":
        return self


def test_the_producer_tells_how_many_partitions_a_topic_has():
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    count = counter(Producer(a=Topic(3), b=Topic(0), c=Topic(0, refused)))  # type: ignore[arg-type]
    assert count("a") == 3
    with pytest.raises(KafkaException) as caught:
        count("c")
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    for topic in ("b", "d"):
        with pytest.raises(KafkaException) as caught:
            count(topic)
        assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


ORDERS, ITEMS = "shop.public.orders", "shop.public.items"
HEADERS = [("cdcd.watermark", b"4711")]


class MarkingProducer:
    """A producer that knows these topics, by their numbers of partitions."""

    def __init__(self, **partitions: int) -> None:
        names = {"orders": ORDERS, "items": ITEMS}
        self.topics = {
            names[name]: SimpleNamespace(topic=names[name], partitions=dict.fromkeys(range(count)))
            for name, count in partitions.items()
        }
        self.produced: list[tuple[str, int]] = []
        self.raises: list[BaseException] = []

    def list_topics(self, topic: str | None = None, *, timeout: float) -> Any:
        assert topic is None, "to ask for one may create it"
        return SimpleNamespace(topics=self.topics)

    def produce(self, topic: str, value: None, key: None, partition: int, *, headers: Any) -> None:
        if self.raises and (error := self.raises.pop(0)) is not None:
            raise error
        assert (value, key, headers) == (None, None, HEADERS)
        self.produced.append((topic, partition))


def marking(producer: Any) -> Marking:
    return Marking(producer, Watermark(4711, (ITEMS, ORDERS)))


def test_every_partition_of_every_topic_gets_one():
    producer = MarkingProducer(orders=3, items=1)
    found = marking(producer)
    found.produce()
    assert producer.produced == [(ITEMS, 0), (ORDERS, 0), (ORDERS, 1), (ORDERS, 2)]
    assert found.count == 4


def test_a_topic_that_is_missing_is_left_out():
    producer = MarkingProducer(orders=1)
    marking(producer).produce()
    assert producer.produced == [(ORDERS, 0)]


def test_a_full_queue_is_gone_on_with_where_it_was():
    producer = MarkingProducer(orders=3)
    found = marking(producer)
    producer.raises = [None, BufferError(), None]  # type: ignore[list-item]
    with pytest.raises(BufferError):
        found.produce()
    found.produce()
    assert producer.produced == [(ORDERS, 0), (ORDERS, 1), (ORDERS, 2)]
    assert found.count == 3


def test_a_partition_that_is_gone_meanwhile_is_left_out_and_a_failure_is_raised():
    producer = MarkingProducer(orders=2)
    found = marking(producer)
    producer.raises = [
        KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION)),
        KafkaException(KafkaError(KafkaError._STATE)),
    ]
    with pytest.raises(KafkaException, match="_STATE"):
        found.produce()
    assert (producer.produced, found.count) == ([], 0)


def test_without_an_answer_there_are_none():
    producer = MarkingProducer(orders=1)

    def away(*, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    producer.list_topics = away  # type: ignore[method-assign, assignment]
    marking(producer).produce()
    assert producer.produced == []
