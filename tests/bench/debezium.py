"""Debezium beside cdcd: its PostgreSQL connector in Kafka Connect, one process, draining the same backlog."""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deploy.local.kafka_broker import KafkaBroker
from deploy.local.maven import jars
from deploy.local.postgres_server import PostgresServer
from deploy.local.process import Child, free_port
from deploy.local.programs import java
from tests.bench.drain import PUBLICATION, Drained, Walsender
from tests.bench.processes import cpu_by_thread, cpu_s, peak_rss_bytes

LOCK: Final = Path(__file__).with_name("debezium.lock")
VERSION: Final = next(
    line.split()[0].rpartition(":")[2]
    for line in LOCK.read_text().splitlines()
    if ":debezium-connector-postgres:" in line
)

SETTINGS: Final[dict[str, dict[str, str]]] = {
    "debezium": {},
    "debezium tuned": {
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "poll.interval.ms": "10",
        "producer.override.linger.ms": "20",
        "producer.override.batch.size": "1000000",
        "producer.override.compression.type": "lz4",
    },
}
"""The connector's settings beside those that say what to read, by the reader's name."""

CONNECT: Final = "org.apache.kafka.connect.cli.ConnectStandalone"

LIMIT_S: Final = 600.0


def start_connector(
    folder: Path,
    name: str,
    server: PostgresServer,
    broker: KafkaBroker,
    settings: dict[str, str],
    worker_settings: dict[str, str] | None = None,
) -> Child:
    """As `start_connectors`, with one connector, whose name the worker's files have too."""
    return start_connectors(folder, name, server, broker, {name: settings}, worker_settings)


def start_connectors(
    folder: Path,
    name: str,
    server: PostgresServer,
    broker: KafkaBroker,
    connectors: dict[str, dict[str, str]],
    worker_settings: dict[str, str] | None = None,
) -> Child:
    """Start Connect's standalone worker with connectors, which stream and read no rows.

    Args:
        name: of the worker's files: configuration, offsets and log.
        connectors: of each connector, the settings beside those that are the same for all, by its name.
        worker_settings: likewise, of the worker; `listeners` says where its REST API is.
    """
    worker = _write(
        folder / f"{name}.worker.properties",
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": str(folder / f"{name}.offsets"),
            "listeners": f"http://127.0.0.1:{free_port()}",
            "connector.client.config.override.policy": "All",
            **(worker_settings or {}),
        },
    )
    files = [
        _write(
            folder / f"{connector}.connector.properties",
            {"name": connector, **connector_config(server, settings)},
        )
        for connector, settings in connectors.items()
    ]
    classpath = f"{jars(f'debezium/{VERSION}', LOCK)}/*"
    # 2 GB is what Connect's own script gives it.
    return Child(
        [java(), "-Xms256m", "-Xmx2g", "-cp", classpath, CONNECT, worker, *files],
        log=folder / f"{name}.log",
        last_signal=signal.SIGKILL,
        cwd=folder,
    )


def connector_config(server: PostgresServer, settings: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a connector on this server, without its name. `settings` override the common values."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "postgres",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        **settings,
    }


def drain_with_debezium(
    server: PostgresServer, broker: KafkaBroker, slot: str, rows: int, folder: Path, who: str
) -> Drained:
    """Run Connect until the topic has as many records as the backlog has row changes; no tombstones are made.

    At least once, which is all that Connect's standalone worker does, and its first settings otherwise.

    Raises:
        RuntimeError: it ended, or took longer than `LIMIT_S`.
    """
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": slot})
    topic = TopicPartition(f"{slot}.public.item", 0)
    started = time.monotonic()
    child = start_connector(
        folder,
        slot,
        server,
        broker,
        {
            "database.dbname": "bench",
            "topic.prefix": slot,
            "slot.name": slot,
            "publication.name": PUBLICATION,
            "tombstones.on.delete": "false",
            **SETTINGS[who],
        },
    )
    log = folder / f"{slot}.log"
    try:
        walsender = Walsender(server, slot)
        first_s, start_cpu_s, count = 0.0, 0.0, 0
        while count < rows:
            now = time.monotonic() - started
            if not child.is_running() or now > LIMIT_S:
                raise RuntimeError(
                    f"Debezium has {count} of {rows} records after {now:.0f} s: {log.read_text()[-3000:]}"
                )
            if topic.topic in consumer.list_topics(timeout=10).topics:
                count = _records(consumer, topic)
            if count and not first_s:
                first_s, start_cpu_s = time.monotonic() - started, cpu_s(child.pid)
            walsender.look()
            time.sleep(0.02)
        last_s = time.monotonic() - started
        return Drained(
            who,
            rows,
            last_s,
            cpu_s(child.pid),
            walsender.cpu_s,
            peak_rss_bytes(child.pid),
            first_s,
            start_cpu_s,
            last_s - first_s,
            cpu_by_thread(child.pid),
        )
    finally:
        consumer.close()
        child.kill()


def _records(consumer: Consumer, topic: TopicPartition) -> int:
    try:
        count: int = consumer.get_watermark_offsets(topic, timeout=10)[1]
    except KafkaException as error:
        # It was made just now, and nobody leads it yet.
        if error.args[0].code() not in {
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.LEADER_NOT_AVAILABLE,
        }:
            raise
        return 0
    return count


def _write(path: Path, properties: dict[str, str]) -> Path:
    path.write_text("".join([f"{name}={value}\n" for name, value in properties.items()]))
    return path
