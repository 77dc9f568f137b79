"""Topics of a real broker: created, checked, refused."""

import gc
import logging
import re
import time
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as Resource

from cdcd.adapters.kafka.admin import Admin, TopicInfo
from cdcd.adapters.kafka.topics import (
    CREATED_AT_ONCE,
    DESCRIPTIONS_BYTES_MAX,
    TopicSpec,
    check_keyless,
    ensure_topics,
)
from cdcd.core.errors import CdcdError, SinkError, TransientError
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.daemon import BUSY_S, WAIT_S
from tests.integration.kafka_rights import allow

QUIET = logging.getLogger("cdcd.tests.librdkafka")
QUIET.setLevel(logging.CRITICAL + 1)


def properties(broker: KafkaBroker, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap_servers, "logger": QUIET, **more}


def test_missing_topics_are_created_as_stated_and_can_be_written_to_at_once(broker: KafkaBroker, unique: str):
    names = [f"{unique}.a", f"{unique}.b", f"{unique}.checkpoint"]
    spec = TopicSpec(partitions=3, config={"min.insync.replicas": 1, "retention.ms": "1234567"})
    assert ensure_topics(Admin(properties(broker)), names, spec, checkpoint=names[2]) == names
    assert ensure_topics(Admin(properties(broker)), names, spec, checkpoint=names[2]) == []
    admin = Admin(properties(broker))
    found = admin.topics([*names, f"{unique}.none"])
    assert found[names[0]] == TopicInfo(names[0], 3, 1, has_leaders=True, may_write=True, may_read=True)
    assert found[f"{unique}.none"] is None
    assert admin.topic_config(names[1])["retention.ms"] == "1234567"
    checkpoint = found[names[2]]
    assert checkpoint is not None
    assert checkpoint.partitions == 1
    assert admin.topic_config(names[2])["cleanup.policy"] == "compact"


def test_a_topic_of_descriptions_has_the_larger_limit_and_takes_nothing_compressed(
    broker: KafkaBroker, unique: str
):
    admin, sizes = Admin(properties(broker)), {"1000": str(DESCRIPTIONS_BYTES_MAX), "9000000": "9000000"}
    for given, limit in sizes.items():
        name = f"{unique}.{given}"
        ensure_topics(
            admin, [name], TopicSpec(config={"max.message.bytes": given}), checkpoint="c", schemas=name
        )
        found = admin.topic_config(name)
        assert found["max.message.bytes"] == limit
        assert found["compression.type"] == "uncompressed"
        assert found["cleanup.policy"] == "compact"


def test_many_topics_are_made_by_few_requests(broker: KafkaBroker, unique: str, caplog):
    names = [f"{unique}.t{number}" for number in range(CREATED_AT_ONCE + 20)]
    asked = properties(broker, debug="protocol", logger=logging.getLogger("cdcd.tests.requests"))
    with caplog.at_level(logging.DEBUG, "cdcd.tests.requests"):
        assert ensure_topics(Admin(asked), names, TopicSpec(), checkpoint="c") == names
        created = caplog.text.count("Sent CreateTopicsRequest")
        described = caplog.text.count("Sent MetadataRequest") + caplog.text.count("Sent DescribeTopic")
        caplog.clear()
        assert ensure_topics(Admin(asked), names, TopicSpec(), checkpoint="c") == []
        again = len(re.findall(r"Sent (Metadata|CreateTopics|DescribeTopic\w*)Request", caplog.text))
    # The client logs in a thread of its own, perhaps a moment after the answer.
    assert created <= 2
    assert described < 400
    assert again < 10
    existing = Admin(properties(broker)).names()
    assert len([name for name in existing if name.startswith(f"{unique}.") and ".t" in name]) == len(names)


def test_topics_that_are_missing_leave_nothing_to_the_garbage_collector(broker: KafkaBroker, unique: str):
    admin = Admin(properties(broker))
    names = [f"{unique}.missing{number}" for number in range(200)]
    gc.collect()
    gc.disable()
    try:
        assert set(admin.topics(names).values()) == {None}
        assert admin.with_logs(dict.fromkeys(names, 1)) == set()
        unreachable = gc.collect()
    finally:
        gc.enable()
    # A future and its error that refer to each other would be several objects for each topic.
    assert unreachable < len(names)


def test_a_topic_is_there_when_the_leader_of_each_partition_has_its_log(broker: KafkaBroker, unique: str):
    # A broker that names itself as leader before it has the log refuses records for a while.
    names = [f"{unique}.t{number}" for number in range(300)]
    admin = Admin({"bootstrap.servers": broker.bootstrap_servers})
    ensure_topics(admin, names, TopicSpec(), checkpoint="")
    assert admin.with_logs(dict.fromkeys(names, 1)) == set(names)
    assert admin.with_logs({names[0]: 1, f"{unique}.none": 1, names[1]: 2}) == {names[0]}


