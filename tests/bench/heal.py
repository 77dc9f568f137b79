"""Healing of one large table after a lost slot: memory and time, beside one `cdcd verify` of the same table.

    python -m tests.bench.heal [--rows 5000000] [--differences 1000] [--version 18]

The table is delivered by an initial snapshot and verified. Then the daemon stops, rows are deleted, changed and
inserted, the slot is dropped, and `cdcd heal` makes the topic equal to the table. All run from the sources.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import PUBLICATION, daemon_config
from tests.bench.forms import environment
from tests.bench.many import Running, running
from tests.bench.processes import cpu_s, peak_rss_bytes

NAME: Final = "heal"


class Cost(NamedTuple):
    """What a command took: wall time and CPU in seconds, and the peak of its resident memory."""

    seconds: float
    cpu_s: float
    peak_rss_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, CPU {self.cpu_s:.1f} s, peak RSS {self.peak_rss_bytes / 1e6:.0f} MB"


def measured(folder: Path, command: str, *arguments: str) -> tuple[Cost, list[dict[str, Any]]]:
    """Run a command of cdcd; what it took, and the events that it logged. RuntimeError: it failed."""
    log = folder / f"{command}.log"
    config = ["--config", str(folder / f"{NAME}.json")]
    began, used, peak = time.monotonic(), 0.0, 0
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cdcd.cli", command, *arguments, *config],
            stdout=output,
            stderr=output,
            env=environment("uncompiled"),
        )
        while process.poll() is None:
            try:
                used, peak = cpu_s(process.pid), max(peak, peak_rss_bytes(process.pid))
            except (OSError, ValueError):
                # It has just ended.
                break
            time.sleep(0.05)
    if process.wait():
        raise RuntimeError(f"cdcd {command} ended with {process.returncode}:\n{log.read_text()[-4000:]}")
    lines = log.read_text().splitlines()
    events = [json.loads(line) for line in lines if line.startswith('{"timestamp"')]
    return Cost(time.monotonic() - began, used, peak), events


def deliver(daemon: Running) -> None:
    """Return when the table is read and streams."""
    daemon.await_true(
        lambda: daemon.has_logged("snapshot.finished") and daemon.has_logged("stream.started"), "the rows"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.heal")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--differences", type=int, default=1000)
    parser.add_argument("--version", type=int, default=18)
    arguments = parser.parse_args()
    rows, third = arguments.rows, arguments.differences // 3
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            KafkaBroker(folder / "kafka", heap_mb=1000, for_measuring=True) as broker,
            PostgresServer(arguments.version, folder / "postgres") as server,
        ):
            server.execute("CREATE DATABASE bench")
            server.execute("CREATE TABLE t (id int PRIMARY KEY, note text, amount numeric(10, 2))", "bench")
            server.execute(
                f"INSERT INTO t SELECT i, 'row ' || i, i % 100000 / 4.0 FROM generate_series(1, {rows}) i",
                "bench",
            )
            server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t", "bench")
            config = daemon_config(server, broker, NAME, snapshot={"mode": "initial"})
            with running("uncompiled", folder, config) as daemon:
                deliver(daemon)
                verified, _ = measured(folder, "verify")
            print(json.dumps(vars(arguments)), "load", *Path("/proc/loadavg").read_text().split()[:3])
            print(f"verify: {verified}", flush=True)
            step = rows // third
            server.execute(f"DELETE FROM t WHERE id % {step} = 1", "bench")
            server.execute(f"UPDATE t SET note = 'another' WHERE id % {step} = 2", "bench")
            server.execute(
                f"INSERT INTO t SELECT {rows} + i, 'new', 1 FROM generate_series(1, {third}) i", "bench"
            )
            server.execute(f"SELECT pg_drop_replication_slot('{config['postgres']['slot']}')", "bench")
            healed, events = measured(folder, "heal", "--yes")
            (found,) = [event for event in events if event["event"] == "gap.healed"]
            print(f"heal:   {healed}", flush=True)
            print({key: found[key] for key in ("deletes", "updates", "inserts", "seconds")}, flush=True)
            with running("uncompiled", folder, config) as daemon:
                daemon.await_true(lambda: daemon.has_logged("stream.started"), "the stream")
                measured(folder, "verify")
            print("verified again: equal", flush=True)


if __name__ == "__main__":
    main()
