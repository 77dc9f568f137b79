"""One trial: start everything, write and break, heal, wait until all is delivered, and judge."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.demo.fold import await_flushed
from deploy.demo.topics import TopicError
from deploy.local import cache_folder
from tests.scratch import scratch_folder
from tests.trial.checker import Anomaly, Kind, check
from tests.trial.clients import CLIENTS, Client, read_tables
from tests.trial.history import Operation, Outcome, Record, Source
from tests.trial.plan import Plan
from tests.trial.play import Player
from tests.trial.samples import Sampler, read_records
from tests.trial.world import NAME, SLOT, World, running

SHOWN_MAX: Final = 20
STOPPED: Final = "daemon ended"
NOT_CONFIRMED: Final = "never confirmed"


@dataclass(frozen=True)
class Found:
    """How a trial came out. `ended` says of instances that ended without a reason."""

    version: int
    faults: Counter[str]
    outcomes: tuple[int, int, int]
    records: int
    samples: int
    takeovers: int
    anomalies: tuple[Anomaly, ...]
    ended: tuple[str, ...]

    def kinds(self) -> Counter[str]:
        counts = Counter(anomaly.kind.value for anomaly in self.anomalies)
        if self.ended:
            counts[STOPPED] = len(self.ended)
        return counts


def run(
    seed: int, plan: Plan, seconds: float, tell: Callable[[str], None], planted: str | None = None
) -> Found:
    """Run a trial for so many seconds of faults. How all of it interleaves is the machine's doing, so a seed is a hint
    to a failure, not a replay of it.

    Args:
        planted: the mistake in the daemons, one of `planted.PLANTED`.
    """
    tell(f"seed {seed}: PostgreSQL {plan.version}, {len(plan.faults)} faults, {dict(plan.transaction)}")
    told: list[str] = []

    def note(line: str) -> None:
        told.append(line)
        tell(line)

    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("trial"))
        world = stack.enter_context(running(plan, folder, planted))
        stack.callback(_keep, seed, planted, told, world)
        clients = [Client(number, seed, world.dsn, bulk=plan.bulk) for number in range(CLIENTS)]
        sampler = Sampler(world.dsn, SLOT, world.bootstrap_servers, NAME)
        stack.callback(sampler.close)
        for client in clients:
            stack.callback(client.stop)
        assert clients[0].open_accounts().outcome is Outcome.OK, "the first transaction failed"
        sampler.start()
        for client in clients:
            client.start()
        player = Player(world, plan.faults, note)
        player.play(seconds)
        player.heal()
        for client in clients:
            client.close()
        fence = _fence(clients[0], player)
        records, late = _await_records(world, player, fence, plan.patience_s)
        sampler.close()
        source = Source(read_tables(world.dsn))
        history = [operation for client in clients for operation in client.history]
        anomalies = [*check(history, source, records, sampler.samples), *late]
        for anomaly in anomalies[:SHOWN_MAX]:
            note(str(anomaly))
        for line in player.ended:
            note(line)
    outcomes = Counter(operation.outcome for operation in history)
    return Found(
        plan.version,
        player.counts,
        (outcomes[Outcome.OK], outcomes[Outcome.FAILED], outcomes[Outcome.UNKNOWN]),
        len(records),
        len(sampler.samples),
        player.takeovers,
        tuple(anomalies),
        tuple(player.ended),
    )


def _fence(client: Client, player: Player) -> Operation:
    while (fence := client.fence()).outcome is not Outcome.OK:
        player.rest()
    return fence


def _await_records(
    world: World, player: Player, fence: Operation, patience_s: float
) -> tuple[list[Record], list[Anomaly]]:
    """All records, once the fence's is among them; and what did not happen in time."""
    late = []
    try:
        await_flushed(world.dsn, SLOT, patience_s)
    except TimeoutError as error:
        late.append(Anomaly(Kind.LOST, f"{NOT_CONFIRMED}: {error}"))
    records: list[Record] = []
    deadline = time.monotonic() + patience_s
    while True:
        try:
            records = read_records(world.bootstrap_servers, NAME)
        except TopicError as error:
            late.append(Anomaly(Kind.LOST, f"the topics cannot be read to their end: {error}"))
        if any(record.write.row is not None and record.write.row.op == fence.op for record in records):
            return records, late
        if time.monotonic() > deadline:
            return records, late
        player.rest()


def _keep(seed: int, planted: str | None, told: list[str], world: World) -> None:
    """What happened, and what the instances said, for whoever looks into an anomaly."""
    folder: Path = cache_folder() / "trial" / (f"{planted}-{seed}" if planted else str(seed))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "told").write_text("\n".join(told))
    for number, instance in enumerate(world.instances):
        (folder / f"daemon-{number}.log").write_text("\n".join(instance.daemon.lines))
