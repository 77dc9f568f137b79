"""The sink's opening, against a real broker."""

import logging
import threading

from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.kafka import client
from cdcd.kafka.oversized import Oversized
from cdcd.kafka.sink import Sink, SinkSettings
from deploy.local import KafkaBroker

OPENINGS = 8


def test_no_opening_meets_librdkafka_without_a_broker(broker: KafkaBroker, unique: str, caplog):
    # It would look for the coordinator again only after half a second. Which connection answers first is chance.
    connection, producer = client.split({"bootstrap.servers": broker.bootstrap_servers, "debug": "eos"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(10)
    sink = Sink(
        SinkSettings(
            client=connection,
            producer=producer,
            exactly_once=True,
            transactional_id=unique,
            checkpoint_topic=unique,
            key=unique,
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
    with caplog.at_level(logging.DEBUG):
        for _ in range(OPENINGS):
            assert sink.open() is None
            sink.close()
    assert caplog.text.count("Transactional API called: init_transactions") >= OPENINGS
    assert "Unable to query for transaction coordinator" not in caplog.text
