"""`cdcd verify` over many rows, while writers go on at a rate and the daemon is killed: no false difference.

Each run compares all rows of all tables. With `--rounds 1`, it is the command as a process of its own, which must end
with 0 and `equal`. With more, one process compares so many times (`--continuous`), and folds the topics further each
time. It must stay below its memory. The writers change rows of all tables throughout. The seed draws which runs the
daemon is killed in, and when.

In the end some rows are made different on purpose. The command must name exactly these, `--repair` must mend them, and
then the tables are equal again.

    python -m tests.chaos.verified [--rows 5000000] [--runs 50] [--rounds 1] [--kills 10]
        [--results build/results/verified.md]

Rows of several invocations add up in the file of results.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from deploy.local import POSTGRES_VERSIONS, KafkaBroker, PostgresServer
from tests.bench.forms import FORMS, environment
from tests.chaos.verified_command import Command, Done
from tests.chaos.verified_planted import plant
from tests.chaos.verified_results import EQUAL, Kill, Planted, Run, add, plan
from tests.chaos.verified_tables import BEFORE, tables, writing
from tests.integration.daemon import Daemon, configuration
from tests.scratch import scratch_folder
from tests.tested_commit import tested_commit

NAME: Final = "verified"
DATABASE: Final = "verified"
PARTITIONS: Final = 2
DIFFERENT: Final = "differs"

# Without a limit of the rate, each slice has all tables.
_CONTINUOUS: Final = ("--continuous", "--interval", "1", "--port", "0", "--rate", "0")

READ_ROWS_S: Final = 2000
"""Rows a second that the daemon's snapshot and `cdcd verify` read at least, on any machine."""

FIRST_ROWS_S: Final = 20_000
"""Rows a second at which the first run is reckoned with, to find the moments of its kills."""

SETTINGS: Final = {"shared_buffers": "256MB", "max_wal_size": "4GB"}


