"""A million transactions of one row each that wait behind a snapshot which was killed.

The first run of the daemon is killed while it reads the table at the slot's snapshot. Then sessions change rows of that
table, one row in each transaction, and the next run meets all of these changes while the rest of the table is still to
be read. What is measured is that run's CPU until backlog and snapshot are done, the longest time in which its event
loop did not answer, and its peak memory. Beside it one pipeline drains the same backlog and reads no table, and another
reads the rest of a killed snapshot without a backlog. In the end the folded topics equal the tables.

    python -m tests.chaos.backlog [--transactions 1000000] [--rows 400000] [--version 18] [--form compiled]
"""

import argparse
import os
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from deploy.demo.fold import await_flushed, compare
from deploy.local import POSTGRES_VERSIONS, KafkaBroker, PostgresServer
from tests.bench.forms import FORMS, environment
from tests.bench.processes import cpu_s
from tests.integration.daemon import Daemon, configuration, confirmed, until, wal_end
from tests.scratch import scratch_folder

DATABASE: Final = "backlog"
SESSIONS: Final = 2
CALM_S: Final = 900.0
LOOK_S: Final = 0.05
"""Between two questions to the event loop."""

TABLE: Final = "CREATE TABLE items (id int PRIMARY KEY, note text, n int NOT NULL DEFAULT 0)"
CHANGE: Final = """
CREATE PROCEDURE change(first int, step int, count int, rows int) LANGUAGE plpgsql AS $$
BEGIN
    FOR number IN 0 .. count - 1 LOOP
        UPDATE items SET n = n + 1 WHERE id = (first + number::bigint * step * 7919) % rows;
        COMMIT;
    END LOOP;
END $$"""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of the daemon used. `silent_s`: the longest wait for an answer of `/healthz`."""

    wall_s: float
    cpu_s: float
    silent_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.wall_s:.1f} s, {self.cpu_s:.1f} s of CPU, event loop silent for at most "
            f"{self.silent_s * 1000:.0f} ms, peak RSS {self.peak_bytes / 1e6:.0f} MB"
        )


class EventLoop:
    """Asks the daemon's `/healthz` again and again, and keeps the longest wait; a context manager."""

    def __init__(self, daemon: Daemon) -> None:
        self._address = f"http://{daemon.await_event('daemon.started')['http']}/healthz"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.silent_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ended.wait(LOOK_S):
            began = time.monotonic()
            with urllib.request.urlopen(self._address, timeout=CALM_S) as answer:
                answer.read()
            self.silent_s = max(self.silent_s, time.monotonic() - began)


def change(server: PostgresServer, transactions: int, rows: int) -> None:
    """Commit so many transactions of one row, by sessions side by side."""

    def session(number: int) -> None:
        with psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute(
                "CALL change(%s, %s, %s, %s)", [number, SESSIONS, transactions // SESSIONS, rows]
            )

    with ThreadPoolExecutor(SESSIONS) as pool:
        list(pool.map(session, range(SESSIONS)))


def measure(server: PostgresServer, daemon: Daemon, *, reads: bool) -> Run:
    """Start the daemon and measure it until all that is in the WAL now is confirmed, and the table is read."""
    dsn, slot = server.dsn(DATABASE), f"cdcd_{daemon.config['name']}"
    end = wal_end(dsn)
    began = time.monotonic()
    daemon.start()
    with EventLoop(daemon) as loop:
        daemon.await_streaming(timeout_s=CALM_S)
        until(lambda: confirmed(dsn, slot) >= end or None, "the backlog was never confirmed", CALM_S)
        if reads:
            daemon.await_event("snapshot.finished", timeout_s=CALM_S)
    return Run(time.monotonic() - began, cpu_s(daemon.pid), loop.silent_s, daemon.peak_memory_bytes())


def kill_while_it_reads(daemon: Daemon, rows: int) -> None:
    """Start the daemon, and kill it when a tenth of the rows is delivered."""
    daemon.start()
    daemon.await_metric("cdcd_snapshot_rows_total", (rows / 10).__lt__, timeout_s=CALM_S)
    daemon.kill()
    assert not daemon.saw("stream.started"), "the snapshot was over before it was killed"


def run(server: PostgresServer, broker: KafkaBroker, folder: Path, rows: int, transactions: int) -> bool:
    """Whether the topics equal the table after both pipelines went through the backlog; the figures are printed."""
    server.execute(f"CREATE DATABASE {DATABASE}")
    server.execute(TABLE, DATABASE)
    server.execute(CHANGE, DATABASE)
    server.execute(
        f"INSERT INTO items SELECT g, repeat('r', 100 + g % 100) FROM generate_series(0, {rows} - 1) g",
        DATABASE,
    )
    dsn = server.dsn(DATABASE)
    with (
        Daemon(folder / "changes", _configuration("changes", dsn, broker, "never")) as changes,
        Daemon(folder / "table", _configuration("table", dsn, broker, "initial")) as table,
        Daemon(folder / "both", _configuration("both", dsn, broker, "initial")) as both,
    ):
        kill_while_it_reads(table, rows)
        alone = measure(server, table, reads=True)
        assert table.stop() == 0, table.last_words()
        print(f"the rest of a killed snapshot: {alone}", flush=True)
        changes.start()
        changes.await_streaming()
        assert changes.stop() == 0, changes.last_words()
        kill_while_it_reads(both, rows)
        began = time.monotonic()
        change(server, transactions, rows)
        print(f"{transactions:,} transactions were written in {time.monotonic() - began:.0f} s", flush=True)
        drained = measure(server, changes, reads=False)
        assert changes.stop() == 0, changes.last_words()
        print(f"the backlog: {drained}", flush=True)
        behind = measure(server, both, reads=True)
        print(f"the backlog behind a killed snapshot: {behind}", flush=True)
        finished = both.await_event("snapshot.finished", timeout_s=CALM_S)
        more = behind.cpu_s - alone.cpu_s - drained.cpu_s
        print(
            f"the snapshot delivered {finished['rows']:,} of {rows:,} rows; a change costs "
            f"{drained.cpu_s / transactions * 1e6:.1f} µs, and {more / transactions * 1e6:.1f} µs more behind it",
            flush=True,
        )
        await_flushed(dsn, "cdcd_both", CALM_S)
        report = compare(dsn, broker.bootstrap_servers, "both", tables=["public.items"], rows_before=True)
        assert both.stop() == 0, both.last_words()
    print("equal" if report.equal else f"NOT EQUAL\n{report}")
    return bool(report.equal)


def _configuration(name: str, dsn: str, broker: KafkaBroker, mode: str) -> dict[str, Any]:
    return configuration(
        name,
        dsn,
        broker.bootstrap_servers,
        snapshot={"mode": mode, "method": "exported", "chunk_bytes": 65_536},
    )


def main() -> int:
    """0 when the topics equal the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.backlog")
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--version", type=int, choices=POSTGRES_VERSIONS, default=18)
    parser.add_argument("--form", choices=FORMS, default="compiled")
    options = parser.parse_args()
    os.environ.update(environment(options.form))
    with (
        scratch_folder() as folder,
        PostgresServer(options.version, folder / "postgres") as server,
        KafkaBroker(folder / "kafka") as broker,
    ):
        return 0 if run(server, broker, folder, options.rows, options.transactions) else 1


if __name__ == "__main__":
    sys.exit(main())
