"""Each check of `cdcd check` on Kafka's side, over facts made up for it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cdcd.checks import kafka as preflight
from cdcd.checks.finding import Finding
from cdcd.checks.kafka import Facts, Wanted
from cdcd.errors import SinkError
from cdcd.kafka.admin import ClusterInfo, TopicInfo
from cdcd.kafka.topics import TopicSpec

Check = Callable[[Facts, Wanted], Iterator[Finding]]

CHECKPOINT = TopicInfo("shop.checkpoint", 1, 3, has_leaders=True, may_write=True)
ORDERS = TopicInfo("shop.public.orders", 6, 3, has_leaders=True, may_write=None)
BROKERS = ((1, "a:9092"), (2, "b:9092"), (3, "c:9092"))
IN_SYNC = {"min.insync.replicas": "2", "max.message.bytes": "1048588", "cleanup.policy": "delete"}

FACTS = Facts(
    cluster=ClusterInfo("id", BROKERS, None),
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
    checkpoint_problem="",
    names=frozenset({"shop.checkpoint", "shop.public.orders", "__transaction_state"}),
)

WANTED = Wanted(
    ("shop.checkpoint", "shop.message"),
    "shop.checkpoint",
    "shop",
    TopicSpec(partitions=6, replication_factor=3),
    transaction_timeout_s=60,
    schemas="shop.schemas",
)


def with_broker(brokers: int = 3, **settings: str) -> Facts:
    assert not isinstance(FACTS.broker, Exception)
    broker = {**FACTS.broker, **{name.replace("_", "."): value for name, value in settings.items()}}
    return replace(
        FACTS, broker=broker, cluster=replace(FACTS.cluster, brokers=BROKERS[:brokers]), names=frozenset()
    )


def with_orders(config: dict[str, str] | None = None, **fields: Any) -> Facts:
    return replace(
        FACTS,
        topics={**FACTS.topics, "shop.public.orders": replace(ORDERS, **fields)},
        configs={**FACTS.configs, "shop.public.orders": {**IN_SYNC, **(config or {})}},
    )


def test_a_cluster_in_order_has_no_warning_and_no_error() -> None:
    findings = [finding for check in preflight.CHECKS for finding in check(FACTS, WANTED)]
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert "cluster id: a:9092, b:9092, c:9092" in findings[0].found
    assert Finding("ok", "topics", "will be created: shop.message") in findings


@pytest.mark.parametrize(
    ("check", "facts", "wanted", "level", "says"),
    [
        (
            preflight.check_transactions,
            with_broker(transaction_max_timeout_ms="30000"),
            WANTED,
            "error",
            "less than kafka.transaction.timeout_s of 60",
        ),
        (preflight.check_transactions, with_broker(1), WANTED, "error", "no transaction can begin"),
        (
            preflight.check_transactions,
            with_broker(transaction_state_log_replication_factor="1"),
            WANTED,
            "warning",
            "lost disk",
        ),
        (
            preflight.check_transactions,
            replace(FACTS, broker=SinkError("not authorized")),
            WANTED,
            "warning",
            "authorized",
        ),
        (
            preflight.check_missing,
            FACTS,
            replace(WANTED, spec=TopicSpec(enabled=False)),
            "error",
            "missing: shop.message",
        ),
        (preflight.check_missing, with_broker(1), WANTED, "error", "3 replicas on 1 brokers"),
        (
            preflight.check_missing,
            replace(FACTS, cluster=replace(FACTS.cluster, may_create=False)),
            WANTED,
            "warning",
            "may not create",
        ),
        (
            preflight.check_missing,
            FACTS,
            replace(WANTED, spec=TopicSpec()),
            "warning",
            "lost with its broker",
        ),
        (preflight.check_existing, with_orders(may_write=False), WANTED, "error", "may not write"),
        (preflight.check_existing, with_orders(has_leaders=False), WANTED, "error", "no leader"),
        (preflight.check_existing, with_orders(replicas=1), WANTED, "error", "nothing can be written"),
        (
            preflight.check_existing,
            with_orders({"min.insync.replicas": "1"}),
            WANTED,
            "warning",
            "one broker",
        ),
        (
            preflight.check_existing,
            with_orders({"max.message.bytes": "1000"}),
            WANTED,
            "warning",
            "max.message.bytes",
        ),
        (
            preflight.check_existing,
            with_orders({"cleanup.policy": "compact"}),
            WANTED,
            "warning",
            "compacted",
        ),
        (
            preflight.check_existing,
            replace(
                FACTS,
                configs={**FACTS.configs, "shop.schemas": {**IN_SYNC, "cleanup.policy": "compact,delete"}},
            ),
            WANTED,
            "warning",
            "description of a form is deleted, while",
        ),
        (
            preflight.check_existing,
            replace(FACTS, checkpoint_problem="has 2 partitions"),
            WANTED,
            "error",
            "2 partitions",
        ),
        (
            preflight.check_existing,
            replace(FACTS, topics={"shop.message": SinkError("not authorized", hint="kafka-acls")}),
            WANTED,
            "error",
            "not authorized",
        ),
        (
            preflight.check_names,
            replace(FACTS, names=frozenset({"shop_message"})),
            WANTED,
            "error",
            "shop_message",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_fix(
    check: Check, facts: Facts, wanted: Wanted, level: str, says: str
) -> None:
    found = [finding for finding in check(facts, wanted) if finding.level != "ok"]
    assert [finding.level for finding in found] == [level]
    assert says in found[0].found
    assert found[0].fix


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
