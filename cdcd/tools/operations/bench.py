"""`cdcd bench`: measure the throughput of a daemon between given servers, for a sizing.

The rule: every object that a run creates has a name that begins with the name of the run (`Names`). The run removes
these objects at its end, also if the run fails or is interrupted. `--remove` removes the objects of a killed run.

A run creates a table, starts `cdcd run` for this table with the given configuration under other names, writes rows as
fast as the database takes them, then single rows at a steady pace, and reads the metrics of the daemon.
"""

import asyncio
import ctypes
import json
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.config.loading import Config, load_config
from cdcd.core.catalog.routing import DEFAULT
from cdcd.core.errors import ConfigError, FencedError, TransientError
from cdcd.core.pasted import cdcd, quoted
from cdcd.telemetry.http_client import fetch
from cdcd.telemetry.terminal_text import number, size
from cdcd.tools.operations import removal
from cdcd.tools.operations.sides import connect_to

BEGINS: Final = "cdcd_bench_"
"""The first characters of the name of every run."""

START_S: Final = 60.0
"""Seconds within which the daemon must stream after its start."""

STALL_S: Final = 60.0
"""Seconds without a further row after which a run gives up."""

STOP_S: Final = 60.0
"""Seconds within which the daemon must end after SIGTERM."""

PACED_S: Final = 10.0
PACE_S: Final = 0.05
"""`PACED_S`: seconds for which single rows are written. `PACE_S`: seconds between two single rows."""

DELAY: Final = "cdcd_commit_to_acknowledged_seconds"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """The rows that a run writes.

    Attributes:
        rows: number of all rows.
        rows_each: number of rows in each transaction.
        row_bytes: size of the text in each row.
    """

    rows: int
    rows_each: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one run. Pipeline, slot, publication, schema and the prefix of topics have the same `name`."""

    name: str

    @property
    def table(self) -> str:
        return f"{quoted(self.name)}.rows"

    def environment(self) -> dict[str, str]:
        """Return variables that set these names in the configuration, and remove its settings for other tables."""
        name = self.name
        topics = {
            each: f"{name}.{each}"
            for each in ("checkpoint", "schemas", "message", "transaction", "heartbeat")
        }
        return {
            "CDCD_NAME": name,
            "CDCD_POSTGRES__SLOT": name,
            "CDCD_POSTGRES__PUBLICATION": name,
            "CDCD_POSTGRES__TABLES": f'["{name}.*"]',
            "CDCD_KAFKA__TRANSACTIONAL_ID": name,
            "CDCD_KAFKA__DEAD_LETTER_TOPIC": f"{name}.dead_letter",
            "CDCD_TOPICS__PREFIX": name,
            **{f"CDCD_TOPICS__{each.upper()}": topic for each, topic in topics.items()},
            "CDCD_TOPICS__NAME": DEFAULT,
            "CDCD_TOPICS__NAMES": "{}",
            "CDCD_TOPICS__RENAME": "[]",
            "CDCD_OUTBOX__TOPICS": "[]",
            "CDCD_SNAPSHOT__MODE": "never",
            "CDCD_TABLES__INCLUDE": "null",
            "CDCD_TABLES__EXCLUDE": "null",
            "CDCD_FILTERS__TABLES": "{}",
            "CDCD_ROUTES__TABLES": "{}",
            "CDCD_OUTBOX__TABLES": "{}",
            "CDCD_HEARTBEAT__ACTION_QUERY": "null",
            "CDCD_RECORD__DIRECTORY": "null",
            "CDCD_SPOOL__DURABLE": "false",
            "CDCD_HTTP__ENABLED": "true",
            "CDCD_HTTP__HOST": "127.0.0.1",
            "CDCD_HTTP__PORT": "0",
            "CDCD_HTTP__CERTIFICATE_FILE": "null",
            "CDCD_HTTP__KEY_FILE": "null",
            "CDCD_LOG__FORMAT": "json",
        }


def new_name() -> str:
    return f"{BEGINS}{secrets.token_hex(4)}"


def configuration(file: Path, names: Names, environ: Mapping[str, str]) -> Config:
    """The given configuration under the names of the run.

    Raises ConfigError: the file is wrong; the name is not the name of a run; or the run would write to a slot, a topic
    or another object whose name does not begin with the name of the run.
    """
    if not re.fullmatch(rf"{BEGINS}[0-9a-f]{{8}}", names.name):
        raise ConfigError(f"{names.name} is not the name of a run, such as {BEGINS}0123abcd.")
    config = load_config(file, {**environ, **names.environment()})
    written = [
        config.name,
        config.postgres.slot,
        config.postgres.publication,
        config.kafka.transactional_id,
        config.topics.prefix,
        config.topics.checkpoint,
        config.topics.message,
        config.topics.schemas or names.name,
    ]
    foreign = [each for each in written if not each.startswith(names.name)]
    if foreign:
        raise ConfigError(
            f"The run would write to {foreign[0]}, which does not belong to the run. Nothing was written.",
            hint="Remove the variables CDCD_* that set names from the environment.",
        )
    return config


def plan(config: Config, load: Load) -> Iterator[str]:
    """Lines about everything that the run will do. The command shows them before it asks for a confirmation."""
    name = config.name
    yield f"This run writes {number(load.rows, 'row')} of {size(load.row_bytes)} and some hundred single rows."
    yield "It creates these objects, and removes them at its end:"
    yield f"  in PostgreSQL  schema {name} with a table, publication and slot {name}"
    yield f"  in Kafka       the topics {name}.*"
    if config.needs_registry:
        yield "  in the schema registry, subjects of these topics. The run does not remove them."
    yield "Other slots keep the WAL of these rows until their readers have passed it, and replicas receive it."


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a run.

    Attributes:
        seconds: time from the first row to the acknowledgement of the last row.
        cpu_s: CPU time of the daemon in these `seconds`.
        memory: largest resident memory of the daemon that was seen, in bytes.
        wal: bytes of WAL that all sessions of the server wrote in these `seconds`.
        kafka: bytes of keys and values, before compression.
        delays: median and 99th percentile of the seconds to deliver a single row, each as upper end of its bucket.
        compiled: True if the code of the daemon is compiled.
    """

    rows: int
    seconds: float
    cpu_s: float
    memory: float
    wal: int
    kafka: int
    delays: tuple[float, float]
    compiled: bool


