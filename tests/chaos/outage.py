"""Kafka is away while the source is written to, and the durable log (`spool.durable`) bridges it, through kills.

In each outage the broker is stopped, and one session goes on inserting rows at a rate of WAL. The daemon is ended by
SIGKILL at random moments of the outage, and again after the broker has come back, while the log is delivered. Four
things are judged:

- the topic has each row once, in the order of the commits, and each truncate between the rows of its place;
- the WAL that the slot holds back during an outage, looked at once a second;
- the log's folder, which has no segment left when the log is delivered;
- the peak memory of every run of the daemon (VmHWM), which is taken before its end.

    python -m tests.chaos.outage [--outages 1] [--seconds 1800] [--rate 10] [--kills 20] [--seed N] [--after 10]
        [--version 18] [--form compiled]
"""

import argparse
import random
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import POSTGRES_VERSIONS, KafkaBroker, PostgresServer
from tests.bench.forms import FORMS, environment
from tests.integration.daemon import Daemon, configuration, confirmed, until, wal_end
from tests.scratch import scratch_folder

NAME: Final = "outage"
SLOT: Final = f"cdcd_{NAME}"
TOPIC: Final = f"{NAME}.public.t"
DATABASE: Final = "written"

HELD_MAX: Final = 256 << 20
"""Bytes of WAL that the slot may hold back during an outage."""

CAUGHT_UP: Final = 8 << 20
"""Bytes of WAL that may be unconfirmed when an outage begins."""

MEMORY_MAX: Final = 200 * 1000 * 1000
"""Bytes that any run of the daemon may take at its peak."""

DELIVERED_S: Final = 3600.0
"""The log is delivered within this time."""

LATE: Final = 0.4
"""Share of the kills that come while the log is delivered."""

LATE_S: Final = 3.0
"""Such a kill comes at most so many seconds after the start of the run."""

ROWS: Final = 100
"""Rows of a transaction. A row takes about 2 kB of WAL."""

KEPT: Final = 200_000
"""The table is truncated whenever so many rows were inserted, so that it does not fill the disk."""

_TABLE: Final = "CREATE TABLE t (id bigint PRIMARY KEY, body text)"
# A third of a row is random digits, so that it compresses about as well as people's rows do.
_INSERT: Final = """
INSERT INTO t SELECT id, string_agg(md5((id * 100 + part)::text), '') || repeat('a row of the outage ', 60)
FROM generate_series(%(first)s::bigint, %(last)s::bigint) id, generate_series(1, 20) part GROUP BY id ORDER BY id"""
_WAL_END: Final = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
_HELD: Final = (
    "SELECT pg_current_wal_insert_lsn() - restart_lsn, pg_current_wal_insert_lsn() - confirmed_flush_lsn "
    f"FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
)
_ID: Final = re.compile(rb'"id":(\d+)')


class Beside(ABC):
    """Work in a thread beside the block; a context manager. The block's end ends the work, and raises its failure."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._done: Future[None] | None = None

    def __enter__(self) -> Self:
        self._done = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown()
        assert self._done is not None
        self._done.result()

    @abstractmethod
    def _run(self) -> None:
        """Work until `_ended` is set."""


class Writer(Beside):
    """One session that inserts rows at a rate of WAL until the block ends; a context manager."""

    def __init__(self, dsn: str, bytes_s: float) -> None:
        super().__init__()
        self._dsn = dsn
        self._bytes_s = bytes_s
        self.rows = 0
        self.wal_bytes = 0

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            began, first = time.monotonic(), _number(connection, _WAL_END)
            while not self._ended.is_set():
                self.wal_bytes = _number(connection, _WAL_END) - first
                ahead_s = self.wal_bytes / self._bytes_s - (time.monotonic() - began)
                if ahead_s > 0:
                    self._ended.wait(ahead_s)
                    continue
                connection.execute(_INSERT, {"first": self.rows + 1, "last": self.rows + ROWS})
                self.rows += ROWS
                if self.rows % KEPT == 0:
                    connection.execute("TRUNCATE t")


class HeldWal(Beside):
    """Looks once a second at the WAL that the slot holds back; a context manager."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self.held = 0
        """The most bytes that the slot's `restart_lsn` was behind."""
        self.unconfirmed = 0
        """The most bytes that its `confirmed_flush_lsn` was behind."""

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(1):
                held, unconfirmed = connection.execute(_HELD).fetchall()[0]
                self.held = max(self.held, int(held))
                self.unconfirmed = max(self.unconfirmed, int(unconfirmed))


