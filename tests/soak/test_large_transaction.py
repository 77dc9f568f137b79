"""A transaction of two million rows passes through the daemon as it is configured by default, in bounded memory."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import Daemon, configuration

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROWS = 2_000_000
MEMORY_BYTES_MAX = 300_000_000
PATIENCE_S = 900


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where also the server's unprivileged user may walk through."""
    with TemporaryDirectory(prefix="cdcd-soak-") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


@pytest.mark.parametrize("kind", ["not streamed", "streamed", "prepared"])
def test_two_million_rows_in_one_transaction_need_less_than_300_mb(folder: Path, kind: str):
    settings = {"max_wal_size": "256MB", "checkpoint_timeout": "30s"}
    with (
        PostgresServer(18, folder / "postgres", settings=settings) as postgres,
        KafkaBroker(folder / "kafka") as broker,
    ):
        dsn = postgres.dsn()
        postgres.execute(
            "CREATE TABLE t (id int PRIMARY KEY, name text, amount numeric(12, 2), at timestamptz)"
        )
        config = configuration(
            "soak",
            dsn,
            broker.bootstrap_servers,
            postgres={
                "streaming": "off" if kind == "not streamed" else "parallel",
                "two_phase": kind == "prepared",
            },
        )
        with Daemon(folder / "daemon", config) as daemon:
            daemon.start()
            daemon.await_streaming()
            before = daemon.peak_memory_bytes()
            began = time.monotonic()
            end = "PREPARE TRANSACTION 'soak'" if kind == "prepared" else "COMMIT"
            postgres.execute(
                f"""BEGIN;
                    INSERT INTO t SELECT g, 'name of ' || g, g / 100.0, now() FROM generate_series(1, {ROWS}) g;
                    {end}"""
            )
            if kind == "prepared":
                postgres.execute("COMMIT PREPARED 'soak'")
            committed = time.monotonic()
            await_flushed(dsn, "cdcd_soak", PATIENCE_S)
            delivered = time.monotonic()
            peak = daemon.peak_memory_bytes()
            spooled = daemon.saw("spool.spilled")
            assert daemon.stop() == 0
        print(
            f"{kind}: {ROWS} rows written in {committed - began:.0f} s, delivered {delivered - committed:.0f} s later, "
            f"peak memory {peak / 1e6:.0f} MB ({before / 1e6:.0f} MB before)"
        )
        assert spooled == (kind != "not streamed")
        assert rows_in_order(broker, "soak.public.t") == ROWS
        assert peak < MEMORY_BYTES_MAX


def rows_in_order(broker: KafkaBroker, topic: str) -> int:
    """How many records a reader of committed ones finds; they must be the rows 1, 2, 3 and so on."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    count = 0
    try:
        while True:
            messages = consumer.consume(10_000, 30)
            assert messages, f"nothing came for 30 s after {count} records"
            for message in messages:
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return count
                count += 1
                assert message.key() == b'{"id":%d}' % count
    finally:
        consumer.close()
