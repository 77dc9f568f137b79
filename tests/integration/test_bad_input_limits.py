"""Limits that are reached: a clear stop, before anything is confirmed that has no place."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local import KafkaBroker
from deploy.local.cache import REPOSITORY
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S
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


# File descriptors: limits on the number of files and connections that a process may have open.


@pytest.mark.parametrize("limit", [12, 30])
def test_a_start_with_too_few_descriptors_ends_at_once_and_check_foresees_it(one: Trial, limit: int):
    one.daemon.write_config()
    config = ["--config", str(one.daemon.config_path)]
    said = limited(limit, "run", *config)
    assert said.returncode == 8, said.stderr
    last = json.loads(said.stderr.splitlines()[-1])
    assert f"may have {limit} files and connections open" in last["message"]
    assert "Traceback" not in said.stderr
    assert not one.has_slot()
    checked = limited(limit, "check", "--format", "json", *config)
    assert checked.returncode == 8, checked.stderr
    found = [each for each in json.loads(checked.stdout)["findings"] if each["code"] == "machine.files"]
    assert [(each["level"], each["fix"]) for each in found] == [("error", last["hint"])]


def limited(files: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `cdcd` to its end with this limit on open files."""
    return subprocess.run(
        ["prlimit", f"--nofile={files}", "--", sys.executable, "-m", "cdcd.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        cwd=REPOSITORY,
    )


def idle(_one: Trial) -> None:
    """Do nothing: an idle pipeline needs no new descriptor."""


def a_spooled_transaction(one: Trial) -> None:
    with one.connect() as writer:
        writer.execute(SPOOLED.format(1000, 5000))


SPOOLED_IDS = range(1000, 5001)


def a_new_table(one: Trial) -> None:
    one.execute("CREATE TABLE another (id int PRIMARY KEY)")
    one.execute("INSERT INTO another VALUES (1)")


def a_lost_connection(one: Trial) -> None:
    one.execute("SELECT pg_terminate_backend(%s)", one.walsender())


def a_lost_lock(one: Trial) -> None:
    one.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )


def clients_of_the_pages(one: Trial) -> None:
    host, _, port = one.daemon.await_event("daemon.started")["http"].rpartition(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")


@pytest.mark.parametrize(
    "happens",
    [
        idle,
        a_spooled_transaction,
        pytest.param(a_new_table, marks=pytest.mark.long),
        a_lost_connection,
        a_lost_lock,
        clients_of_the_pages,
    ],
    ids=lambda happens: happens.__name__,
)
def test_a_daemon_that_runs_out_of_descriptors_ends_and_confirms_nothing(
    one: Trial, happens: Callable[[Trial], None]
):
    one.configure(spool={"memory_bytes_max": 65_536})
    one.start()
    one.insert(1)
    one.expect(1)
    resource.prlimit(one.daemon.pid, resource.RLIMIT_NOFILE, (3, 3))
    happens(one)
    said = one.fail(timeout_s=60)
    assert said.code == 8, said.output
    assert "Too many open files" in said.message
    assert "ulimit -n" in said.hint
    assert "Traceback" not in said.output
    # Another start delivers the rest, and each row once.
    one.insert(2)
    one.deliver(*SPOOLED_IDS if happens is a_spooled_transaction else (), 2)
