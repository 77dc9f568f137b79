"""Which commits a process knows."""

import pytest

from cdcd.core.errors import FencedError
from cdcd.mirror.targets.fencing import NOBODY, Fence, Stamp


def test_what_was_there_first_and_what_is_its_own_is_known():
    fence, before = Fence(), Stamp("before", 7)
    fence.check("t", [before, NOBODY])
    one, two = fence.next(), fence.next()
    assert one != two
    fence.check("t", [one, before])
    fence.check("t", [two, one])
    fence.check("t", [])


def test_a_commit_of_another_process_is_not_known_wherever_it_lies():
    fence = Fence()
    fence.check("t", [NOBODY])
    other = Fence().next()
    for newest in ([other], [other, fence.next()], [fence.next(), other]):
        with pytest.raises(FencedError, match="Another process mirrors into t") as error:
            fence.check("t", newest)
        assert error.value.hint
    # It is known to whom it was there first, and of another table nothing is said.
    fence.check("another", [other])


def test_a_table_that_was_empty_has_no_commit_of_others():
    fence = Fence()
    fence.check("t", [])
    with pytest.raises(FencedError):
        fence.check("t", [NOBODY])
