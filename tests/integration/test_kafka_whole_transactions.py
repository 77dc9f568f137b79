"""A source transaction in several parts is one Kafka transaction, against a real broker: seen whole, or not at all."""

import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from cdcd.adapters.kafka import client, producer_calls
from cdcd.adapters.kafka import sink as sink_module
from cdcd.adapters.kafka.claim_store import ClaimDirectory
from cdcd.adapters.kafka.oversized import CLAIM_CHECK, Oversized, SizeLimits
from cdcd.adapters.kafka.producer import SinkSettings
from cdcd.adapters.kafka.sink import Sink
from cdcd.adapters.kafka.sink_inputs import KnownOfBrokers, Ownership, SinkReports
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.retry import Delays
from cdcd.core.transactions.position import Position
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.daemon import BUSY_S, WAIT_S
from tests.integration.visible_records import await_decided

BEFORE = Position(1, 2)
AFTER = Position(3, 4)
START = Checkpoint("7001", 1, "publication=shop", BEFORE, 2)
END = replace(START, position=AFTER, flushed_lsn=4)

PART_BYTES = 12_000_000

IN_NO_WAY = Oversized()


class Pipeline:
    """A checkpoint topic and a topic for records, and the sinks of one process after the other."""

    def __init__(
        self,
        broker: KafkaBroker,
        name: str,
        *,
        timeout_s: float = 60,
        exactly_once: bool = True,
        oversized: Oversized = IN_NO_WAY,
        properties: Mapping[str, str | int] | None = None,
    ) -> None:
        self.servers = broker.bootstrap_servers
        self.name = name
        self.topic = f"{name}.t"
        self.checkpoints = f"{name}.checkpoint"
        self.exactly_once = exactly_once
        self.oversized = oversized
        self.sizes = SizeLimits()
        self.timeout_s = timeout_s
        self.stopping = threading.Event()
        self.retries: list[CdcdError] = []
        self.on_retry: Callable[[], None] = lambda: None
        self.properties = properties or {}
        create_topics(self.servers, self.topic, self.checkpoints)

    def sink(self) -> Sink:
        connection, producer = client.split({"bootstrap.servers": self.servers, **self.properties})

        def retried(error: CdcdError, _wait_s: float) -> None:
            self.retries.append(error)
            self.on_retry()

        return Sink(
            SinkSettings(
                client=connection,
                producer=producer,
                exactly_once=self.exactly_once,
                transactional_id=self.name,
                checkpoint_topic=self.checkpoints,
                records=CheckpointRecords(self.name),
                batch_bytes_max=4_000_000,
                timeout_s=self.timeout_s,
                retry=Delays(0.05, 0.1),
            ),
            Ownership(lambda: None, lambda: False),
            SinkReports(retried),
            KnownOfBrokers(self.sizes),
            credentials=dict,
            stopping=self.stopping,
            oversized=self.oversized,
        )

    def part(self, *values: bytes, closes: bool = False) -> Batch:
        records = [(self.topic, b"k", value, None) for value in values]
        return Batch(BEFORE, AFTER if closes else BEFORE, items=list(records), closes=closes)

    def seen(self) -> list[bytes]:
        """What a read_committed consumer sees up to the end of what is decided."""
        return [value for value, _ in self.read("read_committed")]

    def committed(self) -> list[bytes]:
        """The same when no transaction is open. One that nobody ends is not waited for."""
        await_decided(self.servers, self.topic, timeout_s=BUSY_S)
        return self.seen()

    def read(self, isolation: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"{self.name}-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        try:
            while True:
                message = consumer.poll(WAIT_S)
                assert message is not None, f"no end within {WAIT_S:g} s"
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return
                yield message.value() or b"", dict(message.headers() or [])
        finally:
            consumer.close()


@pytest.fixture
def pipeline(broker: KafkaBroker, unique: str) -> Pipeline:
    return Pipeline(broker, unique)


def test_a_transaction_of_several_parts_is_invisible_until_the_last_one(pipeline: Pipeline):
    sink = pipeline.sink()
    assert sink.open() is None
    for value in (b"1", b"2", b"3"):
        sink.deliver(pipeline.part(value), END)
        assert pipeline.seen() == []
    sink.deliver(pipeline.part(b"4", closes=True), END)
    assert pipeline.committed() == [b"1", b"2", b"3", b"4"]
    assert pipeline.sink().open() == END


def test_transactions_follow_each_other_small_and_large(pipeline: Pipeline):
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1", closes=True), START)
    sink.deliver(pipeline.part(b"2"), END)
    sink.deliver(pipeline.part(closes=True), END)
    sink.deliver(pipeline.part(b"3", closes=True), START)
    assert pipeline.committed() == [b"1", b"2", b"3"]


def test_of_a_transaction_whose_process_was_killed_nothing_is_visible(pipeline: Pipeline):
    killed = pipeline.sink()
    killed.open()
    killed.deliver(pipeline.part(b"1"), END)
    killed.deliver(pipeline.part(b"2"), END)
    # GIVEN that the process is gone without a word: nothing of it is sent any more, and nothing is aborted by it.
    killed._discard()
    # THEN the next one ends the transaction at once, and sends all of it again.
    sink = pipeline.sink()
    assert sink.open() is None
    assert pipeline.seen() == []
    sink.deliver(pipeline.part(b"1"), END)
    sink.deliver(pipeline.part(b"2", closes=True), END)
    assert pipeline.committed() == [b"1", b"2"]
    assert len(list(pipeline.read("read_uncommitted"))) >= 2


def test_a_sink_that_is_closed_within_a_transaction_does_not_leave_it_to_the_timeout(pipeline: Pipeline):
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1"), END)
    sink.close()
    another = replace_name(pipeline)
    another.open()
    another.deliver(pipeline.part(b"2", closes=True), END)
    # A reader that had to wait for the open transaction would see neither.
    assert pipeline.committed() == [b"2"]


def replace_name(pipeline: Pipeline) -> Sink:
    """A sink of another transactional id, which does not fence the one before it."""
    name, pipeline.name = pipeline.name, f"{pipeline.name}-another"
    try:
        return pipeline.sink()
    finally:
        pipeline.name = name


@pytest.mark.long
def test_what_fails_behind_a_part_that_was_let_go_starts_over(private_broker, unique: str):
    broker = private_broker()
    pipeline = Pipeline(broker, unique, timeout_s=2)
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1"), END)
    # WHEN the broker goes away for longer than it may take for an answer
    broker.kill()
    with pytest.raises(TransientError, match="failed after parts of it were sent"):
        go_on(pipeline, sink, closes=False)
    assert not pipeline.retries, "nothing of it was tried again"
    sink.close()
    # THEN nothing of it is seen, and the next session sends all of it.
    broker.start()
    pipeline.timeout_s = 60
    sink = pipeline.sink()
    assert sink.open() is None
    assert pipeline.seen() == []
    sink.deliver(pipeline.part(b"1"), END)
    sink.deliver(pipeline.part(b"2", closes=True), END)
    assert pipeline.committed() == [b"1", b"2"]


def test_what_fails_in_the_first_part_is_sent_again(private_broker, unique: str):
    broker = private_broker()
    pipeline = Pipeline(broker, unique, timeout_s=2)
    sink = pipeline.sink()
    sink.open()
    broker.kill()
    back = threading.Event()

    def bring_back() -> None:
        if not back.is_set():
            back.set()
            broker.start()

    pipeline.on_retry = bring_back
    sink.deliver(pipeline.part(b"1", closes=True), END)
    assert pipeline.retries
    assert pipeline.committed() == [b"1"]


@pytest.mark.parametrize("closes", [False, True])
def test_a_transaction_that_outlasts_its_timeout_starts_over(private_broker, unique: str, closes: bool):
    broker = private_broker(settings={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200})
    pipeline = Pipeline(broker, unique, timeout_s=2)
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1"), END)
    # The coordinator aborts it: a reader sees its end, which is nothing.
    await_aborted(pipeline)
    with pytest.raises(TransientError, match="failed after parts of it were sent"):
        go_on(pipeline, sink, closes=closes)
    sink.close()
    assert pipeline.seen() == []
    sink = pipeline.sink()
    assert sink.open() is None


def go_on(pipeline: Pipeline, sink: Sink, *, closes: bool) -> None:
    """Deliver parts until one of them hears what became of those before it."""
    for _ in range(3):
        sink.deliver(pipeline.part(b"2", closes=closes), END)


def await_aborted(pipeline: Pipeline) -> None:
    """Until the last stable offset is the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": pipeline.servers,
            "group.id": "x",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    # The record, and the marker of its abort.
    consumer.assign([TopicPartition(pipeline.topic, 0, 0)])
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"not aborted within {WAIT_S:g} s"
        if message.error() is not None and (message.offset() or 0) >= 2:
            consumer.close()
            return


def test_memory_stays_bounded_whatever_the_size(pipeline: Pipeline):
    sink = pipeline.sink()
    sink.open()
    value = os.urandom(5_000)
    highest = []
    for part in range(25):
        sink.deliver(pipeline.part(*[value] * (PART_BYTES // len(value))), END)
        gc.collect()
        if part >= 3:
            highest.append(resident_bytes())
    # 300 MB were handed over; of those, two parts may be with librdkafka.
    assert max(highest) - highest[0] < 3 * PART_BYTES
    sink.close()


def test_parts_that_fill_requests_leave_without_a_flush(pipeline: Pipeline, monkeypatch):
    monkeypatch.setattr(producer_calls, "TAIL_S", BUSY_S)
    flushes = count_flushes(monkeypatch)
    sink = pipeline.sink()
    sink.open()
    value = os.urandom(5_000)
    for _ in range(4):
        sink.deliver(pipeline.part(*[value] * (PART_BYTES // len(value))), END)
    # THEN the last records of each part left with the next part.
    assert not flushes
    sink.deliver(pipeline.part(b"last", closes=True), END)
    assert len(pipeline.committed()) == 4 * (PART_BYTES // len(value)) + 1


def test_parts_that_fill_no_request_are_flushed(broker: KafkaBroker, unique: str, monkeypatch):
    pipeline = Pipeline(broker, unique, properties={"linger.ms": int(1000 * BUSY_S)})
    monkeypatch.setattr(producer_calls, "TAIL_S", 0.0)
    flushes = count_flushes(monkeypatch)
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1"), END)
    assert not flushes, "nothing is before the first part"
    sink.deliver(pipeline.part(b"2"), END)
    assert flushes
    # WHEN this pause would be too long for the test
    monkeypatch.setattr(producer_calls, "TAIL_S", BUSY_S)
    flushes.clear()
    sink.deliver(pipeline.part(b"3"), END)
    sink.deliver(pipeline.part(b"4"), END)
    # THEN the sink remembers.
    assert flushes
    sink.deliver(pipeline.part(b"5", closes=True), END)
    assert pipeline.committed() == [b"1", b"2", b"3", b"4", b"5"]


def count_flushes(monkeypatch) -> list[float]:
    """The timeouts of all calls of `flush`, from now on."""
    flushes: list[float] = []

    class Counted(Producer):
        def flush(self, timeout: float = -1) -> int:
            flushes.append(timeout)
            return super().flush(timeout)

    def construct(properties: dict[str, Any], _where: str) -> Producer:
        client.prepare(properties)
        return Counted(properties)

    monkeypatch.setattr(sink_module, "construct", construct)
    return flushes


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_record_that_the_broker_refuses_behind_a_part_is_replaced_when_all_is_sent_again(
    broker: KafkaBroker, unique: str, tmp_path: Path
):
    told: list[int] = []
    pipeline = Pipeline(
        broker,
        unique,
        oversized=Oversized(
            "claim_check", "", ClaimDirectory(tmp_path), lambda _topic, size, _to: told.append(size)
        ),
        properties={"compression.type": "none"},
    )
    large = os.urandom(2_000_000)

    def session() -> None:
        sink = pipeline.sink()
        assert sink.open() is None
        try:
            sink.deliver(pipeline.part(b"1"), END)
            sink.deliver(pipeline.part(large), END)
            sink.deliver(pipeline.part(b"3"), END)
            sink.deliver(pipeline.part(b"4", closes=True), END)
        finally:
            sink.close()

    with pytest.raises(TransientError, match="failed after parts of it were sent"):
        session()
    assert pipeline.seen() == []
    # What the first session learned is enough for the second one.
    session()
    await_decided(pipeline.servers, pipeline.topic)
    first, second, third, fourth = pipeline.read("read_committed")
    assert [first[0], third[0], fourth[0]] == [b"1", b"3", b"4"]
    assert Path(second[1][CLAIM_CHECK].decode()).read_bytes() == large
    assert told == [len(large)]


def test_a_record_that_librdkafka_refuses_is_replaced_in_its_place(
    broker: KafkaBroker, unique: str, tmp_path: Path
):
    pipeline = Pipeline(
        broker,
        unique,
        oversized=Oversized("claim_check", "", ClaimDirectory(tmp_path)),
        properties={"message.max.bytes": 100_000},
    )
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1"), END)
    sink.deliver(pipeline.part(b"2", bytes(200_000), b"3", closes=True), END)
    one, two, claim, three = pipeline.committed()
    assert (one, two, three) == (b"1", b"2", b"3")
    assert b"claim_check" in claim
    assert not pipeline.retries


def test_a_claim_check_directory_that_cannot_be_written_is_found_at_the_start(
    broker: KafkaBroker, unique: str, tmp_path: Path
):
    pipeline = Pipeline(
        broker, unique, oversized=Oversized("claim_check", "", ClaimDirectory(tmp_path / "none"))
    )
    with pytest.raises(CdcdError, match="claim-check") as caught:
        pipeline.sink().open()
    assert caught.value.exit_code == 8
    assert str(tmp_path / "none") in caught.value.hint


# At least once.


def test_at_least_once_parts_are_seen_at_once_and_the_checkpoint_with_the_last(
    broker: KafkaBroker, unique: str
):
    pipeline = Pipeline(broker, unique, exactly_once=False)
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1"), END)
    assert pipeline.committed() == [b"1"]
    assert pipeline.sink().open() is None
    sink.deliver(pipeline.part(b"2", closes=True), END)
    assert pipeline.committed() == [b"1", b"2"]
    assert pipeline.sink().open() == END


@pytest.mark.long
def test_at_least_once_a_producer_whose_broker_comes_back_goes_on(private_broker, unique: str):
    broker = private_broker()
    pipeline = Pipeline(broker, unique, exactly_once=False, timeout_s=1)
    sink = pipeline.sink()
    sink.open()
    sink.deliver(pipeline.part(b"1", closes=True), START)
    producer = sink._producer
    broker.kill()
    pipeline.on_retry = lambda: None if broker.is_running() else broker.start()
    sink.deliver(pipeline.part(b"2", closes=True), END)
    # THEN the records came by the same producer, each once: nothing of an older one can come after them.
    assert sink._producer is producer
    assert pipeline.retries
    assert pipeline.committed() == [b"1", b"2"]
