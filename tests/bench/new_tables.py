"""New tables of a running pipeline: how long until each is published, streams and is read.

    python -m tests.bench.new_tables [--tables 2000] [--singly 200] [--form uncompiled] [--version 18]

The pipeline alters its publication itself (`postgres.publication_changes: owner`), while a writer changes another
table. First all tables are created and filled in one transaction; then some more, one after the other. Before, a broker
of its own creates as many topics for a client that does nothing else, which is the least that new tables can take.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Final

import psycopg

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.topics import TopicSpec, ensure_topics
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import PUBLICATION, daemon_config
from tests.bench.forms import FORMS
from tests.bench.many import Running, checkpoint_values, running
from tests.bench.processes import cpu_s, peak_rss_bytes

WRITES_S: Final = 100
"""Transactions a second of the writer."""

PAUSE_S: Final = 0.2
"""Between two tables that are created one after the other."""

_CREATE: Final = """
CREATE TABLE {name} (id int PRIMARY KEY, name text NOT NULL, amount numeric(10, 2), at timestamptz);
INSERT INTO {name} SELECT i, 'row ' || i, i / 4.0, now() FROM generate_series(1, 10) i;
"""


@contextmanager
def writing(dsn: str) -> Iterator[list[int]]:
    """A writer that changes a table all the time; gives the number of its transactions in a list of one."""
    done, count = threading.Event(), [0]

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not done.wait(1 / WRITES_S):
                connection.execute("INSERT INTO other (note) VALUES ('x')")
                count[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield count
    finally:
        done.set()
        thread.join()


def times_of(daemon: Running, event: str) -> dict[str, float]:
    """When each table had this event, by its name."""
    return {
        each["table"]: datetime.fromisoformat(each["timestamp"]).timestamp()
        for each in daemon.events()
        if each["event"] == event
    }


def await_read(daemon: Running, tables: int) -> None:
    """Return when so many tables were read."""
    daemon.await_true(lambda: len(times_of(daemon, "table.read")) >= tables, f"the rows of {tables} tables")


def create_at_once(dsn: str, tables: int) -> float:
    """Create and fill the tables in one transaction; the time of its commit."""
    with psycopg.connect(dsn) as connection:
        for number in range(tables):
            connection.execute(_CREATE.format(name=f"app.bulk_{number}").encode())
        connection.commit()
    return time.time()


def create_singly(dsn: str, tables: int) -> dict[str, float]:
    """Create tables one after the other; the time of each commit by the table's name."""
    created: dict[str, float] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(tables):
            connection.execute(f"BEGIN; {_CREATE.format(name=f'app.single_{number}')} COMMIT".encode())
            created[f"app.single_{number}"] = time.time()
            time.sleep(PAUSE_S)
    return created


def measure(
    server: PostgresServer, broker: KafkaBroker, folder: Path, arguments: argparse.Namespace
) -> list[str]:
    """All lines of the report."""
    dsn = server.dsn("bench")
    server.execute("CREATE TABLE other (id serial PRIMARY KEY, note text)", "bench")
    server.execute("CREATE SCHEMA app", "bench")
    server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE other", "bench")
    config = daemon_config(server, broker, "new_tables", snapshot={"mode": "initial"})
    config["postgres"] |= {"publication_changes": "owner", "tables": ["public.other", "app.*"]}
    lines: list[str] = []
    with running(arguments.form, folder, config) as daemon:
        daemon.await_true(lambda: daemon.has_logged("stream.started"), "the stream")
        with writing(dsn) as written:
            ways: list[tuple[int, Callable[[str, int], float | dict[str, float]]]] = [
                (arguments.tables, create_at_once),
                (arguments.singly, create_singly),
            ]
            for tables, create in [way for way in ways if way[0]]:
                before, writes, began = cpu_s(daemon.pid), written[0], time.monotonic()
                broker_before = cpu_s(broker.pid)
                known = len(times_of(daemon, "table.read"))
                created = create(dsn, tables)
                await_read(daemon, known + tables)
                lines += report(daemon, tables, created, cpu_s(daemon.pid) - before)
                lines.append(f"  CPU of the broker {cpu_s(broker.pid) - broker_before:.1f} s")
                spent = time.monotonic() - began
                lines.append(
                    f"  the writer meanwhile: {(written[0] - writes) / spent:.0f} transactions a second"
                )
        lines.append(f"peak RSS of the daemon: {peak_rss_bytes(daemon.pid) / 1e6:.0f} MB")
        sizes = [len(value) for value in checkpoint_values(broker, config["name"])]
        lines.append(f"largest checkpoint: {max(sizes) / 1e3:.1f} kB, the last one {sizes[-1] / 1e3:.1f} kB")
    return lines


