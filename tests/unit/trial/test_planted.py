"""Each planted mistake can be put into the sources as they are, and each fault can be carried out."""

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.trial import planted
from tests.trial.entry import Clock, move_clock
from tests.trial.faults import FAILOVER, FAULTS
from tests.trial.plan import plan_for
from tests.trial.planted import PLANTED
from tests.trial.play import BEGINNINGS


def test_there_are_twelve_mistakes_at_least_and_each_one_can_be_put_in(monkeypatch: pytest.MonkeyPatch):
    assert len(PLANTED) >= 12
    replaced = Counter[str]()

    def put_in(module: object, name: str, value: object) -> None:
        monkeypatch.setattr(module, name, value)
        replaced[mistake] += 1

    # In its place, so that what is replaced comes back.
    monkeypatch.setattr(planted, "_set", put_in)
    for mistake in PLANTED:
        PLANTED[mistake].put_in()
    assert set(replaced) == set(PLANTED)


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


def test_a_mistake_is_looked_for_with_its_own_faults_only():
    for mistake in PLANTED.values():
        plan = plan_for(mistake, 1, 60)
        assert plan.faults
        assert {fault.kind for fault in plan.faults} <= set(mistake.faults)
        assert plan.transaction.items() >= mistake.transaction.items()
