"""A takeover from a real Debezium: a worker of Kafka Connect with its connector, a writer, and the topic at the end.

    scene = Scene(folder, server, database, broker, name)
    scene.start_worker()
    with Writer(...) as writer:
        scene.await_records(500)
        scene.adopt("--takeover")

The worker is Connect's standalone one, with the REST API of all workers. `twice()` reads the topic, and says which rows
have records of Debezium's and of cdcd's.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg
import yaml
from confluent_kafka import Consumer, KafkaError, TopicPartition

from cdcd.adapters.kafka.reading import watermarks
from deploy.local import KafkaBroker, PostgresServer
from deploy.local.cache import REPOSITORY
from deploy.local.process import Child, free_port
from tests.bench.debezium import start_connector
from tests.integration.daemon import until

LIMIT_S: Final = 180.0

OTHERS: Final = 7
"""Every so many rows, one goes to a table that the connector leaves out."""


def await_true(condition: Callable[[], bool], otherwise: str) -> None:
    until(lambda: condition() or None, otherwise, LIMIT_S)


class Writer(threading.Thread):
    """Inserts rows, some in transactions of several.

    `last` is the number of the last row that was committed; `others` counts those of the other table.
    """

    def __init__(self, dsn: str, rate: float) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._rate = rate
        self._stopped = threading.Event()
        self.last = 0
        self.others = 0

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            began = time.monotonic()
            while not self._stopped.wait(max(0.0, began + self.last / self._rate - time.monotonic())):
                count = 1 + self.last % 3
                with connection.transaction():
                    for number in range(self.last + 1, self.last + 1 + count):
                        connection.execute("INSERT INTO orders VALUES (%s, 'new')", (number,))
                        if number % OTHERS == 0:
                            connection.execute("INSERT INTO secrets VALUES (%s)", (number,))
                self.others += (self.last + count) // OTHERS - self.last // OTHERS
                self.last += count

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self.join()


@dataclass(frozen=True)
class Found:
    """The rows of the topic by who wrote them, each with the number of its records."""

    debezium: Counter[int]
    cdcd: Counter[int]

    @property
    def twice(self) -> int:
        """Rows that both wrote."""
        return len(self.debezium.keys() & self.cdcd.keys())

    def missing(self, last: int) -> list[int]:
        return [row for row in range(1, last + 1) if row not in self.debezium and row not in self.cdcd]


class Scene:
    """One database with a connector on it.

    Args:
        folder: of files; PostgreSQL need not reach it.
        name: of connector, slot, topics and pipeline.
    """

    def __init__(
        self, folder: Path, server: PostgresServer, database: str, broker: KafkaBroker, name: str
    ) -> None:
        self._folder = folder
        self._server = server
        self._database = database
        self._broker = broker
        self.name = name
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/connectors/{name}"
        self.topic = TopicPartition(f"{name}.public.orders", 0, 0)
        self._worker: Child | None = None
        self._consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": name, "enable.partition.eof": True}
        )
        server.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)", database)
        server.execute("CREATE TABLE secrets (id bigint PRIMARY KEY)", database)
        server.execute("CREATE PUBLICATION dbz_publication FOR TABLE orders, secrets", database)

    def start_worker(self, **settings: str) -> None:
        """Returns when the connector reads the slot.

        Args:
            settings: of the connector; __ stands for a point.
        """
        self._worker = start_connector(
            self._folder,
            self.name,
            self._server,
            self._broker,
            {
                "database.dbname": self._database,
                "topic.prefix": self.name,
                "slot.name": self.name,
                "table.include.list": r"public\\.orders",
                "decimal.handling.mode": "string",
                "skipped.operations": "none",
                **{name.replace("__", "."): value for name, value in settings.items()},
            },
            {"listeners": f"http://127.0.0.1:{self._port}", "offset.flush.interval.ms": "1000"},
        )
        await_true(self.is_read, "the connector does not read the slot")

    def kill_worker(self) -> None:
        assert self._worker is not None, "start_worker was called"
        self._worker.kill()
        await_true(lambda: not self.is_read(), "the slot is still read")

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._consumer.close()

    def is_read(self) -> bool:
        query = f"SELECT FROM pg_replication_slots WHERE slot_name = '{self.name}' AND active"
        return bool(self._server.execute(query))

    def ask(self, method: str, path: str = "") -> Any:
        """Connect's REST API, for this connector. It is asked again while it is not up."""

        def answer() -> list[Any] | None:
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(f"{self.url}{path}", method=method), timeout=60
                ) as found:
                    return [json.loads(found.read() or b"null")]
            except urllib.error.HTTPError:
                raise
            except OSError:
                return None

        return until(answer, f"{self.url}{path} does not answer", LIMIT_S)[0]

    def await_records(self, count: int) -> None:
        """Wait until so many records more are in the topic."""
        enough = self.end() + count
        await_true(lambda: self.end() >= enough, "records do not come")

    def end(self) -> int:
        """Where the topic ends."""
        if self.topic.topic not in self._consumer.list_topics(timeout=LIMIT_S).topics:
            return 0
        return watermarks(self._consumer, self.topic, LIMIT_S)[1]

    def command(self, *options: str) -> list[str]:
        return [
            *(sys.executable, "-m", "cdcd.cli", "adopt", self.url, "--kafka", self._broker.bootstrap_servers),
            *("--output", str(self.file), "--worker", str(self._folder / f"{self.name}.worker.properties")),
            *options,
        ]

    @property
    def file(self) -> Path:
        return self._folder / "cdcd.yaml"

    def adopt(self, *options: str) -> tuple[int, dict[str, Any]]:
        """The exit code, and the object that it shows."""
        run = self.run(*options)
        assert run.stdout, run.stderr
        return run.returncode, json.loads(run.stdout)

    def run(self, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command("--format", "json", *options),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )

    @contextmanager
    def running(self, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        """The command as it goes on as `cdcd run`; it is ended in the end. `said()` is what it has shown."""
        with (self._folder / "said").open("wb") as shown, (self._folder / "run.log").open("wb") as log:
            process = subprocess.Popen(
                self.command("--format", "json", *options),
                cwd=REPOSITORY,
                env={**os.environ, "CDCD_HTTP__PORT": "0", "CDCD_POSTGRES__STATUS_INTERVAL_S": "0.2"},
                stdout=shown,
                stderr=log,
            )
            try:
                yield process
                process.terminate()
                process.wait(LIMIT_S)
            finally:
                process.kill()
                process.wait()

    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "said").read_text())
        return found

    def adopt_and_kill(self, said: str) -> None:
        """A takeover that is killed (-9) when it says this."""
        process = subprocess.Popen(
            self.command("--takeover"),
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None, "it is a pipe"
        with process.stderr:
            heard = []
            for line in process.stderr:
                heard.append(line)
                if said in line:
                    break
            else:
                raise AssertionError(f"it ended before it said {said}: {heard}")
            process.send_signal(signal.SIGKILL)
            process.wait()

    def configuration(self) -> dict[str, Any]:
        """What was written, for a daemon in a hurry."""
        found: dict[str, Any] = yaml.safe_load(self.file.read_text())
        found["http"] = {"port": 0}
        found["postgres"]["status_interval_s"] = 0.2
        return found

    def values(self) -> list[tuple[int, bytes]]:
        """All records in the topic, in their order: offset and value."""
        found: list[tuple[int, bytes]] = []
        self._consumer.assign([self.topic])
        while True:
            message = self._consumer.poll(LIMIT_S)
            assert message is not None, "the topic cannot be read"
            error, offset, value = message.error(), message.offset(), message.value()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            assert error is None, error
            assert offset is not None, "a record has an offset"
            assert value is not None, "rows are only inserted"
            found.append((offset, value))

    def await_row(self, last: int) -> None:
        """Wait until the topic has this row, the last one that was written."""
        await_true(
            lambda: json.loads(self.values()[-1][1])["after"]["id"] >= last, f"row {last} does not come"
        )

    def read(self) -> Found:
        """The rows in the topic."""
        found = Found(Counter(), Counter())
        for _, value in self.values():
            change = json.loads(value)
            (found.cdcd if "commit_lsn" in change["source"] else found.debezium)[change["after"]["id"]] += 1
        return found
