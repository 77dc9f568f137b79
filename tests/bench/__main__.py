"""`make bench`: drain rate, CPU, memory and latency, in one run and as ratios; JSON beside it.

    python -m tests.bench [--rows N] [--repeat N] [--workload inserts|mixed|single …] [--version 18] [--profile]

Each reader drains the same content from a slot of its own; the runs are interleaved, so that a machine that gets
slower gets slower for all. Figures are medians, with the smallest and the largest beside them.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.protocol.lsn import Lsn
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import PUBLICATION, Drained, daemon_config, drain_with_cdcd, drain_with_pg_recvlogical
from tests.bench.latency import Latency, measure_latency
from tests.bench.workloads import TABLE, WORKLOADS, Workload, load_statement

SERVER_SETTINGS = {"max_wal_size": "4GB", "logical_decoding_work_mem": "64MB", "shared_buffers": "256MB"}


def main() -> None:
    """Run what the arguments say and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workload", choices=list(WORKLOADS), nargs="+", default=["inserts"])
    parser.add_argument("--version", type=int, default=18)
    parser.add_argument("--latency-seconds", type=float, default=10)
    parser.add_argument(
        "--profile", action="store_true", help="drain once under cProfile and print where time goes"
    )
    parser.add_argument("--json", type=Path, default=Path(".cache/bench.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            KafkaBroker(folder / "kafka", heap_mb=1000) as broker,
            PostgresServer(arguments.version, folder / "postgres", settings=SERVER_SETTINGS) as server,
        ):
            server.execute("CREATE DATABASE bench")
            if arguments.profile:
                _profile(server, broker, folder, WORKLOADS[arguments.workload[0]], arguments.rows)
                return
            drained = {
                workload: _drain(
                    server, broker, folder, WORKLOADS[workload], arguments.rows, arguments.repeat
                )
                for workload in arguments.workload
            }
            latencies = _latencies(server, broker, folder, arguments.latency_seconds)
    _print(drained, latencies, arguments.version)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "drained": {name: [asdict(run) for run in runs] for name, runs in drained.items()},
        "latency": [asdict(latency) for latency in latencies],
    }
    arguments.json.parent.mkdir(exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1))


def _prepare(
    server: PostgresServer, broker: KafkaBroker, workload: Workload, rows: int, slots: list[str]
) -> int:
    """Fill the WAL behind `slots`; returns where it ends."""
    server.execute("DROP PUBLICATION IF EXISTS bench", "bench")
    server.execute("DROP TABLE IF EXISTS item", "bench")
    server.execute(TABLE, "bench")
    server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE item", "bench")
    for slot in slots:
        server.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", "bench")
        _create_topic(broker, f"{slot}.checkpoint", **{"cleanup.policy": "compact"})
    server.execute(load_statement(workload, rows), "bench")
    server.execute("CHECKPOINT", "bench")
    ((end,),) = server.execute("SELECT pg_current_wal_insert_lsn()::text", "bench")
    # Something must end after the backlog, or no reader ever gets there.
    server.execute("INSERT INTO item SELECT * FROM item LIMIT 0; SELECT pg_switch_wal()", "bench")
    return Lsn.parse(end)


def _create_topic(broker: KafkaBroker, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 1, 1, config=config)]).values():
        created.result()


def _drain(  # noqa: PLR0917  the parts of one run
    server: PostgresServer, broker: KafkaBroker, folder: Path, workload: Workload, rows: int, repeat: int
) -> list[Drained]:
    names = [(f"{workload.name}_{number}_r", f"{workload.name}_{number}_c") for number in range(repeat)]
    end = _prepare(server, broker, workload, rows, [slot for pair in names for slot in pair])
    runs = []
    for theirs, ours in names:
        runs.append(drain_with_pg_recvlogical(server, theirs, end, rows))
        runs.append(drain_with_cdcd(server, broker, ours, end, rows, folder))
        for slot in (theirs, ours):
            server.execute(f"SELECT pg_drop_replication_slot('{slot}')", "bench")
        print(".", end="", file=sys.stderr, flush=True)
    return runs


