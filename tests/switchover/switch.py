"""One handover from a former server to a new one, under writes, with kills that a seed draws.

    writers and daemon on the former server  ->  writes stop  ->  prepare, killed and run again  ->  adopt, likewise
    ->  writers and daemon on the new server  ->  topics compared with the tables of the new server

The topics must equal the tables, and have each transaction of both servers once, whole and in its session's order
(`deploy/demo/workload.py`).
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from cdcd.core.errors import PositionError
from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.workload import Workload
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import Daemon, configuration, until
from tests.switchover.writers import FEATURES, FORMER, NEW, writing

COMMAND_S: Final = 300.0
WAL_FILES: Final = 12
"""WAL files that bring the new server's LSN behind the former one's."""

KILLS: Final = (0, 0, 1, 2)
"""How often a command is killed, each as likely."""

SLIPPED: Final = 0.25
"""How likely a write on the new server before `adopt` is."""

SEEDS: Final = 1_000_000
"""The writers of the new server have a seed of their own."""

PREPARE_LINES: Final = 6
ADOPT_LINES: Final = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went.

    Attributes:
        rate: transactions a second that were committed on the former server.
        kills: of prepare, and of adopt.
        daemon_killed: the daemon was killed, not stopped, when `prepare` asked for its stop.
        slipped: a write on the new server came before `adopt`.
        stopped_s: from the stop of the writes to the end of `adopt`.
    """

    rate: float
    kills: tuple[int, int]
    daemon_killed: bool
    slipped: bool
    stopped_s: float
    report: Report


