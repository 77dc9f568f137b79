"""What a person is told: of each fault that ends a start or a run, and of outages under load.

`faults` runs the tests that break a pipeline (`FILES`), and makes a table of what `cdcd check` and `cdcd run` said in
them. The tests judge the words; the table is for people to read.

`outages` stops Kafka for a while, and then restarts PostgreSQL, while rows are written at a rate. It prints the whole
log, and what metrics, `/readyz` and the page said before, during and after. Each row must be in the topic once.

    python -m tests.chaos.told faults [--results build/results/faults.md]
    python -m tests.chaos.told outages [--seconds 90] [--rate 200] [--results build/results/outages.md]
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import psycopg

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker, PostgresServer
from deploy.local.cache import REPOSITORY
from tests.chaos.outage import Beside
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.faults.told import KEPT_IN, Told, kept
from tests.integration.test_outages import ready
from tests.scratch import scratch_folder
from tests.tested_commit import tested_commit

FILES: Final = (
    "tests/integration/test_check_foresees.py",
    *sorted(str(file) for file in (REPOSITORY / "tests/integration").glob("test_bad_input_*.py")),
)

SCENARIOS: Final = "what_ends_a_run_is_foreseen_with_the_same_cure"
NAME: Final = "shop"
TOPIC: Final = f"{NAME}.public.t"
METRICS: Final = (
    "cdcd_kafka_up",
    "cdcd_postgres_up",
    "cdcd_streaming",
    "cdcd_lag_bytes",
    "cdcd_lag_seconds",
    "cdcd_wal_seconds_left",
)

COLUMNS: Final = ("fault", "command", "exit code", "seconds", "lines", "said", "what to do")

CHOSEN: Final = (
    (r"(?:/[\w.+-]+)*/(?:cdcd-|pytest-)[\w./+-]+", "…"),
    (r"(127\.0\.0\.1:|port \"?)\d{4,5}\b", r"\1…"),
    (r"\b0/[0-9A-F]{5,8}\b", "0/…"),
    (r"\b\d{19}\b", "…"),
    (r"(PID |pg_terminate_backend\()\d+", r"\1…"),
    (r"\br_[0-9a-f]{8}\b", "r_…"),
    (r"\(after \d+ ?ms", "(after … ms"),
)
"""Patterns of values that differ between two runs, each with the text that replaces the value in the table."""

FAULTS_HEAD: Final = """\
# What each fault is told with

Written by `python -m tests.chaos.told faults`: each fault that the tests plant, and what the commands said of it.

- "seconds": from the start of the command to its end; for a daemon that ran before the fault came, from the moment on \
at which the test waited for its end.
- "lines": on standard error. The report of `cdcd check` is on standard output.
- Of `cdcd check`, each error stands with its code.
- "…" stands for what differs between two runs: folders, ports, LSNs, system identifiers, processes, roles, times.
"""


def faults(results: Path) -> int:
    """Pytest's exit code. What was told in the tests is written to `results`."""
    with scratch_folder() as folder:
        file = folder / "told.jsonl"
        file.touch()
        tests = [sys.executable, "-m", "pytest", "-q", *FILES]
        # `env` hands the variable over, so that nothing is changed in this process.
        code = subprocess.run(["env", f"{KEPT_IN}={file}", *tests], cwd=REPOSITORY, check=False).returncode
        found = kept(file)
    when = (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {tested_commit()}: {len({one.fault for one in found})} faults"
    )
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *map(row, found)]
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("\n".join([FAULTS_HEAD, f"{when}.", "", *lines, ""]), encoding="utf-8")
    return code


def row(told: Told) -> str:
    """A row of the table of faults."""
    cells = (
        fault_name(told.fault),
        told.command,
        told.code,
        f"{told.seconds:.1f}",
        told.lines,
        told.message or "-",
        told.hint or "-",
    )
    return f"| {' | '.join(cell(each) for each in cells)} |"


def fault_name(test: str) -> str:
    """What was broken, by the test's name and its case. The tests of scenarios have one name."""
    name, _, case = test.removeprefix("test_").removesuffix("]").partition("[")
    case = re.sub(r"^pg\d+-?", "", case)
    return (case if name == SCENARIOS else f"{name}: {case}" if case else name).replace("_", " ")


def cell(value: object) -> str:
    """The value as a Markdown table has it.

    Values that belong to one machine or one run (`CHOSEN`) are replaced, so that the file changes only if a message
    does.
    """
    text = str(value).replace(str(REPOSITORY), "…")
    for pattern, stand_in in CHOSEN:
        text = re.sub(pattern, stand_in, text)
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def rows_of(dsn: str) -> int:
    """How many rows the table t has."""
    with psycopg.connect(dsn) as connection:
        return int(connection.execute("SELECT count(*) FROM t").fetchall()[0][0])


class Rows(Beside):
    """One session that inserts rows at a rate; a context manager. It connects again when PostgreSQL was away.

    If a commit was not answered, the table tells whether its row is there.
    """

    def __init__(self, dsn: str, rate: float) -> None:
        super().__init__()
        self._dsn = dsn
        self._rate = rate
        self.rows = 0

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.rows = rows_of(self._dsn)
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    self._insert(connection)
            except psycopg.OperationalError:
                self._ended.wait(0.1)

    def _insert(self, connection: psycopg.Connection) -> None:
        began, first = time.monotonic(), self.rows
        while not self._ended.is_set():
            ahead_s = (self.rows - first) / self._rate - (time.monotonic() - began)
            if ahead_s > 0:
                self._ended.wait(ahead_s)
            connection.execute("INSERT INTO t VALUES (%s, 'a row of the shop')", (self.rows + 1,))
            self.rows += 1


