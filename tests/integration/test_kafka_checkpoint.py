"""The checkpoint is read behind every transaction that was begun before, against a real broker."""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillReadingError
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer

from cdcd.adapters.kafka.checkpoint import (
    TAIL_RECORDS,
    CheckpointTopic,
    peek_at_start,
    peek_checkpoint,
    read_checkpoint,
)
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.kafka.reading import POLL_S
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import TransientError
from cdcd.core.transactions.position import Position
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.daemon import BUSY_S, WAIT_S
from tests.integration.faults.proxy import Proxy, kafka_frame
from tests.integration.visible_records import await_decided

QUIET = logging.getLogger("cdcd.tests.librdkafka")
QUIET.setLevel(logging.CRITICAL + 1)

FIRST = Checkpoint("7001", 1, "publication=shop", Position(100, 110), 110)
SECOND = replace(FIRST, position=Position(200, 210), flushed_lsn=210)


def place(client: Properties, name: str, timeout_s: float = WAIT_S) -> CheckpointTopic:
    return CheckpointTopic(client, name, CheckpointRecords(name), timeout_s)


class Topic:
    """A checkpoint topic in which one is committed and another one's transaction is open."""

    def __init__(self, broker: KafkaBroker, name: str) -> None:
        self.client: Properties = {"bootstrap.servers": broker.bootstrap_servers}
        self.name = name
        create_topics(broker.bootstrap_servers, name)
        self._write("first", FIRST).commit_transaction(WAIT_S)
        # Its marker lies before the record of the open transaction.
        await_decided(broker.bootstrap_servers, name)
        self.open = self._write("second", SECOND)

    def _write(self, writer: str, checkpoint: Checkpoint) -> Producer:
        producer = Producer({**self.client, "transactional.id": f"{self.name}-{writer}"})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(self.name, checkpoint.encode(), self.name)
        assert producer.flush(WAIT_S) == 0
        return producer

    def commit(self) -> None:
        """Commit the open transaction; a reader who does not wait sees it."""
        self.open.commit_transaction(WAIT_S)
        await_decided(str(self.client["bootstrap.servers"]), self.name)

    def read(self, timeout_s: float = WAIT_S) -> Checkpoint | None:
        return read_checkpoint(self.place(timeout_s), threading.Event())

    def place(self, timeout_s: float = WAIT_S) -> CheckpointTopic:
        return place(self.client, self.name, timeout_s)


@pytest.mark.parametrize(("commits", "found"), [(True, SECOND), (False, FIRST)], ids=["committed", "aborted"])
def test_an_open_transaction_is_waited_for(
    broker: KafkaBroker, unique: str, commits: bool, found: Checkpoint
):
    topic = Topic(broker, unique)
    with ThreadPoolExecutor(1) as pool:
        reading: Future[Checkpoint | None] = pool.submit(topic.read)
        with pytest.raises(StillReadingError):
            reading.result(1)
        (topic.open.commit_transaction if commits else topic.open.abort_transaction)(WAIT_S)
        assert reading.result(WAIT_S) == found
    assert topic.read() == found


def test_who_only_looks_sees_what_is_committed_and_does_not_wait(broker: KafkaBroker, unique: str):
    topic = Topic(broker, unique)
    assert peek_checkpoint(topic.place()) == FIRST
    topic.open.abort_transaction(WAIT_S)


def test_one_that_stays_open_is_named(broker: KafkaBroker, unique: str):
    topic = Topic(broker, unique)
    with pytest.raises(KafkaException, match="a transaction in it is open, from offset 2 on"):
        # A machine that stands still for a moment must have heard where the open transaction begins.
        topic.read(timeout_s=8)
    topic.open.abort_transaction(WAIT_S)


def test_a_look_before_the_start_sees_what_is_committed_while_a_transaction_is_open(
    broker: KafkaBroker, unique: str
):
    topic = Topic(broker, unique)
    began = time.monotonic()
    assert peek_at_start(topic.place(60), threading.Event(), exists=True) == FIRST
    assert time.monotonic() - began < BUSY_S
    topic.commit()
    assert peek_at_start(topic.place(), threading.Event(), exists=True) == SECOND


def test_a_look_finds_the_checkpoint_behind_transactions_that_were_aborted(broker: KafkaBroker, unique: str):
    topic = Topic(broker, unique)
    topic.open.abort_transaction(WAIT_S)
    for _ in range(TAIL_RECORDS):
        topic.open.begin_transaction()
        topic.open.produce(unique, SECOND.encode(), unique)
        topic.open.abort_transaction(WAIT_S)
    assert peek_at_start(topic.place(), threading.Event(), exists=True) == FIRST
    assert topic.read() == FIRST


def test_without_a_topic_or_a_record_there_is_no_checkpoint_to_look_at(broker: KafkaBroker, unique: str):
    client: Properties = {"bootstrap.servers": broker.bootstrap_servers, "allow.auto.create.topics": False}
    assert peek_at_start(place(client, unique), threading.Event(), exists=False) is None
    create_topics(broker.bootstrap_servers, unique)
    assert peek_at_start(place(client, unique), threading.Event(), exists=True) is None


def test_a_look_at_a_broker_that_is_away_ends_soon_and_passes():
    client: Properties = {"bootstrap.servers": "127.0.0.1:1", "logger": QUIET}
    began = time.monotonic()
    with pytest.raises(TransientError):
        peek_at_start(place(client, "t", 1), threading.Event(), exists=True)
    assert time.monotonic() - began < 1 + BUSY_S


def test_a_broker_that_answers_later_than_the_first_attempt_is_asked_again(broker: KafkaBroker, unique: str):
    # GIVEN a checkpoint, and a broker whose first answer takes longer than one attempt to read it
    topic = Topic(broker, unique)
    topic.commit()

    def hold(message: bytes) -> bytes:
        time.sleep(4 * POLL_S)
        return message

    with Proxy(int(broker.bootstrap_servers.rpartition(":")[2]), kafka_frame) as proxy:
        proxy.spoil(hold)
        # WHEN somebody looks at it
        client: Properties = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "logger": QUIET}
        found = peek_checkpoint(place(client, unique))
        # THEN it is found
        assert (found, proxy.spoilt) == (SECOND, 1)


def test_a_look_does_not_shut_a_writer_out(broker: KafkaBroker, unique: str):
    topic = Topic(broker, unique)
    peek_at_start(topic.place(), threading.Event(), exists=True)
    topic.open.commit_transaction(WAIT_S)
