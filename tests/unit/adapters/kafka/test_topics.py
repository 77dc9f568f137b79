"""Topic names that Kafka refuses to tell apart."""

import pytest

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.topics import (
    TopicSpec,
    colliding,
    ensure_topics,
    keyless_hint,
    marker_problem,
    policy_problem,
)
from cdcd.core.errors import SinkError


def test_names_that_differ_only_in_dot_and_underscore_collide() -> None:
    assert colliding(["a.b", "a_b", "a-b", "a.b"]) == [("a.b", "a_b")]
    assert colliding(["shop.public.order_lines", "shop.public_order.lines"]) == [
        ("shop.public.order_lines", "shop.public_order.lines")
    ]
    assert colliding(["a.b", "a.c", "ab"]) == []


def test_a_collision_is_told_without_asking_a_broker() -> None:
    with pytest.raises(SinkError) as caught:
        ensure_topics(Admin({}), ["x.a.b", "x.a_b"], TopicSpec(), checkpoint="c")
    assert "x.a.b and x.a_b" in caught.value.message
    assert "topics.prefix" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "has_key", "is_fit"),
    [
        ({"cleanup.policy": "compact"}, False, False),
        ({"cleanup.policy": "compact,delete"}, False, False),
        ({"cleanup.policy": "compact"}, True, True),
        ({"cleanup.policy": "delete"}, False, True),
        ({}, False, True),
    ],
)
def test_a_compacted_topic_is_not_fit_for_a_table_without_a_key(
    config: dict[str, str], has_key: bool, is_fit: bool
) -> None:
    assert (policy_problem(config, has_key=has_key) == "") == is_fit


@pytest.mark.parametrize("has_key", [True, False])
def test_a_compacted_topic_is_not_fit_for_watermarks(has_key: bool) -> None:
    problem = policy_problem({"cleanup.policy": "compact"}, has_key=has_key, marked=True)
    assert "heartbeat.watermark_interval_s" in problem
    assert policy_problem({"cleanup.policy": "delete"}, has_key=has_key, marked=True) == ""
    assert "heartbeat.watermark_interval_s: 0" in keyless_hint("shop.public.orders", marked=True)


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"message.timestamp.before.max.ms": "59999"}, "message.timestamp.before.max.ms=60000"),
        ({"message.timestamp.difference.max.ms": "0"}, "message.timestamp.difference.max.ms=60000"),
        ({"max.message.bytes": "77"}, "max.message.bytes=128"),
        ({"max.message.bytes": "0", "message.timestamp.type": "LogAppendTime"}, "max.message.bytes=128"),
    ],
)
def test_a_topic_that_may_refuse_markers_of_transactions_is_unfit(
    config: dict[str, str], setting: str
) -> None:
    problem = marker_problem("shop.public.orders", config)
    assert problem is not None
    assert f"{next(iter(config))}={next(iter(config.values()))}" in problem.message
    assert f"--entity-name shop.public.orders --add-config {setting}" in problem.hint


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"message.timestamp.before.max.ms": "60000", "max.message.bytes": "128"},
        {"message.timestamp.before.max.ms": "9223372036854775807", "max.message.bytes": "1048588"},
        # Kafka sets the time itself, so it compares no times.
        {"message.timestamp.before.max.ms": "1", "message.timestamp.type": "LogAppendTime"},
    ],
)
def test_a_topic_that_takes_markers_of_transactions_is_fit(config: dict[str, str]) -> None:
    assert marker_problem("shop.public.orders", config) is None
