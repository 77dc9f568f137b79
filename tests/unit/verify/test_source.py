from random import Random

import pytest

from cdcd.verify.source import RUN_PAGES, left_out


@pytest.mark.parametrize(
    ("pages", "share", "read"), [(1600, 0.1, 160), (1600, 1.0, 1600), (5, 0.01, 5), (0, 0.5, 0)]
)
def test_a_sample_has_its_share_of_the_pages_and_one_run_at_least(pages: int, share: float, read: int):
    skipped = left_out(pages, share, Random(7))
    assert pages - sum(end - begin for begin, end in skipped) == read


def test_another_sample_has_other_pages():
    assert left_out(100 * RUN_PAGES, 0.05, Random(1)) != left_out(100 * RUN_PAGES, 0.05, Random(2))
