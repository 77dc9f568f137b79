"""Rounds of blows to the active one of two daemons, each of which has network cables of its own to both servers."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from cdcd.core.errors import FencedError
from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.workload import Features, Workload
from deploy.local import KafkaBroker, PostgresServer
from deploy.local.process import free_port
from tests.ha.watch import Watch
from tests.ha.wire import Wire
from tests.integration.daemon import Daemon, configuration
from tests.scratch import scratch_folder

NAME: Final = "ha"
RATE: Final = 30.0
BOUND_S: Final = 5.0
"""What the takeover promises, from the blow to the first new record."""

Blow = Literal["killed", "frozen", "cut off"]
BLOWS: Final[tuple[Blow, ...]] = ("killed", "frozen", "cut off")


class Instance:
    """A daemon and its cables."""

    def __init__(self, daemon: Daemon, wires: Sequence[Wire]) -> None:
        self.daemon = daemon
        self.wires = wires

    def strike(self, blow: Blow) -> None:
        if blow == "killed":
            self.daemon.kill()
        elif blow == "frozen":
            self.daemon.pause()
        else:
            for wire in self.wires:
                wire.cut()

    def recover(self, blow: Blow) -> None:
        """What was struck is itself again, finds that another took over, and ends; it is started as the standby."""
        if blow == "frozen":
            self.daemon.resume()
        for wire in self.wires:
            wire.mend()
        if blow != "killed":
            code = self.daemon.wait()
            assert code == FencedError.exit_code, f"exit code {code}, {blow}:\n{self.daemon.last_words()}"
        self.daemon.start()
        self.daemon.await_event("standby.waiting")


@dataclass(frozen=True, slots=True)
class Round:
    """One blow, and how long a reader waited for the first new record."""

    blow: Blow
    wait_s: float

    def __str__(self) -> str:
        return f"{self.blow:8} {self.wait_s:5.2f} s"


@dataclass(frozen=True, slots=True)
class Outcome:
    """All rounds, and the reckoning in the end."""

    rounds: tuple[Round, ...]
    report: Report

    @property
    def longest_s(self) -> float:
        return max(each.wait_s for each in self.rounds)

    def lines(self) -> Iterator[str]:
        for blow in (*BLOWS, None):
            waits = [each.wait_s for each in self.rounds if blow in {each.blow, None}]
            if waits:
                yield (
                    f"{blow or 'all':8} {len(waits):3} rounds, first new record after "
                    f"p50 {statistics.median(waits):.2f} s, p100 {max(waits):.2f} s"
                )
        yield f"{self.report.records} records, {self.report.transactions} transactions"
        yield "equal" if self.report.equal else str(self.report)


def run(
    rounds: Sequence[Blow],
    *,
    version: int = 18,
    seed: int = 1,
    rate: float = RATE,
    sections: Mapping[str, Any] = MappingProxyType({}),
    tell: Callable[[Round], None] = lambda _: None,
) -> Outcome:
    """Strike the active one in each round; AssertionError when something does not go on as it should."""
    dice = random.Random(seed)
    exactly_once = sections.get("kafka", {}).get("delivery") != "at_least_once"
    done: list[Round] = []
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("ha"))
        postgres = PostgresServer(version, folder / "postgres")
        stack.callback(postgres.destroy)
        postgres.start()
        postgres.execute(f"CREATE DATABASE {NAME}")
        kafka_ports = [free_port(), free_port()]
        wires = [
            [stack.enter_context(Wire(postgres.port)), stack.enter_context(Wire(port))]
            for port in kafka_ports
        ]
        broker = _broker(folder / "kafka", kafka_ports, [kafka.port for _, kafka in wires])
        stack.callback(broker.destroy)
        broker.start()
        dsn = postgres.dsn(NAME)
        # Messages of savepoints that were rolled back sometimes make the daemon restart its session. The chaos matrix
        # has such messages; this program measures a single takeover.
        workload = Workload(dsn, seed, Features(messages=False), rate=rate)
        workload.create()
        instances = []
        for number, pair in enumerate(wires):
            config = configuration(
                NAME,
                f"host=127.0.0.1 port={pair[0].port} dbname={NAME} user=postgres",
                f"127.0.0.1:{pair[1].port}",
                **sections,
            )
            instances.append(Instance(stack.enter_context(Daemon(folder / f"daemon-{number}", config)), pair))
        active, standby = instances
        active.daemon.start()
        active.daemon.await_streaming()
        standby.daemon.start()
        standby.daemon.await_event("standby.waiting")
        with workload, Watch(broker.bootstrap_servers, NAME) as watch:
            watch.wait_s(time.time())
            for blow in rounds:
                time.sleep(dice.uniform(0.3, 1.5))
                mark = standby.daemon.mark()
                struck_at = time.time()
                active.strike(blow)
                done.append(Round(blow, watch.wait_s(struck_at)))
                tell(done[-1])
                standby.daemon.await_event("stream.started", after=mark)
                active.recover(blow)
                active, standby = standby, active
        await_flushed(dsn, f"cdcd_{NAME}", 180)
        report = compare(dsn, broker.bootstrap_servers, NAME, exactly_once=exactly_once)
        for instance in instances:
            assert instance.daemon.stop() == 0, instance.daemon.last_words()
    return Outcome(tuple(done), report)


def _broker(folder: Path, ports: Sequence[int], advertised: Sequence[int]) -> KafkaBroker:
    """A broker that tells each daemon to come back by its own cable."""
    own, admin, controller = free_port(), free_port(), free_port()
    names = [f"WIRE{number}" for number in range(len(ports))]
    shared = [f"CLIENT://127.0.0.1:{own}", f"ADMIN://127.0.0.1:{admin}"]
    listening = [f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)]
    told = [f"{name}://127.0.0.1:{port}" for name, port in zip(names, advertised, strict=True)]
    return KafkaBroker(
        folder,
        port=own,
        settings={
            "listeners": ",".join([*shared, *listening, f"CONTROLLER://127.0.0.1:{controller}"]),
            "advertised.listeners": ",".join([*shared, *told]),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("CLIENT", "ADMIN", "CONTROLLER", *names)
            ),
        },
    )
