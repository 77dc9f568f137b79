"""Many small tables: how long until they stream, and what the daemon needs for them; compiled, on the demo's broker.

Three runs, each of one daemon: an initial snapshot of `tables` tables of ten rows, with seconds and CPU by phase; the
checkpoint record when five times as many tables wait to be read; descriptors of the spool while many large
transactions are open. Wall times depend on what else the machine does, so the load and the broker's CPU stand beside.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import PUBLICATION, daemon_config
from tests.bench.forms import start_daemon
from tests.bench.processes import cpu_by_thread, cpu_s, peak_rss_bytes

ROWS: Final = 10
"""Rows of each table."""

WAITING_TABLES: Final = 5
"""So many times as many tables wait when the checkpoint record is measured."""

SPOOLED: Final = 20
"""Large transactions that are open at the same time."""

LIMIT_S: Final = 300.0

GOALS: Final = (
    "goals: 15 s to streaming, 3 s of the daemon's CPU, 190 MB with 2,000 tables, records below 64 kB"
)

PHASES: Final = (
    ("process and modules", "daemon.started"),
    ("lock, topics, checks", "slot.created"),
    ("looking at the tables", "snapshot.started"),
    ("their topics", "topic.created"),
    ("their rows", "snapshot.finished"),
    ("stream begun", "stream.started"),
)
"""Each phase, and the log's event whose last occurrence ends it."""

_CREATE: Final = """\
DO $$ BEGIN FOR n IN {begin}..{end} LOOP
EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, name text NOT NULL, amount numeric(10, 2), at timestamptz)', n);
{fill} END LOOP; END $$"""
_FILL: Final = """\
EXECUTE format('INSERT INTO t%s SELECT i, ''row '' || i, i / 4.0, now() FROM generate_series(1, {rows}) i', n);"""


@dataclass(slots=True)
class Looked:
    """A moment of a run: seconds since the process began, CPU seconds of the daemon and of the broker."""

    at_s: float
    cpu_s: float
    broker_cpu_s: float


@dataclass(slots=True)
class Many:
    """What was measured."""

    tables: int
    load_before: str
    load_after: str
    phases: dict[str, Looked] = field(default_factory=dict)
    """By the event that ends each."""
    all_sent_s: float = 0.0
    """Until the checkpoint in Kafka says that no table waits."""
    end: Looked = field(default_factory=lambda: Looked(0.0, 0.0, 0.0))
    threads: dict[str, float] = field(default_factory=dict)
    peak_rss_bytes: int = 0
    rows: int = 0
    record_bytes: int = 0
    waiting_tables: int = 0
    waiting_record_bytes: int = 0
    spool_descriptors: int = 0
    spool_files: int = 0


class Running:
    """One process, with the events of its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def events(self) -> list[dict[str, Any]]:
        lines = self._log.read_bytes().rpartition(b"\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def has_logged(self, event: str) -> bool:
        return b'"%b"' % event.encode() in self._log.read_bytes()

    def await_true(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.02)


@contextmanager
def running(form: str, folder: Path, config: dict[str, Any]) -> Iterator[Running]:
    path = folder / f"{config['name']}.json"
    path.write_text(json.dumps(config))
    log = folder / f"{config['name']}.log"
    with log.open("wb") as stderr:
        process = start_daemon(form, path, stderr)
        try:
            yield Running(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def measure_many(
    server: PostgresServer,
    broker: KafkaBroker,
    folder: Path,
    form: str,
    tables: int,
    *,
    method: str = "exported",
) -> Many:
    """All three runs; the database `bench` is empty before them."""
    server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES", "bench")
    _make_tables(server, 1, tables, _FILL.format(rows=ROWS))
    many = _read_all(server, broker, folder, form, tables, method)
    more = WAITING_TABLES * tables
    _make_tables(server, tables + 1, more, "")
    many.waiting_tables = more
    many.waiting_record_bytes = _largest_waiting(server, broker, folder, form)
    many.spool_descriptors, many.spool_files = _spool_descriptors(server, broker, folder, form)
    return many


def _make_tables(server: PostgresServer, begin: int, end: int, fill: str) -> None:
    # In transactions of 500, each table of which takes locks that the server has room for.
    for first in range(begin, end + 1, 500):
        server.execute(_CREATE.format(begin=first, end=min(first + 499, end), fill=fill), "bench")
    server.execute("CHECKPOINT", "bench")


def _config(
    server: PostgresServer, broker: KafkaBroker, name: str, **sections: dict[str, Any]
) -> dict[str, Any]:
    config = daemon_config(server, broker, name)
    return {
        **config,
        **{section: {**config.get(section, {}), **values} for section, values in sections.items()},
    }


def _read_all(
    server: PostgresServer, broker: KafkaBroker, folder: Path, form: str, tables: int, method: str
) -> Many:
    config = _config(server, broker, f"many_{method}", snapshot={"mode": "initial", "method": method})
    many = Many(tables, _load(), "")
    broker_before = cpu_s(broker.pid)
    began, began_unix = time.monotonic(), time.time()
    with ExitStack() as stack:
        daemon = stack.enter_context(running(form, folder, config))
        moments: list[tuple[float, Looked]] = []

        def is_sent() -> bool:
            moments.append((time.time(), _look(daemon, broker, began, broker_before)))
            return daemon.has_logged("stream.started") and daemon.has_logged("snapshot.finished")

        daemon.await_true(is_sent, "streaming")
        many.record_bytes, many.all_sent_s = _await_all_read(broker, config["name"], began)
        many.end = _look(daemon, broker, began, broker_before)
        many.threads, many.peak_rss_bytes = cpu_by_thread(daemon.pid), peak_rss_bytes(daemon.pid)
        many.load_after = _load()
        for event in daemon.events():
            at = datetime.fromisoformat(event["timestamp"]).timestamp()
            looked = next((each for when, each in moments if when >= at), many.end)
            many.phases[event["event"]] = Looked(at - began_unix, looked.cpu_s, looked.broker_cpu_s)
            if event["event"] == "snapshot.finished":
                many.rows = event["rows"]
    assert many.rows == tables * ROWS, f"{many.rows} rows"
    _drop_slot(server, config)
    return many


def _look(daemon: Running, broker: KafkaBroker, began: float, broker_before: float) -> Looked:
    return Looked(time.monotonic() - began, cpu_s(daemon.pid), cpu_s(broker.pid) - broker_before)


def _await_all_read(broker: KafkaBroker, name: str, began: float) -> tuple[int, float]:
    """The size of the largest checkpoint record, and when the one was there that says that all is read."""
    largest = 0
    for value in checkpoint_values(broker, name):
        largest = max(largest, len(value))
        progress = json.loads(value).get("snapshot") or {}
        if progress.get("serial") and not progress.get("tasks") and not progress.get("waiting"):
            return largest, time.monotonic() - began
    raise RuntimeError("no checkpoint says that all tables are read")


def checkpoint_values(broker: KafkaBroker, name: str, *, idle_s: float = 10.0) -> Iterator[bytes]:
    """Values of the checkpoint's records from the first one on, as they are committed; ends after `idle_s` seconds
    without one.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"{name} sizes",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(f"{name}.checkpoint", 0, 0)])
        while (message := consumer.poll(idle_s)) is not None:
            value = message.value()
            if message.error() is None and value is not None:
                yield value
    finally:
        consumer.close()


