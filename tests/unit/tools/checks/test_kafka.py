"""Each check of `cdcd check` on Kafka's side, over facts made up for it."""

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from cdcd.adapters.kafka.admin import ClusterInfo, TopicInfo
from cdcd.adapters.kafka.rights import TopicAcls
from cdcd.adapters.kafka.topics import TopicSpec
from cdcd.core.errors import SinkError
from cdcd.telemetry.findings import Finding
from cdcd.tools.checks import kafka as preflight
from cdcd.tools.checks.kafka import (
    BROKER,
    TOPICS,
    BrokerFacts,
    BrokerWanted,
    Check,
    TableTopic,
    check_existing,
    examine,
)

CHECKPOINT = TopicInfo("shop.checkpoint", 1, 3, has_leaders=True, may_write=True, may_read=True)
ORDERS = TopicInfo("shop.public.orders", 6, 3, has_leaders=True, may_write=None)
BROKERS = ((1, "a:9092"), (2, "b:9092"), (3, "c:9092"))
IN_SYNC = {"min.insync.replicas": "2", "max.message.bytes": "1048588", "cleanup.policy": "delete"}

FACTS = BrokerFacts(
    cluster=ClusterInfo("id", BROKERS, None, may_alter=True),
    broker={"transaction.max.timeout.ms": "900000", "transaction.state.log.replication.factor": "3"},
    topics={
        "shop.checkpoint": CHECKPOINT,
        "shop.schemas": replace(CHECKPOINT, name="shop.schemas"),
        "shop.public.orders": ORDERS,
        "shop.message": None,
    },
    configs={
        "shop.checkpoint": {**IN_SYNC, "cleanup.policy": "compact"},
        "shop.schemas": {**IN_SYNC, "cleanup.policy": "compact"},
        "shop.public.orders": IN_SYNC,
    },
    refused={},
    checkpoint_problem="",
    names=frozenset({"shop.checkpoint", "shop.public.orders", "__transaction_state"}),
)

TABLE = TableTopic("public.orders", truncated=True)

WANTED = BrokerWanted(
    ("shop.checkpoint", "shop.message", "shop.public.orders"),
    "shop.checkpoint",
    TopicSpec(partitions=6, replication_factor=3),
    tables={"shop.public.orders": TABLE},
    transaction_timeout_s=60,
    schemas="shop.schemas",
)

COMPACTED = {"cleanup.policy": "compact"}


def with_broker(brokers: int = 3, **settings: str) -> BrokerFacts:
    assert not isinstance(FACTS.broker, Exception)
    broker = {**FACTS.broker, **{name.replace("_", "."): value for name, value in settings.items()}}
    return replace(
        FACTS, broker=broker, cluster=replace(FACTS.cluster, brokers=BROKERS[:brokers]), names=frozenset()
    )


def with_orders(config: dict[str, str] | None = None, **fields: Any) -> BrokerFacts:
    return replace(
        FACTS,
        topics={**FACTS.topics, "shop.public.orders": replace(ORDERS, **fields)},
        configs={**FACTS.configs, "shop.public.orders": {**IN_SYNC, **(config or {})}},
    )


def with_table(**fields: Any) -> BrokerWanted:
    return replace(WANTED, tables={"shop.public.orders": replace(TABLE, **fields)})


def refused(*names: str) -> BrokerFacts:
    errors = {name: SinkError(f"Creating topic {name}: not authorized", hint="kafka-acls") for name in names}
    return replace(FACTS, topics=dict.fromkeys(names), refused=errors)


def test_a_cluster_in_order_has_no_warning_and_no_error() -> None:
    findings = examine(FACTS, WANTED, (*BROKER, *TOPICS, check_existing))
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert "cluster id: a:9092, b:9092, c:9092" in findings[0].found
    assert Finding("ok", "topic.missing", "topics", "will be created: shop.message") in findings


