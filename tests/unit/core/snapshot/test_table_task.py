from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.snapshot.table_task import gaps, union

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=12)


@given(ranges)
def test_ranges_are_joined_and_their_gaps_are_the_rest(added: list[tuple[int, int]]):
    done: tuple[tuple[int, int], ...] = ()
    pages: set[int] = set()
    for begin, length in added:
        done = union(done, begin, begin + length)
        pages |= set(range(begin, begin + length))
    assert {page for begin, end in done for page in range(begin, end)} == pages
    assert all(one[1] < other[0] for one, other in pairwise(done))
    assert {page for begin, end in gaps(done, 50) for page in range(begin, end)} == set(range(50)) - pages
