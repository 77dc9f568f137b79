"""`snapshot.signal_topic`: a topic of the pipeline is refused, because cdcd would read its records as requests."""

import pytest

from tests.unit.config.test_loading import MINIMAL, parse, problem

ROUTE = "routes: {tables: {public.orders: {rules: [{when: row.id == 1, topic: shop.eu}]}}}"


@pytest.mark.parametrize(
    ("topic", "section"),
    [
        ("shop.message", ""),
        ("shop_checkpoint", ""),
        ("shop.schemas", ""),
        ("shop.dead_letter", ""),
        ("cdcd.claims", ""),
        ("shop.transaction", "topics: {transaction_metadata: true}"),
        ("__debezium-heartbeat.shop", "heartbeat: {interval_s: 5}"),
        ("shop.orders", "topics: {names: {public.orders: shop.orders}}"),
        ("shop.eu", ROUTE),
        ("shop.events", "outbox: {topics: [shop.events]}"),
    ],
)
def test_a_topic_of_the_pipeline_is_no_signal_topic(topic: str, section: str):
    found = problem(f"{MINIMAL}snapshot: {{signal_topic: {topic}}}\n{section}\n")
    assert f"snapshot.signal_topic: {topic} is already another topic of the pipeline" in found


def test_a_topic_that_the_pipeline_does_not_use_is_a_signal_topic():
    assert parse("snapshot: {signal_topic: shop.transaction}\n").snapshot.signal_topic == "shop.transaction"
