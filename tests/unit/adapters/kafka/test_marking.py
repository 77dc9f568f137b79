"""Which records watermarks become, with a producer made by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.adapters.kafka.marking import Marking
from cdcd.core.engine.queue import Watermark

ORDERS, ITEMS = "shop.public.orders", "shop.public.items"
HEADERS = [("cdcd.watermark", b"4711")]


class Producer:
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
    producer = Producer(orders=3, items=1)
    found = marking(producer)
    found.produce()
    assert producer.produced == [(ITEMS, 0), (ORDERS, 0), (ORDERS, 1), (ORDERS, 2)]
    assert found.count == 4


def test_a_topic_that_is_missing_is_left_out():
    producer = Producer(orders=1)
    marking(producer).produce()
    assert producer.produced == [(ORDERS, 0)]


def test_a_full_queue_is_gone_on_with_where_it_was():
    producer = Producer(orders=3)
    found = marking(producer)
    producer.raises = [None, BufferError(), None]  # type: ignore[list-item]
    with pytest.raises(BufferError):
        found.produce()
    found.produce()
    assert producer.produced == [(ORDERS, 0), (ORDERS, 1), (ORDERS, 2)]
    assert found.count == 3


def test_a_partition_that_is_gone_meanwhile_is_left_out_and_a_failure_is_raised():
    producer = Producer(orders=2)
    found = marking(producer)
    producer.raises = [
        KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION)),
        KafkaException(KafkaError(KafkaError._STATE)),
    ]
    with pytest.raises(KafkaException, match="_STATE"):
        found.produce()
    assert (producer.produced, found.count) == ([], 0)


def test_without_an_answer_there_are_none():
    producer = Producer(orders=1)

    def away(*, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    producer.list_topics = away  # type: ignore[method-assign, assignment]
    marking(producer).produce()
    assert producer.produced == []