def lines(found: Measured, load: Load) -> Iterator[str]:
    """Lines with the figures that a sizing needs."""
    each = found.cpu_s / found.rows
    yield (
        f"rows        {found.rows / found.seconds:,.0f} a second: {found.rows:,} in {found.seconds:.1f} s, "
        f"{number(load.rows_each, 'row')} a transaction, {size(load.row_bytes)} of text in a row"
    )
    yield (
        f"cpu         {each * 1e6:,.1f} µs a row; a core is enough for {1 / each if each else 0:,.0f} rows a second"
        + ("" if found.compiled else " (not compiled: a compiled cdcd takes half)")
    )
    yield f"memory      {size(found.memory)}"
    yield f"WAL         {found.wal / found.rows:,.0f} bytes a row, written by all sessions in this time"
    yield f"Kafka       {found.kafka / found.rows:,.0f} bytes a row, before compression"
    median, high = found.delays
    yield (
        f"latency     {_at_most(median)} (median), {_at_most(high)} (99 %), from commit to acknowledgement, "
        f"{1 / PACE_S:.0f} single rows a second"
    )
    yield "docs/sizing.md says what to plan with these figures."


def _at_most(seconds: float) -> str:
    return "more than 2 h" if seconds == float("inf") else f"at most {seconds * 1000:,.0f} ms"


def run(file: Path, config: Config, load: Load, environ: Mapping[str, str], say: Say) -> Measured:
    """Measure, and remove everything that the run created.

    Raises:
        TransientError, SourceError, SinkError, ConfigError: a side refuses or does not answer, or the daemon ended.
    """
    names = Names(config.name)
    say(
        f"If this process is killed, remove its objects: {cdcd('bench', '--config', file, '--remove', names.name)}"
    )
    try:
        asyncio.run(_execute(config, _table(names)))
        with _daemon(file, config, {**environ, **names.environment()}) as daemon:
            daemon.await_streaming()
            return _measure(config, names, load, daemon, say)
    finally:
        remove(file, config, say)