class Proof:
    """The servers, the tables, the writers and the daemon of one invocation, and the runs of the command.

    Args:
        say: told what goes on, in a sentence.
    """

    def __init__(
        self, options: argparse.Namespace, seed: int, stack: ExitStack, say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._seed = seed
        self._say = say
        self._folder = stack.enter_context(scratch_folder())
        self._server = stack.enter_context(
            PostgresServer(options.version, self._folder / "postgres", settings=SETTINGS)
        )
        self._broker = stack.enter_context(KafkaBroker(self._folder / "kafka"))
        self._tables = tables(options.tables, options.rows)
        self._environment = environment(options.form)
        config = configuration(
            NAME,
            self._server.dsn(DATABASE),
            self._broker.bootstrap_servers,
            snapshot={"mode": "initial", "signals": "all"},
            topics={"create": {"partitions": PARTITIONS}},
        )
        self._daemon = stack.enter_context(
            Daemon(self._folder / "daemon", config, environment=self._environment)
        )
        self._limit_s = 600 + options.rows / READ_ROWS_S
        # By the round: the first round of a process folds whole topics, and each later round folds only new records.
        self._last_s = {1: options.rows / FIRST_ROWS_S, 2: options.rows / FIRST_ROWS_S}
        self._late: list[Kill] = []

    def begin(self) -> None:
        """Fill the tables, and have the daemon read them."""
        self._server.execute(f"CREATE DATABASE {DATABASE}")
        self._server.execute(BEFORE, DATABASE)
        for table in self._tables:
            for statement in table.create():
                self._server.execute(statement, DATABASE)
        self._say(f"{self._options.rows:,} rows are in {len(self._tables)} tables")
        self._daemon.start()
        self._daemon.await_event("snapshot.finished", timeout_s=self._limit_s)
        self._daemon.await_streaming()
        self._say("the daemon has read them")

    def runs(self, keep: Callable[[Run], None]) -> bool:
        """All runs under writes; whether each was sound."""
        options = self._options
        kills = plan(self._seed, options.runs, options.kills)
        good = True
        with self._writing():
            for begin in range(0, options.runs, options.rounds):
                good &= self._rounds(begin, kills[begin : begin + options.rounds], keep)
        return good

    def _rounds(self, begin: int, kills: Sequence[Sequence[Kill]], keep: Callable[[Run], None]) -> bool:
        """The runs of one process; whether each was sound.

        Args:
            begin: how many runs there were before.
            kills: of the daemon, in each run.
        """
        good = True
        with self._command(_CONTINUOUS if len(kills) > 1 else ()) as command:
            for round_, some in enumerate(kills, 1):
                before = self._committed()
                # Kills that came too late in the run before come in this one.
                done = self._run(
                    command,
                    sorted([*self._late, *some], key=lambda kill: kill.share),
                    round_=round_,
                    is_last=round_ == len(kills),
                )
                run = self._result(begin + round_, done, round_, (self._committed() - before) / done.seconds)
                keep(run)
                is_good = run.is_sound and run.tables == len(self._tables)
                good &= is_good
                if not is_good:
                    self._say(f"{done.said}\n{json.dumps(done.report, ensure_ascii=False)}")
                if done.code is not None:
                    break
        return good and done.code == 0

    def differences(self, keep: Callable[[Planted], None]) -> bool:
        """Rows that were made different are named and mended, under writes; whether that is so."""
        dsn = self._server.dsn(DATABASE)
        planted = plant(dsn, self._broker.bootstrap_servers, NAME, self._tables)
        wanted = {(table, key) for table, keys in planted.items() for key in keys}
        self._say(f"{len(wanted)} rows in {len(planted)} tables were made different")
        with self._writing():
            found = self._verify()
            named = {(table, key) for table, keys in found.named().items() for key in keys}
            self._say(f"{found.verdict} in {found.seconds:.0f} s: {len(named)} rows are named")
            repaired = self._verify(options=["--repair"])
            self._say(f"--repair: {repaired.verdict} in {repaired.seconds:.0f} s")
            after = self._verify()
        verdict = after.verdict if repaired.verdict == EQUAL else repaired.verdict
        result = Planted(*self._which(), len(wanted), len(named & wanted), len(named - wanted), verdict)
        keep(result)
        if not result.is_sound or found.verdict != DIFFERENT:
            self._say(f"{found.said}{repaired.said}{after.said}")
        return result.is_sound and found.verdict == DIFFERENT

    def end(self) -> None:
        """Stop the daemon."""
        assert self._daemon.stop() == 0, self._daemon.last_words()

    def _writing(self) -> Any:
        options = self._options
        return writing(self._server, DATABASE, self._tables, options.rate, self._seed, self._folder)

    def _committed(self) -> int:
        """Transactions that were committed in the database so far."""
        sql = f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{DATABASE}'"
        return int(self._server.execute(sql)[0][0])

    def _which(self) -> tuple[str, str, int]:
        commit = tested_commit("tests/chaos/verified*.py")
        return f"{datetime.now(UTC):%Y-%m-%d}", commit, self._seed

    def _result(self, number: int, done: Done, round_: int, rate: float) -> Run:
        return Run(
            *self._which(),
            number,
            round_,
            self._options.version,
            self._options.form,
            len(done.report.get("tables", ())),
            done.count("rows"),
            done.count("records"),
            (self._options.rate, rate),
            done.kills,
            done.seconds,
            done.cpu_s,
            done.peak_bytes,
            os.getloadavg()[0],
            done.verdict,
        )

    def _verify(self, options: Sequence[str] = ()) -> Done:
        """Run the command once."""
        with self._command(options) as command:
            return self._run(command, (), round_=1, is_last=True)

    def _command(self, options: Sequence[str]) -> Command:
        return Command(self._daemon.config_path, self._folder, self._environment, options)

    def _run(self, command: Command, kills: Sequence[Kill], *, round_: int, is_last: bool) -> Done:
        """Wait for a report, and kill the daemon meanwhile."""
        assert self._daemon.is_running(), self._daemon.last_words()
        began = time.monotonic()
        killed = self._kill(command, began, self._last_s[min(round_, 2)], kills)
        if not command.has_reported(self._limit_s):
            command.kill()
        done = command.report(is_last=is_last)
        self._last_s[min(round_, 2)] = done.seconds
        return replace(done, kills=killed)

    def _kill(self, command: Command, began: float, last_s: float, kills: Sequence[Kill]) -> int:
        """Kill the daemon at these moments of a run, and start it again; how often.

        Kills that are not due before the report comes are left for the next run.

        Args:
            last_s: how long the last run like this one took.
        """
        for done, kill in enumerate(kills):
            if command.has_reported(began + kill.share * last_s - time.monotonic()):
                self._late = list(kills[done:])
                return done
            self._daemon.kill()
            command.has_reported(kill.down_s)
            self._daemon.start()
            self._daemon.await_streaming(self._limit_s)
        self._late = []
        return len(kills)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if no run found a difference, and those that were made were named and mended."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.verified")
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--rows", type=int, default=5_000_000, help="of all tables together")
    parser.add_argument("--rate", type=float, default=500.0, help="transactions a second")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1, help="runs of one process")
    parser.add_argument("--kills", type=int, default=10, help="of the daemon, in all runs together")
    parser.add_argument("--seed", type=int, help="a random one by default")
    parser.add_argument("--version", type=int, choices=POSTGRES_VERSIONS, default=POSTGRES_VERSIONS[-1])
    parser.add_argument("--form", choices=FORMS, default="compiled")
    parser.add_argument("--results", type=Path, help="the file that gets a row for each run")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{seed}: {time.monotonic() - began:7.1f} s  {text}", flush=True)

    def keep(result: Run | Planted) -> None:
        print(result.row(), flush=True)
        if options.results is not None:
            options.results.parent.mkdir(parents=True, exist_ok=True)
            text = options.results.read_text() if options.results.exists() else ""
            options.results.write_text(add(text, result))

    with ExitStack() as stack:
        proof = Proof(options, seed, stack, say)
        proof.begin()
        good = proof.runs(keep)
        good &= proof.differences(keep)
        proof.end()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
