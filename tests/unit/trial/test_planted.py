"""Each planted mistake can be put into the sources as they are, and each fault can be carried out."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.local.cache import REPOSITORY
from tests.trial.entry import Clock, move_clock
from tests.trial.faults import FAILOVER, FAULTS
from tests.trial.planted import PLANTED
from tests.trial.play import BEGINNINGS

PUT_IN = "from tests.trial.planted import PLANTED\nfor each in PLANTED.values(): each.put_in()"


def test_there_are_twelve_mistakes_at_least_and_each_one_can_be_put_in():
    assert len(PLANTED) >= 12
    # In a process of its own: they replace names of modules.
    subprocess.run([sys.executable, "-c", PUT_IN], cwd=REPOSITORY, check=True, timeout=120)


def test_each_fault_can_be_carried_out_and_mistakes_are_looked_for_with_known_ones():
    assert set(BEGINNINGS) == {*FAULTS, FAILOVER}
    assert all(set(mistake.faults) <= set(FAULTS) for mistake in PLANTED.values())


def test_the_clock_of_a_process_follows_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    monkeypatch.setattr(time, "time_ns", lambda: 1000_000_000_000)
    clock = Clock(tmp_path / "clock")
    move_clock(clock.path)
    assert time.time() == 1000
    clock.set(-3600.5)
    assert time.time() == -2600.5
    assert time.time_ns() == -2600_500_000_000
    clock.set(0)
    assert time.time() == 1000