def test_one_refusal_among_many_topics_is_told(broker: KafkaBroker, unique: str):
    ensure_topics(Admin(properties(broker)), [f"{unique}.x"], TopicSpec(), checkpoint="c")
    with pytest.raises(SinkError, match="collides"):
        ensure_topics(
            Admin(properties(broker)),
            [f"{unique}.a", f"{unique}_x", f"{unique}.b"],
            TopicSpec(),
            checkpoint="c",
        )


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_takes_no_records_without_a_key(broker: KafkaBroker, unique: str, policy: str):
    compacted, deleting = f"{unique}.a", f"{unique}.b"
    create_topics(broker.bootstrap_servers, compacted, config={"cleanup.policy": policy})
    create_topics(broker.bootstrap_servers, deleting)
    check_keyless(Admin(properties(broker)), [deleting])
    with pytest.raises(SinkError, match=compacted) as caught:
        check_keyless(Admin(properties(broker)), [deleting, compacted])
    assert "cleanup.policy=delete" in caught.value.hint


def test_the_longest_timeout_of_transactions_is_asked(private_broker):
    broker = private_broker(settings={"transaction.max.timeout.ms": 123_000})
    assert Admin(properties(broker)).transaction_timeout_max_s() == 123


def test_a_missing_topic_that_may_not_be_created_is_named(broker: KafkaBroker, unique: str):
    with pytest.raises(SinkError) as caught:
        ensure_topics(Admin(properties(broker)), [unique], TopicSpec(enabled=False), checkpoint="c")
    assert unique in caught.value.message
    assert f"--create --topic {unique};" in caught.value.hint
    assert Admin(properties(broker)).topics([unique]) == {unique: None}


@pytest.mark.parametrize(
    ("partitions", "config", "says"),
    [
        (2, {"cleanup.policy": "compact"}, "2 partitions"),
        (1, {"cleanup.policy": "compact,delete"}, "compact,delete"),
    ],
)
def test_a_topic_that_cannot_hold_the_checkpoint_is_refused(
    broker: KafkaBroker, unique: str, partitions: int, config: dict[str, str], says: str
):
    create_topics(broker.bootstrap_servers, unique, partitions=partitions, config=config)
    with pytest.raises(SinkError, match=says):
        ensure_topics(Admin(properties(broker)), [unique], TopicSpec(), checkpoint=unique)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TopicSpec(replication_factor=3), "INVALID_REPLICATION_FACTOR"),
        (TopicSpec(config={"no.such.setting": 1}), "INVALID_CONFIG"),
    ],
)
def test_what_the_broker_refuses_is_told_with_its_words(
    broker: KafkaBroker, unique: str, spec: TopicSpec, says: str
):
    with pytest.raises(SinkError, match=says) as caught:
        ensure_topics(Admin(properties(broker)), [unique], spec, checkpoint="c")
    assert unique in caught.value.message
    assert "topics.create" in caught.value.hint


def test_a_collision_with_somebody_elses_topic_is_explained(broker: KafkaBroker, unique: str):
    ensure_topics(Admin(properties(broker)), [f"{unique}.x"], TopicSpec(), checkpoint="c")
    with pytest.raises(SinkError, match="collides") as caught:
        ensure_topics(Admin(properties(broker)), [f"{unique}_x"], TopicSpec(), checkpoint="c")
    assert "topics.prefix" in caught.value.hint


def _refusal(given: dict[str, Any], name: str, timeout_s: float = WAIT_S) -> CdcdError:
    with pytest.raises(CdcdError) as caught:
        ensure_topics(Admin(given, timeout_s), [name], TopicSpec(), checkpoint="c")
    return caught.value


def test_a_broker_that_is_away_is_a_passing_failure_within_the_time_given():
    began = time.monotonic()
    error = _refusal({"bootstrap.servers": "127.0.0.1:1", "logger": QUIET}, "t", 3)
    assert type(error) is TransientError
    assert "refused" in error.message
    assert time.monotonic() - began < 3 + BUSY_S


def test_wrong_credentials_and_missing_rights_are_told_apart(private_broker, unique: str):
    broker = private_broker(users={"cdcd": "right"})
    sasl = properties(
        broker,
        **{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "cdcd"},
    )
    error = _refusal({**sasl, "sasl.password": "wr0ng"}, unique)
    assert type(error) is SinkError
    assert "sasl.password" in error.hint
    assert "wr0ng" not in str(error)

    error = _refusal({**sasl, "sasl.password": "right"}, unique)
    assert type(error) is SinkError
    assert "TOPIC_AUTHORIZATION_FAILED" in error.message
    assert unique in error.message
    assert "kafka-acls" in error.hint

    rules = [
        AclBinding(
            Resource.TOPIC,
            unique,
            ResourcePatternType.LITERAL,
            "User:cdcd",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.CREATE, AclOperation.DESCRIBE)
    ]
    allow(broker.admin_bootstrap_servers, rules)
    assert ensure_topics(
        Admin({**sasl, "sasl.password": "right"}), [unique], TopicSpec(), checkpoint="c"
    ) == [unique]
    info = Admin({**sasl, "sasl.password": "right"}).topics([unique])[unique]
    assert info is not None
    assert info.may_write is False
