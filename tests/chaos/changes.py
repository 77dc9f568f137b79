"""Snapshots of a table that changes its form, its file or its name while it is read, written to and killed.

`docs` has values out of line, and most of its writers' updates leave them alone (`tests/integration/changing_docs.py`).
In the end the folded topic equals the table, value by value; a placeholder that nothing fills is a difference. The
changes come between the kills, some while no daemon runs. `tests.chaos.snapshots` runs these as its kind `docs`.
"""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from deploy.demo.fold import Report, await_flushed, compare
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.changing_docs import CHANGES, ROWS, SWAP, Writers, fill
from tests.integration.daemon import Daemon, configuration, until

METHODS: Final = ("exported", "incremental")
CALM_S: Final = 240.0
"""With nobody killed any more, every table is read within this time."""

_LATE: Final = (
    "CREATE TABLE late (id int PRIMARY KEY, note text)",
    "INSERT INTO late SELECT g, 'l' FROM generate_series(1, 500) g",
)

STORIES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        "none": (),
        **{name: (statements,) for name, statements in CHANGES.items()},
        "swap": (SWAP,),
        "added": (_LATE,),
        "all": (
            CHANGES["vacuum_full"],
            CHANGES["add_column"],
            CHANGES["rewrite"],
            CHANGES["replace_column"],
            SWAP,
            _LATE,
        ),
    }
)
"""What happens to a table, by name: changes, each of them commands. `all`: in random order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pipeline. `kills_inside`: kills that came before the snapshot had ended."""

    version: int
    method: str
    story: str
    kills: int
    kills_inside: int
    rows: int
    commits: int
    report: Report
    seconds: float

    @property
    def sound(self) -> bool:
        """Every value is there."""
        return self.report.equal

    def __str__(self) -> str:
        return (
            f"{self.version} docs {self.method:11} {self.story:14} {'equal' if self.sound else 'NOT EQUAL':9} "
            f"{self.kills} kills, {self.kills_inside} before the end; {self.rows:,} rows read; "
            f"{self.commits} commits meanwhile, {self.seconds:.0f} s"
        )


def run(
    version: int,
    method: str,
    story: str,
    postgres: PostgresServer,
    broker: KafkaBroker,
    folder: Path,
    *,
    kills: int,
    dice: random.Random,
) -> Outcome:
    """One pipeline on servers that run; its database is its own."""
    began = time.monotonic()
    name = f"docs_{story}_{method}"
    postgres.execute(f"CREATE DATABASE {name}")
    fill(postgres, name)
    config = _configuration(name, postgres.dsn(name), broker, method, publication=f"{name}_p")
    postgres.execute(f"CREATE PUBLICATION {name}_p FOR ALL TABLES", name)
    changes = list(STORIES[story])
    dice.shuffle(changes)
    # After which kill each change comes, and whether a daemon runs then.
    due = sorted((dice.randrange(kills), dice.random() < 0.5, number) for number in range(len(changes)))
    with Daemon(folder / name, config) as daemon, Writers(postgres.dsn(name)) as writers:
        kills_inside = 0
        for kill in range(kills):
            daemon.start()
            _await_rows(daemon, (kill + dice.uniform(0.2, 0.8)) * ROWS / (kills + 1))
            mine = [(running, changes[number]) for after, running, number in due if after == kill]
            _apply(postgres, name, [change for running, change in mine if running])
            assert daemon.is_running(), f"the daemon ended by itself:\n{daemon.last_words()}"
            kills_inside += not daemon.saw("snapshot.finished", after=0)
            daemon.kill()
            _apply(postgres, name, [change for running, change in mine if not running])
        daemon.start()
        tables = ["public.docs", *(["public.late"] if _LATE in changes else [])]
        for table in tables:
            # The daemon knows of each table by its rows' changes, or by looking for added ones.
            daemon.await_event("table.read", after=0, table=table, timeout_s=CALM_S)
        daemon.await_streaming(CALM_S)
        so_far = writers.commits
        while writers.commits < so_far + 50:
            time.sleep(0.02)
        writers.stop()
        if _LATE in changes:
            postgres.execute("UPDATE late SET note = 'changed' WHERE id < 10", name)
        slot = f"cdcd_{name}"
        await_flushed(postgres.dsn(name), slot, CALM_S)
        daemon.await_metric("cdcd_snapshot_tables", lambda left: left == 0, timeout_s=CALM_S)
        await_flushed(postgres.dsn(name), slot, CALM_S)
        report = compare(postgres.dsn(name), broker.bootstrap_servers, name, rows_before=True, tables=tables)
        rows = int(daemon.metrics()["cdcd_snapshot_rows_total"][()])
        code = daemon.stop()
        assert code == 0, f"SIGTERM: exit code {code}\n{daemon.last_words()}"
    postgres.execute(f"SELECT pg_drop_replication_slot('{slot}')", name)
    postgres.execute(f"DROP DATABASE {name}")
    return Outcome(
        version,
        method,
        story,
        kills,
        kills_inside,
        rows,
        writers.commits,
        report,
        time.monotonic() - began,
    )


def _await_rows(daemon: Daemon, least: float) -> None:
    """Until so many rows were read, or all that there are."""

    def enough() -> bool | None:
        if daemon.saw("snapshot.finished", after=0):
            return True
        rows = daemon.metrics().get("cdcd_snapshot_rows_total", {}).get((), 0.0)
        return True if rows >= least else None

    until(enough, f"fewer than {least:.0f} rows were read", CALM_S)


def _apply(postgres: PostgresServer, database: str, changes: list[tuple[str, ...]]) -> None:
    for statements in changes:
        for statement in statements:
            postgres.execute(statement, database)


def _configuration(
    name: str, dsn: str, broker: KafkaBroker, method: str, *, publication: str
) -> dict[str, Any]:
    return configuration(
        name,
        dsn,
        broker.bootstrap_servers,
        postgres={"publication": publication},
        snapshot={
            "mode": "initial",
            "method": method,
            "chunk_bytes": 131_072,
            "parallelism": 2,
            "added_tables": True,
        },
        kafka={"transaction": {"bytes_max": 262_144}, "queue_bytes_max": 524_288},
    )
