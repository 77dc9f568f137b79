"""One cell of the matrix: servers of its own, a workload, a shuffled list of disasters, and the reckoning.

The seed decides the workload's transactions, the order of the disasters and their moments; how they interleave is the
machine's doing, so a seed is a hint to a failure, not a replay of it. What the daemon must never do is end by itself.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.workload import Workload
from deploy.local import KafkaBroker, PostgresServer, cache_folder
from tests.integration.daemon import Daemon, configuration
from tests.scratch import scratch_folder

NAME: Final = "chaos"
SLOT: Final = f"cdcd_{NAME}"

STREAMING: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        13: ("off",),
        14: ("off", "on"),
        15: ("off", "on"),
        16: ("off", "on", "parallel"),
        17: ("off", "on", "parallel"),
        18: ("off", "on", "parallel"),
    }
)
"""What pgoutput has in each major version."""

TWO_PHASE_SINCE: Final = 15

CALM_S: Final = 90.0
"""At the end, with nobody killed any more, everything is delivered within this time."""

RATE: Final = 30.0
"""The workload's transactions a second: what the daemon keeps up with while it lives for a second at a time."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is tried together."""

    version: int
    streaming: str
    two_phase: bool

    def __str__(self) -> str:
        return f"{self.version}-{self.streaming}-{'two_phase' if self.two_phase else 'one_phase'}"


