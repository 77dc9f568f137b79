from hypothesis import given
from hypothesis import strategies as st

from cdcd.retry import Backoff

LARGEST_DRAW = 1 - 2**-53


def test_waits_double_up_to_the_limit():
    backoff = Backoff(0.5, 3)
    assert [round(backoff.next(LARGEST_DRAW), 9) for _ in range(5)] == [0.5, 1, 2, 3, 3]


def test_the_draw_takes_up_to_half_of_a_wait_away():
    assert Backoff(1, 10).next(0.0) == 0.5
    assert Backoff(1, 10).next(0.5) == 0.75


def test_after_a_success_the_series_begins_again():
    backoff = Backoff(0.5, 30)
    for _ in range(4):
        backoff.next(0.5)
    backoff.reset()
    assert backoff.next(LARGEST_DRAW) <= 0.5


def test_a_limit_below_the_first_wait_holds():
    assert Backoff(10, 1).next(LARGEST_DRAW) <= 1


@given(
    st.floats(0.001, 100),
    st.floats(0.001, 100),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3000),
)
def test_no_wait_is_longer_than_the_limit(initial_s: float, max_s: float, draws: list[float]):
    backoff = Backoff(initial_s, max_s)
    assert all(0 < backoff.next(draw) <= max_s for draw in draws)
