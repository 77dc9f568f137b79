"""From the commit in PostgreSQL to a `read_committed` consumer, at a steady rate of single-row transactions."""

import json
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import daemon_config
from tests.bench.forms import start_daemon


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the commit's timestamp to the moment that the consumer had the record."""

    form: str
    delivery: str
    records: int
    rate: float
    p50_ms: float
    p99_ms: float


def measure_latency(
    server: PostgresServer,
    broker: KafkaBroker,
    slot: str,
    folder: Path,
    *,
    rate: int,
    seconds: float,
    delivery: str,
    form: str,
) -> Latency:
    """Commit `rate` rows a second for so long, and see when each arrives."""
    config = folder / f"{slot}.json"
    settings: dict[str, Any] = {"kafka": {"delivery": delivery}}
    config.write_text(json.dumps(daemon_config(server, broker, slot, **settings)))
    log = (folder / f"{slot}.log").open("wb")
    daemon = start_daemon(form, config, log)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": slot,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    wanted = int(rate * seconds)
    writer = threading.Thread(target=_commit_steadily, args=(server, wanted, rate))
    try:
        _await_streaming(server, slot)
        consumer.assign([TopicPartition(f"{slot}.public.tick", 0, 0)])
        writer.start()
        late: list[float] = []
        while len(late) < wanted and daemon.poll() is None:
            # One by one: `consume` would wait for as many as it is asked for.
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                now_us = time.time_ns() // 1000
                late.append((now_us - json.loads(message.value() or b"{}")["source"]["ts_us"]) / 1000)
        # The first second is the warm-up of all parties.
        steady = late[rate:]
        cuts = quantiles(steady, n=100)
        return Latency(form, delivery, len(steady), rate, cuts[49], cuts[98])
    finally:
        writer.join()
        consumer.close()
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
        log.close()


def _commit_steadily(server: PostgresServer, count: int, rate: int) -> None:
    with psycopg.connect(server.dsn("bench"), autocommit=True) as connection:
        began = time.monotonic()
        for number in range(count):
            ahead = began + number / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            connection.execute("INSERT INTO tick (note) VALUES ('tick')", prepare=True)


def _await_streaming(server: PostgresServer, slot: str) -> None:
    query = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
    while not server.execute(query):
        time.sleep(0.05)
