"""The sink's opening, and what it leaves behind, against a real broker, by what librdkafka says of itself."""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import KafkaException

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.outage import Settling
from cdcd.adapters.kafka.oversized import Oversized, SizeLimits
from cdcd.adapters.kafka.producer import SinkSettings
from cdcd.adapters.kafka.sink import Sink
from cdcd.adapters.kafka.sink_inputs import KnownOfBrokers, Ownership, SinkReports
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import (
    CdcdError,
    FencedError,
    SinkError,
    SinkUnavailableError,
    TopicRefusedError,
    TransientError,
)
from cdcd.core.records.encoder import Record
from cdcd.core.records.late_records import Produce
from cdcd.core.retry import Delays
from cdcd.core.transactions.position import Position
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.visible_records import visible

OPENINGS = 8

RECORDS_MAX = 10_000
"""More records than are handed over before the broker has refused the first request."""


def sink_of(
    broker: KafkaBroker,
    name: str,
    properties: Mapping[str, int] | None = None,
    on_retry: Callable[[CdcdError, float], None] = lambda _error, _wait_s: None,
    settling: Settling | None = None,
    stopping: threading.Event | None = None,
    topic: str | None = None,
    *,
    exactly_once: bool = True,
    sizes: SizeLimits | None = None,
    timeout_s: float = 20,
) -> Sink:
    """A sink with a topic for its checkpoint, a new one if none is named, which logs its transactions."""
    connection, producer = client.split(
        {"bootstrap.servers": broker.bootstrap_servers, "debug": "eos", **(properties or {})}
    )
    if topic is None:
        create_topics(broker.bootstrap_servers, name)
    return Sink(
        SinkSettings(
            client=connection,
            producer=producer,
            exactly_once=exactly_once,
            transactional_id=name,
            checkpoint_topic=topic or name,
            records=CheckpointRecords(name),
            batch_bytes_max=1_000_000,
            timeout_s=timeout_s,
            retry=Delays(1, 1),
        ),
        Ownership(lambda: None, lambda: False),
        SinkReports(on_retry),
        KnownOfBrokers(sizes or SizeLimits(), settling or Settling()),
        credentials=dict,
        stopping=stopping or threading.Event(),
        oversized=Oversized(),
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


def test_a_producer_that_another_pipeline_shuts_out_names_it(broker: KafkaBroker, unique: str):
    # GIVEN two pipelines with one transactional id, each of which has written a checkpoint
    topics = [f"{unique}{number}.checkpoint" for number in (1, 2)]
    create_topics(broker.bootstrap_servers, *topics)
    sinks = [sink_of(broker, unique, topic=topic) for topic in topics]
    position = Position(1, 2)
    for number, sink in enumerate(sinks):
        sink.open()
        sink.deliver(Batch(position, position, items=[]), Checkpoint(str(number), 1, "", position, 0))
    # WHEN the first one delivers again, THEN it is shut out, and says by whom
    later = Position(3, 4)
    with pytest.raises(FencedError, match=rf"\(topic {topics[1]}\)") as error:
        sinks[0].deliver(Batch(later, later, items=[]), Checkpoint("0", 1, "", later, 0))
    assert f"kafka.transactional_id: {unique}-2" in error.value.hint
    for sink in sinks:
        sink.close()


def test_a_producer_whose_transaction_has_just_begun_does_not_go_before_that_has_ended(
    broker: KafkaBroker, unique: str, caplog
):
    # Four in two hundred that went at once took the process with them (SIGABRT).
    sink = sink_of(broker, unique, {"message.max.bytes": 20_000})
    position = Position(1, 2)
    batch = Batch(position, position, items=[(unique, b"key", bytes(30_000), None)])
    with caplog.at_level(logging.DEBUG):
        sink.open()
        with pytest.raises(SinkError, match="A record of 30003 bytes"):
            sink.deliver(batch, Checkpoint("1", 1, "", position, 0))
    assert "Transaction successfully aborted" in caplog.text


class LearnsTooLate(Batch):
    """Its first request is refused before its last record is handed over."""

    hears = False
    """Whether the refusal of the last record is passed on, or the commit is the first call that fails."""
    refused = False

    def hand_over(self, produce: Produce) -> None:
        super().hand_over(produce)
        if not self.refused:
            self.refused = True
            try:
                # librdkafka tells of the refusal only through this call, as long as nobody polls.
                for _ in range(RECORDS_MAX):
                    produce(self.records[0][0], b"", b"")
                    time.sleep(0.005)
            except KafkaException:
                if self.hears:
                    self.handed_over -= 1
                    raise


@pytest.mark.parametrize("hears", [True, False])
def test_a_refusal_for_size_is_heard_though_a_later_call_fails_first(
    broker: KafkaBroker, unique: str, hears: bool
):
    topic = f"{unique}.records"
    create_topics(broker.bootstrap_servers, topic, config={"max.message.bytes": "20000"})
    retries: list[str] = []
    sink = sink_of(broker, unique, on_retry=lambda error, _: retries.append(error.message))
    position = Position(1, 2)
    records: list[Record] = [(topic, b"%d" % number, random.randbytes(1_000), None) for number in range(100)]
    batch = LearnsTooLate(position, position, items=list(records))
    batch.hears = hears
    sink.open()
    sink.deliver(batch, Checkpoint("1", 1, "", position, 0))
    sink.close()
    assert batch.refused
    assert not retries, "a refusal for size is no failure that may pass"


def test_without_transactions_no_record_behind_a_refused_one_is_visible(broker: KafkaBroker, unique: str):
    # GIVEN a topic with a limit that is known
    large, other = f"{unique}.large", f"{unique}.other"
    create_topics(broker.bootstrap_servers, large, config={"max.message.bytes": "20000"})
    create_topics(broker.bootstrap_servers, other)
    sizes = SizeLimits()
    sizes.learn_topics({large: 20_000})
    sink = sink_of(broker, unique, exactly_once=False, sizes=sizes)
    sink.open()
    position = Position(1, 2)

    # WHEN records stand before and behind one that is too large, and behind one that compression makes small
    records: list[Record] = [
        (other, b"1", b"before", None),
        (large, b"1", bytes(30_000), None),
        (large, b"2", random.randbytes(30_000), None),
        (large, b"3", b"behind", None),
        (other, b"2", b"behind", None),
    ]
    batch = Batch(position, position, items=list(records))
    with pytest.raises(TopicRefusedError) as refused:
        sink.deliver(batch, Checkpoint("1", 1, "", position, 0))

    # THEN readers see the records before it, and nothing behind it
    assert refused.value.topics == {large}
    assert visible(broker.bootstrap_servers, other) == 1
    assert visible(broker.bootstrap_servers, large) == 1

    # AND the other records go out without it
    batch.items = [records[0], records[4]]
    sink.open()
    sink.deliver(batch, Checkpoint("1", 1, "", position, 0))
    assert visible(broker.bootstrap_servers, other) == 3
    sink.close()


def test_a_stop_that_ends_the_wait_for_acknowledgements_is_not_told_as_a_failure_of_kafka(
    private_broker: Callable[..., KafkaBroker], unique: str
):
    # GIVEN records that wait, because the broker stands still for a moment
    broker = private_broker()
    told: list[CdcdError] = []
    stopping = threading.Event()
    sink = sink_of(broker, unique, on_retry=lambda error, _: told.append(error), stopping=stopping)
    sink.open()
    position = Position(1, 2)
    batch = Batch(position, position, items=[(unique, b"key", b"value", None)])
    broker.pause()
    # WHEN the session ends by a failure of the other side
    threading.Timer(0.5, stopping.set).start()
    try:
        with pytest.raises(TransientError) as ended:
            sink.deliver(batch, Checkpoint("1", 1, "", position, 0))
    finally:
        broker.resume()
    # THEN nobody is sent to Kafka
    assert told == []
    assert not isinstance(ended.value, SinkUnavailableError)
    assert "broker" not in f"{ended.value}"
    sink.close()