def remove(file: Path, config: Config, say: Say) -> None:
    """Remove everything that a run created. Raises the errors of `cdcd drop`."""
    say("Removing what the run has made.")
    deadline = time.monotonic() + STOP_S
    while True:
        try:
            removal.run(
                "drop",
                config,
                str(file),
                with_topics=True,
                checkpoint_of="",
                show=lambda _plan: None,
                done=lambda step: say(f"done: {step.what}"),
            )
            break
        except FencedError:
            # The daemon of a killed run has not ended yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    asyncio.run(_execute(config, f"DROP SCHEMA IF EXISTS {quoted(config.name)} CASCADE"))
    say(f"done: schema {config.name}")


def _table(names: Names) -> str:
    return (
        f"CREATE SCHEMA {quoted(names.name)}; "
        f"CREATE TABLE {names.table} (id bigint PRIMARY KEY, made timestamptz NOT NULL DEFAULT now(), note text)"
    )


async def _execute(config: Config, *statements: str) -> list[tuple[Any, ...]]:
    """Execute each statement in a transaction of its own, and return the rows of the last statement."""
    async with _connected(config) as connection:
        for statement in statements:
            cursor = await connection.execute(statement.encode())
        return await cursor.fetchall() if cursor.description is not None else []


@asynccontextmanager
async def _connected(config: Config) -> AsyncIterator[Connection]:
    """Connection for the block. An error of PostgreSQL becomes an error of cdcd with a hint."""
    connection = await connect_to(config, "bench")
    try:
        with translated("cdcd bench", {"role": connection.info.user, "database": connection.info.dbname}):
            yield connection
    finally:
        await connection.close()


async def _write(config: Config, names: Names, load: Load) -> None:
    async with _connected(config) as connection:
        for first in range(1, load.rows + 1, load.rows_each):
            last = min(first + load.rows_each - 1, load.rows)
            text = f"left(repeat(md5(g::text), {load.row_bytes // 32 + 1}), {load.row_bytes})"
            rows = f"SELECT g, {text} FROM generate_series({first}, {last}) g"  # noqa: S608  numbers
            await connection.execute(f"INSERT INTO {names.table} (id, note) {rows}".encode())


async def _write_paced(config: Config, names: Names, first: int) -> int:
    """Write single rows at a steady pace. Returns the number of rows."""
    async with _connected(config) as connection:
        began, count = time.monotonic(), 0
        while time.monotonic() - began < PACED_S:
            await connection.execute(
                f"INSERT INTO {names.table} (id, note) VALUES ({first + count}, 'x')".encode()  # noqa: S608  numbers
            )
            count += 1
            await asyncio.sleep(PACE_S)
        return count


def _measure(config: Config, names: Names, load: Load, daemon: "_Daemon", say: Say) -> Measured:
    lsn = "SELECT pg_current_wal_lsn() - '0/0'"
    before = daemon.metrics()
    ((wal_before,),) = asyncio.run(_execute(config, lsn))
    say(f"Writing {number(load.rows, 'row')}.")
    began = time.monotonic()
    asyncio.run(_write(config, names, load))
    written_s = time.monotonic() - began
    memory = daemon.await_rows(load.rows)
    seconds = time.monotonic() - began
    say(f"PostgreSQL took the rows in {written_s:.1f} s, and Kafka had them after {seconds:.1f} s.")
    after = daemon.metrics()
    ((wal_after,),) = asyncio.run(_execute(config, lsn))
    kafka = daemon.totals()["bytes"]
    say(f"Writing single rows for {PACED_S:.0f} s.")
    count = asyncio.run(_write_paced(config, names, load.rows + 1))
    daemon.await_rows(load.rows + count)
    return Measured(
        rows=load.rows,
        seconds=seconds,
        cpu_s=after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"],
        memory=max(memory, daemon.metrics()["process_resident_memory_bytes"]),
        wal=int(str(wal_after)) - int(str(wal_before)),
        kafka=kafka,
        delays=_quantiles(after, daemon.metrics()),
        compiled=daemon.compiled,
    )


