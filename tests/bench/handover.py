"""`python -m tests.bench.handover`: docs/from-debezium.md with a real Debezium, while rows are written.

Debezium's connector has the slot, cdcd takes it over, another connector takes it back, and cdcd refuses to take it once
more with its former checkpoint. At the end the topic is compared with the rows that were written: none may be missing,
and those that came twice are counted.
"""

import json
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

from deploy.local import KafkaBroker, PostgresServer
from deploy.local.process import Child
from tests.bench.debezium import VERSION, start_connector
from tests.integration.daemon import Daemon, configuration

RATE: Final = 500
"""Transactions of one row in a second."""

PHASE: Final = 5000
"""Records after which the next one takes over."""

LIMIT_S: Final = 180.0

DATABASE: Final = "inventory"
SLOT: Final = "debezium"
PUBLICATION: Final = "dbz_publication"
TOPIC: Final = TopicPartition("inventory.public.orders", 0, 0)


class Writer(threading.Thread):
    """Inserts rows at `RATE`, until `stop`; `last` is the number of the last row."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._stopped = threading.Event()
        self.last = 0

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            began = time.monotonic()
            while not self._stopped.wait(max(0.0, began + self.last / RATE - time.monotonic())):
                connection.execute("INSERT INTO orders VALUES (%s, 1.5)", (self.last + 1,))
                self.last += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class Handover:
    """The servers, and who reads the slot."""

    def __init__(self, folder: Path, server: PostgresServer, broker: KafkaBroker) -> None:
        self._folder = folder
        self._server = server
        self._broker = broker
        self._consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "handover"})

    def prepare(self) -> Writer:
        self._server.execute(f"CREATE DATABASE {DATABASE}")
        self._server.execute("CREATE TABLE orders (id bigint PRIMARY KEY, price numeric(10, 2))", DATABASE)
        self._server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders", DATABASE)
        return Writer(self._server.dsn(DATABASE))

    def daemon(self) -> Daemon:
        return Daemon(
            self._folder / "cdcd",
            configuration(
                DATABASE,
                self._server.dsn(DATABASE),
                self._broker.bootstrap_servers,
                postgres={"slot": SLOT, "publication": PUBLICATION},
            ),
        )

    def connector(self, name: str) -> Child:
        settings = {
            "database.dbname": DATABASE,
            "topic.prefix": DATABASE,
            "slot.name": SLOT,
            "publication.name": PUBLICATION,
            "decimal.handling.mode": "string",
            "interval.handling.mode": "string",
            "skipped.operations": "none",
        }
        child = start_connector(self._folder, name, self._server, self._broker, settings)
        until(self.is_read, "the connector does not read the slot")
        return child

    def end(self, child: Child) -> None:
        child.signal(signal.SIGTERM)
        until(lambda: not child.is_running(), "the connector does not end")
        self.await_free()

    def await_free(self) -> None:
        until(lambda: not self.is_read(), "the slot is still read")

    def is_read(self) -> bool:
        query = f"SELECT FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND active"
        return bool(self._server.execute(query))

    def count(self) -> int:
        if TOPIC.topic not in self._consumer.list_topics(timeout=10).topics:
            return 0
        end: int = self._consumer.get_watermark_offsets(TOPIC, timeout=10)[1]
        return end

    def await_records(self) -> None:
        """Wait until `PHASE` records more are in the topic."""
        enough = self.count() + PHASE
        until(lambda: self.count() >= enough, "records do not come")

    def read(self, last: int) -> list[tuple[int, str]]:
        """The rows in the topic, each with the version of who wrote its record, until row `last` has come."""
        self._consumer.assign([TOPIC])
        found: list[tuple[int, str]] = []
        until(lambda: self._take(found) == last, f"row {last} does not come")
        self._consumer.close()
        return found

    def _take(self, found: list[tuple[int, str]]) -> int:
        for message in self._consumer.consume(10_000, 1.0):
            value = message.value()
            assert value is not None, message.error()
            change = json.loads(value)
            found.append((change["after"]["id"], change["source"]["version"]))
        return found[-1][0] if found else 0


def until(condition: Callable[[], bool], otherwise: str) -> None:
    """RuntimeError when it does not become true in `LIMIT_S`."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.2)


def run(handover: Handover) -> int:
    """The exit code: 0 if no row is missing."""
    writer = handover.prepare()
    first = handover.connector("first")
    writer.start()
    handover.await_records()
    handover.end(first)
    with handover.daemon() as daemon:
        daemon.start()
        daemon.await_event("stream.started")
        handover.await_records()
        assert daemon.stop() == 0, daemon.last_words()
        handover.await_free()
        second = handover.connector("second")
        handover.await_records()
        handover.end(second)
        daemon.start()
        refused = daemon.wait()
    second = handover.connector("second")
    writer.stop()
    rows = handover.read(writer.last)
    second.kill()
    times = Counter(row for row, _ in rows)
    missing = [row for row in range(1, writer.last + 1) if row not in times]
    print(f"Debezium {VERSION}, {RATE} transactions a second: {writer.last} rows")
    print(f"records by version: {dict(Counter(version for _, version in rows))}")
    print(f"missing {len(missing)}, twice {sum(times.values()) - len(times)}")
    print(f"cdcd with its former checkpoint ends with exit code {refused}")
    return 1 if missing or refused != 6 else 0


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cdcd-handover-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with PostgresServer(18, folder / "postgres") as server, KafkaBroker(folder / "kafka") as broker:
            return run(Handover(folder, server, broker))


if __name__ == "__main__":
    sys.exit(main())
