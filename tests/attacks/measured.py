"""How much memory a daemon used, beside the rule of docs/sizing.md."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from cdcd.daemon.process import BASE_BYTES, RECORD_COPIES, WIRE_COPIES
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, confirmed, until, wal_end

MB = 1_000_000

StartDaemon = Callable[[dict[str, Any]], Daemon]

PASSED_S = 240.0
"""Seconds in which a daemon must have passed a large value, also on a machine that is busy."""


def allowed(wire_bytes: float, record_bytes: float = 0.0) -> float:
    """The memory that the rule allows, in bytes."""
    return BASE_BYTES + WIRE_COPIES * wire_bytes + RECORD_COPIES * record_bytes


def filled(megabytes: int) -> str:
    """SQL: a text of so many megabytes."""
    return f"repeat(md5('a'), {megabytes * MB // 32})"


def run(database: Database, *statements: str, user: str = "postgres") -> None:
    """Run the statements in one transaction, as this role."""
    with psycopg.connect(database.dsn(user=user)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def await_passed(daemon: Daemon, database: Database, slot: str) -> None:
    """Wait until PostgreSQL was told that everything is flushed that is in the WAL now."""
    end = wal_end(database.dsn())

    def passed() -> bool | None:
        assert daemon.is_running(), daemon.last_words()
        return confirmed(database.dsn(), slot) >= end or None

    until(passed, f"the daemon never passed the value:\n{daemon.last_words()}", PASSED_S)


def await_renewed(daemon: Daemon) -> int:
    """Wait until the daemon has connected again after a large message; the memory that it has then, in bytes."""
    mark = daemon.await_event("stream.renewed", timeout_s=PASSED_S)
    daemon.await_event("stream.started", after=daemon.events.index(mark), timeout_s=PASSED_S)
    time.sleep(1)
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def records(broker: KafkaBroker, topic: str) -> list[Any]:
    """What a topic has; empty if there is no such topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[Any] = []
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        for partition in partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(10.0)) is not None and message.error() is None:
                found.append(message)
    finally:
        consumer.close()
    return found