class _Text(HTMLParser):
    """The words of a page's body, a line for each element that has any."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._silent += tag in {"style", "script", "title", "svg"}

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in {"style", "script", "title", "svg"}

    def handle_data(self, data: str) -> None:
        if not self._silent and data.strip():
            self.lines.append(" ".join(data.split()))


class Outages:
    """A daemon whose servers go away, and what it says at each moment, as parts of a document."""

    def __init__(self, server: PostgresServer, broker: KafkaBroker, daemon: Daemon) -> None:
        self._server = server
        self._broker = broker
        self._daemon = daemon
        self.parts: list[str] = []

    def run(self, seconds: float) -> None:
        """Kafka is away for so long; then PostgreSQL is restarted."""
        self._daemon.await_metric("cdcd_events_total", lambda count: count > 200, "c", "public.t")
        self._await_idle()
        self._look("before")
        with self._told("kafka"):
            self._broker.stop()
            began = time.monotonic()
            self._daemon.await_event("kafka.unreachable")
            self._look(f"Kafka, {time.monotonic() - began:.0f} s away")
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            self._look(f"Kafka, {time.monotonic() - began:.0f} s away")
            self._broker.start()
        self._await_idle()
        self._look("Kafka is back")
        with self._told("postgres"):
            self._server.stop()
            self._daemon.await_event("postgres.unreachable")
            self._look("PostgreSQL is away")
            mark = self._daemon.mark()
            self._server.start()
            self._daemon.await_event("stream.started", after=mark)
        self._await_idle()
        self._look("PostgreSQL is back")

    @contextmanager
    def _told(self, side: str) -> Iterator[None]:
        mark = self._daemon.mark()
        yield
        self._daemon.await_event(f"{side}.reachable", after=mark)

    def _await_idle(self) -> None:
        """Until it streams, is ready, and delivers as fast as rows come."""
        until(lambda: ready(self._daemon)["ready"] or None, "it was never ready")
        self._daemon.await_metric("cdcd_lag_seconds", lambda lag: lag < 1)

    def _look(self, moment: str) -> None:
        found, said = self._daemon.metrics(), ready(self._daemon)
        metrics = [
            f"{name} {value:g}" for name in METRICS if (value := found.get(name, {}).get(())) is not None
        ]
        page = _Text()
        page.feed(self._daemon.page("/"))
        self.parts += [
            f"## {moment[0].upper()}{moment[1:]}",
            "Metrics: " + ", ".join(f"`{one}`" for one in metrics) + ".",
            f"`/readyz`:\n\n```json\n{json.dumps(said, ensure_ascii=False)}\n```",
            "The page:\n\n```text\n" + "\n".join(page.lines) + "\n```",
        ]


def outages(seconds: float, rate: float, results: Path) -> int:
    """0 if each row is in the topic once."""
    with (
        scratch_folder() as folder,
        PostgresServer(18, folder / "postgres") as server,
        KafkaBroker(folder / "kafka") as broker,
    ):
        dsn = server.dsn()
        server.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        # The waits and intervals are the defaults, which people meet.
        config = configuration(NAME, dsn, broker.bootstrap_servers) | {
            "postgres": {"dsn": dsn},
            "kafka": {"bootstrap_servers": broker.bootstrap_servers},
        }
        with Daemon(folder / "daemon", config) as daemon:
            daemon.start()
            daemon.await_streaming()
            both = Outages(server, broker, daemon)
            with Rows(dsn, rate):
                both.run(seconds)
            await_flushed(dsn, f"cdcd_{NAME}", 600)
            assert daemon.stop() == 0, daemon.last_words()
            log = daemon.output().replace(str(folder), "…")
        with Reader(broker.bootstrap_servers, NAME) as reader:
            ids = [
                json.loads(raw.key)["id"] for raw in reader.read_all(600) if raw.topic == TOPIC and raw.key
            ]
        rows = rows_of(dsn)
    once = ids == list(range(1, rows + 1))
    verdict = f"{'Each row came once, in order' if once else 'NOT EQUAL'}: {len(ids):,} of {rows:,} rows."
    head = (
        f"# Outages under load\n\n{datetime.now(UTC):%Y-%m-%d}, commit {tested_commit()}, "
        f"`python -m tests.chaos.told outages --seconds {seconds:g} --rate {rate:g}`: Kafka was away for "
        f"{seconds:g} s, then PostgreSQL was restarted, while {rate:g} rows a second were inserted, each in a "
        f"transaction of its own. {verdict}"
    )
    parts = [head, *both.parts, f"## The whole log\n\n```json\n{log}\n```"]
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(verdict)
    return 0 if once else 1


def main() -> int:
    """0 if the tests passed, or if each row came once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.told")
    which = parser.add_subparsers(dest="which", required=True)
    told = which.add_parser("faults")
    told.add_argument("--results", type=Path, default=REPOSITORY / "build/results/faults.md")
    away = which.add_parser("outages")
    away.add_argument("--results", type=Path, default=REPOSITORY / "build/results/outages.md")
    away.add_argument("--seconds", type=float, default=90.0, help="without Kafka")
    away.add_argument("--rate", type=float, default=200.0, help="rows a second")
    options = parser.parse_args()
    if options.which == "faults":
        return faults(options.results)
    return outages(options.seconds, options.rate, options.results)


if __name__ == "__main__":
    sys.exit(main())