def bare(folder: Path, topics: int) -> str:
    """Return what a broker alone takes for so many topics, until the leaders of all have their logs."""
    with KafkaBroker(folder / "bare", heap_mb=1000, for_measuring=True) as broker:
        admin = Admin({"bootstrap.servers": broker.bootstrap_servers})
        admin.names()
        names = [f"bare.app.bulk_{number}" for number in range(topics)]
        used, began = cpu_s(broker.pid), time.monotonic()
        # An own client that asks for offsets of a topic before the broker shows the topic would get no answer for long.
        ensure_topics(admin, names, TopicSpec(), checkpoint="")
        return (
            f"a broker alone, {topics} topics: the last log after {time.monotonic() - began:.1f} s, its CPU "
            f"{cpu_s(broker.pid) - used:.1f} s"
        )


def report(daemon: Running, tables: int, created: float | dict[str, float], used: float) -> list[str]:
    """The figures of one way to create tables."""
    prefix = "app.bulk_" if isinstance(created, float) else "app.single_"
    read = {name: at for name, at in times_of(daemon, "table.read").items() if name.startswith(prefix)}
    since = {
        name: at - (created if isinstance(created, float) else created[name]) for name, at in read.items()
    }
    ordered = sorted(since.values())
    published = [
        datetime.fromisoformat(event["timestamp"]).timestamp()
        for event in daemon.events()
        if event["event"] == "publication.changed"
    ]
    topics = sum(event["event"] == "topic.created" for event in daemon.events())
    said = "in one transaction" if isinstance(created, float) else "one after the other"
    found = [
        f"{tables} tables {said}: {len(read)} read",
        f"  from COMMIT to its rows: median {median(ordered):.1f} s, last {ordered[-1]:.1f} s",
        f"  CPU of the daemon {used:.1f} s, topics so far {topics}",
    ]
    if isinstance(created, float):
        made = [
            datetime.fromisoformat(event["timestamp"]).timestamp() - created
            for event in daemon.events()
            if event["event"] == "topic.created" and ".app.bulk_" in event["topic"]
        ]
        listed = min(times_of(daemon, "table.added").values()) - created
        found += [
            f"  published {published[-1] - created:.1f} s after COMMIT, listed {listed:.1f} s",
            f"  topics created between {min(made):.1f} and {max(made):.1f} s, first rows after {ordered[0]:.1f} s",
        ]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.new_tables")
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--singly", type=int, default=200)
    parser.add_argument("--form", choices=FORMS, default="uncompiled")
    parser.add_argument("--version", type=int, default=18)
    arguments = parser.parse_args()
    load = " ".join(Path("/proc/loadavg").read_text().split()[:3])
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        print(bare(folder, arguments.tables), flush=True)
        settings = {"max_locks_per_transaction": "512"}
        with (
            KafkaBroker(folder / "kafka", heap_mb=1000, for_measuring=True) as broker,
            PostgresServer(arguments.version, folder / "postgres", settings=settings) as server,
        ):
            server.execute("CREATE DATABASE bench")
            print(json.dumps(vars(arguments)), "load", load)
            print("\n".join(measure(server, broker, folder, arguments)), flush=True)


if __name__ == "__main__":
    main()
