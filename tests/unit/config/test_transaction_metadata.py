"""The keys `topics.transaction_metadata` and `topics.transaction`: what is refused, and what the start is given."""

import pytest

from cdcd.daemon.settings import encoder_settings, own_topics
from tests.unit.config.test_loading import MINIMAL, parse, problem


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("topics: {transaction: shop.message}", "transaction must differ from message"),
        ("topics: {transaction: shop_checkpoint}", "transaction must differ from message"),
        ("topics: {transaction: shop.public.orders}", "could be the topic of a table"),
        ("topics: {transaction: shop.dead_letter}", "dead_letter_topic must differ from topics.transaction"),
        ("outbox: {topics: [shop.transaction]}", "is already another topic of the pipeline"),
        (
            "format: {value: cloudevents}\ncloudevents: {data: avro}\nregistry: {url: 'http://127.0.0.1:1'}",
            "topics.transaction_metadata needs another cloudevents.data than avro",
        ),
        (
            "event_flattening: {enabled: true}",
            "event_flattening.enabled needs topics.transaction_metadata: false",
        ),
    ],
)
def test_what_cannot_be_is_named(section: str, says: str):
    begins = "topics: {transaction_metadata: true"
    given = section.replace("topics: {", f"{begins}, ") if section.startswith("topics") else section
    if given == section:
        given = f"{begins}}}\n{section}"
    assert says in problem(f"{MINIMAL}{given}\n")


def test_without_it_the_topic_is_not_there_and_may_be_anything():
    config = parse("topics: {transaction: shop.message}\n")
    assert config.topics.transaction_topic is None
    assert encoder_settings(config, "db").transaction_topic is None
    assert "transaction" not in config.stream_options


def test_with_it_the_start_has_the_topic_and_the_checkpoint_names_the_option():
    config = parse("topics: {transaction_metadata: true}\n")
    assert encoder_settings(config, "db").transaction_topic == "shop.transaction"
    assert encoder_settings(config, "db").topics.transaction == config.topic_names().transaction
    assert "shop.transaction" in own_topics(config, messages=False)
    assert config.stream_options == f"{parse('').stream_options} transaction_metadata=True"