def _quantiles(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """The upper ends of the buckets with the median and the 99th percentile of the delays between two readings."""
    begin = f'{DELAY}_bucket{{le="'
    ends = sorted(
        (float(name.removeprefix(begin).removesuffix('"}')), value - before.get(name, 0.0))
        for name, value in after.items()
        if name.startswith(begin)
    )
    total = ends[-1][1]
    median, high = (next(end for end, count in ends if count >= total * part) for part in (0.5, 0.99))
    return median, high


class _Daemon:
    """A running `cdcd run`, whose status and metrics are read by HTTP.

    Attributes:
        compiled: True if the code of the daemon is compiled.
    """

    def __init__(self, process: "subprocess.Popen[str]", token: str) -> None:
        self._process = process
        self._token = token
        assert process.stderr is not None
        self._said = ""
        for line in process.stderr:
            event = _event(line)
            if event.get("event") == "fatal":
                self._said = str(event.get("message"))
            if event.get("event") == "daemon.started":
                self._url = f"http://{event['http']}"
                self.compiled = bool(event.get("compiled"))
                return
        raise TransientError(
            f"The daemon ended at its start. {self._said}", hint=f"`{cdcd('check')}` says what is missing."
        )

    def totals(self) -> dict[str, int]:
        found: dict[str, int] = self._status()["totals"]
        return found

    def metrics(self) -> dict[str, float]:
        """The values of all metrics, by name with labels as Prometheus reads them."""
        text = fetch(f"{self._url}/metrics", None, is_own=True, token=self._token)
        samples = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in samples}

    def await_streaming(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._status()["streaming"]:
            if time.monotonic() > deadline:
                raise TransientError(
                    f"The daemon does not stream after {START_S:.0f} s.", hint=f"`{cdcd('check')}`"
                )
            time.sleep(0.2)

    def await_rows(self, rows: int) -> float:
        """Wait until Kafka has acknowledged this number of rows. Returns the largest memory that was seen, in bytes."""
        memory, seen, changed = 0.0, -1, time.monotonic()
        while (now := self.totals()["rows"]) < rows:
            if now != seen:
                seen, changed = now, time.monotonic()
            if time.monotonic() - changed > STALL_S:
                raise TransientError(
                    f"The daemon delivered {now:,} of {rows:,} rows, and no further row for a minute."
                )
            memory = max(memory, self.metrics()["process_resident_memory_bytes"])
            time.sleep(0.1)
        return memory

    def _status(self) -> dict[str, Any]:
        if self._process.poll() is not None:
            raise TransientError(
                "The daemon ended during the run.", hint=f"`{cdcd('check')}` says what is missing."
            )
        found: dict[str, Any] = json.loads(
            fetch(f"{self._url}/v1/status", None, is_own=True, token=self._token)
        )
        return found


def _event(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _daemon(file: Path, config: Config, environ: Mapping[str, str]) -> Iterator[_Daemon]:
    """Run `cdcd run` with these variables while the block runs. `config`: the configuration with these variables."""
    command = [sys.executable, "-m", "cdcd.cli", "run", "--config", str(file)]
    token = config.http.read_token
    # The daemon has its own session. So Ctrl-C reaches only this process, which then stops the daemon.
    process = subprocess.Popen(  # noqa: S603  cdcd itself
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509  there is no other thread yet
    )
    try:
        found = _Daemon(process, "" if token is None else token.get_secret_value())
        # The daemon would stop at a full pipe.
        Thread(target=_drain, args=(process,), daemon=True).start()
        yield found
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    """Let the kernel stop the new process when its parent ends, also if the parent is killed (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_PR_SET_PDEATHSIG: Final = 1


def _drain(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    for _ in process.stderr:
        pass
