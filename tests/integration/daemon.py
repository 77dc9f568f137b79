"""The daemon as the process that it is: started, stopped, killed, frozen, and heard.

`Daemon` runs `cdcd run` and reads its log as it comes, so that a test awaits what happened instead of sleeping:

    daemon = Daemon(folder, configuration(unique, database.dsn(), broker.bootstrap_servers))
    daemon.start()
    daemon.await_event("stream.started")
    …
    assert daemon.stop() == 0

What it waits for comes, or the test fails with the end of the log: also when the process has ended meanwhile.
Start one with an environment or module of its own from the main thread: the kernel ends it with the thread that started
it (`deploy/local/process.py`).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import psycopg
import yaml

from deploy.demo.daemon import Samples, parse_metrics
from deploy.local.cache import REPOSITORY
from tests.bench.processes import peak_rss_bytes
from tests.integration.faults import told
from tests.integration.forked import Forked

WAIT_S: Final = 120.0
"""How long an event or a state is awaited that comes at once where nothing else runs."""

BUSY_S: Final = 30.0
"""What a busy machine may add to a bound; what must not be waited for takes a minute."""

LAST_WORDS: Final = 25

T = TypeVar("T")

Event = dict[str, Any]
"""A line of the log: `event`, `level`, `timestamp` and the event's fields (docs/events.md)."""


def configuration(name: str, dsn: str, bootstrap_servers: str, **sections: Any) -> dict[str, Any]:
    """A configuration in a hurry: short intervals and back-offs. `sections` are laid over it, section by section.

    Only the lease is longer than the default: a machine that stands still for 3 s must not end a session of a test that
    is about something else. Logical messages are delivered, which they are not by default.

    `configuration("shop", dsn, servers, postgres={"two_phase": True}, shutdown_timeout_s=5)`.
    """
    found: dict[str, Any] = {
        "name": name,
        "postgres": {
            "dsn": dsn,
            "lease_s": 15,
            "status_interval_s": 0.2,
            "messages": True,
            "retry": {"initial_s": 0.05, "max_s": 0.5},
        },
        "kafka": {
            "bootstrap_servers": bootstrap_servers,
            "retry": {"initial_s": 0.05, "max_s": 0.5},
        },
        "http": {"port": 0},
        # Tests send requests by statements of their own; tests/attacks has those of strangers to the default.
        "snapshot": {"mode": "never", "signals_from": "anybody"},
        # Most tests of faults are about the error that names them. tests/integration/test_table_faults.py has the rest.
        "tables": {"on_error": "stop"},
    }
    for section, value in sections.items():
        if isinstance(value, Mapping):
            found[section] = {**found.get(section, {}), **value}
        else:
            found[section] = value
    return found


