"""Who can write into a checkpoint topic names the transactional id of another pipeline, to stop that one."""

import time
from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from cdcd.adapters.kafka.shared_id import RECENT_S, TOPICS_AT_ONCE
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.transactions.position import Position
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.faults.trial import Trial
from tests.integration.kafka_rights import allow

pytestmark = pytest.mark.postgres(only=18)

PASSWORD: Final = "5asl-5ecret"
THEIRS: Final = Checkpoint("7300000000000000000", 1, "", Position(1, 2), 2).encode()

FORGED: Final = {
    "a valid record": THEIRS,
    "no checkpoint": b"[[[[",
    "an empty value": b"",
    "a deep value": b"[" * 500_000,
}


def forge(
    servers: str, topic: str, transactional_id: str, *, value: bytes = THEIRS, age_s: float = 0
) -> None:
    """Write a record that says that another pipeline uses the transactional id."""
    producer = Producer({"bootstrap.servers": servers})
    headers: list[tuple[str, str | bytes | None]] = [
        ("cdcd.transactional_id", transactional_id.encode()),
        ("cdcd.slot", b"theirs"),
    ]
    at = int((time.time() - age_s) * 1000)
    failed: list[object] = []
    producer.produce(
        topic,
        value,
        b"other\x1b[2J\xff",
        0,
        headers=headers,
        timestamp=at,
        on_delivery=lambda error, _: failed.append(error) if error else None,
    )
    assert producer.flush(30) == 0
    assert failed == []


def other_topic(one: Trial) -> str:
    """Name of another pipeline's checkpoint topic."""
    return f"{one.name}-other.checkpoint"


def id_of(one: Trial) -> str:
    return f"cdcd-{one.name}"


@pytest.mark.attack(gains="a pipeline that ran before does not start any more", before="withstood")
@pytest.mark.parametrize("value", FORGED.values(), ids=list(FORGED))
def test_a_pipeline_that_has_used_its_id_is_not_stopped(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, value: bytes
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.start()
    one.insert(1)
    one.expect(1)
    one.stop()
    topic = other_topic(one)
    create_topics(broker.bootstrap_servers, topic)
    forge(broker.bootstrap_servers, topic, id_of(one), value=value)
    one.insert(2)
    one.deliver(2)


@pytest.mark.attack(gains="a new pipeline never starts", before="withstood")
@pytest.mark.parametrize("age_s", [RECENT_S + 60, -2 * RECENT_S], ids=["of yesterday", "of tomorrow"])
def test_an_old_record_stops_no_new_pipeline(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, age_s: float
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    topic = other_topic(one)
    create_topics(broker.bootstrap_servers, topic)
    forge(broker.bootstrap_servers, topic, id_of(one), age_s=age_s)
    found = [each for each in one.check().findings if each["code"] == "transaction.id"]
    assert [each["level"] for each in found if topic in each["found"]] == ["warning"]
    one.start()
    assert one.daemon.await_event("transaction.shared")["topic"] == topic
    one.insert(1)
    one.expect(1)
    one.stop()
    assert "\x1b" not in one.daemon.output(all_lives=True)


@pytest.mark.attack(gains="a new pipeline never starts", before="withstood")
def test_a_topic_of_somebody_else_stops_no_new_pipeline(
    trial: Callable[..., Trial], database: Database, private_broker: Callable[..., KafkaBroker]
):
    guarded = private_broker(users={"cdcd": PASSWORD})
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "cdcd",
        "sasl.password": PASSWORD,
    }
    one = trial(
        database.dsn(),
        guarded.bootstrap_servers,
        reader_servers=guarded.admin_bootstrap_servers,
        kafka={"properties": properties},
    )
    topic = other_topic(one)
    create_topics(guarded.admin_bootstrap_servers, topic)
    rights = [
        (ResourceType.TOPIC, f"{one.name}.", ResourcePatternType.PREFIXED, AclOperation.ALL),
        (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, AclOperation.READ),
        (ResourceType.TRANSACTIONAL_ID, id_of(one), ResourcePatternType.LITERAL, AclOperation.WRITE),
    ]
    allow(
        guarded.admin_bootstrap_servers,
        [
            AclBinding(kind, name, pattern, "User:cdcd", "*", operation, AclPermissionType.ALLOW)
            for kind, name, pattern, operation in rights
        ],
    )
    forge(guarded.admin_bootstrap_servers, topic, id_of(one))
    one.start()
    assert one.daemon.await_event("transaction.shared")["topic"] == topic
    one.insert(1)
    one.expect(1)
    one.stop()


@pytest.mark.attack(gains="two pipelines end each other: many topics hide the other one", before="failed")
def test_many_topics_do_not_hide_another_pipeline_with_the_id(
    trial: Callable[..., Trial], database: Database, private_broker: Callable[..., KafkaBroker]
):
    broker = private_broker()
    one = trial(database.dsn(), broker.bootstrap_servers)
    hiding = [f"0-{number:03}.checkpoint" for number in range(TOPICS_AT_ONCE + 20)]
    create_topics(broker.bootstrap_servers, *hiding, other_topic(one))
    forge(broker.bootstrap_servers, other_topic(one), id_of(one), age_s=RECENT_S + 60)
    warnings = [each for each in one.check().findings if each["level"] == "warning"]
    found = [each["found"] for each in warnings if each["code"] == "transaction.id"]
    assert [other_topic(one) in each for each in found] == [True]
    one.start()
    assert one.daemon.await_event("transaction.shared")["topic"] == other_topic(one)
    one.stop()
