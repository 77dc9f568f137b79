"""How the demo ends when it is broken off."""

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.demo import run


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`ends(error, interrupts)`: the exit code of a demo that was interrupted so often, and ended by an error then."""

    def main(error: Exception | None, interrupts: int) -> int:
        def end(demo: run.Demo, _seconds: float | None) -> bool:
            demo._interrupts.patient = True
            # A library of C makes an error of its own of an exception that is raised within one of its calls.
            with suppress(KeyboardInterrupt):
                for _ in range(interrupts):
                    signal.raise_signal(signal.SIGINT)
            if error is not None:
                raise error
            return True

        monkeypatch.setattr(run.Demo, "run", end)
        return run.main([])

    return main


def test_the_second_interrupt_ends_it_whatever_becomes_of_it(ends: Callable[..., int]) -> None:
    assert ends(TypeError("expected configuration property name"), 2) == 130
    assert ends(run.DemoError("The daemon ended."), 2) == 130
    # It was lost, so that the demo came to its end.
    assert ends(None, 2) == 0


def test_the_picture_is_drawn_by_the_thread_that_changes_it(tmp_path: Path) -> None:
    # With a thread of its own, "deque mutated during iteration" froze the picture of a demo after a minute.
    demo = run.Demo(tmp_path, run.Screen(force_terminal=True), run.Interrupts(), rate=1)
    assert not demo._live().auto_refresh


def test_the_first_interrupt_excuses_nothing(ends: Callable[..., int]) -> None:
    assert ends(run.DemoError("The daemon ended."), 1) == 1
    with pytest.raises(TypeError):
        ends(TypeError("expected configuration property name"), 1)
