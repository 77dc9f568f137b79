"""The initial snapshot against psql's COPY of the same table with the same parallelism, in one run.

    python -m tests.bench.snapshot [--rows 10000000] [--parallelism 4] [--version 18]

psql copies the table's pages, cut evenly, to /dev/null in as many sessions; that is the bound, what the server can give
to a client that does nothing with it. The daemon runs with `snapshot.mode: only`, and its time is from the beginning of
the reading to its end, when Kafka has everything, as its log tells.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from deploy.local import client_program
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.__main__ import SERVER_SETTINGS
from tests.bench.drain import PUBLICATION, daemon_config
from tests.bench.processes import cpu_s, peak_rss_bytes

TABLE = """\
CREATE TABLE item (id bigint PRIMARY KEY, customer int NOT NULL, name text NOT NULL, price numeric(10, 2) NOT NULL,
                   paid boolean NOT NULL, placed_at timestamptz NOT NULL, weight double precision)"""
FILL = """\
INSERT INTO item SELECT g, g % 1000, 'item number ' || g, (g % 10000) / 100.0, g % 2 = 0,
                        '2026-01-01'::timestamptz + g * interval '1 second', g / 7.0
  FROM generate_series(1, {}) g"""


def copy_with_psql(server: PostgresServer, parallelism: int) -> float:
    """Seconds for all rows, by psql sessions side by side."""
    ((pages,),) = server.execute("SELECT pg_relation_size('item') / 8192", "bench")
    bounds = [pages * number // parallelism for number in range(parallelism)] + [pages]
    began = time.monotonic()
    sessions = [
        subprocess.Popen(
            [
                client_program("psql"),
                "--no-psqlrc",
                "--dbname",
                server.dsn("bench"),
                "--command",
                f"\\copy (SELECT * FROM item WHERE ctid >= '({begin},0)' AND ctid < '({end},0)') TO '/dev/null'",
            ],
            stdout=subprocess.DEVNULL,
        )
        for begin, end in pairwise(bounds)
    ]
    assert [session.wait() for session in sessions] == [0] * parallelism
    return time.monotonic() - began


def read_with_cdcd(
    server: PostgresServer, broker: KafkaBroker, folder: Path, parallelism: int
) -> dict[str, float]:
    """What the daemon needed for the same rows, until Kafka had them."""
    config = daemon_config(server, broker, "snapshot")
    config["snapshot"] = {"mode": "only", "parallelism": parallelism}
    path, log = folder / "snapshot.json", folder / "snapshot.log"
    path.write_text(json.dumps(config))
    used = peak = 0.0
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "cdcd.cli", "run", "--config", str(path)], stderr=stderr
        )
        while daemon.poll() is None:
            try:
                used, peak = cpu_s(daemon.pid), peak_rss_bytes(daemon.pid)
            except (OSError, ValueError, IndexError):
                break
            time.sleep(0.05)
    assert daemon.wait() == 0, log.read_text()
    events = {event["event"]: event for line in log.read_text().splitlines() for event in [json.loads(line)]}
    began, ended = (
        datetime.fromisoformat(events[name]["timestamp"]).timestamp()
        for name in ("snapshot.started", "shutdown.finished")
    )
    return {"rows": events["snapshot.finished"]["rows"], "s": ended - began, "cpu_s": used, "peak": peak}


def main() -> None:
    """Run what the arguments say and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.snapshot")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--version", type=int, default=18)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            KafkaBroker(folder / "kafka", heap_mb=1000) as broker,
            PostgresServer(arguments.version, folder / "postgres", settings=SERVER_SETTINGS) as server,
        ):
            server.execute("CREATE DATABASE bench")
            server.execute(TABLE, "bench")
            server.execute(FILL.format(arguments.rows), "bench")
            server.execute("VACUUM (FREEZE, ANALYZE) item", "bench")
            server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE item", "bench")
            copied_s = min(copy_with_psql(server, arguments.parallelism) for _ in range(2))
            read = read_with_cdcd(server, broker, folder, arguments.parallelism)
    assert read["rows"] == arguments.rows, read
    psql_rate, rate = arguments.rows / copied_s, arguments.rows / read["s"]
    print(f"{os.cpu_count()} cores, PostgreSQL {arguments.version}, {arguments.rows:,} rows of 7 columns")
    print(f"psql, {arguments.parallelism} sessions: {copied_s:.1f} s, {psql_rate:,.0f} rows/s")
    print(
        f"cdcd, {arguments.parallelism} readers:  {read['s']:.1f} s, {rate:,.0f} rows/s, {rate / psql_rate:.0%}"
    )
    print(f"CPU {read['cpu_s'] / arguments.rows * 1e6:.2f} µs a row, peak {read['peak'] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
