"""Tables that go and come in drawn ways beside writes: stopped, renamed, made anew, unpublished, with kills.

CDCD_TEST_SEEDS=10 pytest -m chaos tests/integration/test_fates_drawn.py
"""

import json
import os
import random
import time
from collections.abc import Callable
from typing import Final

import psycopg
import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import drop_slot, until
from tests.integration.faults.trial import Trial
from tests.integration.forked import run_cdcd

pytestmark = [pytest.mark.postgres(only=18), pytest.mark.chaos]

SEEDS: Final = range(1, 1 + int(os.environ.get("CDCD_TEST_SEEDS", "2")))
STEPS: Final = 45
IDS: Final = 3000
"""Rows have ids below this one; each partition of `root` holds a third of them."""


class Drawn:
    """A pipeline, its published tables, and what happens to them."""

    def __init__(self, one: Trial, rng: random.Random) -> None:
        self.one = one
        self.rng = rng
        self.tables = {"a", "b", "c", "root", "loose"}
        self.partitions = {number: f"root_{number}" for number in range(3)}
        self._fresh = 0

    def create(self) -> None:
        run = self.one.execute
        for table in "abc":
            run(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
            run(f"INSERT INTO {table} SELECT g, repeat('x', 100) FROM generate_series(1, 500) g")
        run("CREATE TABLE root (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
        for number, name in self.partitions.items():
            run(f"CREATE TABLE {name} PARTITION OF root {self._bounds(number)}")
        run("INSERT INTO root SELECT g * 5, 'r' FROM generate_series(0, 500) g")
        run("CREATE TABLE loose (id int, note text)")
        run("ALTER TABLE loose REPLICA IDENTITY FULL")
        run("INSERT INTO loose SELECT g, 'l' FROM generate_series(1, 300) g")
        names = ", ".join(sorted(self.tables))
        run(
            f'CREATE PUBLICATION "{self.one.slot}" FOR TABLE {names} WITH (publish_via_partition_root = true)'
        )

    def _bounds(self, number: int) -> str:
        return f"FOR VALUES FROM ({number * IDS // 3}) TO ({(number + 1) * IDS // 3})"

    def _name(self, prefix: str) -> str:
        self._fresh += 1
        return f"{prefix[:5]}_{self._fresh}"

    def _table(self, *, but: tuple[str, ...] = ()) -> str:
        """A published table whose name does not begin with one of `but`."""
        return self.rng.choice(sorted(name for name in self.tables if not name.startswith(but)))

    def write(self, count: int) -> None:
        for _ in range(count):
            table, row, kind = self._table(), self.rng.randrange(IDS), self.rng.random()
            if kind < 0.4:
                # A table without a key takes each row.
                where = "" if table.startswith("loose") else " ON CONFLICT DO NOTHING"
                self.one.execute(f"INSERT INTO {table} VALUES ({row}, 'new {kind}'){where}")
            elif kind < 0.7:
                self.one.execute(
                    f"UPDATE {table} SET note = 'set {kind}' WHERE id BETWEEN {row} AND {row + 20}"
                )
            else:
                self.one.execute(f"DELETE FROM {table} WHERE id BETWEEN {row} AND {row + 5}")

    def ask(self, action: str, *tables: str) -> None:
        asked = json.dumps({"action": action, "tables": [f"public.{table}" for table in tables]})
        self.one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", asked)

    # What happens.

    def stop(self) -> None:
        self.ask("stop_tables", self._table())

    def resume(self) -> None:
        self.ask("resume_tables", *self.rng.sample(sorted(self.tables), 2))

    def read(self) -> None:
        self.ask("start", self._table())

    def rename(self) -> None:
        table = self._table(but=("root",))
        name = self._name(table)
        self.one.execute(f"ALTER TABLE {table} RENAME TO {name}")
        self.tables = self.tables - {table} | {name}

    def swap(self) -> None:
        one, other = self.rng.sample(sorted(name for name in self.tables if name[0] in "abc"), 2)
        self.one.execute(
            f"BEGIN; ALTER TABLE {one} RENAME TO between; ALTER TABLE {other} RENAME TO {one}; "
            f"ALTER TABLE between RENAME TO {other}; COMMIT"
        )

    def make_anew(self) -> None:
        table = self._table(but=("root", "loose"))
        self.one.execute(
            f"BEGIN; DROP TABLE {table}; CREATE TABLE {table} (id int PRIMARY KEY, note text); "
            f"INSERT INTO {table} VALUES (1, 'anew'); "
            f'ALTER PUBLICATION "{self.one.slot}" ADD TABLE {table}; COMMIT'
        )

    def truncate(self) -> None:
        self.one.execute(f"TRUNCATE {self._table()}")

    def alter(self) -> None:
        table = self._table(but=("root",))
        self.one.execute(f"ALTER TABLE {table} ADD COLUMN {self._name('more')} text DEFAULT 'd'")

    def unpublish(self) -> None:
        table = self._table(but=("root",))
        self.one.execute(f'ALTER PUBLICATION "{self.one.slot}" DROP TABLE {table}')
        self.write(2)
        time.sleep(self.rng.choice((0.0, 6.0)) * self.rng.random())
        self.one.execute(f'ALTER PUBLICATION "{self.one.slot}" ADD TABLE {table}')

    def replace_partition(self) -> None:
        number = self.rng.choice(sorted(self.partitions))
        former = self.partitions[number]
        self.one.execute(f"ALTER TABLE root DETACH PARTITION {former}")
        if self.rng.random() < 0.7:
            self.one.execute(f"ALTER TABLE root ATTACH PARTITION {former} {self._bounds(number)}")
            return
        name = self.partitions[number] = self._name("part")
        self.one.execute(f"CREATE TABLE {name} PARTITION OF root {self._bounds(number)}")

    def kill(self) -> None:
        self.one.daemon.kill()
        self.write(2)
        self.start()

    def restart(self) -> None:
        assert self.one.daemon.stop() == 0
        self.write(2)
        self.start()

    def start(self) -> None:
        self.one.daemon.start()
        self.one.daemon.await_streaming()

    def lose_slot(self) -> None:
        self.one.daemon.kill()
        self.write(6)
        drop_slot(self.one.dsn, self.one.slot)
        self.write(3)
        self.one.daemon.start()
        for _ in range(self.rng.choice((0, 0, 3))):
            # The slot is made and the topics are healed meanwhile.
            time.sleep(0.5 + self.rng.random() * 1.5)
            self.one.daemon.kill()
            self.write(2)
            self.one.daemon.start()
        self.one.daemon.await_streaming()


EVENTS: Final = (
    *[Drawn.stop, Drawn.resume] * 2, Drawn.read, Drawn.rename, Drawn.swap, Drawn.make_anew, Drawn.truncate,
    Drawn.alter, Drawn.unpublish, Drawn.replace_partition, Drawn.kill, Drawn.restart, Drawn.lose_slot,
)  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_that_go_and_come_end_equal_to_the_source(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, seed: int
):
    rng = random.Random(seed)
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.configure(
        kafka={"delivery": rng.choice(("exactly_once", "at_least_once"))},
        tables={"on_error": "set_aside"},
        snapshot={
            "mode": "when_needed",
            "added_tables": True,
            "changed_partitions": "read",
            "chunk_bytes": 16_384,
        },
    )
    one.execute("DROP TABLE IF EXISTS t")
    drawn = Drawn(one, rng)
    drawn.create()
    one.daemon.write_config()
    drawn.start()
    for step in range(STEPS):
        event = rng.choice(EVENTS)
        print(f"step {step}: {event.__name__}", flush=True)
        try:
            event(drawn)
        except psycopg.errors.LockNotAvailable:
            # A reader of the daemon has the table.
            continue
        drawn.write(rng.randrange(6))

    # WHEN no more events are drawn, and each table that is set aside comes back
    def verified() -> bool | None:
        drawn.ask("resume_tables", *sorted(drawn.tables))
        config = ("--config", str(one.daemon.config_path))
        return (run_cdcd("verify", *config).returncode, run_cdcd("tables", *config).returncode) == (
            0,
            0,
        ) or None

    # THEN every topic equals its table, and no table needs anybody
    until(verified, f"equal topics: {one.daemon.last_words()}", 120.0)
    assert one.daemon.stop() == 0