def _largest_waiting(server: PostgresServer, broker: KafkaBroker, folder: Path, form: str) -> int:
    """The first checkpoint of a pipeline for which all tables wait: nothing is read yet, and no topic made."""
    config = _config(server, broker, "waiting", snapshot={"mode": "initial", "method": "incremental"})
    with running(form, folder, config) as daemon:
        daemon.await_true(lambda: daemon.has_logged("stream.started"), "streaming")
        size = len(next(checkpoint_values(broker, config["name"])))
    _drop_slot(server, config)
    return size


def _spool_descriptors(
    server: PostgresServer, broker: KafkaBroker, folder: Path, form: str
) -> tuple[int, int]:
    """Descriptors, and names in its folder, while `SPOOLED` streamed transactions are larger than its memory."""
    config = _config(server, broker, "spooled", spool={"memory_bytes_max": 1 << 20})
    directory = config["spool"]["directory"]
    with ExitStack() as stack:
        daemon = stack.enter_context(running(form, folder, config))
        daemon.await_true(lambda: daemon.has_logged("stream.started"), "streaming")
        for number in range(1, SPOOLED + 1):
            connection = stack.enter_context(psycopg.connect(server.dsn("bench")))
            connection.execute(
                f"INSERT INTO t{number} SELECT i, repeat('x', 100), 0, now() FROM generate_series(100, 2100) i".encode()
            )
        daemon.await_true(lambda: daemon.has_logged("spool.spilled"), "the spool's file")
        found = _open_files(daemon.pid, directory), len(list(Path(directory).iterdir()))
    _drop_slot(server, config)
    return found


def _open_files(pid: int, directory: str) -> int:
    """Descriptors of files in the directory, also of those that have no name any more."""
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(str(link.readlink()))
        except OSError:
            # It was closed while the list was read.
            continue
    return sum(target.startswith(f"{directory}/") for target in targets)


def _drop_slot(server: PostgresServer, config: dict[str, Any]) -> None:
    server.execute(f"SELECT pg_drop_replication_slot('{config['postgres']['slot']}')", "bench")


def _load() -> str:
    return " ".join(Path("/proc/loadavg").read_text().split()[:3])


def report(form: str, many: Many) -> list[str]:
    """The figures of one form."""
    start = many.phases["stream.started"]
    lines = [f" {form}, load {many.load_before} before, {many.load_after} after"]
    _say(lines, "start to streaming", _spent(start, _BEGIN))
    _say(lines, "until Kafka had all rows", f"{many.all_sent_s:.2f} s")
    _say(lines, "peak RSS", f"{many.peak_rss_bytes / 1e6:.0f} MB")
    before = _BEGIN
    for what, event in PHASES:
        now = many.phases.get(event)
        if now is not None:
            _say(lines, f"  {what}", _spent(now, before))
            before = now
    shares = sorted(many.threads.items(), key=lambda item: -item[1])
    _say(lines, "CPU by thread", ", ".join(f"{name} {used:.2f} s" for name, used in shares if used >= 0.01))
    _say(lines, "largest checkpoint", f"{many.record_bytes / 1e3:.1f} kB while they are read")
    _say(lines, "", f"{many.waiting_record_bytes / 1e3:.1f} kB while {many.waiting_tables:,} tables wait")
    descriptors = f"{many.spool_descriptors} with {SPOOLED} transactions in it"
    _say(lines, "descriptors of the spool", f"{descriptors}, names in its folder {many.spool_files}")
    return lines


_BEGIN: Final = Looked(0.0, 0.0, 0.0)


def _say(lines: list[str], what: str, figures: str) -> None:
    lines.append(f"  {what:<24} {figures}")


def _spent(now: Looked, before: Looked) -> str:
    return (
        f"{now.at_s - before.at_s:.2f} s, CPU {now.cpu_s - before.cpu_s:.2f} s, "
        f"the broker's {now.broker_cpu_s - before.broker_cpu_s:.2f} s"
    )