@pytest.mark.parametrize(
    ("check", "facts", "wanted", "kind", "says"),
    [
        (
            preflight.check_transactions,
            with_broker(transaction_max_timeout_ms="30000"),
            WANTED,
            ("error", "transaction.timeout"),
            "less than kafka.transaction.timeout_s of 60",
        ),
        (
            preflight.check_transactions,
            with_broker(1),
            WANTED,
            ("error", "transaction.log"),
            "no transaction can begin",
        ),
        (
            preflight.check_transactions,
            with_broker(transaction_state_log_replication_factor="1"),
            WANTED,
            ("warning", "transaction.log"),
            "if its disk is lost",
        ),
        (
            preflight.check_missing,
            FACTS,
            replace(WANTED, spec=TopicSpec(enabled=False)),
            ("error", "topic.missing"),
            "topics.create is off: shop.message",
        ),
        (
            preflight.check_missing,
            refused("shop.a", "shop.b"),
            WANTED,
            ("error", "topic.missing"),
            "Creating topic shop.a: not authorized; the same holds for 1 topic more",
        ),
        (
            preflight.check_missing,
            replace(FACTS, cluster=replace(FACTS.cluster, may_alter=False)),
            WANTED,
            ("unknown", "topic.write"),
            "not checked: the right to write to topics that do not exist yet",
        ),
        (
            preflight.check_missing,
            FACTS,
            replace(WANTED, spec=TopicSpec()),
            ("warning", "topic.replicas"),
            "if a broker's disk is lost",
        ),
        (check_existing, with_orders(may_write=False), WANTED, ("error", "topic.rights"), "may not write"),
        (
            check_existing,
            replace(FACTS, topics={"shop.checkpoint": replace(CHECKPOINT, may_read=False)}),
            WANTED,
            ("error", "topic.rights"),
            "may not read",
        ),
        (check_existing, with_orders(has_leaders=False), WANTED, ("error", "topic.leader"), "no leader"),
        (
            check_existing,
            with_orders(replicas=1),
            WANTED,
            ("error", "topic.replicas"),
            "nothing can be written",
        ),
        (
            check_existing,
            with_orders({"min.insync.replicas": "1"}),
            WANTED,
            ("warning", "topic.replicas"),
            "one broker",
        ),
        (
            check_existing,
            with_orders({"max.message.bytes": "1000"}),
            WANTED,
            ("warning", "topic.size"),
            "max.message.bytes",
        ),
        (
            check_existing,
            with_orders(COMPACTED),
            with_table(keyless=True),
            ("error", "topic.keyless"),
            "the table has no key",
        ),
        (
            check_existing,
            with_orders({"message.timestamp.before.max.ms": "1"}),
            WANTED,
            ("error", "topic.markers"),
            "may refuse the marker",
        ),
        (check_existing, with_orders(COMPACTED), WANTED, ("warning", "topic.compacted"), "TRUNCATE"),
        (
            check_existing,
            with_orders(COMPACTED),
            with_table(outdated=True),
            ("error", "topic.compacted"),
            "the slot was lost, and the next start will end",
        ),
        (
            check_existing,
            with_orders(COMPACTED),
            with_table(truncated=False),
            ("warning", "topic.compacted"),
            "unchanged TOAST",
        ),
        (
            check_existing,
            replace(
                FACTS,
                configs={**FACTS.configs, "shop.schemas": {**IN_SYNC, "cleanup.policy": "compact,delete"}},
            ),
            WANTED,
            ("warning", "topic.compacted"),
            "deletes descriptions",
        ),
        (
            check_existing,
            replace(FACTS, checkpoint_problem="has 2 partitions"),
            WANTED,
            ("error", "topic.checkpoint"),
            "2 partitions",
        ),
        (
            preflight.check_compressed,
            replace(FACTS, read_configs={"claims": {"compression.type": "producer"}}),
            WANTED,
            ("warning", "topic.compressed"),
            "1 GB of the daemon's memory",
        ),
        (
            check_existing,
            replace(FACTS, topics={"shop.message": SinkError("not authorized", hint="kafka-acls")}),
            WANTED,
            ("error", "topic.rights"),
            "not authorized",
        ),
        (
            preflight.check_names,
            replace(FACTS, names=frozenset({"shop_message"})),
            WANTED,
            ("error", "topic.name"),
            "shop_message",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_fix(
    check: Check, facts: BrokerFacts, wanted: BrokerWanted, kind: tuple[str, str], says: str
) -> None:
    found = [finding for finding in check(facts, wanted) if finding.level != "ok"]
    assert [(finding.level, finding.code) for finding in found] == [kind]
    assert says in found[0].found
    assert found[0].fix


def test_a_compacted_topic_of_whole_rows_without_truncates_is_in_order() -> None:
    harmless = with_table(truncated=False, whole=True)
    assert {one.level for one in check_existing(with_orders(COMPACTED), harmless)} == {"ok"}


def test_compaction_of_a_topic_that_is_no_tables_is_not_judged() -> None:
    others = replace(WANTED, tables={})
    assert {one.level for one in check_existing(with_orders(COMPACTED), others)} == {"ok"}


def test_the_documented_rights_do_not_include_the_settings_of_brokers() -> None:
    facts = replace(FACTS, broker=SinkError("not authorized"))
    (finding,) = preflight.check_transactions(facts, WANTED)
    assert (finding.level, "60 s" in finding.found) == ("ok", True)


def test_without_transactions_nobody_asks_for_their_limits() -> None:
    assert list(preflight.check_transactions(with_broker(1), replace(WANTED, exactly_once=False))) == []


def test_other_peoples_collisions_are_not_ours() -> None:
    facts = replace(FACTS, names=frozenset({"x.y", "x_y"}))
    assert list(preflight.check_names(facts, WANTED)) == []


def test_a_timeout_that_is_the_brokers_own_maximum_never_exceeds_it() -> None:
    facts = with_broker(transaction_max_timeout_ms="30000")
    asked = replace(WANTED, transaction_timeout_s=None)
    found = {finding.subject: finding.level for finding in preflight.check_transactions(facts, asked)}
    assert found["transaction.max.timeout.ms"] == "ok"


def acls(*operations: AclOperation) -> TopicAcls:
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            "shop.",
            ResourcePatternType.PREFIXED,
            "User:cdcd",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    return TopicAcls("User:cdcd", tuple(bindings), None)


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ("this principal may not read the ACLs", [("unknown", "topic.write")]),
        (acls(AclOperation.WRITE, AclOperation.READ), []),
        (acls(AclOperation.ALL), []),
        (acls(AclOperation.READ), [("error", "topic.rights")]),
        (acls(AclOperation.WRITE), [("error", "topic.rights")]),
        (acls(AclOperation.CREATE), [("error", "topic.rights"), ("error", "topic.rights")]),
    ],
)
def test_acls_tell_the_rights_on_topics_that_do_not_exist(
    known: TopicAcls | str, found: list[tuple[str, str]]
):
    facts = replace(
        FACTS,
        cluster=ClusterInfo("id", BROKERS, None),
        topics={"shop.checkpoint": None, "shop.message": None},
        acls=known,
    )
    findings = [one for one in preflight.check_missing(facts, WANTED) if one.level != "ok"]
    assert [(one.level, one.code) for one in findings] == found
    assert isinstance(known, TopicAcls) or known in findings[0].found


@pytest.mark.parametrize(("each_start", "level"), [(False, "warning"), (True, "error")])
def test_a_topic_of_descriptions_that_cannot_be_read_is_told(each_start: bool, level: str):
    topics = {**FACTS.topics, "shop.schemas": replace(CHECKPOINT, name="shop.schemas", may_read=False)}
    found = check_existing(replace(FACTS, topics=topics), replace(WANTED, reads_schemas=each_start))
    assert [(one.level, one.code) for one in found if one.level != "ok"] == [(level, "topic.rights")]


def test_the_command_against_compressed_records_leaves_room_for_descriptions() -> None:
    own = {"compression.type": "uncompressed"}
    given = {"shop.checkpoint": IN_SYNC, "shop.schemas": IN_SYNC, "claims": {**IN_SYNC, **own}}
    facts = replace(
        FACTS,
        read_configs={name: {"compression.type": "producer", **config} for name, config in given.items()},
    )
    found = {each.subject: each.fix for each in preflight.check_compressed(facts, WANTED)}
    assert found.keys() == {"topic shop.checkpoint", "topic shop.schemas"}
    assert found["topic shop.checkpoint"].endswith("--add-config compression.type=uncompressed.")
    assert found["topic shop.schemas"].endswith("compression.type=uncompressed,max.message.bytes=4194304.")