def _latencies(server: PostgresServer, broker: KafkaBroker, folder: Path, seconds: float) -> list[Latency]:
    server.execute("DROP PUBLICATION IF EXISTS bench", "bench")
    server.execute("CREATE TABLE tick (id bigserial PRIMARY KEY, note text)", "bench")
    server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE tick", "bench")
    measured = []
    for delivery in ("exactly_once", "at_least_once"):
        slot = f"latency_{delivery}"
        _create_topic(broker, f"{slot}.public.tick")
        measured.append(
            measure_latency(server, broker, slot, folder, rate=1000, seconds=seconds, delivery=delivery)
        )
    return measured


def _profile(
    server: PostgresServer, broker: KafkaBroker, folder: Path, workload: Workload, rows: int
) -> None:
    end = _prepare(server, broker, workload, rows, ["profiled"])
    config = folder / "profiled.json"
    config.write_text(json.dumps(daemon_config(server, broker, "profiled")))
    stats = folder / "profile"
    daemon = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cProfile",
            "-o",
            str(stats),
            "-m",
            "cdcd.cli",
            "run",
            "--config",
            str(config),
        ],
        stderr=subprocess.DEVNULL,
    )
    query = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 'profiled'"
    while not server.execute(query.replace("%s", f"'{Lsn(end)}'"), "bench")[0][0]:
        if daemon.poll() is not None:
            raise RuntimeError(f"the daemon ended with {daemon.returncode}")
    daemon.terminate()
    daemon.wait(60)
    show = f"import pstats; pstats.Stats({str(stats)!r}).sort_stats('tottime').print_stats(30)"
    subprocess.run([sys.executable, "-c", show], check=True)


def _print(drained: dict[str, list[Drained]], latencies: list[Latency], version: int) -> None:
    print(
        f"\nPostgreSQL {version}, {os.cpu_count()} cores, Python {platform.python_version()}, all parts on one machine"
    )
    for name, runs in drained.items():
        ours = [run for run in runs if run.who == "cdcd"]
        theirs = [run for run in runs if run.who != "cdcd"]
        ratios = [our.rate / their.rate for our, their in zip(ours, theirs, strict=True)]
        rows = ours[0].rows
        print(f"\n{WORKLOADS[name].title}, {rows:,} rows")
        _line("pg_recvlogical", [run.rate for run in theirs], "rows/s")
        _line("cdcd, start to last ack", [run.rate for run in ours], "rows/s")
        _line("cdcd, first to last ack", [rows / run.streaming_s for run in ours], "rows/s")
        _line("ratio", ratios, "")
        _line("daemon CPU per row", [run.cpu_s / rows * 1e6 for run in ours], "µs")
        _line("walsender CPU per row", [run.walsender_cpu_s / rows * 1e6 for run in ours], "µs")
        _line("start to first ack", [run.first_s for run in ours], "s")
        _line("peak RSS", [run.peak_rss_bytes / 1e6 for run in ours], "MB")
        threads = ours[-1].threads or {}
        shares = sorted(threads.items(), key=lambda item: -item[1])
        print(
            "  CPU by thread: "
            + ", ".join(f"{thread} {used / rows * 1e6:.2f} µs" for thread, used in shares if used)
        )
    print("\ncommit to read_committed consumer, 1,000 single-row transactions a second")
    for latency in latencies:
        figures = f"p50 {latency.p50_ms:.1f} ms, p99 {latency.p99_ms:.1f} ms"
        print(f"  {latency.delivery:<24} {figures} ({latency.records} records)")


def _line(what: str, values: list[float], unit: str) -> None:
    digits = 0 if median(values) >= 100 else 2
    print(
        f"  {what:<24} {median(values):,.{digits}f} {unit} ({min(values):,.{digits}f} … {max(values):,.{digits}f})"
    )


if __name__ == "__main__":
    main()
