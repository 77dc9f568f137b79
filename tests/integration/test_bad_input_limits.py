"""Limits that are reached: a clear stop, before anything is confirmed that has no place."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.faults.trial import Trial

pytestmark = pytest.mark.postgres(only=18)

SPOOLED = "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series({}, {}) i"


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker) -> Trial:
    """A pipeline that never ran."""
    return trial(database.dsn(), broker.bootstrap_servers)


# The spool.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "cdcd-test", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def overflow(one: Trial, message: str, hint: str) -> None:
    """A streamed transaction of 4 MB, where 2 MB have room: it stops the pipeline while it is open."""
    one.start()
    one.insert(1)
    one.expect(1)
    with one.connect() as writer:
        writer.execute(SPOOLED.format(2, 4001))
        said = one.fail()
        assert said.code == 8
        assert message in said.message
        assert hint in said.hint
        # Its rows may lie before what is confirmed, its commit may not.
        before = one.wal_end()
        writer.commit()
    one.assert_unconfirmed(before)


def test_a_full_disk_under_the_spool_stops_the_pipeline(one: Trial, small_disk: Path):
    one.configure(spool={"directory": str(small_disk), "memory_bytes_max": 65_536})
    overflow(one, "Cannot write the spool of transaction", "Free or enlarge that file system")
    assert not list(small_disk.iterdir())
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    one.deliver(*range(2, 4002))


def test_the_spools_limit_stops_the_pipeline(one: Trial):
    one.configure(spool={"memory_bytes_max": 65_536, "disk_bytes_max": 2_097_152})
    overflow(one, "spool.disk_bytes_max is 2097152", "Raise spool.disk_bytes_max")
    one.configure(spool={"disk_bytes_max": None})
    one.deliver(*range(2, 4002))


def test_a_spool_directory_that_cannot_be_made_is_told(one: Trial):
    one.configure(spool={"directory": "/proc/nowhere/spool"})
    said = one.fail()
    assert said.code == 8
    assert "Cannot use the spool directory /proc/nowhere/spool" in said.message
    assert "spool.directory" in said.hint
