"""What settings cost while rows come steadily: daemons run side by side, at the same time on the same load.

The speed of a shared machine changes. If two equal daemons run one after the other, their CPU times differ by a tenth.
If they run side by side, the times differ by about a hundredth. Callers give the first side twice: the ratio of the two
shows how exact the other ratios are.
"""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import psycopg

from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.before import Side
from tests.bench.drain import daemon_config
from tests.bench.forms import start_daemon
from tests.bench.processes import cpu_s
from tests.bench.workloads import WORKLOADS

RATE: Final = 500
"""Transactions of ten rows a second: a daemon takes less than a tenth of a core for them."""

SECONDS: Final = 40.0
WARM_UP_S: Final = 8.0

Round = list[float]
"""Seconds of CPU of each side."""


def measure_beside(
    server: PostgresServer, broker: KafkaBroker, folder: Path, sides: Sequence[Side], rounds: int
) -> list[Round]:
    """The CPU time of each side for the same seconds of the workload `mixed`.

    The workload's table and the publication must exist. Each round starts the sides in another order.
    """
    found = []
    for number in range(rounds):
        slots = [f"beside_{number}_{which}" for which in range(len(sides))]
        order = [(which + number) % len(sides) for which in range(len(sides))]
        with _daemons(server, broker, folder, [(slots[which], sides[which]) for which in order]) as daemons:
            stop = threading.Event()
            load = threading.Thread(target=_load, args=(server, number, stop))
            load.start()
            try:
                time.sleep(WARM_UP_S)
                before = {slot: cpu_s(daemon.pid) for slot, daemon in daemons.items()}
                time.sleep(SECONDS)
                found.append([cpu_s(daemons[slot].pid) - before[slot] for slot in slots])
            finally:
                stop.set()
                load.join()
        for slot in slots:
            server.execute(f"SELECT pg_drop_replication_slot('{slot}')", "bench")
    return found


def report_beside(names: Sequence[str], rounds: list[Round]) -> list[str]:
    """The medians of the ratios to the first side, and the range of the rounds."""
    first = median([each[0] for each in rounds]) / SECONDS
    load = f"{RATE} transactions of ten rows a second, {len(rounds)} rounds of {SECONDS:.0f} s"
    lines = [f"{load}: {names[0]}, the daemon takes {first:.1%} of a core"]
    for which, name in enumerate(names[1:], 1):
        ratios = [each[which] / each[0] for each in rounds]
        lines.append(f"  {name:<24} CPU {median(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f})")
    return lines


@contextmanager
def _daemons(
    server: PostgresServer, broker: KafkaBroker, folder: Path, sides: Sequence[tuple[str, Side]]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start a daemon for each slot and side, wait until all of them stream, and stop them at the end."""
    daemons: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for slot, side in sides:
            config = folder / f"{slot}.json"
            config.write_text(json.dumps(daemon_config(server, broker, slot, **side.settings)))
            with config.with_suffix(".log").open("wb") as log:
                daemons[slot] = start_daemon(side.form, config, log)
        for slot, daemon in daemons.items():
            log_file = folder / f"{slot}.log"
            while b'"stream.started"' not in log_file.read_bytes():
                if daemon.poll() is not None:
                    raise RuntimeError(f"the daemon ended with {daemon.returncode}: {log_file.read_text()}")
                time.sleep(0.05)
        yield daemons
    finally:
        for daemon in daemons.values():
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons.values():
            daemon.wait(60)


def _load(server: PostgresServer, number: int, stop: threading.Event) -> None:
    """Commit transactions of the workload `mixed` at a steady rate until `stop` is set.

    Each round has rows of its own.
    """
    first = (number + 1) * 10_000_000
    statement = f"DO $$ DECLARE n integer := {{n}}; BEGIN {WORKLOADS['mixed'].body} END $$"
    with psycopg.connect(server.dsn("bench"), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        began = time.monotonic()
        done = 0
        while not stop.wait(max(0.0, began + done / RATE - time.monotonic())):
            connection.execute(statement.format(n=first + done))
            done += 1
