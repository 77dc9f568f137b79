from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.adapters.kafka.partitions import ToPartitions, counter
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
