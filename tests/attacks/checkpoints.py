"""The checkpoint topic, read and written as somebody who is not cdcd."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from cdcd.core.engine.checkpoint import Checkpoint
from deploy.local import KafkaBroker

WAIT_S: Final = 60.0

Written = tuple[bytes, bytes | None]


def cases(given: Mapping[str, Any], gains: str, failed: Container[str]) -> list[Any]:
    """Parameters with their marks: to those that `failed` has, commit 99c61843 fell."""
    return [
        pytest.param(
            value,
            id=name,
            marks=pytest.mark.attack(gains=gains, before="failed" if name in failed else "withstood"),
        )
        for name, value in given.items()
    ]


def write(broker: KafkaBroker, topic: str, records: Iterable[Written]) -> None:
    """Write keys and values into the topic's first partition."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for key, value in records:
        while True:
            try:
                producer.produce(
                    topic, value, key, 0, on_delivery=lambda error, _: failed.append(error) if error else None
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def records_of(broker: KafkaBroker, topic: str) -> list[Written]:
    """What is committed in the topic's first partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "somebody",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: list[Written] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, "the broker does not answer"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                return found
            found.append((message.key() or b"", message.value()))
    finally:
        consumer.close()


def last_checkpoint(broker: KafkaBroker, topic: str) -> Checkpoint:
    """The newest record."""
    value = records_of(broker, topic)[-1][1]
    assert value is not None
    return Checkpoint.decode(value, topic)


def bomb(broker: KafkaBroker, topic: str, codec: str, records: int, megabytes: int = 150) -> list[int | None]:
    """Write records of zeros. Each record has a few kilobytes after compression.

    Returns:
        The offset of each record; None where the broker refused the record.
    """
    offsets: list[int | None] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "compression.type": codec,
            "message.max.bytes": 1_000_000_000,
            "batch.size": 1_000_000_000,
            "linger.ms": 10_000,
        }
    )
    for _ in range(records):
        producer.produce(
            topic,
            bytes((megabytes << 20) // records),
            b"x",
            on_delivery=lambda error, record: offsets.append(None if error else record.offset()),
        )
    assert producer.flush(60) == 0
    return offsets
