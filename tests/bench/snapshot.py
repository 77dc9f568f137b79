"""The initial snapshot against psql's COPY of the same table with the same parallelism, in one run.

    python -m tests.bench.snapshot [--rows 10000000] [--parallelism 4] [--version 18] [--form compiled] [--results FILE]

psql copies the table's pages, cut evenly, to /dev/null in as many sessions; that is the bound, what the server can give
to a client that does nothing with it. The daemon runs with `snapshot.mode: only`, and its time is from the beginning of
the reading to its end, when Kafka has everything, as its log tells. So is its CPU: what the start costs is left out.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from deploy.local import client_program
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.__main__ import SERVER_SETTINGS
from tests.bench.drain import PUBLICATION, daemon_config
from tests.bench.forms import FORMS, start_daemon
from tests.bench.processes import cpu_by_thread, cpu_s, peak_rss_bytes

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


@dataclass(frozen=True, slots=True)
class Reading:
    """What the daemon needed for the rows, until Kafka had them."""

    rows: int
    seconds: float
    cpu_s: float
    by_thread: Mapping[str, float]
    peak_bytes: int


def read_with_cdcd(
    server: PostgresServer, broker: KafkaBroker, folder: Path, form: str, parallelism: int
) -> Reading:
    """Run a pipeline that reads the table and ends."""
    config = daemon_config(server, broker, f"snapshot_{form}")
    config["snapshot"] = {"mode": "only", "parallelism": parallelism}
    path, log = folder / f"{form}.json", folder / f"{form}.log"
    path.write_text(json.dumps(config))
    start: dict[str, float] | None = None
    used: dict[str, float] = {}
    peak, total, before = 0, 0.0, 0.0
    with log.open("wb") as stderr:
        daemon = start_daemon(form, path, stderr)
        while daemon.poll() is None:
            time.sleep(0.05)
            try:
                peak, total = peak_rss_bytes(daemon.pid), cpu_s(daemon.pid)
                # Threads end before the process does; what they had used stays.
                used |= cpu_by_thread(daemon.pid)
            except (OSError, ValueError, IndexError):
                # A thread ended while it was looked at, or all of them did.
                continue
            if start is None and b"snapshot.started" in log.read_bytes():
                start, before = dict(used), total
    assert daemon.wait() == 0, log.read_text()
    assert start is not None, log.read_text()
    events = {event["event"]: event for line in log.read_text().splitlines() for event in [json.loads(line)]}
    began, ended = (
        datetime.fromisoformat(events[name]["timestamp"]).timestamp()
        for name in ("snapshot.started", "shutdown.finished")
    )
    spent = {name: seconds - start.get(name, 0.0) for name, seconds in used.items()}
    server.execute(f"SELECT pg_drop_replication_slot('{config['postgres']['slot']}')", "bench")
    return Reading(events["snapshot.finished"]["rows"], ended - began, total - before, spent, peak)


def report(read: Reading, form: str, psql_rate: float, parallelism: int) -> list[str]:
    """The figures of one form."""
    rate = read.rows / read.seconds
    threads = ", ".join(
        f"{name} {seconds / read.rows * 1e6:.2f}"
        for name, seconds in sorted(read.by_thread.items(), key=lambda each: -each[1])
        if seconds / read.rows * 1e6 >= 0.01
    )
    return [
        f"cdcd {form}, {parallelism} readers: {read.seconds:.1f} s, {rate:,.0f} rows/s, {rate / psql_rate:.1%} of psql",
        f"  CPU {read.cpu_s / read.rows * 1e6:.2f} µs a row ({threads}), peak RSS {read.peak_bytes / 1e6:.0f} MB",
    ]


def main() -> None:
    """Run what the arguments say and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.snapshot")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--version", type=int, default=18)
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--results", type=Path, help="a file that gets what is printed")
    arguments = parser.parse_args()
    rows, parallelism = arguments.rows, arguments.parallelism
    said: list[str] = []

    def say(*lines: str) -> None:
        said.extend(lines)
        print(*lines, sep="\n", flush=True)

    with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            KafkaBroker(folder / "kafka", heap_mb=1000, for_measuring=True) as broker,
            PostgresServer(arguments.version, folder / "postgres", settings=SERVER_SETTINGS) as server,
        ):
            server.execute("CREATE DATABASE bench")
            server.execute(TABLE, "bench")
            server.execute(FILL.format(rows), "bench")
            server.execute("VACUUM (FREEZE, ANALYZE) item", "bench")
            server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE item", "bench")
            ((size,),) = server.execute("SELECT pg_table_size('item')", "bench")
            say(
                f"PostgreSQL {arguments.version}, {os.cpu_count()} cores, Python {platform.python_version()}, "
                f"{rows:,} rows of 7 columns, {size / 1e6:,.0f} MB"
            )
            copied_s = min(copy_with_psql(server, parallelism) for _ in range(3))
            psql_rate = rows / copied_s
            say(f"psql, {parallelism} sessions: {copied_s:.1f} s, {psql_rate:,.0f} rows/s")
            for form in arguments.form:
                read = read_with_cdcd(server, broker, folder, form, parallelism)
                assert read.rows == rows, read
                say(*report(read, form, psql_rate, parallelism))
    if arguments.results:
        command = f"python -m tests.bench.snapshot --rows {rows} --form {' '.join(arguments.form)}"
        figures = "\n".join(said)
        arguments.results.write_text(
            f"# The initial snapshot against psql\n\n{datetime.now(UTC):%Y-%m-%d}, by `{command}`, one run\n\n"
            f"```\n{figures}\n```\n"
        )


if __name__ == "__main__":
    main()
