"""deploy/acl.md: the rights in its first table are enough for the daemon, and with other ones for heartbeats and for
topics of other names.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from deploy.local.cache import REPOSITORY
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.faults.trial import Trial
from tests.integration.forked import run_cdcd
from tests.integration.kafka_rights import allow

ROW = re.compile(
    r"^\| (Topic|Transactional id) \| `([^`]+)` \| (literal|prefixed) \| ([\w, ]+) \|", re.MULTILINE
)


def documented_rights(pipeline: str, *, after: str = "") -> list[AclBinding]:
    """The first table, or the one after these words, for a pipeline of another name than `shop`."""
    text = (REPOSITORY / "deploy" / "acl.md").read_text()
    needed = text.partition("`cdcd check` says more")[0]
    if after:
        needed = text.partition(after)[2].split("\n\n")[1]
    return [
        AclBinding(
            ResourceType[kind.upper().replace(" ", "_")],
            name.replace("shop", pipeline),
            ResourcePatternType[pattern.upper()],
            "User:cdcd",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW,
        )
        for kind, name, pattern, operations in ROW.findall(needed)
        for operation in operations.split(", ")
    ]


@pytest.mark.postgres(only=18)
def test_the_documented_rights_are_enough(
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    daemon: Callable[[dict[str, Any]], Daemon],
    unique: str,
) -> None:
    # GIVEN a broker that allows the daemon's user the documented rights and nothing else
    broker = private_broker(users={"cdcd": "let-me-in"}, mechanism="SCRAM-SHA-512")
    rights = documented_rights(unique)
    assert len(rights) == 5
    allow(broker.admin_bootstrap_servers, rights)
    database.execute("CREATE TABLE item (id int PRIMARY KEY)")
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        kafka={
            "properties": {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "cdcd",
                "sasl.password": "let-me-in",
            }
        },
    )

    # WHEN it starts twice, the second time with a checkpoint to read
    for number in range(2):
        process = daemon(config)
        process.await_streaming()
        database.execute(f"INSERT INTO item VALUES ({number})")
        process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.item")
        assert process.stop() == 0

    # AND WHEN a table comes whose topic is missing, and a table is renamed while no daemon runs
    database.execute("CREATE TABLE another (id int PRIMARY KEY)")
    database.execute("INSERT INTO another VALUES (7)")
    database.execute("ALTER TABLE item RENAME COLUMN id TO number")
    database.execute("INSERT INTO item VALUES (2)")
    process = daemon(config)
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.item")
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.another")
    assert process.stop() == 0

    # AND WHEN it has heartbeats, and the rights for them
    rights = documented_rights(unique, after="With heartbeats")
    assert len(rights) == 2
    allow(broker.admin_bootstrap_servers, rights)
    process = daemon({**config, "heartbeat": {"interval_s": 0.2}})
    process.await_streaming()
    process.await_metric("cdcd_heartbeats_total", lambda value: value > 1)
    assert process.stop() == 0

    # THEN it creates the topics and delivers
    with Reader(broker.admin_bootstrap_servers, unique) as reader:
        keys = [raw.key for raw in reader.read_all()]
    assert sorted(key or b"" for key in keys) == [b'{"id":0}', b'{"id":1}', b'{"id":7}', b'{"number":2}']


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_topics_of_other_names_need_a_right_on_the_claims_and_are_not_protected_without(
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    daemon: Callable[[dict[str, Any]], Daemon],
    unique: str,
) -> None:
    # GIVEN the documented rights, and those on the topics themselves, but none on the claims
    broker = private_broker(users={"cdcd": "let-me-in"}, mechanism="SCRAM-SHA-512")
    topics = [
        AclBinding(
            ResourceType.TOPIC,
            "own-",
            ResourcePatternType.PREFIXED,
            "User:cdcd",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.WRITE, AclOperation.CREATE)
    ]
    allow(broker.admin_bootstrap_servers, [*documented_rights(unique), *topics])
    database.execute("CREATE TABLE item (id int PRIMARY KEY)")
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "cdcd",
        "sasl.password": "let-me-in",
    }
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        kafka={"properties": sasl},
        topics={"name": "own-{table}"},
    )
    # WHEN it starts, it goes on, and tells what is not protected; cdcd check tells it too.
    process = daemon(config)
    process.await_streaming()
    database.execute("INSERT INTO item VALUES (1)")
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.item")
    assert process.await_event("topics.unclaimed")["topics"] == 1
    checked = run_cdcd("check", "--config", str(process.config_path), "--format", "json")
    (found,) = [each for each in json.loads(checked.stdout)["findings"] if each["code"] == "topic.claims"]
    assert found["level"] == "warning", found
    assert "nothing keeps another pipeline" in found["found"]
    assert "--topic cdcd.claims" in found["fix"]
    assert process.stop() == 0
    # AND WHEN it has the documented right, it claims its topic.
    rights = documented_rights(unique, after="With topics whose names")
    assert {right.name for right in rights} == {"cdcd.claims"}
    allow(broker.admin_bootstrap_servers, rights)
    process.start()
    database.execute("INSERT INTO item VALUES (2)")
    process.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.item")
    assert not process.saw("topics.unclaimed")
    with Reader(broker.admin_bootstrap_servers, "cdcd") as reader:
        assert [raw.topic for raw in reader.read_all()] == ["cdcd.claims"]
    assert process.stop() == 0


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_a_new_table_ends_no_daemon_that_may_not_read_descriptions(
    trial: Callable[..., Trial], database: Database, private_broker: Callable[..., KafkaBroker], unique: str
) -> None:
    # GIVEN the rights that acl.md named before it named the topic of descriptions
    broker = private_broker(users={"cdcd": "let-me-in"}, mechanism="SCRAM-SHA-512")
    rights = [right for right in documented_rights(unique) if right.name != f"{unique}.schemas"]
    assert len(rights) == 4
    allow(broker.admin_bootstrap_servers, rights)
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "cdcd",
        "sasl.password": "let-me-in",
    }
    one = trial(
        database.dsn(),
        broker.bootstrap_servers,
        reader_servers=broker.admin_bootstrap_servers,
        kafka={"properties": properties},
    )
    one.start()
    one.insert(1)
    one.expect(1)
    one.stop()
    # WHEN a table comes whose topic is missing, THEN check names the right, and the daemon goes on
    found = [each for each in one.check().findings if each["code"] == "topic.rights"]
    assert [(each["level"], each["subject"]) for each in found] == [("warning", f"topic {unique}.schemas")]
    assert f"--operation Read --topic {unique}.schemas" in found[0]["fix"]
    one.execute("CREATE TABLE another (id int PRIMARY KEY)")
    one.execute("INSERT INTO another VALUES (7)")
    one.start()
    one.daemon.await_metric("cdcd_events_total", lambda value: value == 1, "c", "public.another")
    one.insert(2)
    one.expect(2)
    one.stop()