class Switch:
    """A pipeline on `former`, and `new`, which follows it."""

    def __init__(
        self, former: int, new: int, broker: KafkaBroker, folder: Path, name: str, stack: ExitStack, seed: int
    ) -> None:
        self._dice = random.Random(seed)
        self._seed = seed
        self._name = name
        self._broker = broker
        self._folder = folder
        self._former, self._new = (
            self._server(version, folder / which, stack)
            for version, which in ((former, "former"), (new, "new"))
        )
        for _ in range(WAL_FILES):
            self._new.execute("SELECT pg_logical_emit_message(false, 'fill', 'x'), pg_switch_wal()")
        self._new.execute(
            f"CREATE SUBSCRIPTION follow CONNECTION '{self._former.dsn()}' PUBLICATION {self._slot}"
        )
        ready = "SELECT 1 FROM pg_subscription_rel HAVING bool_and(srsubstate = 'r')"
        until(lambda: self._new.execute(ready) or None, "the subscription is not ready")
        self._to = folder / "new.yaml"
        self._to.write_text(yaml.safe_dump(self._settings(self._new), sort_keys=False))
        self._daemon = stack.enter_context(Daemon(folder / "daemon", self._settings(self._former)))
        self._stack = stack
        self._daemon_killed = False

    @property
    def _slot(self) -> str:
        return f"cdcd_{self._name}"

    def _server(self, version: int, folder: Path, stack: ExitStack) -> PostgresServer:
        server = PostgresServer(version, folder, own_identity=True)
        stack.callback(server.destroy)
        server.start()
        Workload(server.dsn(), self._seed, FEATURES).create()
        server.execute(f"CREATE PUBLICATION {self._slot} FOR ALL TABLES")
        return server

    def _settings(self, server: PostgresServer) -> dict[str, Any]:
        return configuration(
            self._name, server.dsn(), self._broker.bootstrap_servers, snapshot={"mode": "initial"}
        )

    def run(self, rate: float, seconds: float, say: Callable[[str], None]) -> Outcome:
        """Do it. AssertionError: a command does not do what it promises."""
        dice = self._dice
        self._daemon.start()
        self._daemon.await_event("snapshot.finished")
        self._daemon.await_streaming()
        began = time.monotonic()
        with writing(self._former, self._seed, rate, self._folder, FORMER):
            time.sleep(seconds)
            stopped_at = time.monotonic()
        took = time.monotonic() - began
        written = self._former.execute("SELECT count(*) FROM events_log")[0][0]
        say(f"{written} transactions in {took:.0f} s")
        prepare = self._repeat(
            ["prepare", "--config", str(self._daemon.config_path), "--to", str(self._to)],
            PREPARE_LINES,
            "The pipeline is sealed at",
            say,
        )
        slipped = dice.random() < SLIPPED
        adopt = ["adopt", "--config", str(self._to)]
        if slipped:
            self._slip()
            adopt.append("--deliver-writes")
        adopted = self._repeat(adopt, ADOPT_LINES, "", say)
        stopped_s = time.monotonic() - stopped_at
        say(f"writes were stopped for {stopped_s:.1f} s")
        with writing(self._new, self._seed + SEEDS, rate, self._folder, NEW):
            daemon = self._stack.enter_context(Daemon(self._folder / "daemon", self._settings(self._new)))
            daemon.start()
            daemon.await_streaming()
            time.sleep(seconds / 2)
        await_flushed(self._new.dsn(), self._slot, COMMAND_S)
        assert daemon.stop() == 0, daemon.last_words()
        report = compare(self._new.dsn(), self._broker.bootstrap_servers, self._name, rows_before=True)
        return Outcome(written / took, (prepare, adopted), self._daemon_killed, slipped, stopped_s, report)

    def _slip(self) -> None:
        """Somebody writes to the new server too early, which is refused with its LSN."""
        self._new.execute("INSERT INTO events_log VALUES ('slipped', 1, 1, 'slipped', false, 0, 0, '{}')")
        refused = subprocess.run(
            self._command(["adopt", "--config", str(self._to)]),
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
        assert refused.returncode == PositionError.exit_code, refused.stdout + refused.stderr
        assert "1 transaction was written after the fence" in refused.stderr, refused.stderr

    def _repeat(self, arguments: Sequence[str], lines: int, done: str, say: Callable[[str], None]) -> int:
        """Run the command, kill it as drawn, and run it again until it has done its work.

        Args:
            lines: the command says so many; a kill comes after any of them.
            done: what the command says on standard error if a killed one has done all of it.

        Returns:
            How often it was killed.
        """
        killed = 0
        for _ in range(self._dice.choice(KILLS)):
            at, wait_s = self._dice.randint(0, lines), self._dice.uniform(0, 1)
            code, errors = self._once(arguments, at, wait_s)
            say(f"{arguments[0]} after {at} lines and {wait_s:.2f} s: {code}")
            if code == 0:
                return killed
            if code > 0:
                assert killed, errors
                assert done, errors
                assert done in errors, errors
                return killed
            killed += 1
        code, errors = self._once(arguments, None, 0.0)
        say(f"{arguments[0]}: {code}")
        assert code == 0 or (killed and done and done in errors), errors
        return killed

    def _once(self, arguments: Sequence[str], kill_at: int | None, wait_s: float) -> tuple[int, str]:
        """Run the command, do what it asks for, and kill it a moment after so many lines.

        Returns:
            Its exit code (negative: it was killed), and what it said on standard error.
        """
        running = subprocess.Popen(
            self._command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with running:
            assert running.stdout is not None
            assert running.stderr is not None
            heard = 0
            while True:
                if heard == kill_at:
                    time.sleep(wait_s)
                    running.kill()
                line = running.stdout.readline()
                if not line:
                    break
                heard += 1
                if line.startswith("Stop all instances"):
                    self._stop_daemon()
                elif line.startswith("Nobody reads slot") and not self._daemon.is_running():
                    self._daemon.start()
            errors = running.stderr.read()
            return running.wait(COMMAND_S), errors

    def _stop_daemon(self) -> None:
        if self._dice.random() < 0.5:
            self._daemon_killed = True
            self._daemon.kill()
        else:
            assert self._daemon.stop() == 0, self._daemon.last_words()

    @staticmethod
    def _command(arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "cdcd.cli", "handover", *arguments]
