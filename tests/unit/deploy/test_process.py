import random
import socket
import subprocess
import sys

import pytest

from deploy.local.process import free_port


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
