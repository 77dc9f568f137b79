"""The sink's opening, and what it leaves behind, against a real broker, by what librdkafka says of itself."""

import logging
import threading

import pytest

from cdcd.engine.queue import Batch
from cdcd.errors import SinkError
from cdcd.kafka import client
from cdcd.kafka.oversized import Oversized
from cdcd.kafka.producer import SinkSettings
from cdcd.kafka.sink import Sink
from cdcd.transactions.position import Checkpoint, Position
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics

OPENINGS = 8


def sink_of(broker: KafkaBroker, name: str, **properties: int) -> Sink:
    """A sink with a new topic for its checkpoint, which logs its transactions."""
    connection, producer = client.split(
        {"bootstrap.servers": broker.bootstrap_servers, "debug": "eos", **properties}
    )
    create_topics(broker.bootstrap_servers, name)
    return Sink(
        SinkSettings(
            client=connection,
            producer=producer,
            exactly_once=True,
            transactional_id=name,
            checkpoint_topic=name,
            key=name,
            batch_bytes_max=1_000_000,
            timeout_s=20,
            backoff_initial_s=1,
            backoff_max_s=1,
        ),
        prove_ownership=lambda: None,
        credentials=dict,
        lapsed=lambda: False,
        stopping=threading.Event(),
        oversized=Oversized(),
        on_retry=lambda _error, _wait_s: None,
    )


def test_no_opening_meets_librdkafka_without_a_broker(broker: KafkaBroker, unique: str, caplog):
    # It would look for the coordinator again only after half a second. Which connection answers first is chance.
    sink = sink_of(broker, unique)
    with caplog.at_level(logging.DEBUG):
        for _ in range(OPENINGS):
            assert sink.open() is None
            sink.close()
    assert caplog.text.count("Transactional API called: init_transactions") >= OPENINGS
    assert "Unable to query for transaction coordinator" not in caplog.text


def test_a_producer_whose_transaction_has_just_begun_does_not_go_before_that_has_ended(
    broker: KafkaBroker, unique: str, caplog
):
    # Four in two hundred that went at once took the process with them (SIGABRT).
    sink = sink_of(broker, unique, **{"message.max.bytes": 20_000})
    position = Position(1, 2)
    batch = Batch(position, position, records=[(unique, b"key", bytes(30_000), None)])
    with caplog.at_level(logging.DEBUG):
        sink.open()
        with pytest.raises(SinkError, match="A record of 30003 bytes"):
            sink.deliver(batch, Checkpoint("1", 1, "", position, 0))
    assert "Transaction successfully aborted" in caplog.text
