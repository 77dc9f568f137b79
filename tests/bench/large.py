"""One transaction larger than memory: from its commit to its last record in Kafka, streamed and not.

Once more with what `config/large-transactions.yaml` sets for such.
"""

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from confluent_kafka import Consumer, TopicPartition

from cdcd.core.protocol.lsn import Lsn
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import daemon_config
from tests.bench.forms import start_daemon
from tests.bench.processes import cpu_s, peak_rss_bytes
from tests.bench.workloads import ROW

STREAMING: Final = ("off", "on", "parallel", "tuned")
"""`tuned`: as `config/large-transactions.yaml` has it."""

TUNED: Final = Path(__file__).parents[2] / "config" / "large-transactions.yaml"

QUIET_S: Final = 2.0
"""A walsender that has used no CPU for so long has sent what it had."""


@dataclass(frozen=True, slots=True)
class Large:
    """One run. `tail_s`: from the commit to the acknowledgement of the last record."""

    form: str
    streaming: str
    rows: int
    tail_s: float
    cpu_s: float
    peak_rss_bytes: int


def measure_large(
    server: PostgresServer, broker: KafkaBroker, slot: str, folder: Path, rows: int, streaming: str, form: str
) -> Large:
    """Write `rows` in one transaction while the daemon runs, commit when it has what it can get, and wait."""
    settings = daemon_config(server, broker, slot, postgres={"streaming": streaming})
    if streaming == "tuned":
        _tune(settings)
    config = folder / f"{slot}.json"
    config.write_text(json.dumps(settings))
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": slot,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    log = (folder / f"{slot}.log").open("wb")
    server.execute("TRUNCATE item", "bench")
    daemon = start_daemon(form, config, log)
    try:
        query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
        while not (active := server.execute(query)):
            time.sleep(0.05)
        with psycopg.connect(server.dsn("bench")) as connection:
            connection.execute(
                f"INSERT INTO item SELECT {ROW.format(id='i')} FROM generate_series(1, {rows}) AS s(i)".encode()
            )
            _await_quiet(active[0][0])
            ((before,),) = server.execute("SELECT pg_current_wal_insert_lsn()::text", "bench")
            began = time.monotonic()
            connection.commit()
        consumer.assign([TopicPartition(f"{slot}.checkpoint", 0, 0)])
        while True:
            assert daemon.poll() is None, (folder / f"{slot}.log").read_text()
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                continue
            checkpoint = json.loads(message.value() or b"{}")
            done = checkpoint["end_lsn"] if not checkpoint["events_done"] else "0/0"
            if Lsn.parse(done) > Lsn.parse(before):
                tail_s = time.monotonic() - began
                return Large(form, streaming, rows, tail_s, cpu_s(daemon.pid), peak_rss_bytes(daemon.pid))
    finally:
        consumer.close()
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
        log.close()


def _tune(settings: dict[str, Any]) -> None:
    """Take over what the example sets, but for where things are."""
    example = yaml.safe_load(TUNED.read_text())
    settings["postgres"]["streaming"] = example["postgres"]["streaming"]
    settings["kafka"] |= {
        name: example["kafka"][name] for name in ("transaction", "queue_bytes_max", "properties")
    }


def _await_quiet(pid: int) -> None:
    used, since = cpu_s(pid), time.monotonic()
    while time.monotonic() - since < QUIET_S:
        time.sleep(0.1)
        if cpu_s(pid) > used:
            used, since = cpu_s(pid), time.monotonic()
