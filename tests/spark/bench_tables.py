"""What many small tables cost a mirror: the CPU of `cdcd mirror --once` for each table with few changes.

    python -m tests.spark.bench_tables [--tables N …] [--format iceberg|delta …] [--changes N] [--tasks]

A real PostgreSQL, the daemon and a broker fill the topics. For each number of tables there are two runs of
`cdcd mirror --once`: the first creates the tables, the second folds a few changes into each. The CPU is that of the
whole process, Python and Java, from its start to its end, as /proc counts it: so it says the same on a machine that
others use too. What lies between two numbers of tables, divided by their difference, is the cost of one more table.

With `--tasks`, it also prints what Spark counts itself: the CPU of all tasks, from the log of events. What the driver
does is not in that: plans and commits. Writing this log costs some CPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml

from deploy.local.cache import cache_folder
from deploy.local.programs import java
from tests.bench.processes import cpu_by_thread, cpu_s
from tests.spark.stage import Source, Stage

NAME = "many"
POLL_S = 0.05
SHAPES = (
    "id bigint PRIMARY KEY, n int NOT NULL, amount numeric(12,2), at timestamptz, status text, note text",
    "id bigint PRIMARY KEY, n int NOT NULL, day date, tags text[], status text",
    "id text PRIMARY KEY, n int NOT NULL, payload jsonb, at timestamp, ratio double precision",
    "id uuid PRIMARY KEY, n int NOT NULL, flag boolean, note text, price numeric(10,4), code smallint",
)
KEYS = ("{i}", "{i}", "'key {i}'", "md5('{i}')::uuid")


def main() -> None:
    """Run what the arguments say and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.bench_tables")
    parser.add_argument("--tables", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--changes", type=int, default=5)
    parser.add_argument("--format", choices=["iceberg", "delta"], nargs="+", default=["iceberg", "delta"])
    parser.add_argument("--threads", action="store_true", help="also print the CPU by kind of thread")
    parser.add_argument(
        "--tasks", action="store_true", help="also print the CPU of tasks, by Spark's own counters"
    )
    parser.add_argument("--conf", nargs="*", default=[], help="of Spark, name=value")
    arguments = parser.parse_args()
    conf = dict(text.split("=", 1) for text in arguments.conf)
    most = max(arguments.tables)
    with Stage.set_up() as stage:
        tables = [f"CREATE TABLE t_{i} ({SHAPES[i % len(SHAPES)]})" for i in range(most)]
        with stage.source(NAME, *tables, partitions=1) as source:
            for round_, statements in enumerate((inserted, changed)):
                for number in range(most):
                    source.execute("; ".join(statements(number, arguments.changes)))
                source.deliver()
                for format_ in arguments.format:
                    _round(source, format_, arguments, conf, round_)


def _round(
    source: Source, format_: str, arguments: argparse.Namespace, conf: dict[str, str], round_: int
) -> None:
    what = "created" if round_ == 0 else "merged"
    had: tuple[int, float] | None = None
    for tables in sorted(arguments.tables):
        place = source.folder / f"{format_}-{tables}"
        events = place / f"events-{round_}"
        took = _run(source, format_, tables, place, conf | (_logged(events) if arguments.tasks else {}))
        total = sum(took.values())
        beside = ""
        if had is not None:
            beside = f"; {(total - had[1]) / (tables - had[0]):.3f} s for each more"
        print(
            f"{format_}, {tables} tables {what}: {total:.1f} s of CPU, {total / tables:.3f} s a table{beside}",
            flush=True,
        )
        if arguments.tasks:
            number, cpu = _tasks(events)
            print(
                f"   Spark's own counters: {number} tasks, {cpu:.2f} s of CPU, {cpu / tables:.4f} s a table",
                flush=True,
            )
        if arguments.threads:
            most = sorted(took.items(), key=lambda each: -each[1])[:8]
            print("  ", ", ".join(f"{kind} {cpu:.1f}" for kind, cpu in most), flush=True)
        had = tables, total


def inserted(number: int, changes: int) -> Iterator[str]:
    for i in range(changes):
        yield f"INSERT INTO t_{number} (id, n) VALUES ({KEYS[number % len(KEYS)].format(i=i)}, {i})"


def changed(number: int, changes: int) -> Iterator[str]:
    """Updates, one insert and one delete."""
    key = KEYS[number % len(KEYS)]
    yield f"INSERT INTO t_{number} (id, n) VALUES ({key.format(i=changes)}, 0)"
    yield f"DELETE FROM t_{number} WHERE id = {key.format(i=0)}"
    for i in range(1, changes - 1):
        yield f"UPDATE t_{number} SET n = n + 100 WHERE id = {key.format(i=i)}"


def _logged(events: Path) -> dict[str, str]:
    """The settings that have Spark write its events to this folder."""
    events.mkdir(parents=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }


def _tasks(events: Path) -> tuple[int, float]:
    """The number of tasks of one run, and their seconds of CPU.

    `Executor CPU Time` and `Executor Deserialize CPU Time` are in nanoseconds (Spark, "Monitoring").
    """
    number, nanoseconds = 0, 0
    for file in events.rglob("*"):
        if file.is_dir() or file.name.startswith("."):
            continue
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                metrics = event["Task Metrics"]
                number += 1
                nanoseconds += metrics["Executor CPU Time"] + metrics["Executor Deserialize CPU Time"]
    assert number, f"no task has ended in {events}"
    return number, nanoseconds / 1e9


def _run(source: Source, format_: str, tables: int, place: Path, conf: dict[str, str]) -> dict[str, float]:
    """Seconds of CPU of one run by kind of thread."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / "mirror.yaml"
    config = {
        "name": NAME,
        "kafka": {"bootstrap_servers": source.servers},
        "target": {"format": format_, "location": str(place / "lake")},
        "tables": {"include": [f"public.t_{i}" for i in range(tables)]},
        "maintenance": {"interval_s": None},
        "spark": conf,
    }
    file.write_text(yaml.safe_dump(config))
    environment = {**os.environ, "JAVA_HOME": str(Path(java()).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-m", "cdcd.cli", "mirror", "--once", "--config", str(file)],
        env=environment,
        stdout=(place / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    by_process: dict[int, float] = {}
    threads: dict[int, dict[str, float]] = {}
    while process.poll() is None:
        for pid in family(process.pid):
            # A thread may end while its file is read. The next look has the others again.
            with suppress(OSError):
                by_process[pid] = cpu_s(pid)
                threads[pid] = cpu_by_thread(pid)
        time.sleep(POLL_S)
    log = (place / "log").read_text()
    assert process.returncode == 0, log
    found: dict[str, float] = {}
    for pid, total in by_process.items():
        kinds = [(_kind(name), cpu) for name, cpu in threads.get(pid, {}).items()]
        if pid == process.pid:
            kinds = [("Python", total)]
        left = max(0.0, total - sum(cpu for _, cpu in kinds))
        for kind, cpu in [*kinds, ("threads that ended", left)]:
            found[kind] = found.get(kind, 0.0) + cpu
    return found


def _kind(thread: str) -> str:
    for prefix, kind in (
        ("C1 Comp", "compiler C1"),
        ("C2 Comp", "compiler C2"),
        ("G1", "garbage"),
        ("GC Thread", "garbage"),
        ("Executor task", "tasks"),
        ("Thread-", "driver, for Python"),
        ("dag-sched", "scheduler"),
    ):
        if thread.startswith(prefix):
            return kind
    return thread


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                found += family(int(child))
    return found


if __name__ == "__main__":
    os.environ.setdefault("CDCD_CACHE", str(cache_folder()))
    main()
