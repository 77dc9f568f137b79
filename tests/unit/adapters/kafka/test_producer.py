"""What follows from the settings; with a real broker the sink is tested in tests/integration/test_kafka_sink.py."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Producer

from cdcd.adapters.kafka.producer import (
    ANSWER_S,
    BATCH_SIZE,
    REQUEST_BYTES,
    SinkSettings,
    construct,
    producer_properties,
)
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import ConfigError
from cdcd.core.retry import Delays

QUIET = logging.getLogger("cdcd.tests.librdkafka")
QUIET.setLevel(logging.CRITICAL + 1)


def settings(batch_bytes_max: int, **producer: str) -> SinkSettings:
    return SinkSettings(
        client={"bootstrap.servers": "localhost:9092"},
        producer=producer,
        exactly_once=True,
        transactional_id="t",
        checkpoint_topic="c",
        records=CheckpointRecords("k"),
        batch_bytes_max=batch_bytes_max,
        timeout_s=60,
        retry=Delays(0.1, 1),
    )


@pytest.mark.parametrize("batch_bytes_max", [1024, BATCH_SIZE, REQUEST_BYTES])
def test_a_usual_batch_fits_into_one_request(batch_bytes_max):
    assert settings(batch_bytes_max).batch_size >= max(1.2 * batch_bytes_max, BATCH_SIZE)


@pytest.mark.parametrize("batch_bytes_max", [REQUEST_BYTES + 1, 2**25, 2**30])
def test_a_large_one_goes_in_several_that_a_topic_takes(batch_bytes_max):
    assert settings(batch_bytes_max).batch_size == REQUEST_BYTES


def test_what_the_user_says_holds():
    assert settings(2**25, **{"batch.size": "12345"}).batch_size == 12345


def properties(
    timeout_s: float, client: Mapping[str, int] = MappingProxyType({}), *, exactly_once: bool = True
) -> dict[str, Any]:
    made = replace(settings(BATCH_SIZE), timeout_s=timeout_s, exactly_once=exactly_once)
    return producer_properties(made, client, BATCH_SIZE, lambda *_: None)


def test_no_wait_is_as_long_as_a_long_transaction():
    assert settings(BATCH_SIZE).answer_s == ANSWER_S
    found = properties(900)
    assert found["transaction.timeout.ms"] == 900_000
    assert found["message.timeout.ms"] == found["socket.timeout.ms"] == 1000 * ANSWER_S
    assert replace(settings(BATCH_SIZE), timeout_s=900).answer_s == ANSWER_S


def test_a_short_transaction_shortens_the_waits():
    assert replace(settings(BATCH_SIZE), timeout_s=3).answer_s == 3
    found = properties(3)
    assert found["message.timeout.ms"] == 3000
    # librdkafka makes it fit by itself, and refuses one that does not.
    assert "socket.timeout.ms" not in found
    Producer({**found, "bootstrap.servers": "127.0.0.1:1", "logger": QUIET})


def test_the_longest_timeout_that_a_broker_has_is_taken_by_librdkafka():
    for timeout_s in (60, 60.2, 900, 86_400):
        Producer({**properties(timeout_s), "bootstrap.servers": "127.0.0.1:1", "logger": QUIET})


def test_without_transactions_a_record_stays_with_its_producer_until_it_is_answered():
    found = properties(60, exactly_once=False)
    assert found["message.timeout.ms"] == 0
    assert "transactional.id" not in found


def test_what_the_user_says_of_timeouts_holds():
    assert properties(900, {"socket.timeout.ms": 5000})["socket.timeout.ms"] == 5000


@pytest.mark.parametrize("name", ["batch.size", "message.max.bytes"])
def test_what_is_no_number_is_left_to_librdkafka_to_refuse(name):
    odd = settings(1024, **{name: "large"})
    assert (odd.batch_size, odd.record_bytes_max) == (BATCH_SIZE, BATCH_SIZE)
    with pytest.raises(ConfigError, match=r"kafka\.properties") as caught:
        construct(producer_properties(odd, odd.client, odd.batch_size, lambda *_: None), "Kafka at b")
    assert "Correct the name or the value" in caught.value.hint
