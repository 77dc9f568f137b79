"""What follows from the settings; with a real broker the sink is tested in tests/integration/test_kafka_sink.py."""

import pytest

from cdcd.kafka.producer import BATCH_SIZE, REQUEST_BYTES, SinkSettings


def settings(batch_bytes_max: int, **producer: str) -> SinkSettings:
    return SinkSettings(
        client={"bootstrap.servers": "localhost:9092"},
        producer=producer,
        exactly_once=True,
        transactional_id="t",
        checkpoint_topic="c",
        key="k",
        batch_bytes_max=batch_bytes_max,
        timeout_s=60,
        backoff_initial_s=0.1,
        backoff_max_s=1,
    )


@pytest.mark.parametrize("batch_bytes_max", [1024, BATCH_SIZE, REQUEST_BYTES])
def test_a_usual_batch_fits_into_one_request(batch_bytes_max):
    assert settings(batch_bytes_max).batch_size >= max(1.2 * batch_bytes_max, BATCH_SIZE)


@pytest.mark.parametrize("batch_bytes_max", [REQUEST_BYTES + 1, 2**25, 2**30])
def test_a_large_one_goes_in_several_that_a_topic_takes(batch_bytes_max):
    assert settings(batch_bytes_max).batch_size == REQUEST_BYTES


def test_what_the_user_says_holds():
    assert settings(2**25, **{"batch.size": "12345"}).batch_size == 12345
