"""Transactions that end while a partition has no leader: Kafka writes no marker there, and answers the commit.

If the first test fails because readers see the records, this version of Kafka no longer does so, and neither the wait
of `kafka/outage.py` nor `kafka/outage.py` is needed for it.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.checkpoint import CheckpointTopic, peek_at_start
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.errors import Partition
from cdcd.adapters.kafka.outage import HANGS_S, EndOffsets, HangingTransactions, Settling
from cdcd.adapters.kafka.sink_failures import OPEN_HINT
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import TransientError
from cdcd.core.transactions.position import Position
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from deploy.local.kafka_prepared import cluster_id
from deploy.local.process import free_port
from tests.integration.daemon import WAIT_S, until
from tests.integration.test_kafka_sink import sink_of
from tests.integration.visible_records import await_decided


class TwoBrokers:
    """The first broker is the controller, and coordinates transactions. The second one leads `topic`."""

    def __init__(self, folder: Path) -> None:
        cluster, controller = cluster_id(), free_port()
        self._brokers = [
            KafkaBroker(
                folder / f"kafka-{number}",
                port=(port := free_port()),
                cluster=cluster,
                settings={
                    "node.id": str(number),
                    "process.roles": roles,
                    "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                    "listeners": f"CLIENT://127.0.0.1:{port}{more}",
                    "advertised.listeners": f"CLIENT://127.0.0.1:{port}",
                    "inter.broker.listener.name": "CLIENT",
                },
            )
            for number, roles, more in (
                (1, "broker,controller", f",CONTROLLER://127.0.0.1:{controller}"),
                (2, "broker", ""),
            )
        ]
        self.first, self.second = self._brokers
        self.first.start()
        self.servers = self.first.bootstrap_servers
        # The topic of transactions is made now, while there is one broker, so that the first broker leads it.
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": "first of all"})
        producer.init_transactions(WAIT_S)
        self.admin = Admin({"bootstrap.servers": self.servers})
        self.second.start()

    def create(self, topic: str) -> None:
        """Create a topic that the second broker leads."""
        client = AdminClient({"bootstrap.servers": self.servers})
        client.create_topics([NewTopic(topic, 1, replica_assignment=[[2]])])[topic].result(WAIT_S)
        self.await_leader(topic, 2)

    def await_leader(self, topic: str, leader: int) -> None:
        client = AdminClient({"bootstrap.servers": self.servers})
        until(
            lambda: client.list_topics(topic, WAIT_S).topics[topic].partitions[0].leader == leader or None,
            f"the leader of {topic} is not {leader}",
        )

    def ends(self, topic: str) -> dict[Partition, EndOffsets]:
        """What `Admin.ends` tells, once it knows the leader."""
        return until(lambda: self.admin.ends([topic]) or None, f"nobody tells where {topic} ends")

    def freeze(self, topic: str) -> None:
        """Let the second broker stand still, until its partition has no leader."""
        self.second.pause()
        self.await_leader(topic, -1)

    def wake(self, topic: str) -> None:
        """Let it go on, until its partition has a leader."""
        self.second.resume()
        self.await_leader(topic, 2)

    def commit_without_leader(
        self, producer: Producer, topic: str, value: bytes, key: str | None = None
    ) -> None:
        """Commit a transaction with one record, whose partition has no leader when the transaction ends."""
        producer.begin_transaction()
        producer.produce(topic, value, key)
        assert producer.flush(WAIT_S) == 0
        self.freeze(topic)
        producer.commit_transaction(WAIT_S)
        self.wake(topic)

    def destroy(self) -> None:
        for broker in self._brokers:
            broker.destroy()


@pytest.fixture(scope="module")
def brokers(scratch: Path) -> Iterator[TwoBrokers]:
    made = TwoBrokers(scratch / f"two-{uuid4().hex[:8]}")
    yield made
    made.destroy()


def test_a_transaction_that_ends_without_a_leader_hangs_until_the_next_one_in_the_partition(
    brokers: TwoBrokers, unique: str
):
    topic = f"{unique}.records"
    brokers.create(topic)
    producer = Producer({"bootstrap.servers": brokers.servers, "transactional.id": unique})
    producer.init_transactions(WAIT_S)
    # GIVEN a transaction whose partition has no leader when it ends
    brokers.commit_without_leader(producer, topic, b"first")
    # THEN readers do not see its record, though Kafka has acknowledged it
    assert brokers.ends(topic) == {(topic, 0): EndOffsets(0, 1)}
    # AND the transaction is found once readers have made no progress for `HANGS_S`
    transactions, now = HangingTransactions(), time.monotonic()
    transactions.failed({topic})
    assert transactions.answered((), now) == {topic}
    assert transactions.looked(brokers.ends(topic), (), now) == []
    found = transactions.looked(brokers.ends(topic), (), now + HANGS_S)
    assert (found, transactions.hanging) == ([(topic, 0)], {(topic, 0): 0})
    # WHEN another transaction writes there
    producer.begin_transaction()
    producer.produce(topic, b"second")
    producer.commit_transaction(WAIT_S)
    # THEN readers get the records of both
    with Reader(brokers.servers, unique) as reader:
        assert [raw.value for raw in reader.read_all()] == [b"first", b"second"]
    assert transactions.looked(brokers.ends(topic), (), now + HANGS_S + 1) == []
    assert not transactions.hanging


class Leaderless(Settling):
    """The partition has no leader when a transaction is ready to end, and has one when the wait is over."""

    def __init__(self, brokers: TwoBrokers, topic: str) -> None:
        Settling.__init__(self)
        self._brokers, self._topic = brokers, topic
        self.is_expected = self.has_waited = False

    def wait_s(self, asked_at: float, now: float) -> float:
        if self.is_expected and not self.has_waited:
            self.has_waited = True
            assert self._brokers.ends(self._topic)[self._topic, 0] == EndOffsets(0, 1), "all is acknowledged"
            self._brokers.freeze(self._topic)
            self._brokers.wake(self._topic)
        return 0.0


class Delivery:
    """A sink and a topic. From `expect` on, the next end of a transaction finds the partition without a leader."""

    def __init__(self, brokers: TwoBrokers, name: str) -> None:
        self.topic = f"{name}.records"
        brokers.create(self.topic)
        self._servers, self._name = brokers.servers, name
        self._settling = Leaderless(brokers, self.topic)
        self.sink = sink_of(brokers.first, name, settling=self._settling)

    def expect(self) -> None:
        self._settling.is_expected = True

    def deliver(self) -> list[bytes | None]:
        """Deliver one record, and return what readers see."""
        position = Position(1, 2)
        batch = Batch(position, position, items=[(self.topic, b"key", b"value", None)])
        self.sink.deliver(batch, Checkpoint("1", 1, "", position, 0))
        self.sink.close()
        assert self._settling.has_waited
        with Reader(self._servers, self._name) as reader:
            return [raw.value for raw in reader.read_all()]


def test_a_sink_waits_between_the_last_record_and_the_end_of_the_transaction(
    brokers: TwoBrokers, unique: str
):
    delivery = Delivery(brokers, unique)
    delivery.sink.open()
    delivery.expect()
    assert delivery.deliver() == [b"value"]


def test_a_transaction_that_a_former_producer_left_is_aborted_when_its_partition_has_a_leader(
    brokers: TwoBrokers, unique: str
):
    delivery = Delivery(brokers, unique)
    # GIVEN a transaction that its producer did not end
    former = Producer({"bootstrap.servers": brokers.servers, "transactional.id": unique})
    former.init_transactions(WAIT_S)
    former.begin_transaction()
    former.produce(delivery.topic, b"value")
    assert former.flush(WAIT_S) == 0
    # WHEN the next producer delivers the record again, while the partition loses its leader and gets it back
    delivery.expect()
    delivery.sink.open()
    # THEN readers get the record once
    assert delivery.deliver() == [b"value"]


FIRST = Checkpoint("7001", 1, "publication=shop", Position(90, 100), 100)
SECOND = replace(FIRST, position=Position(190, 200), flushed_lsn=200)


@pytest.mark.long
def test_a_start_goes_on_behind_a_hanging_checkpoint_whose_commit_was_acknowledged(
    brokers: TwoBrokers, unique: str
):
    # GIVEN a checkpoint that readers see, and one whose commit Kafka has acknowledged, and does not show
    topic = f"{unique}.checkpoint"
    brokers.create(topic)
    former = Producer({"bootstrap.servers": brokers.servers, "transactional.id": unique})
    former.init_transactions(WAIT_S)
    former.begin_transaction()
    former.produce(topic, FIRST.encode(), unique)
    former.commit_transaction(WAIT_S)
    await_decided(brokers.servers, topic)
    brokers.commit_without_leader(former, topic, SECOND.encode(), unique)
    # THEN a start that compares before it fences finds both
    client: Properties = {"bootstrap.servers": brokers.servers}
    place = CheckpointTopic(client, topic, CheckpointRecords(unique), WAIT_S)
    look = partial(peek_at_start, place, threading.Event(), exists=True)
    assert (look(), look(newest=True)) == (FIRST, SECOND)
    # AND one that cannot know that the second was committed leaves it, and says what to do
    sink = sink_of(brokers.first, unique, topic=topic)
    with pytest.raises(TransientError, match="a transaction in it is open, from offset 2 on") as failure:
        sink.open(told=100)
    assert failure.value.hint == OPEN_HINT
    assert (look(), look(newest=True)) == (FIRST, SECOND)
    # AND one that knows that PostgreSQL was told of it commits it, and goes on behind it
    assert sink.open(told=200) == SECOND
    sink.close()
    assert look() == SECOND
