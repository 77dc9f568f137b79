"""Kafka as the daemon's start sees it, against a real broker."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cdcd.adapters.kafka.checkpoint import CheckpointTopic, read_checkpoint
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.postgres.lock import AdvisoryLock
from cdcd.config.loading import parse_config
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import SinkError, SinkUnavailableError
from cdcd.core.facts import Fact
from cdcd.core.facts.process import KafkaRetry, TransactionTimeoutUnknown
from cdcd.core.facts.tables import TopicCreated, TopicLost
from cdcd.core.records.schemas import TableForm
from cdcd.core.transactions.position import Position
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.settings import TRANSACTION_S
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.daemon import WAIT_S
from tests.integration.kafka_rights import allow

T = TypeVar("T")

CHECKPOINT = Checkpoint("7001", 1, "publication=shop", Position(1, 2), 2)


class Lock:
    """An advisory lock that is ours for ever."""

    lapsed = False

    async def verify(self, timeout_s: float) -> None:
        pass


class Side:
    """A `KafkaSide` with what it told."""

    def __init__(self, servers: str, name: str, *, creates: bool = True, **kafka: Any) -> None:
        text = yaml.safe_dump(
            {
                "name": name,
                "postgres": {"dsn": "postgresql://127.0.0.1/none"},
                "kafka": {"bootstrap_servers": servers, **kafka},
                "topics": {"create": {"enabled": creates}},
            }
        )
        self.facts: list[Fact] = []
        self.thread = ThreadPoolExecutor(1)
        self.side = KafkaSide(parse_config(text, {}), self.facts.append, self.thread)

    def told(self, kind: type[T]) -> list[T]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(doing)

    async def deliver(self) -> float:
        """Open, deliver an empty batch and close; the timeout of its transaction."""
        sink = await self.side.open_sink(cast("AdvisoryLock", Lock()), messages=False)
        await self.side.calls.call(sink.open)
        position = CHECKPOINT.position
        await self.side.calls.call(lambda: sink.deliver(Batch(position, position), CHECKPOINT))
        await self.side.calls.in_thread(sink.close)
        return sink._settings.timeout_s


def test_a_look_at_the_checkpoint_creates_nothing(broker: KafkaBroker, unique: str):
    side = Side(broker.bootstrap_servers, unique)
    # A start makes sure of the topic before. So a broker that does not list it is asked again, and then believed.
    side.side.calls.answer_s = 1
    with pytest.raises(SinkError, match=r"Reading the checkpoint from topic .*\.checkpoint"):
        side.run(side.side.peek())
    side.side.calls.answer_s = WAIT_S
    topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics
    assert f"{unique}.checkpoint" not in topics
    side.run(side.deliver())
    # A commit is answered before its markers are written; this waits for them.
    client: Properties = {"bootstrap.servers": broker.bootstrap_servers}
    topic = CheckpointTopic(client, f"{unique}.checkpoint", CheckpointRecords(unique), WAIT_S)
    read_checkpoint(topic, threading.Event())
    assert side.run(side.side.peek()) == CHECKPOINT


def test_a_look_at_a_broker_that_is_away_says_so(unique: str):
    side = Side("127.0.0.1:1", unique)
    side.side.calls.answer_s = 1
    with pytest.raises(SinkUnavailableError):
        side.run(side.side.peek())


def test_the_timeout_of_transactions_is_the_brokers_longest(broker: KafkaBroker, unique: str):
    side = Side(broker.bootstrap_servers, unique)
    assert side.run(side.deliver()) == 900
    assert not side.told(TransactionTimeoutUnknown)


def test_a_timeout_that_is_longer_than_the_brokers_longest_is_refused(broker: KafkaBroker, unique: str):
    side = Side(broker.bootstrap_servers, unique, transaction={"timeout_s": 901})
    with pytest.raises(SinkError, match="INVALID_TRANSACTION_TIMEOUT") as caught:
        side.run(side.deliver())
    assert "transaction.max.timeout.ms" in caught.value.hint


def test_topics_are_made_once_and_told(broker: KafkaBroker, unique: str):
    side = Side(broker.bootstrap_servers, unique)
    names = [f"{unique}.public.t{number}" for number in range(30)]
    side.run(side.side.topics.await_topics(names))
    side.run(side.side.topics.await_topics(names))
    assert [fact.topic for fact in side.told(TopicCreated)] == names


def test_the_limits_of_topics_are_known_without_transactions(broker: KafkaBroker, unique: str):
    # GIVEN a topic with a limit of its own, and one that the pipeline creates with the broker's limit
    first, second = f"{unique}.public.first", f"{unique}.public.second"
    create_topics(broker.bootstrap_servers, first, config={"max.message.bytes": "20000"})
    found = {}
    for delivery in ("at_least_once", "exactly_once"):
        side = Side(broker.bootstrap_servers, unique, delivery=delivery)
        side.run(side.side.topics.await_topics([first, second]))
        found[delivery] = dict(side.side._known.sizes.topics)
    # THEN only the delivery that needs the limits asks for them
    assert found == {"at_least_once": {first: 20_000, second: 1_048_588}, "exactly_once": {}}


def test_a_topic_that_had_records_and_is_made_again_is_told_with_what_reads_the_table(
    broker: KafkaBroker, unique: str
):
    # GIVEN a pipeline without a checkpoint, and a description of a table in its topics
    lost, new = f"{unique}.public.t", f"{unique}.public.new"
    first = Side(broker.bootstrap_servers, unique)
    first.run(first.side.topics.ensure_topics([f"{unique}.schemas", f"{unique}.checkpoint"]))
    assert first.run(first.side.peek()) is None
    writer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    key, value = TableForm("public", "t", lost, (), (), 16384).record()
    writer.produce(f"{unique}.schemas", key=key, value=value)
    assert writer.flush(WAIT_S) == 0
    # WHEN it begins again, THEN nothing is lost
    first.run(first.side.topics.await_topics([lost]))
    assert not first.told(TopicLost)
    # WHEN there is a checkpoint, and somebody deleted the topic
    first.run(first.deliver())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([lost])[lost].result(WAIT_S)
    second = Side(broker.bootstrap_servers, unique)
    assert second.run(second.side.peek()) == CHECKPOINT
    second.run(second.side.topics.await_topics([lost, new]))
    # THEN the lost topic is reported once, and the new topic is not reported as lost
    assert {fact.topic for fact in second.told(TopicCreated)} == {lost, new}
    assert second.told(TopicLost) == [TopicLost(lost, "public.t", "cdcd snapshot start --table public.t")]


def test_topics_that_are_asked_for_soon_are_made_with_the_others(broker: KafkaBroker, unique: str):
    side = Side(broker.bootstrap_servers, unique)
    name, *ahead = [f"{unique}.public.t{number}" for number in range(3)]
    side.run(side.side.topics.await_topics([name], ahead=ahead))
    assert [fact.topic for fact in side.told(TopicCreated)] == [name, *ahead]
    side.run(side.side.topics.await_topics(ahead))
    assert len(side.told(TopicCreated)) == 3


def test_a_topic_that_is_being_made_in_advance_is_awaited_and_not_made_again(
    broker: KafkaBroker, unique: str
):
    side = Side(broker.bootstrap_servers, unique)
    ahead = [f"{unique}.public.t{number}" for number in range(200)]

    async def both() -> None:
        made = asyncio.create_task(side.side.topics.await_topics([], ahead=ahead))
        await asyncio.sleep(0)
        await side.side.topics.await_topics(ahead[-1:])
        assert side.side.topics.has_topics(ahead)
        await made

    side.run(both())
    assert [fact.topic for fact in side.told(TopicCreated)] == ahead


def test_topics_that_are_asked_for_soon_are_not_missed_where_topics_are_not_created(
    broker: KafkaBroker, unique: str
):
    name, later = f"{unique}.public.t", f"{unique}.public.u"
    create_topics(broker.bootstrap_servers, name)
    side = Side(broker.bootstrap_servers, unique, creates=False)
    side.run(side.side.topics.await_topics([name], ahead=[later]))
    refused = side.run(side.side.topics.await_topics([later]))
    assert "does not exist" in str(refused[later])


def test_a_table_without_a_key_and_a_compacted_topic_are_told_before_the_first_record(
    broker: KafkaBroker, unique: str
):
    name = f"{unique}.public.t"
    create_topics(broker.bootstrap_servers, name, config={"cleanup.policy": "compact"})
    side = Side(broker.bootstrap_servers, unique)
    side.run(side.side.topics.await_topics([name]))
    refused = side.run(side.side.topics.await_topics([name], keyless=[name]))
    assert "the table has no key" in str(refused[name])


def test_topics_are_waited_for_while_the_broker_is_away(unique: str):
    side = Side("127.0.0.1:1", unique, retry={"initial_s": 0.01, "max_s": 0.02})
    side.side.calls.answer_s = 0.5

    async def wait() -> None:
        waiting = asyncio.create_task(side.side.topics.await_topics([unique]))
        while len(side.told(KafkaRetry)) < 2:
            await asyncio.sleep(0.01)
            assert not waiting.done()
        side.side.calls.giving_up.set()
        await waiting

    with pytest.raises(SinkUnavailableError):
        side.run(wait())
    assert all(fact.wait_s <= 0.02 for fact in side.told(KafkaRetry))


def test_a_longest_timeout_that_the_broker_does_not_tell_is_a_minute_and_told(private_broker, unique: str):
    broker = private_broker(users={"cdcd": "right"})
    rules = [
        AclBinding(
            kind, unique, ResourcePatternType.PREFIXED, "User:cdcd", "*", operation, AclPermissionType.ALLOW
        )
        for kind, operations in (
            (ResourceType.TOPIC, (AclOperation.CREATE, AclOperation.WRITE, AclOperation.READ)),
            (ResourceType.GROUP, (AclOperation.READ,)),
            (ResourceType.TRANSACTIONAL_ID, (AclOperation.WRITE,)),
        )
        for operation in operations
    ]
    allow(broker.admin_bootstrap_servers, rules)
    side = Side(
        broker.bootstrap_servers,
        unique,
        transactional_id=unique,
        properties={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "cdcd",
            "sasl.password": "right",
        },
    )
    assert side.run(side.deliver()) == TRANSACTION_S
    (fact,) = side.told(TransactionTimeoutUnknown)
    assert fact.timeout_s == TRANSACTION_S
    assert "CLUSTER_AUTHORIZATION_FAILED" in fact.message
