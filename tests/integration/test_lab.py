"""`make lab`: servers on known ports until they are ended, with addresses that work."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from deploy.lab import lines, running, stop, usable
from deploy.local import free_port
from deploy.local.cache import REPOSITORY
from tests.integration.daemon import WAIT_S

pytestmark = pytest.mark.integration


@contextmanager
def lab(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a lab with its own state file; yield the process, and its output up to the line that says it is ready."""
    script = f"from pathlib import Path; from deploy import lab; lab.cache_folder = lambda: Path({str(folder)!r}); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{script} raise SystemExit(lab.main({list(arguments)!r})) # deploy.lab"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    try:
        for line in process.stdout:
            said += line
            if line.startswith("Next:"):
                break
        yield process, said
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(scratch: Path) -> Path:
    made = scratch / f"lab-{time.monotonic_ns()}"
    made.mkdir(mode=0o711)
    return made


def test_its_addresses_work_and_ctrl_c_leaves_nothing(folder: Path) -> None:
    ports = [str(free_port()), str(free_port())]
    with lab(folder, "--postgres-port", ports[0], "--kafka-port", ports[1]) as (process, said):
        (dsn,) = re.findall(r"(postgresql://\S+)", said)
        (brokers,) = re.findall(r"^Kafka +(\S+)$", said, re.MULTILINE)
        assert dsn.endswith(f"@localhost:{ports[0]}/shop")
        assert brokers.endswith(f":{ports[1]}")
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert AdminClient({"bootstrap.servers": brokers}).list_topics(timeout=WAIT_S).brokers
        assert running(folder / "lab.json") == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert list(folder.iterdir()) == []
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(ports[0])))


def test_it_is_ended_from_another_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lab(folder, "--postgres-port", str(free_port()), "--kafka-port", str(free_port())) as (process, _):
        # From here on nothing reads the lab's output.
        assert stop(folder / "lab.json") == 0
        assert process.wait(WAIT_S) == 0
    assert "has ended" in capsys.readouterr().out
    assert stop(folder / "lab.json") == 0
    assert "No lab runs." in capsys.readouterr().out


def test_a_port_that_is_taken_is_replaced_and_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert usable(taken) != taken
    said = lines(15432, 9092, Path("/cache/bin/psql"))
    assert "Port 5432 is taken: write 15432 instead of 5432 in docs/tutorial.md." in said
    assert not any("9092 is taken" in line for line in said)
    assert any("alias psql=/cache/bin/psql" in line for line in said)


def test_a_process_that_only_has_the_number_of_a_former_lab_is_no_lab(folder: Path) -> None:
    state = folder / "lab.json"
    state.write_text(f'{{"pid": {os.getpid()}}}')
    assert running(state) is None
    state.write_text("not JSON")
    assert running(state) is None
