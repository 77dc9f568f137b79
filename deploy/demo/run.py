"""The demo: PostgreSQL, Kafka, a shop and cdcd between them, watched as it runs.

Ends after `--seconds`, or by Ctrl-C: the shop closes, the daemon delivers the rest, and the topics are compared with
the tables. With `--mirror`, `cdcd mirror` joins as soon as Spark is installed, and its tables are compared too.
A second Ctrl-C leaves at once. Exit codes: 0 equal, 1 not equal or something failed, 130 left at once.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psycopg
from rich.console import Console
from rich.live import Live

from cdcd.core.errors import EXIT_CODES
from deploy.demo.daemon import Daemon
from deploy.demo.fold import Flushed, Report, compare
from deploy.demo.joining import JoiningMirror
from deploy.demo.mirrored import Verdict, reading
from deploy.demo.mirrored import compare as compare_mirror
from deploy.demo.shop import TABLES, Shop
from deploy.demo.topics import Reader, TopicError
from deploy.demo.view import View, quantile
from deploy.local import KAFKA_VERSION, KafkaBroker, LocalServerError, PostgresServer
from deploy.local.cache import REPOSITORY

VERSION: Final = 18
NAME: Final = "shop"
READY_S: Final = 60.0
CAUGHT_UP_S: Final = 120.0
METRICS_EVERY_S: Final = 0.5
LINE_EVERY_S: Final = 2.0


class Screen(Console):
    """A console that changes nothing on the terminal that would have to be changed back.

    A live display hides the cursor and shows it again at its end. A demo that is killed, or interrupted at that moment,
    would leave the terminal without a cursor.
    """

    def show_cursor(self, show: bool = True) -> bool:
        return False

    @property
    def draws(self) -> bool:
        """Whether a picture can be drawn over the former one. A file, a pipe or a dumb terminal gets lines."""
        return self.is_terminal and not self.is_dumb_terminal


class DemoError(Exception):
    """Something of the demo failed; the message is for the person who runs it."""


class Interrupts:
    """Ctrl-C counted: while `patient`, the first one is only noted; the others interrupt whatever is going on."""

    def __init__(self) -> None:
        self.count = 0
        self.patient = False
        self.leaves = False
        """Whatever is going on was interrupted. A library may make an error of its own of that."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if not self.patient or self.count > 1:
            self.leaves = True
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From here on it is a matter of moments anyway."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