@dataclass(slots=True)
class Outage:
    """One outage of Kafka, and the delivery after it."""

    kills: tuple[int, int]
    """During the outage, and during the delivery."""
    seconds: float = 0.0
    wal_bytes: int = 0
    held: int = 0
    unconfirmed: int = 0
    log_bytes: int = 0
    """Of the log, when Kafka came back."""
    delivered_s: float = 0.0
    """From the start of the broker on."""
    peak_bytes: int = 0

    def row(self, number: int) -> str:
        """A row of a Markdown table."""
        cells = (
            number,
            f"{self.kills[0]} + {self.kills[1]}",
            f"{self.seconds:.0f} s",
            f"{self.wal_bytes / 1e6:,.0f} MB",
            f"{self.held / 1e6:.0f} MB",
            f"{self.unconfirmed / 1e6:.0f} MB",
            f"{self.log_bytes / 1e6:,.0f} MB",
            f"{self.delivered_s:.0f} s",
            f"{self.peak_bytes / 1e6:.0f} MB",
        )
        return f"| {' | '.join(map(str, cells))} |"


COLUMNS: Final = (
    "outage",
    "kills in it, and after it",
    "length",
    "WAL written in it",
    "held back",
    "not confirmed",
    "log",
    "delivered in",
    "peak memory",
)


