"""A start with many small tables, of another working tree's daemon and of this one's, in pairs.

    git worktree add --detach ../before 99c61843
    python -m tests.bench.start_many --before ../before [--tables 2000] [--pairs 1] [--version 18]

Both run from their sources. Each run has a broker of its own, because a broker that has the topics of the former run is
slower, and a slot of its own on the same server. A run measures the time until the stream begins, the time until Kafka
has a first change of each table, CPU seconds of daemon and broker, and the daemon's memory.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.local.cache import REPOSITORY
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import PUBLICATION, daemon_config
from tests.bench.many import ROWS, Running, checkpoint_values
from tests.bench.processes import cpu_s, peak_rss_bytes

_CREATE: Final = """\
DO $$ BEGIN FOR n IN {begin}..{end} LOOP
EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, name text NOT NULL, amount numeric(10, 2), at timestamptz)', n);
EXECUTE format('INSERT INTO t%s SELECT i, ''row '' || i, i / 4.0, now() FROM generate_series(1, {rows}) i', n);
END LOOP; END $$"""

_CHANGE: Final = """\
DO $$ BEGIN FOR n IN {begin}..{end} LOOP
EXECUTE format('UPDATE t%s SET name = name || ''!'' WHERE id = 1', n); COMMIT; END LOOP; END $$"""


@dataclass(frozen=True, slots=True)
class Start:
    """What one run measured; times in seconds since the process began, CPU in seconds."""

    stream_s: float
    changes_s: float
    daemon_cpu_s: float
    broker_cpu_s: float
    peak_rss_bytes: int

    def __str__(self) -> str:
        return (
            f"stream after {self.stream_s:.1f} s, a change of each table after {self.changes_s:.1f} s, CPU "
            f"{self.daemon_cpu_s:.1f} s, the broker's {self.broker_cpu_s:.1f} s, {self.peak_rss_bytes / 1e6:.0f} MB"
        )


@contextmanager
def started(tree: Path, folder: Path, config: dict[str, Any]) -> Iterator[Running]:
    """The daemon of a working tree, from its sources."""
    path, log = folder / f"{config['name']}.json", folder / f"{config['name']}.log"
    path.write_text(json.dumps(config))
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "cdcd.cli", "run", "--config", str(path)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment)
        try:
            yield Running(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def position(broker: KafkaBroker, name: str) -> int:
    """The end LSN of the newest checkpoint; 0: there is none."""
    found = 0
    for value in checkpoint_values(broker, name, idle_s=1.0):
        high, low = json.loads(value)["end_lsn"].split("/")
        found = max(found, (int(high, 16) << 32) + int(low, 16))
    return found


def run_once(server: PostgresServer, tree: Path, folder: Path, name: str, tables: int) -> Start:
    """Start the daemon of the tree with a new broker and a new slot, and measure."""
    with KafkaBroker(folder / f"kafka-{name}", heap_mb=1000, for_measuring=True) as broker:
        config = daemon_config(server, broker, name, snapshot={"mode": "initial"})
        before, began = cpu_s(broker.pid), time.monotonic()
        with started(tree, folder, config) as daemon:
            daemon.await_true(lambda: daemon.has_logged("stream.started"), "the stream")
            stream_s = time.monotonic() - began
            for first in range(1, tables + 1, 500):
                server.execute(_CHANGE.format(begin=first, end=min(first + 499, tables)), "bench")
            ((end,),) = server.execute("SELECT pg_current_wal_insert_lsn() - '0/0'", "bench")
            server.execute("UPDATE t1 SET name = name || '?' WHERE id = 1", "bench")
            daemon.await_true(lambda: position(broker, name) >= end, "a change of each table")
            changes_s = time.monotonic() - began
            found = Start(
                stream_s, changes_s, cpu_s(daemon.pid), cpu_s(broker.pid) - before, peak_rss_bytes(daemon.pid)
            )
    server.execute(f"SELECT pg_drop_replication_slot('{config['postgres']['slot']}')", "bench")
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.start_many")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--version", type=int, default=18)
    arguments = parser.parse_args()
    trees = {"before": arguments.before.resolve(), "now": REPOSITORY}
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        with PostgresServer(
            arguments.version, folder / "postgres", settings={"max_locks_per_transaction": "512"}
        ) as server:
            server.execute("CREATE DATABASE bench")
            for first in range(1, arguments.tables + 1, 500):
                last = min(first + 499, arguments.tables)
                server.execute(_CREATE.format(begin=first, end=last, rows=ROWS), "bench")
            server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES", "bench")
            for pair in range(arguments.pairs):
                for side in list(trees)[:: 1 if pair % 2 == 0 else -1]:
                    found = run_once(server, trees[side], folder, f"{side}_{pair}", arguments.tables)
                    load = Path("/proc/loadavg").read_text().split()[0]
                    print(f"{side}: {found}, load {load}", flush=True)


if __name__ == "__main__":
    main()