class Daemon:
    """`cdcd run` with one configuration; one process after the other. `events` are those of all of them.

    Args:
        folder: gets the configuration and the spool; created.
        config: as in the YAML file, for example from `configuration`.
        environment: of its processes, for example of another form of the daemon (`tests/bench/forms.py`); None: ours.
        module: what Python runs in place of cdcd's command line (`tests/trial/entry.py`).

    With neither, the process is a `Forked` one.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
        module: str = "cdcd.cli",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        spool = {"directory": str(folder / "spool"), **config.get("spool", {})}
        self.config = {**config, "spool": spool}
        self.config_path = folder / "cdcd.yaml"
        self._environment = environment
        self._module = module
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._reader: threading.Thread | None = None
        self._since = 0
        self.lines_since = 0
        self.is_awaited = False
        """Started, and its end was not waited for: it may have come already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def write_config(self) -> None:
        """Write `config` to the file. Only this user may read the file, because a DSN may contain a password."""
        self.config_path.touch(mode=0o600)
        self.config_path.write_text(yaml.safe_dump(dict(self.config), sort_keys=False))

    # The process.

    def start(self, *arguments: str) -> None:
        """Returns at once; `arguments` come after `cdcd run --config FILE`."""
        assert not self.is_running(), "the daemon is running"
        self.write_config()
        self._since = len(self.events)
        self.lines_since = len(self.lines)
        self.is_awaited = True
        self._process = self._begin(["run", "--config", str(self.config_path), *arguments])
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _begin(self, arguments: list[str]) -> subprocess.Popen[bytes] | Forked:
        if self._environment is None and self._module == "cdcd.cli":
            reader, writer = os.pipe()
            with Path(os.devnull).open("r+b") as nothing, os.fdopen(writer, "wb"):
                process = Forked(arguments, (nothing.fileno(), nothing.fileno(), writer))
            process.stderr = os.fdopen(reader, "rb")
            return process
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", self._module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            env=self._environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon was never started"
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self._signal(signal.SIGTERM)

    def stop(self, timeout_s: float = WAIT_S) -> int:
        """SIGTERM; the exit code."""
        self.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """The exit code, when it ends by itself."""
        assert self._process is not None, "the daemon was never started"
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running {timeout_s:g} s later:\n{self.last_words()}") from None
        self.is_awaited = False
        self._drain()
        told.hear("cdcd run", code, self.output())
        return code

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            is_heard = not self.is_awaited
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self.is_awaited = False
            self._drain()
            if not is_heard:
                told.hear("cdcd run", None, self.output())

    def pause(self) -> None:
        """Freeze it (SIGSTOP) until `resume`; its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def reload(self) -> None:
        """SIGHUP, after the configuration that `config` holds was written again."""
        self.write_config()
        self._signal(signal.SIGHUP)

    # What it says.

    def mark(self) -> int:
        """A place in `events`, for `await_event(after=…)`."""
        with self._heard:
            return len(self.events)

    def await_event(
        self, name: str, *, after: int | None = None, timeout_s: float = WAIT_S, **fields: Any
    ) -> Event:
        """The first such event with these fields since `after`, by default since the last `start`."""
        at = self._since if after is None else after
        deadline = time.monotonic() + timeout_s
        with self._heard:
            while True:
                for event in self.events[at:]:
                    if event["event"] == name and fields.items() <= event.items():
                        return event
                at = len(self.events)
                ended = self._reader is None or not self._reader.is_alive()
                if ended or not self._heard.wait(deadline - time.monotonic()):
                    if at < len(self.events):
                        continue
                    why = "the daemon ended" if ended else f"{timeout_s:g} s passed"
                    raise AssertionError(f"{why} without {name} {fields or ''}:\n{self.last_words()}")

    def saw(self, name: str, *, after: int | None = None) -> bool:
        """Whether there was such an event since `after`, by default since the last `start`."""
        at = self._since if after is None else after
        return any(event["event"] == name for event in self.events[at:])

    def await_streaming(self, timeout_s: float = WAIT_S) -> Event:
        """The event that says from where this life streams."""
        return self.await_event("stream.started", timeout_s=timeout_s)

    def metrics(self) -> Samples:
        """What it measures, by name and then by the values of the labels in the order of their names:
        `metrics()["cdcd_flushed_lsn"][()]`, `metrics()["cdcd_events_total"]["c", "public.t"]`.

        The daemon keeps its answer for a moment, so what has just happened may be missing: see `await_metric`.
        """
        text: str = self._get("/metrics")
        return parse_metrics(text)

    def await_metric(
        self, name: str, wanted: Callable[[float], bool], *labels: str, timeout_s: float = WAIT_S
    ) -> float:
        """The metric's value as soon as it is as wanted; sampled, for numbers make no event."""

        def sample() -> float | None:
            value = self.metrics().get(name, {}).get(labels)
            return value if value is not None and wanted(value) else None

        return until(sample, f"{name}{list(labels)} was never as wanted", timeout_s)

    def peak_memory_bytes(self) -> int:
        """The largest resident set so far (VmHWM, proc(5))."""
        return peak_rss_bytes(self.pid)

    def output(self, *, all_lives: bool = False) -> str:
        """What it said on standard error since the last `start`, or ever: the log, and what is no log."""
        with self._heard:
            return "\n".join(self.lines[0 if all_lives else self.lines_since :])

    def last_words(self) -> str:
        """The end of its log."""
        with self._heard:
            return "\n".join(self.lines[-LAST_WORDS:])

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the daemon was never started"
        self._process.send_signal(number)

    def page(self, path: str) -> str:
        """What its HTTP server answers."""
        return self._get(path)

    def _get(self, path: str) -> str:
        started = self.await_event("daemon.started")
        with urllib.request.urlopen(f"http://{started['http']}{path}", timeout=WAIT_S) as answer:
            text: str = answer.read().decode()
            return text

    def _read(self, process: subprocess.Popen[bytes] | Forked) -> None:
        assert process.stderr is not None
        with process.stderr as stream:
            for line in stream:
                self._hear(line.decode(errors="replace").rstrip())
        with self._heard:
            self._heard.notify_all()

    def _hear(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        with self._heard:
            self.lines.append(line)
            if isinstance(event, dict) and "event" in event:
                self.events.append(event)
            self._heard.notify_all()

    def _drain(self) -> None:
        """The process is gone: hear what it said last."""
        if self._reader is not None:
            self._reader.join(WAIT_S)


def until(look: Callable[[], T | None], otherwise: str, timeout_s: float = WAIT_S) -> T:
    """What `look` finds, as soon as it is something: for states of which nothing tells (a slot's position)."""
    deadline = time.monotonic() + timeout_s
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise AssertionError(f"{timeout_s:g} s passed: {otherwise}")
        time.sleep(0.02)
    return found


def confirmed(dsn: str, slot: str) -> int:
    """The slot's confirmed_flush_lsn, as a number."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
            (slot,),
        ).fetchone()
    assert row is not None, f"there is no slot {slot}"
    return int(row[0])


def await_released(dsn: str, slot: str) -> None:
    """Until nobody reads the slot: the server ends a walsender when it has heard that its client is gone."""
    active = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
    with psycopg.connect(dsn, autocommit=True) as connection:
        until(lambda: not connection.execute(active, (slot,)).fetchall() or None, f"{slot} is still read")


def drop_slot(dsn: str, slot: str) -> None:
    """Drop the slot when nobody reads it any more."""
    await_released(dsn, slot)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def wal_end(dsn: str) -> int:
    """The end of the server's WAL now, as a number."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(row[0])
