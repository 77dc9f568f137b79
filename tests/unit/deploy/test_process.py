import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.local.process import Child, free_port


def test_a_port_that_was_given_is_not_given_again_although_nobody_listens_on_it(
    monkeypatch: pytest.MonkeyPatch,
):
    given = [free_port(), free_port()]
    with socket.create_server(("127.0.0.1", given[0])):
        """It is there for a server of this process."""
    draws, draw = iter(given), random.randrange
    monkeypatch.setattr(random, "randrange", lambda low, high: next(draws, None) or draw(low, high))
    assert free_port() not in given
    assert next(draws, None) is None, "both were drawn"


def test_another_process_is_given_another_port_until_ours_ends():
    take = (
        "import random; from deploy.local.process import free_port; random.seed(4711); "
        "print(free_port(), flush=True)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{take}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        held = int(holder.stdout.readline())
        other = int(subprocess.check_output([sys.executable, "-c", take]))
        assert other != held
        holder.kill()


def test_a_signal_to_all_reaches_the_children_too(tmp_path: Path):
    log = tmp_path / "log"
    inner = "trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.01; done"
    ask = f"trap 'echo parent' USR1; ({inner}) & while :; do wait; done"
    child = Child(["sh", "-c", ask], log=log, last_signal=signal.SIGKILL, cwd=tmp_path)
    try:
        await_line(log, "ready")
        child.signal_all(signal.SIGUSR1)
        await_line(log, "parent")
        await_line(log, "child")
    finally:
        child.kill()


def await_line(log: Path, line: str):
    while line not in log.read_text().split():
        # The test's own time limit ends it.
        time.sleep(0.01)
