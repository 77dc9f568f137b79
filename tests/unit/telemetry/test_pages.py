import time
from types import SimpleNamespace

import pytest

from cdcd.telemetry.pages import KINDS_MAX, Kept


def spend(seconds: float) -> str:
    """Use this much CPU."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return "made"


def test_an_answer_is_kept_for_a_moment_and_by_kind():
    kept: Kept[str, list[int]] = Kept(1.0, 60.0)
    first, other = kept("a", list), kept("b", list)
    assert kept("a", list) is first
    assert first is not other


def test_an_answer_that_is_old_is_made_anew():
    kept: Kept[str, list[int]] = Kept(1e9, 0.0)
    assert kept("a", list) is not kept("a", list)


def test_an_answer_is_kept_as_long_as_its_cost_demands(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time)
    monkeypatch.setattr("cdcd.telemetry.pages.time", clocks)
    kept: Kept[str, str] = Kept(0.01)
    times = 0

    def make() -> str:
        nonlocal times
        times += 1
        return spend(0.02)

    for now[0] in (0.0, 1.0, 1.99):
        kept("a", make)
    assert times == 1
    now[0] = 1e9
    kept("a", make)
    assert times == 2


def test_strangers_cannot_fill_it():
    kept: Kept[int, str] = Kept(1.0, 60.0)
    for kind in range(10 * KINDS_MAX):
        kept(kind, lambda: "made")
    assert len(kept._made) <= KINDS_MAX
