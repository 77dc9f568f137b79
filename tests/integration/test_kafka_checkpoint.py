"""The checkpoint is read behind every transaction that was begun before, against a real broker."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillReadingError
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.kafka.checkpoint import peek_checkpoint, read_checkpoint
from cdcd.kafka.client import Properties
from cdcd.transactions.position import Checkpoint, Position
from deploy.local import KafkaBroker

FIRST = Checkpoint("7001", 1, "publication=shop", Position(100, 110), 110)
SECOND = replace(FIRST, position=Position(200, 210), flushed_lsn=210)


class Topic:
    """A checkpoint topic in which one is committed and another one's transaction is open."""

    def __init__(self, broker: KafkaBroker, name: str) -> None:
        self.client: Properties = {"bootstrap.servers": broker.bootstrap_servers}
        self.name = name
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)
        self._write("first", FIRST).commit_transaction(10)
        self.open = self._write("second", SECOND)

    def _write(self, writer: str, checkpoint: Checkpoint) -> Producer:
        producer = Producer({**self.client, "transactional.id": f"{self.name}-{writer}"})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(self.name, checkpoint.encode(), self.name)
        assert producer.flush(10) == 0
        return producer

    def read(self, timeout_s: float = 20) -> Checkpoint | None:
        return read_checkpoint(self.client, self.name, self.name, timeout_s, threading.Event())


@pytest.mark.parametrize(("commits", "found"), [(True, SECOND), (False, FIRST)], ids=["committed", "aborted"])
def test_an_open_transaction_is_waited_for(
    broker: KafkaBroker, unique: str, commits: bool, found: Checkpoint
):
    topic = Topic(broker, unique)
    with ThreadPoolExecutor(1) as pool:
        reading: Future[Checkpoint | None] = pool.submit(topic.read)
        with pytest.raises(StillReadingError):
            reading.result(1)
        (topic.open.commit_transaction if commits else topic.open.abort_transaction)(10)
        assert reading.result(20) == found
    assert topic.read() == found


def test_who_only_looks_sees_what_is_committed_and_does_not_wait(broker: KafkaBroker, unique: str):
    topic = Topic(broker, unique)
    assert peek_checkpoint(topic.client, unique, unique, 20) == FIRST
    topic.open.abort_transaction(10)


def test_one_that_stays_open_is_named(broker: KafkaBroker, unique: str):
    topic = Topic(broker, unique)
    with pytest.raises(KafkaException, match="a transaction in it is open, from offset 2 on"):
        topic.read(timeout_s=1)
    topic.open.abort_transaction(10)
