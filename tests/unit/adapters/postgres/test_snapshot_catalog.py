"""Where the WAL ends. What is asked of real servers is in tests/integration."""

import pytest

from cdcd.adapters.postgres.snapshot_catalog import end_of_records


@pytest.mark.parametrize(
    ("insert", "expected"),
    [
        (5 * 8192 + 24, 5 * 8192),
        (5 * 8192 + 40, 5 * 8192 + 40),
        (5 * 8192 + 32, 5 * 8192 + 32),
        (2**24 + 40, 2**24),
        (2**24 + 8192 + 24, 2**24 + 8192),
        (2**24 + 8192 + 40, 2**24 + 8192 + 40),
    ],
)
def test_the_header_of_a_page_is_not_part_of_the_records_before_it(insert: int, expected: int):
    assert end_of_records(insert, 8192, 2**24) == expected