def matrix(
    versions: Sequence[int] = tuple(STREAMING),
    streaming: Sequence[str] = ("off", "on", "parallel"),
    two_phase: Sequence[bool] = (False, True),
) -> list[Cell]:
    """The cells that the servers have."""
    return [
        Cell(version, mode, phase)
        for version in versions
        for mode in streaming
        for phase in two_phase
        if mode in STREAMING[version] and (version >= TWO_PHASE_SINCE or not phase)
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a cell came out; `disasters` counts them by name."""

    cell: Cell
    seed: int
    disasters: Counter[str]
    lives: int
    statistics: Counter[str]
    report: Report
    seconds: float

    @property
    def kills(self) -> int:
        """How often the daemon was ended by SIGKILL."""
        return self.disasters["daemon killed"]

    def __str__(self) -> str:
        others = ", ".join(
            f"{count} {name}" for name, count in sorted(self.disasters.items()) if name != "daemon killed"
        )
        return (
            f"{self.cell!s:24} seed {self.seed} {'equal' if self.report.equal else 'NOT EQUAL':9} "
            f"{self.kills} kills, {self.lives} lives, {self.statistics['committed']} committed, "
            f"{self.report.transactions} transactions, {self.report.records} records, {self.seconds:.0f} s ({others})"
        )


class Chaos:
    """The servers and the daemon of one cell, and what can happen to them."""

    def __init__(
        self, dice: random.Random, postgres: PostgresServer, broker: KafkaBroker, daemon: Daemon
    ) -> None:
        self.dice = dice
        self.postgres = postgres
        self.broker = broker
        self.daemon = daemon
        self.counts: Counter[str] = Counter()

    def kill_daemon(self) -> None:
        """SIGKILL; it must have been alive until now."""
        assert self.daemon.is_running(), f"the daemon ended by itself:\n{self.daemon.last_words()}"
        self.daemon.kill()
        self.counts["daemon killed"] += 1

    def wait(self, longest_s: float) -> None:
        """Let everybody work, for a random time."""
        time.sleep(self.dice.uniform(0, longest_s))

    def kill_while_streaming(self) -> None:
        self.daemon.await_streaming()
        self.wait(1.2)
        self.kill_daemon()
        self.daemon.start()

    def kill_while_starting(self) -> None:
        """Some moment between the process's start and its first rows."""
        self.daemon.await_streaming()
        self.kill_daemon()
        self.daemon.start()
        self.daemon.await_event(self.dice.choice(("lock.acquired", "checkpoint.read", "stream.started")))
        self.wait(0.1)
        self.kill_daemon()
        self.daemon.start()

    def stop_daemon(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        code = self.daemon.stop()
        assert code == 0, f"SIGTERM: exit code {code}\n{self.daemon.last_words()}"
        self.daemon.start()

    def freeze_daemon(self) -> None:
        self.daemon.await_streaming()
        self.daemon.pause()
        self.wait(2)
        self.daemon.resume()

    def stop_postgres(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        self.postgres.restart("fast")

    def stop_postgres_at_once(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        self.postgres.restart("immediate")

    def kill_postgres(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        self.postgres.kill()
        self.postgres.start()

    def kill_postgres_and_daemon(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        self.kill_daemon()
        self.postgres.kill()
        self.daemon.start()
        self.postgres.start()

    def kill_broker(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        self.broker.kill()
        self.wait(1)
        self.broker.start()

    def kill_broker_and_daemon(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        self.broker.kill()
        self.wait(1)
        self.kill_daemon()
        self.daemon.start()
        self.broker.start()

    def restart_broker(self) -> None:
        self.daemon.await_streaming()
        self.wait(1)
        self.broker.restart()

    def freeze_broker(self) -> None:
        self.daemon.await_streaming()
        self.broker.pause()
        self.wait(3)
        self.broker.resume()

    def play(self, disasters: Sequence[str]) -> None:
        """One disaster after the other, each counted under its name."""
        for name in disasters:
            DISASTERS[name](self)
            assert self.daemon.is_running(), f"the daemon ended after {name}:\n{self.daemon.last_words()}"
            self.counts[name] += 1


DISASTERS: Final[Mapping[str, Callable[[Chaos], None]]] = MappingProxyType(
    {
        "killed while streaming": Chaos.kill_while_streaming,
        "killed while starting": Chaos.kill_while_starting,
        "stopped": Chaos.stop_daemon,
        "frozen": Chaos.freeze_daemon,
        "postgres fast": Chaos.stop_postgres,
        "postgres immediate": Chaos.stop_postgres_at_once,
        "postgres killed": Chaos.kill_postgres,
        "postgres killed too": Chaos.kill_postgres_and_daemon,
        "broker killed": Chaos.kill_broker,
        "broker killed too": Chaos.kill_broker_and_daemon,
        "broker restarted": Chaos.restart_broker,
        "broker frozen": Chaos.freeze_broker,
    }
)

KILLS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "killed while streaming": 1,
        "killed while starting": 2,
        "postgres killed too": 1,
        "broker killed too": 1,
    }
)
"""SIGKILLs of the daemon in each disaster that has any."""

ALWAYS: Final = (
    "stopped",
    "frozen",
    "postgres fast",
    "postgres immediate",
    "postgres killed",
    "postgres killed too",
    "broker killed",
    "broker frozen",
)
"""These come in every cell, and one of the broker's other two; the daemon's kills come between them."""


def disasters_for(dice: random.Random, kills: int) -> list[str]:
    """`ALWAYS`, and as many kills of the daemon as make `kills` with those, in random order."""
    others = [*ALWAYS, dice.choice(("broker killed too", "broker restarted"))]
    left = max(0, kills - sum(KILLS.get(name, 0) for name in others))
    starting = left // 6
    everything = [
        *others,
        *["killed while starting"] * starting,
        *["killed while streaming"] * (left - KILLS["killed while starting"] * starting),
    ]
    dice.shuffle(everything)
    return everything


def run(cell: Cell, *, seed: int, kills: int = 20, rate: float = RATE) -> Outcome:
    """Run one cell on servers of its own; AssertionError when the daemon does not live through it."""
    began = time.monotonic()
    dice = random.Random(f"{seed} {cell}")
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        postgres = PostgresServer(cell.version, folder / "postgres")
        stack.callback(postgres.destroy)
        postgres.start()
        broker = KafkaBroker(folder / "kafka")
        stack.callback(broker.destroy)
        broker.start()
        postgres.execute(f"CREATE DATABASE {NAME}")
        dsn = postgres.dsn(NAME)
        workload = Workload(dsn, seed, rate=rate)
        workload.create()
        daemon = stack.enter_context(Daemon(folder / "daemon", _configuration(cell, dice, dsn, broker)))
        stack.push(lambda kind, *_: _keep_log(cell, seed, daemon) if kind else None)
        chaos = Chaos(dice, postgres, broker, daemon)
        daemon.start()
        daemon.await_streaming()
        with workload:
            chaos.play(disasters_for(dice, kills))
            daemon.await_streaming(CALM_S)
        await_flushed(dsn, SLOT, CALM_S)
        report = compare(dsn, broker.bootstrap_servers, NAME)
        if not report.equal:
            _keep_log(cell, seed, daemon)
        code = daemon.stop()
        assert code == 0, f"SIGTERM: exit code {code}\n{daemon.last_words()}"
    lives = sum(event["event"] == "stream.started" for event in daemon.events)
    return Outcome(cell, seed, chaos.counts, lives, workload.stats, report, time.monotonic() - began)


def _configuration(cell: Cell, dice: random.Random, dsn: str, broker: KafkaBroker) -> dict[str, Any]:
    return configuration(
        NAME,
        dsn,
        broker.bootstrap_servers,
        postgres={
            "streaming": cell.streaming,
            "two_phase": cell.two_phase,
            "shutdown_grace_s": 2,
        },
        # A few rows per Kafka transaction, so that the larger transactions are resumed inside.
        kafka={
            "transaction": {"bytes_max": dice.choice((16_384, 131_072, 1_048_576)), "timeout_s": 10},
            "queue_bytes_max": dice.choice((1_048_576, 16_777_216)),
        },
        topics={"create": {"partitions": dice.choice((1, 3))}},
        spool={"memory_bytes_max": 65_536},
    )


def _keep_log(cell: Cell, seed: int, daemon: Daemon) -> None:
    """What the daemon said, for whoever looks into the failure."""
    folder = cache_folder() / "chaos"
    folder.mkdir(exist_ok=True)
    (folder / f"{cell}-{seed}.log").write_text("\n".join(daemon.lines))
