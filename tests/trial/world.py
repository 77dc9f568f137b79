"""The servers of a trial, the two instances of the daemon, and the cables between them.

Each instance has a cable of its own to each server: brokers tell it to come back by its own listener, as in tests/ha.
Clients and readers have none, so that what they see does not depend on the cables.
"""

import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from deploy.local import KafkaBroker, PostgresServer, free_port
from deploy.local.kafka_prepared import cluster_id
from tests.ha import failover
from tests.ha.failover import FAILOVER_SINCE, Pair
from tests.ha.wire import Wire
from tests.integration.daemon import Daemon, configuration
from tests.trial import clients
from tests.trial.entry import CLOCK, PLANTED, Clock
from tests.trial.faults import BROKERS
from tests.trial.plan import Plan

NAME: Final = failover.NAME
SLOT: Final = failover.SLOT
INSTANCES: Final = 2
PARTITIONS: Final = 2

BROKER_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
        "min.insync.replicas": "2",
        # A follower that is frozen leaves the in-sync replicas soon, and the partition goes on without it.
        "replica.lag.time.max.ms": "3000",
        # The fault "leaders moved" does it instead, at a moment that is noted.
        "auto.leader.rebalance.enable": "false",
    }
)

HEAP_MB: Final = 256


@dataclass
class Instance:
    """One instance of the daemon, and its cables."""

    daemon: Daemon
    postgres_wires: Sequence[Wire]
    kafka_wires: Sequence[Wire]
    clock: Clock

    def limit_files(self, limited: bool) -> None:
        """A full disk: no file of the process can grow (RLIMIT_FSIZE, setrlimit(2)), and a write to it fails."""
        if self.daemon.is_running():
            size = 0 if limited else resource.RLIM_INFINITY
            resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@dataclass
class World:
    """Everything that runs. `primary` is whichever server is one now."""

    pair: Pair
    brokers: Sequence[KafkaBroker]
    instances: Sequence[Instance]
    primary: PostgresServer = field(init=False)

    def __post_init__(self) -> None:
        self.primary = self.pair.primary

    @property
    def dsn(self) -> str:
        """For clients: whichever server is the primary."""
        return self.pair.dsn()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers)


@contextmanager
def running(plan: Plan, folder: Path, planted: str | None) -> Iterator[World]:
    """Start everything but the clients: one instance streams, the other one waits, and the slot has its copy."""
    version = plan.version
    with ExitStack() as stack:
        pair = stack.enter_context(failover.servers(version, folder))
        kafka_wires = _kafka_wires(stack)
        brokers = _brokers(stack, folder, kafka_wires)
        instances = []
        for number, row in enumerate(kafka_wires):
            home, postgres = folder / f"daemon-{number}", _postgres_wires(stack, pair)
            wires = [wire for wire, _ in row]
            config = _configuration(plan, postgres, wires)
            home.mkdir()
            clock = Clock(home / "clock")
            environment = {**os.environ, CLOCK: str(clock.path), PLANTED: planted or ""}
            daemon = Daemon(home, config, environment=environment, module="tests.trial.entry")
            instances.append(Instance(stack.enter_context(daemon), postgres, wires, clock))
        clients.create_tables(pair.dsn())
        active, standby = instances
        active.daemon.start()
        active.daemon.await_streaming(120)
        if version >= FAILOVER_SINCE:
            pair.await_slot()
        standby.daemon.start()
        standby.daemon.await_event("standby.waiting", timeout_s=120)
        yield World(pair, brokers, instances)


def _kafka_wires(stack: ExitStack) -> list[list[tuple[Wire, int]]]:
    """For each instance and each broker: the cable, and the port of the broker that it leads to."""
    ports = [[free_port() for _ in range(BROKERS)] for _ in range(INSTANCES)]
    return [[(stack.enter_context(Wire(port)), port) for port in row] for row in ports]


def _brokers(
    stack: ExitStack, folder: Path, wires: Sequence[Sequence[tuple[Wire, int]]]
) -> list[KafkaBroker]:
    """Three brokers that are the controllers too. All are begun before one is awaited: two make the quorum."""
    cluster = cluster_id()
    controllers = [free_port() for _ in range(BROKERS)]
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1))
    brokers = []
    for number, controller in enumerate(controllers):
        own, admin = free_port(), free_port()
        names = [f"WIRE{each}" for each in range(INSTANCES)]
        shared = [f"CLIENT://127.0.0.1:{own}", f"ADMIN://127.0.0.1:{admin}"]
        listening = [f"{name}://127.0.0.1:{row[number][1]}" for name, row in zip(names, wires, strict=True)]
        told = [f"{name}://127.0.0.1:{row[number][0].port}" for name, row in zip(names, wires, strict=True)]
        broker = KafkaBroker(
            folder / f"kafka-{number + 1}",
            port=own,
            heap_mb=HEAP_MB,
            cluster=cluster,
            settings={
                **BROKER_SETTINGS,
                "node.id": str(number + 1),
                "controller.quorum.voters": voters,
                "listeners": ",".join([*shared, *listening, f"CONTROLLER://127.0.0.1:{controller}"]),
                "advertised.listeners": ",".join([*shared, *told]),
                "listener.security.protocol.map": ",".join(
                    f"{name}:PLAINTEXT" for name in ("CLIENT", "ADMIN", "CONTROLLER", *names)
                ),
            },
        )
        stack.callback(broker.destroy)
        brokers.append(broker)
    for broker in brokers:
        broker.begin()
    for broker in brokers:
        broker.await_started(180)
    return brokers


def _postgres_wires(stack: ExitStack, pair: Pair) -> list[Wire]:
    return [stack.enter_context(Wire(server.port)) for server in (pair.primary, pair.standby)]


def _configuration(plan: Plan, postgres: Sequence[Wire], kafka: Sequence[Wire]) -> dict[str, Any]:
    ports = ",".join(str(wire.port) for wire in postgres)
    return configuration(
        NAME,
        f"host=127.0.0.1,127.0.0.1 port={ports} dbname={NAME} user=postgres target_session_attrs=read-write "
        "connect_timeout=2",
        ",".join(f"127.0.0.1:{wire.port}" for wire in kafka),
        postgres={"failover": plan.version >= FAILOVER_SINCE, "shutdown_grace_s": 2},
        kafka={"transaction": dict(plan.transaction)},
        topics={
            "create": {
                "partitions": PARTITIONS,
                "replication_factor": BROKERS,
                "config": {"min.insync.replicas": "2"},
            }
        },
        spool={"memory_bytes_max": 65_536},
        shutdown_timeout_s=10,
        # A start that Kafka keeps waiting is what the faults are for, and no reason to end.
        startup_timeout_s=3600,
    )


def end_on_signals() -> None:
    """SIGTERM and Ctrl-C unwind, so that everything that was started is ended. A shell's background job ignores SIGINT
    otherwise.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
