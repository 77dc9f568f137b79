"""The keys of `heartbeat` and `topics.heartbeat`: what is refused, and what the parts are given."""

import pytest

from cdcd.daemon.settings import encoder_settings, engine_settings, own_topics
from tests.unit.config.test_loading import MINIMAL, parse, problem

ON = "heartbeat: {interval_s: 5}\n"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("heartbeat: {interval_s: 0.01}", "interval_s must be 0 or at least 0.1"),
        ("heartbeat: {watermark_interval_s: 0.01}", "watermark_interval_s must be 0 or at least 0.1"),
        (
            "heartbeat: {watermark_interval_s: 5}\ntopics: {create: {config: {cleanup.policy: 'compact,delete'}}}",
            "needs topics that are not compacted",
        ),
        ("heartbeat: {action_query: SELECT 1}", "action_query needs interval_s"),
        (f"{ON}topics: {{heartbeat: shop.message}}", "is already another topic of the pipeline"),
        (f"{ON}topics: {{heartbeat: shop_schemas}}", "is already another topic of the pipeline"),
        (f"{ON}topics: {{heartbeat: shop.dead_letter}}", "is already another topic of the pipeline"),
        (
            f"{ON}topics: {{heartbeat: shop.transaction, transaction_metadata: true}}",
            "is already another topic of the pipeline",
        ),
        (f"{ON}topics: {{heartbeat: shop.public.orders}}", "could be the topic of a table"),
        (f"{ON}outbox: {{topics: [__debezium-heartbeat.shop]}}", "is already another topic of the pipeline"),
    ],
)
def test_what_cannot_be_is_named(section: str, says: str):
    assert says in problem(f"{MINIMAL}{section}\n")


def test_without_an_interval_there_is_no_topic():
    config = parse("topics: {heartbeat: shop.message}\n")
    assert config.heartbeat_topic is None
    assert encoder_settings(config, "db").heartbeat_topic is None
    assert engine_settings(config, 60).heartbeat.interval_s == 0


def test_watermarks_need_no_heartbeats():
    config = parse("heartbeat: {watermark_interval_s: 5}\n")
    assert config.heartbeat_topic is None
    assert engine_settings(config, 60).heartbeat.watermark_s == 5
    assert engine_settings(parse(""), 60).heartbeat.watermark_s == 0
    # Whoever makes the topics is asked when they are there.
    parse(
        "heartbeat: {watermark_interval_s: 5}\n"
        "topics: {create: {enabled: false, config: {cleanup.policy: compact}}}\n"
    )


def test_with_an_interval_the_topic_has_debeziums_name_and_is_there_from_the_start():
    config = parse("heartbeat: {interval_s: 5, action_query: SELECT 1}\n")
    topic = "__debezium-heartbeat.shop"
    assert encoder_settings(config, "db").heartbeat_topic == topic
    assert encoder_settings(config, "db").topics.heartbeat == config.topic_names().heartbeat == topic
    assert topic in own_topics(config, messages=False)
    settings = engine_settings(config, 60)
    assert (settings.heartbeat.interval_s, settings.heartbeat.has_query) == (5, True)