class Demo:
    """One run in `folder`, which may be removed afterwards."""

    def __init__(
        self,
        folder: Path,
        console: Screen,
        interrupts: Interrupts,
        *,
        rate: float,
        mirror: str | None = None,
    ) -> None:
        """`mirror`: the format of the lakehouse tables, if there are any."""
        self.daemon: Daemon | None = None
        self._folder = folder
        self._console = console
        self._interrupts = interrupts
        self._rate = rate
        self._table_format = mirror
        self._mirror: JoiningMirror | None = None
        self._view = View(NAME)
        self._picture: Live | None = None
        self._lined = 0.0
        self._measured = 0.0

    def run(self, seconds: float | None) -> bool:
        """Whether the topics, and the mirror if there is one, equal the tables.

        Raises:
            DemoError, LocalServerError, TopicError, psycopg.Error: it did not come that far.
        """
        with ExitStack() as stack:
            self._say(f"Starting PostgreSQL {VERSION} and Kafka {KAFKA_VERSION} …")
            postgres = PostgresServer(VERSION, self._folder / "postgres")
            stack.callback(postgres.kill)
            broker = KafkaBroker(self._folder / "kafka")
            stack.callback(broker.kill)
            # The broker's JVM starts while PostgreSQL starts.
            broker.begin()
            postgres.start()
            postgres.execute(f"CREATE DATABASE {NAME}")
            dsn = postgres.dsn(NAME)
            shop = stack.enter_context(Shop(dsn, rate=self._rate))
            shop.create()
            broker.await_started()
            self.daemon = Daemon(self._folder, _config(dsn, broker.bootstrap_servers, self._folder / "spool"))
            stack.callback(self.daemon.kill)
            self._say("Starting cdcd …")
            self.daemon.start()
            self._await_ready(self.daemon)
            self._view.page = f"http://127.0.0.1:{self.daemon.port}/"
            self._say(f"cdcd's page: {self._view.page}")
            self._say("Ctrl-C ends it with a comparison; twice: at once.")
            reader = stack.enter_context(Reader(broker.bootstrap_servers, NAME))
            if self._table_format:
                self._mirror = JoiningMirror(self._folder, NAME, broker.bootstrap_servers, self._table_format)
                stack.callback(self._mirror.kill)
            self._interrupts.patient = True
            started = time.monotonic()
            with self._live():
                self._watch(shop, reader, seconds)
                self._catch_up(shop, reader, dsn)
            elapsed = time.monotonic() - started
            self._say("\nComparing every row and every value …")
            report = compare(dsn, broker.bootstrap_servers, NAME, TABLES)
            verified, position = self._verified()
            code = self.daemon.stop()
            if code != 0:
                raise DemoError(f"The daemon did not end in order (exit code {code}).")
            verdicts = self._mirrored(dsn)
            self._summary(report, shop, elapsed)
            return self._result(report, verified, verdicts, position)

    def _verified(self) -> tuple[bool, str]:
        """Run `cdcd verify`. Return True and the LSN if the topics equal the tables; otherwise print its output."""
        assert self.daemon is not None
        command = [sys.executable, "-m", "cdcd.cli", "verify", "--config", str(self.daemon.config_path)]
        done = subprocess.run(
            [*command, "--format", "json"], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            self._say((done.stdout + done.stderr).rstrip())
            return False, ""
        return True, str(json.loads(done.stdout)["lsn"])

    def _mirrored(self, dsn: str) -> list[Verdict]:
        """Compare the mirror with the tables. Return a verdict for each table; none if there is no mirror."""
        if self._mirror is None:
            return []
        try:
            if not self._mirror.finish(self._say):
                return []
        except ValueError as error:
            raise DemoError(str(error)) from error
        process = self._mirror.process
        with reading(process.format, process.location) as (spark, target):
            return compare_mirror(dsn, spark, target, TABLES)

    def _result(self, report: Report, verified: bool, verdicts: list[Verdict], position: str) -> bool:
        """Print the comparison, its result in one line, and what to do next. True: all are equal."""
        mirrored = {verdict.table: verdict for verdict in verdicts}
        for table in report.tables:
            topics = "equal" if not table.wrong else f"{table.wrong} rows differ"
            line = f"{table.name:<20} {table.rows:>7} rows   topic: {topics}"
            if verdict := mirrored.get(table.name):
                line += f"   mirror: {'equal' if verdict.equal else 'DIFFERS'}"
            self._say(line)
            for difference in table.differences:
                self._say(f"    {difference}")
        for violation in report.violations.lines():
            self._say(violation)
        equal = report.equal and verified and all(verdict.equal for verdict in verdicts)
        what = f"{len(report.tables)} tables, {sum(table.rows for table in report.tables)} rows"
        if equal:
            where = "topics and mirror" if verdicts else "topics"
            self._say(f"EQUAL: {where} have exactly the rows of PostgreSQL at {position} ({what}).")
            self._say("Next: docs/tutorial.md follows one table of your own step by step, in ten minutes.")
        else:
            self._say(f"NOT EQUAL: see above ({what}).")
        return equal

    def _watch(self, shop: Shop, reader: Reader, seconds: float | None) -> None:
        shop.start()
        deadline = None if seconds is None else time.monotonic() + seconds
        self._view.phase = "the shop is open"
        self._view.open()
        while not self._interrupts.count and (deadline is None or time.monotonic() < deadline):
            self._view.news = shop.news
            self._look(reader)
            if shop.error is not None:
                raise DemoError(f"The shop failed: {shop.error}") from shop.error

    def _catch_up(self, shop: Shop, reader: Reader, dsn: str) -> None:
        self._view.phase, self._view.news = "closing the shop", ""
        self._look(reader)
        shop.stop()
        self._view.phase = "the shop is closed, delivering the rest"
        deadline = time.monotonic() + CAUGHT_UP_S
        with closing(Flushed(dsn, f"cdcd_{NAME}")) as flushed:
            # The first snapshot is read beside the stream: the slot says nothing of its rows.
            while not (flushed.reached() and self._is_read()):
                self._look(reader)
                if time.monotonic() > deadline:
                    raise DemoError(f"The daemon did not catch up within {CAUGHT_UP_S:.0f} s: {flushed}.")
        self._view.measure(self.daemon.metrics() if self.daemon else {})
        self._view.phase = "done"

    def _is_read(self) -> bool:
        """Whether Kafka holds all rows of the first snapshot."""
        left = self.daemon.metrics().get("cdcd_snapshot_tables", {}) if self.daemon else {}
        return left.get(()) == 0

    def _look(self, reader: Reader) -> None:
        """A glance of at most a fifth of a second at the topics, and now and then at the rest."""
        assert self.daemon is not None
        self._view.take(reader.poll(0.2))
        now = time.monotonic()
        if now > self._measured + METRICS_EVERY_S:
            self._measured = now
            self._check(self.daemon)
            reader.discover()
            self._view.measure(self.daemon.metrics())
            if self._mirror is not None:
                self._view.mirror = self._mirror.look()
        if self._picture is not None:
            self._picture.refresh()
        if not self._console.draws and now > self._lined + LINE_EVERY_S:
            self._lined = now
            self._say(self._view.line())

    def _check(self, daemon: Daemon) -> None:
        if not daemon.is_running():
            code = daemon.exit_code()
            assert code is not None
            meaning = EXIT_CODES.get(code, "killed by a signal" if code < 0 else "unknown")
            raise DemoError(f"The daemon ended with exit code {code} ({meaning}).")

    def _await_ready(self, daemon: Daemon) -> None:
        deadline = time.monotonic() + READY_S
        while not daemon.is_ready():
            self._check(daemon)
            if time.monotonic() > deadline:
                raise DemoError(f"The daemon was not ready within {READY_S:.0f} s.")
            time.sleep(0.1)

    def _live(self) -> Live:
        # `_look` draws the picture. A thread of rich would fail, because it reads the view while records change it.
        live = Live(self._view, console=self._console, auto_refresh=False, transient=False)
        # Written to a file or a pipe, its last picture alone would be there; `_look` prints lines then.
        self._picture = live if self._console.draws else Live(console=Console(quiet=True), auto_refresh=False)
        return self._picture

    def _summary(self, report: Report, shop: Shop, elapsed: float) -> None:
        view, say = self._view, self._say
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(shop.stats.items()))
        say(f"\nThe shop did: {kinds}")
        say(f"cdcd delivered: {view.transactions()}")
        ordered = sorted(view.latencies)
        half, last = quantile(ordered, 0.5), quantile(ordered, 0.99)
        say(
            f"The whole run: {report.records} records in {elapsed:.0f} s, {report.records / elapsed:.0f}/s on average;"
            f" commit to consumer p50 {half * 1000:.0f} ms, p99 {last * 1000:.0f} ms (imports are large transactions)\n"
        )

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _config(dsn: str, bootstrap_servers: str, spool: Path) -> dict[str, Any]:
    return {
        "name": NAME,
        "postgres": {"dsn": dsn, "two_phase": True, "messages": True, "tables": ["public.*"]},
        "kafka": {"bootstrap_servers": bootstrap_servers},
        "topics": {"create": {"partitions": 2}},
        # Small, so that the import is seen to go to the disk.
        "spool": {"directory": str(spool), "memory_bytes_max": 1_000_000},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.demo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, help="how long the shop is open; until Ctrl-C if left out")
    parser.add_argument("--rate", type=float, default=150, help="transactions per second (150)")
    parser.add_argument(
        "--mirror",
        choices=("iceberg", "delta"),
        help="also mirror the topics as soon as Spark is installed (`make demo` uses iceberg)",
    )
    options = parser.parse_args(arguments)
    console = Screen()
    interrupts = Interrupts()
    # Not in a folder of ours alone: as root, PostgreSQL runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="cdcd-demo-"))
    folder.chmod(0o711)
    demo = Demo(folder, console, interrupts, rate=options.rate, mirror=options.mirror)
    failed = True
    try:
        equal = demo.run(options.seconds)
        failed = not equal
        return 0 if equal else 1
    except (Exception, KeyboardInterrupt) as error:
        if interrupts.leaves:
            failed = False
            return 130
        if not isinstance(error, (DemoError, LocalServerError, TopicError, psycopg.Error)):
            raise
        console.print(f"\n{error}", markup=False, highlight=False, soft_wrap=True)
        if demo.daemon is not None:
            console.print(demo.daemon.last_words(), markup=False, highlight=False, soft_wrap=True)
        return 1
    finally:
        interrupts.ignore()
        _clean(folder, keep=failed)
        if failed and demo.daemon is not None:
            console.print(
                f"\nThe daemon's log: {demo.daemon.log_path}", markup=False, highlight=False, soft_wrap=True
            )


def _clean(folder: Path, *, keep: bool) -> None:
    """Remove the servers' data, and the logs and the configuration unless they are wanted."""
    for name in ("postgres", "kafka", "spool", "mirror", "spark-packages"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
