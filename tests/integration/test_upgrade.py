"""The version before and this one, on one pipeline: upgrade, rolling upgrade, downgrade, recordings.

The version before is taken out of git, so the tests need a clone that has its commit.
"""

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from deploy.local.cache import REPOSITORY
from tests.attacks.checkpoints import records_of
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

FORMER: Final = "99c61843"
"""The last commit that knows checkpoints of format 1 only."""

pytestmark = [pytest.mark.postgres(only=[13, 18]), pytest.mark.upgrade]


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which Python finds the version before."""
    packed = subprocess.run(
        ["git", "archive", FORMER, "cdcd"], cwd=REPOSITORY, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"there is no commit {FORMER} here: {packed.stderr.decode()[:200]}")
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


class Pipeline:
    """One pipeline, run by both versions."""

    def __init__(self, database: Database, broker: KafkaBroker, name: str, folder: Path, former: Any) -> None:
        self.database, self.broker, self.name, self.folder = database, broker, name, folder
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
        # The former version does not know the key.
        del config["snapshot"]["signals_from"]
        folder = self.folder / f"{'old' if old else 'new'}{len(self.daemons)}"
        process = Daemon(folder, config, environment=self._former if old else None)
        self.daemons.append(process)
        process.start()
        return process

    def insert(self, count: int) -> None:
        """So many more rows."""
        first = self.rows + 1
        self.rows += count
        self.database.execute(
            f"INSERT INTO orders SELECT n, repeat('x', 10) FROM generate_series({first}, {self.rows}) n"
        )

    def expect(self) -> None:
        """Every row is there, once."""

        def all_there() -> list[int] | None:
            found = self.delivered()
            return found if len(found) > self.rows else None

        assert sorted(until(all_there, "rows are missing")) == list(range(self.rows + 1))

    def delivered(self) -> list[int]:
        with Reader(self.broker.bootstrap_servers, self.name) as reader:
            return [
                json.loads(raw.value)["after"]["id"]
                for raw in reader.read_all()
                if raw.topic == f"{self.name}.public.orders" and raw.value
            ]

    def newest_format(self) -> int:
        return int(json.loads(records_of(self.broker, f"{self.name}.checkpoint")[-1][1] or b"{}")["format"])


@pytest.fixture
def pipeline(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path, former: dict[str, str]
) -> Iterator[Pipeline]:
    made = Pipeline(database, broker, unique, tmp_path, former)
    yield made
    for process in made.daemons:
        process.kill()


@pytest.mark.parametrize("end", [Daemon.stop, Daemon.kill], ids=["stopped", "killed"])
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_this_version_goes_on_with_the_checkpoint_of_the_former_one(
    pipeline: Pipeline, end: Callable[[Daemon], object], delivery: str
):
    # GIVEN a pipeline of the former version, with rows, a snapshot and a transaction that is larger than a batch
    kafka = {"delivery": delivery}
    old = pipeline.start(old=True, kafka=kafka)
    old.await_streaming()
    pipeline.insert(5000)
    pipeline.expect()
    assert pipeline.newest_format() == 1
    end(old)
    pipeline.insert(10)
    # WHEN this version starts
    new = pipeline.start(old=False, kafka=kafka)
    # THEN it goes on, and writes its own format
    pipeline.insert(10)
    pipeline.expect()
    until(lambda: pipeline.newest_format() == 2 or None, "the format stayed 1")
    assert not new.saw("checkpoint.ignored")
    assert new.stop() == 0


def test_a_key_that_comes_with_the_upgrade_is_used_at_once(pipeline: Pipeline):
    old = pipeline.start(old=True)
    old.await_streaming()
    pipeline.insert(3)
    pipeline.expect()
    assert old.stop() == 0
    key = {"checkpoint_key": "k" * 40}
    new = pipeline.start(old=False, topics=key)
    new.await_event("checkpoint.unsigned")
    pipeline.insert(3)
    pipeline.expect()
    assert new.stop() == 0
    again = pipeline.start(old=False, topics=key)
    again.await_streaming()
    pipeline.insert(3)
    pipeline.expect()
    assert not again.saw("checkpoint.unsigned")


def test_a_rolling_upgrade_and_the_former_version_refuses_what_it_does_not_know(pipeline: Pipeline):
    # GIVEN the former version active, and this one standing by
    old = pipeline.start(old=True)
    old.await_streaming()
    new = pipeline.start(old=False)
    new.await_event("standby.waiting")
    pipeline.insert(100)
    pipeline.expect()
    assert not new.saw("stream.started")
    # WHEN the former one ends, THEN this one takes over
    assert old.stop() == 0
    new.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    # AND the former version stands by, as long as this one is active
    other = pipeline.start(old=True)
    other.await_event("standby.waiting")
    pipeline.insert(100)
    pipeline.expect()
    # AND refuses to go on with a checkpoint that says more than it knows
    assert new.stop() == 0
    assert other.wait() == 6
    assert "has format 2, this cdcd reads 1" in other.output()


def test_after_a_downgrade_the_former_version_goes_on_and_then_this_one_again(pipeline: Pipeline):
    new = pipeline.start(old=False)
    new.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    file = str(new.config_path)
    refused = run_cdcd("downgrade", "--yes", "--config", file)
    assert refused.returncode == 7, refused.stderr
    assert new.stop() == 0
    shown = run_cdcd("downgrade", "--config", file)
    assert shown.returncode == 0, shown.stderr
    assert pipeline.newest_format() == 2
    done = run_cdcd("downgrade", "--yes", "--config", file)
    assert done.returncode == 0, done.stderr
    assert pipeline.newest_format() == 1
    old = pipeline.start(old=True, snapshot={"mode": "initial"})
    old.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    assert old.stop() == 0
    again = pipeline.start(old=False)
    again.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    assert pipeline.newest_format() == 2
    assert again.stop() == 0


def test_a_recording_of_the_former_version_is_replayed(pipeline: Pipeline, tmp_path: Path):
    folder = tmp_path / "recording"
    old = pipeline.start(old=True, record={"directory": str(folder)})
    old.await_streaming()
    pipeline.insert(100)
    pipeline.expect()
    assert old.stop() == 0
    done = run_cdcd("replay", str(folder), "--output", "nothing")
    assert done.returncode == 0, done.stderr
    assert "identical" in done.stderr + done.stdout or "exactly as they were" in done.stderr + done.stdout
