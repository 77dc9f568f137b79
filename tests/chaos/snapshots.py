"""Snapshots that are killed: a server version and a kind of snapshot each, under a load of writers.

What is looked at in the end: the folded topics equal the tables; and nothing was read twice. Rows that nobody writes to
stay on their pages, so each of them is in the topics exactly once, whatever was killed in between: a chunk that was
delivered and read again would bring them a second time, and one that was passed over would miss them. Progress that a
life finds in the checkpoint is never less than what the life before it had shown.

The kind `docs` is another table, which changes while it is read (`changes.py`), in both methods.

    python -m tests.chaos.snapshots [--versions 13 18] [--kinds exported incremental handed_over docs] [--kills 5]
                                    [--changes none all swap …]
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import POSTGRES_VERSIONS, KafkaBroker, PostgresServer
from tests.chaos import changes
from tests.integration.daemon import Daemon, configuration
from tests.integration.moving_tables import QUIET, TABLES, Writers, fill
from tests.scratch import scratch_folder

ROWS: Final = 60_000
WIDTH: Final = 400
"""Of the notes at most: some 1,600 pages, of which a chunk has eight."""

DATABASE: Final = "moving"
CALM_S: Final = 120.0

DOCS: Final = "docs"
"""The kind of `changes.py`."""

Running = tuple[PostgresServer, KafkaBroker, Path]
"""The servers of a version, and a folder for the daemons."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a cell snapshots: `method` as configured, so many pipelines one after the other, so many kills of each."""

    method: str
    pipelines: int
    kills: int