@dataclass(slots=True)
class Found:
    """What the topic holds."""

    rows: int = 0
    truncates: int = 0
    wrong: list[str] = field(default_factory=list)
    """The first things that are not as they must be."""

    def take(self, values: Iterable[bytes]) -> None:
        """Records' values in the topic's order: row after row, and a truncate behind each KEPT of them."""
        for value in values:
            if value.rfind(b'"op":"t"', -200) >= 0:
                self.truncates += 1
                if self.truncates * KEPT != self.rows:
                    self._note(f"truncate {self.truncates} came behind row {self.rows}")
                continue
            found = _ID.search(value)
            number = int(found[1]) if found else -1
            if number != self.rows + 1:
                self._note(f"row {number} came behind row {self.rows}")
            self.rows = number

    def _note(self, sentence: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(sentence)


class Bridged:
    """A pipeline with a durable log, and what is done to it."""

    def __init__(
        self, server: PostgresServer, broker: KafkaBroker, daemon: Daemon, dice: random.Random
    ) -> None:
        self._server = server
        self._broker = broker
        self._daemon = daemon
        self._dice = dice
        self._folder = Path(str(daemon.config["spool"]["durable_directory"]))

    def outage(self, writer: Writer, seconds: float, kills: int) -> Outage:
        """Kafka is away for so long, and comes back. AssertionError: the daemon did not do what it promises."""
        late = sum(self._dice.random() < LATE for _ in range(kills))
        outage = Outage((kills - late, late))
        moments = sorted(self._dice.uniform(0, seconds) for _ in range(kills - late))
        dsn = self._server.dsn(DATABASE)
        # What was written while a log was delivered is still held back after it.
        until(
            lambda: confirmed(dsn, SLOT) > wal_end(dsn) - CAUGHT_UP or None,
            "the stream never caught up",
            DELIVERED_S,
        )
        began, before = time.monotonic(), writer.wal_bytes
        with HeldWal(dsn) as wal:
            self._broker.stop()
            # A daemon that is started before a log has begun cannot begin one, because it has not reached Kafka.
            self._daemon.await_event("durable.started")
            for moment in moments:
                time.sleep(max(0.0, began + moment - time.monotonic()))
                self._kill(outage)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            self._daemon.await_event("durable.started")
            outage.seconds, outage.wal_bytes = time.monotonic() - began, writer.wal_bytes - before
        outage.held, outage.unconfirmed = wal.held, wal.unconfirmed
        outage.log_bytes = sum(segment.stat().st_size for segment in self._segments())
        began = time.monotonic()
        self._broker.start()
        for _ in range(late):
            time.sleep(self._dice.uniform(0, LATE_S))
            self._kill(outage)
        # A run that was killed may have delivered the rest of the log, and then no other run says so.
        until(lambda: not self._segments() or None, "the log was never delivered", DELIVERED_S)
        self._daemon.await_streaming(DELIVERED_S)
        outage.delivered_s = time.monotonic() - began
        outage.peak_bytes = max(outage.peak_bytes, self._daemon.peak_memory_bytes())
        return outage

    def _segments(self) -> list[Path]:
        return list(self._folder.glob("*.cdcdrec"))

    def _kill(self, outage: Outage) -> None:
        assert self._daemon.is_running(), f"the daemon ended by itself:\n{self._daemon.last_words()}"
        outage.peak_bytes = max(outage.peak_bytes, self._daemon.peak_memory_bytes())
        self._daemon.kill()
        self._daemon.start()


def run(options: argparse.Namespace, folder: Path, server: PostgresServer, broker: KafkaBroker) -> bool:
    """True if everything is as it must be. What was seen is printed."""
    server.execute(f"CREATE DATABASE {DATABASE}")
    server.execute(_TABLE, DATABASE)
    dsn = server.dsn(DATABASE)
    config = configuration(NAME, dsn, broker.bootstrap_servers, spool=_spool(folder, options.after))
    outages = []
    with Daemon(folder / "daemon", config, environment=environment(options.form)) as daemon:
        daemon.start()
        daemon.await_streaming()
        bridged = Bridged(server, broker, daemon, random.Random(options.seed))
        print(f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", sep="\n", flush=True)
        with Writer(dsn, options.rate * 1e6) as writer:
            for number in range(1, options.outages + 1):
                outages.append(bridged.outage(writer, options.seconds, options.kills))
                print(outages[-1].row(number), flush=True)
        await_flushed(dsn, SLOT, DELIVERED_S)
        assert daemon.stop() == 0, daemon.last_words()
    found = Found()
    with Reader(broker.bootstrap_servers, NAME) as reader:
        found.take(raw.value for raw in reader.read_all(DELIVERED_S) if raw.topic == TOPIC and raw.value)
    equal = not found.wrong and found.rows == writer.rows and found.truncates == writer.rows // KEPT
    held, peak = max(each.held for each in outages), max(each.peak_bytes for each in outages)
    print(
        f"\n{'each row once, in order' if equal else 'NOT EQUAL'}: {found.rows:,} of {writer.rows:,} rows, "
        f"{found.truncates} truncates; {sum(sum(each.kills) for each in outages)} kills; at most {held / 1e6:.0f} MB "
        f"of WAL held back; peak memory {peak / 1e6:.0f} MB",
        *found.wrong,
        sep="\n",
    )
    return equal and held < HELD_MAX and peak < MEMORY_MAX


def _spool(folder: Path, after_s: float) -> dict[str, Any]:
    return {"durable": True, "durable_directory": str(folder / "log"), "durable_after_s": after_s}


def _number(connection: psycopg.Connection[Any], query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0])


def main() -> int:
    """0 if each row came once and in order, within the limits of WAL and memory."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.outage")
    parser.add_argument("--outages", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of an outage")
    parser.add_argument("--rate", type=float, default=10.0, help="MB of WAL a second")
    parser.add_argument("--kills", type=int, default=20, help="of the daemon, for each outage")
    parser.add_argument("--after", type=float, default=10.0, help="spool.durable_after_s")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--version", type=int, choices=POSTGRES_VERSIONS, default=18)
    parser.add_argument("--form", choices=FORMS, default="compiled")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with (
        scratch_folder() as folder,
        PostgresServer(options.version, folder / "postgres") as server,
        KafkaBroker(folder / "kafka") as broker,
    ):
        return 0 if run(options, folder, server, broker) else 1


if __name__ == "__main__":
    sys.exit(main())
