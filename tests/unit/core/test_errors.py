"""Failures that are known by their kind, and the delays of retries."""

import errno

from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.errors import LimitError, TransientError, cause, out_of_files
from cdcd.core.retry import Backoff


def test_exhausted_descriptors_are_a_limit_with_the_key_that_raises_it():
    for number, words in ((errno.EMFILE, "this process"), (errno.ENFILE, "all processes of this machine")):
        found = out_of_files(OSError(number, "Too many open files"))
        assert isinstance(found, LimitError)
        assert words in found.message
        assert "LimitNOFILE" in found.hint
    assert out_of_files(OSError(errno.ENOSPC, "No space left on device")) is None
    assert out_of_files(ValueError()) is None


def test_exhausted_descriptors_are_told_before_what_passes():
    full = OSError(errno.EMFILE, "Too many open files")
    assert cause(ExceptionGroup("", [TransientError("away"), full])) is full


def test_delays_double_up_to_the_longest():
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next(1.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_it_begins_anew_after_a_success():
    backoff = Backoff(1.0, 60.0)
    for _ in range(10):
        backoff.next(0.5)
    backoff.reset()
    assert backoff.next(1.0) == 1.0


@given(st.lists(st.floats(0, 1), max_size=20))
def test_a_delay_is_at_least_half_of_what_it_may_be(draws: list[float]):
    spread, longest = Backoff(0.1, 30.0), Backoff(0.1, 30.0)
    for draw in draws:
        most = longest.next(1.0)
        assert most / 2 <= spread.next(draw) <= most