def kinds(kills: int = 5) -> Mapping[str, Kind]:
    """`kills` kills of each kind, the first of them always in what the kind is called by."""
    return MappingProxyType(
        {
            # Each pipeline is killed while it reads at its slot's snapshot; what is left is read incrementally.
            "exported": Kind("exported", kills, 1),
            "incremental": Kind("incremental", 1, kills),
            # One that began at the slot's snapshot, and is killed again and again on its way.
            "handed_over": Kind("exported", 1, kills),
        }
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """When one pipeline is killed: at which share of the rows each time; None: before that life has read anything."""

    version: int
    kind: str
    method: str
    moments: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pipeline. `resumed`: the rows that were delivered before each life after the first.

    `again`: rows that nobody wrote to and that came more than once; `missing`: those that never came.
    """

    plan: Plan
    resumed: tuple[int, ...]
    rows: int
    again: int
    missing: int
    commits: int
    report: Report
    seconds: float

    @property
    def sound(self) -> bool:
        """The tables are equal, and nothing was started over."""
        rises = all(before <= after for before, after in zip(self.resumed, self.resumed[1:], strict=False))
        return self.report.equal and not self.again and not self.missing and rises

    def __str__(self) -> str:
        resumed = ", ".join(f"{rows:,}" for rows in self.resumed)
        return (
            f"{self.plan.version} {self.plan.kind:12} {'equal' if self.report.equal else 'NOT EQUAL':9} "
            f"{len(self.plan.moments)} kills, resumed at {resumed} of {self.rows:,} rows; {self.again} read again, "
            f"{self.missing} missing; {self.commits} commits meanwhile, {self.seconds:.0f} s"
        )


def plans(version: int, kind: str, wanted: Kind, dice: random.Random) -> list[Plan]:
    """A plan for each pipeline of a cell."""
    if wanted.kills == 1:
        count = wanted.pipelines + 1
        return [Plan(version, kind, wanted.method, (number / count,)) for number in range(1, count)]
    moments: list[float | None] = [
        (kill + dice.uniform(0.3, 0.9)) / (wanted.kills + 1) for kill in range(wanted.kills)
    ]
    moments[len(moments) // 2] = None
    return [Plan(version, kind, wanted.method, tuple(moments)) for _ in range(wanted.pipelines)]


def run(cell: list[Plan], postgres: PostgresServer, broker: KafkaBroker, folder: Path) -> Iterator[Outcome]:
    """One cell on servers that run; an outcome for each of its pipelines."""
    database = f"{DATABASE}_{cell[0].kind}"
    postgres.execute(f"CREATE DATABASE {database}")
    fill(postgres, database, rows=ROWS, width=WIDTH)
    for number, plan in enumerate(cell):
        name = f"{plan.kind}_{plan.version}_{number}"
        writers = Writers(postgres.dsn(database), rows=ROWS, first=2 * number)
        config = _configuration(name, postgres.dsn(database), broker, plan.method)
        with Daemon(folder / name, config) as daemon:
            yield _snapshot(plan, daemon, writers)
        postgres.execute(f"SELECT pg_drop_replication_slot('cdcd_{name}')", database)


def _snapshot(plan: Plan, daemon: Daemon, writers: Writers) -> Outcome:
    began = time.monotonic()
    dsn, name = daemon.config["postgres"]["dsn"], daemon.config["name"]
    servers = daemon.config["kafka"]["bootstrap_servers"]
    daemon.start()
    with writers:
        for kill, share in enumerate(plan.moments):
            daemon.await_event("snapshot.resumed" if kill else "snapshot.started")
            if share is not None:
                least = share * ROWS
                daemon.await_metric("cdcd_snapshot_rows_total", least.__lt__, timeout_s=CALM_S)
            assert daemon.is_running(), f"the daemon ended by itself:\n{daemon.last_words()}"
            daemon.kill()
            assert not daemon.saw("snapshot.finished"), "it was over before it was killed"
            if plan.method == "exported" and not kill:
                assert not daemon.saw("stream.started"), "the slot's snapshot was over before it was killed"
            daemon.start()
        finished = daemon.await_event("snapshot.finished", timeout_s=CALM_S)
        so_far = writers.commits
        daemon.await_streaming()
        while writers.commits < so_far + 50:
            time.sleep(0.02)
    await_flushed(dsn, f"cdcd_{name}", CALM_S)
    report = compare(dsn, servers, name, tables=TABLES, rows_before=True)
    times = _times_read(servers, name)
    code = daemon.stop()
    assert code == 0, f"SIGTERM: exit code {code}\n{daemon.last_words()}"
    quiet = range(0, ROWS, QUIET)
    return Outcome(
        plan,
        tuple(event["rows"] for event in daemon.events if event["event"] == "snapshot.resumed"),
        finished["rows"],
        sum(times[row] > 1 for row in quiet),
        sum(times[row] == 0 for row in quiet),
        writers.commits,
        report,
        time.monotonic() - began,
    )


def _times_read(bootstrap_servers: str, name: str) -> Counter[int]:
    """How often each row of `items` was read by a snapshot, by id."""
    times: Counter[int] = Counter()
    with Reader(bootstrap_servers, name) as reader:
        for raw in reader.read_all():
            if raw.topic == f"{name}.public.items" and raw.value is not None:
                envelope = json.loads(raw.value)
                if envelope["op"] == "r":
                    times[envelope["after"]["id"]] += 1
    return times


def _configuration(name: str, dsn: str, broker: KafkaBroker, method: str) -> dict[str, Any]:
    return configuration(
        name,
        dsn,
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "method": method, "chunk_bytes": 65_536},
        # So little at a time that there are moments to be killed in.
        kafka={"transaction": {"bytes_max": 262_144}, "queue_bytes_max": 524_288},
    )


@contextmanager
def servers(version: int) -> Iterator[Running]:
    """A PostgreSQL and a broker for the cells of a version."""
    with (
        scratch_folder() as folder,
        PostgresServer(version, folder / "postgres") as postgres,
        KafkaBroker(folder / "kafka") as broker,
    ):
        yield postgres, broker, folder


def outcomes(
    version: int, kind: str, stories: Sequence[str], kills: int, seed: int, running: Running
) -> Iterator[Outcome | changes.Outcome | None]:
    """The pipelines of a version and a kind, one after the other; None for one that failed, as is printed."""
    if kind != DOCS:
        cell = plans(version, kind, kinds(kills)[kind], random.Random(f"{seed} {version} {kind}"))
        yield from _told(run(cell, *running), f"{version} {kind}")
        return
    for method, story in product(changes.METHODS, stories):
        what = f"{version} {kind} {method} {story}"
        dice = random.Random(f"{seed} {what}")
        docs = (changes.run(version, method, story, *running, kills=kills, dice=dice) for _ in range(1))
        yield from _told(docs, what)


def _told(found: Iterator[T], what: str) -> Iterator[T | None]:
    try:
        yield from found
    except Exception:  # noqa: BLE001 - the other cells shall run all the same
        print(f"{what} FAILED", flush=True)
        traceback.print_exc()
        yield None


def main(arguments: Sequence[str] | None = None) -> int:
    """The matrix, or a part of it, a line for each pipeline; 0 when every one is sound."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.snapshots")
    parser.add_argument(
        "--versions", type=int, nargs="+", choices=POSTGRES_VERSIONS, default=list(POSTGRES_VERSIONS)
    )
    parser.add_argument("--kinds", nargs="+", choices=[*kinds(), DOCS], default=[*kinds(), DOCS])
    parser.add_argument("--changes", nargs="+", choices=changes.STORIES, default=list(changes.STORIES))
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, help="a random one by default")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    failed = 0
    for version in options.versions:
        with servers(version) as running:
            for kind in options.kinds:
                for outcome in outcomes(version, kind, options.changes, options.kills, seed, running):
                    if outcome is None:
                        failed += 1
                        continue
                    print(outcome, flush=True)
                    if not outcome.sound:
                        failed += 1
                        print(outcome.report, flush=True)
    print("all sound" if not failed else f"{failed} NOT SOUND")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
