"""Commit 99c61843 and this version on one pipeline, for tests of upgrades and downgrades.

The former version is read from git, so the tests need a clone that has its commit.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from deploy.local.cache import REPOSITORY
from tests.attacks.checkpoints import records_of
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

if TYPE_CHECKING:
    from tests.integration.conftest import Database

FORMER: Final = "99c61843"
"""The last commit that knows checkpoints of format 1 only."""

COMMAND_S: Final = 300.0

Environment = dict[str, str]


def unpack(folder: Path, *paths: str) -> None:
    """Write files of the former version into the folder; skip the test if this clone does not have its commit."""
    packed = subprocess.run(
        ["git", "archive", FORMER, *paths], cwd=REPOSITORY, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"there is no commit {FORMER} here: {packed.stderr.decode()[:200]}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment in which Python finds the former version."""
    folder = tmp_path_factory.mktemp("former")
    unpack(folder, "cdcd", "config")
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


def run_former(former: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the former version to its end."""
    return subprocess.run(
        [sys.executable, "-m", "cdcd.cli", *arguments],
        env=former,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


def without_later_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the configuration without the settings of `configuration` that the former version lacks."""
    copied = {
        name: dict(section) if isinstance(section, dict) else section for name, section in config.items()
    }
    del copied["snapshot"]["signals_from"]
    del copied["tables"]["on_error"]
    if copied["postgres"]["messages"] is None:
        del copied["postgres"]["messages"]
    return copied


class Pipeline:
    """One pipeline with the table `orders`, run by both versions."""

    def __init__(
        self, database: "Database", broker: KafkaBroker, name: str, folder: Path, former: Environment
    ) -> None:
        self.database, self.broker, self.name, self.folder = database, broker, name, folder
        self.slot = f"cdcd_{name}"
        self.rows = 0
        self.daemons: list[Daemon] = []
        self._former = former
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        database.execute("INSERT INTO orders VALUES (0, 'first')")

    def start(self, *, old: bool, **sections: Any) -> Daemon:
        """Start an instance of a version."""
        sections = {"snapshot": {"mode": "initial"}, **sections}
        config = configuration(self.name, self.database.dsn(), self.broker.bootstrap_servers, **sections)
        config["postgres"]["lease_s"] = 2.5
        # Both versions get the same file, so that each version uses its defaults.
        config = without_later_settings(config)
        folder = self.folder / f"{'old' if old else 'new'}{len(self.daemons)}"
        process = Daemon(folder, config, environment=self._former if old else None)
        self.daemons.append(process)
        process.start()
        return process

    def command(self, process: Daemon, *arguments: str, old: bool = False) -> str:
        """Run a command of a version with the configuration of an instance; return its standard output and error."""
        arguments = (*arguments, "--config", str(process.config_path))
        done = run_former(self._former, *arguments) if old else run_cdcd(*arguments, timeout_s=COMMAND_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def insert(self, count: int) -> None:
        """Insert the next `count` rows."""
        first = self.rows + 1
        self.rows += count
        self.database.execute(
            f"INSERT INTO orders SELECT n, repeat('x', 10) FROM generate_series({first}, {self.rows}) n"
        )

    def expect(self, *, repeats: bool = False) -> None:
        """Wait until the topic has every row. Without `repeats`, fail if a row came more than once."""

        def all_there() -> list[int] | None:
            found = self.delivered()
            return found if len(set(found)) > self.rows else None

        found = sorted(until(all_there, "rows are missing"))
        assert (sorted(set(found)) if repeats else found) == list(range(self.rows + 1))

    def delivered(self) -> list[int]:
        return [envelope["after"]["id"] for envelope in self.envelopes("orders")]

    def envelopes(self, table: str) -> list[dict[str, Any]]:
        """The changes in the topic of a table, in the order of the topic."""
        return [json.loads(value) for value in self.values(f"{self.name}.public.{table}")]

    def values(self, topic: str) -> list[bytes]:
        """The values of the records that a reader sees in a topic."""
        with Reader(self.broker.bootstrap_servers, self.name) as reader:
            reader._leave_out = frozenset({f"{self.name}.checkpoint"})
            return [raw.value for raw in reader.read_all() if raw.topic == topic and raw.value]

    def await_flushed(self) -> None:
        """Wait until the slot has confirmed everything that is in the WAL now."""
        await_flushed(self.database.dsn(), self.slot)

    def newest_format(self) -> int:
        return int(json.loads(records_of(self.broker, f"{self.name}.checkpoint")[-1][1] or b"{}")["format"])


@pytest.fixture
def pipeline(
    database: "Database", broker: KafkaBroker, unique: str, tmp_path: Path, former: Environment
) -> Iterator[Pipeline]:
    made = Pipeline(database, broker, unique, tmp_path, former)
    yield made
    for process in made.daemons:
        process.kill()
