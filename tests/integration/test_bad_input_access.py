"""Kafka does not let us in, or lets another in beside us."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from deploy.local import KafkaBroker
from tests.integration import kafka_rights
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.faults.trial import Trial, guarded_trial
from tests.integration.kafka_rights import PASSWORD

pytestmark = pytest.mark.postgres(only=18)


@pytest.fixture(scope="module")
def _guarded_broker(scratch: Path) -> Iterator[KafkaBroker]:
    with kafka_rights.guarded_broker(scratch / "kafka-guarded") as server:
        yield server


@pytest.fixture
def guarded(trial: Callable[..., Trial], database: Database, _guarded_broker: KafkaBroker) -> Trial:
    """A pipeline on a broker that wants a password and lets nobody do anything that no ACL allows."""
    made = guarded_trial(trial, database.dsn(), _guarded_broker)
    log_in(made, PASSWORD)
    return made


def log_in(one: Trial, password: str) -> None:
    one.configure(kafka={"properties": kafka_rights.login(password)})


def binding(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    pattern = ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, "User:cdcd", "*", operation, AclPermissionType.ALLOW)


def allow(one: Trial, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    kafka_rights.allow(one.reader_servers, [binding(kind, name, operation) for operation in operations])


def revoke(one: Trial, kind: ResourceType, name: str, operation: AclOperation) -> None:
    kafka_rights.revoke(one.reader_servers, binding(kind, name, operation))


def test_a_wrong_password_is_told_without_it(guarded: Trial):
    guarded.secrets.append("wr0ng-5ecret")
    log_in(guarded, "wr0ng-5ecret")
    said, check = guarded.fail(), guarded.check()
    assert (said.code, check.code) == (4, 4)
    assert "Authentication failed" in said.message
    assert "sasl.password" in said.hint
    assert check.error("Authentication failed")["fix"] == said.hint
    assert not guarded.has_slot()


def test_each_missing_right_is_told_with_its_acl(guarded: Trial):
    one = guarded
    checkpoint, message, schemas = (f"{one.name}.{topic}" for topic in ("checkpoint", "message", "schemas"))
    create_topics(one.reader_servers, checkpoint, config={"cleanup.policy": "compact"})
    create_topics(one.reader_servers, message, schemas, one.topic)

    said = one.fail()
    assert said.code == 4
    assert f"Topic {checkpoint}" in said.message
    assert "Topic authorization failed" in said.message
    assert "--operation Write" in said.hint
    assert one.check().error(f"topic {checkpoint}", "authorization failed")

    for topic_name in (checkpoint, message, schemas):
        allow(one, ResourceType.TOPIC, topic_name, AclOperation.WRITE, AclOperation.DESCRIBE)
    said = one.fail()
    assert said.code == 4
    assert "Transactional Id authorization failed" in said.message
    assert f"cdcd-{one.name}" in said.message
    assert "--transactional-id" in said.hint

    allow(
        one,
        ResourceType.TRANSACTIONAL_ID,
        f"cdcd-{one.name}",
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
    )
    said = one.fail()
    assert said.code == 4
    assert checkpoint in said.message
    assert "Read" in said.hint

    allow(one, ResourceType.TOPIC, checkpoint, AclOperation.READ)
    one.start()
    before = one.insert(1)
    said = one.fail()
    assert said.code == 4
    assert f"Topic {one.topic}" in said.message
    one.assert_unconfirmed(before)

    allow(one, ResourceType.TOPIC, one.topic, AclOperation.DESCRIBE)
    said = one.fail()
    assert said.code == 4
    assert one.topic in said.message
    assert "Topic authorization failed" in said.message
    assert one.check().error(f"topic {one.topic}", "may not write")
    one.assert_unconfirmed(before)

    allow(one, ResourceType.TOPIC, one.topic, AclOperation.WRITE)
    assert one.check().errors() == []
    one.start()
    one.expect(1)

    # Taken away while it runs.
    revoke(one, ResourceType.TOPIC, one.topic, AclOperation.WRITE)
    before = one.insert(2)
    said = one.fail()
    assert said.code == 4
    assert one.topic in said.message
    one.assert_unconfirmed(before)
    allow(one, ResourceType.TOPIC, one.topic, AclOperation.WRITE)
    one.deliver(2)


def test_another_producer_of_the_same_name_shuts_it_out(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.start()
    one.insert(1)
    one.expect(1)
    other = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"cdcd-{one.name}"})
    other.init_transactions(30)
    before = one.insert(2)
    said = one.fail()
    assert said.code == 7
    assert "fenced" in said.message
    assert "transactional.id" in said.hint
    one.assert_unconfirmed(before)
    one.deliver(2)


def test_the_checkpoint_topic_of_another_pipeline_is_refused(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.start()
    one.insert(1)
    one.expect(1)
    two = trial(database.dsn(), broker.bootstrap_servers, name=f"{one.name[:40]}_two")
    two.configure(topics={"checkpoint": f"{one.name}.checkpoint"})
    said = two.fail()
    assert said.code == 4
    assert f"The checkpoint topic {one.name}.checkpoint holds a record of another pipeline" in said.message
    assert f"key b'{one.name}'" in said.message
    assert "topics.checkpoint" in said.hint
    assert two.check().error("another pipeline")["fix"] == said.hint
    assert not two.has_slot()
    one.insert(2)
    one.deliver(2)
