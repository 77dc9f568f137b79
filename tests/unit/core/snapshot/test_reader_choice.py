"""Which entry of postgres.readers reads a table."""

import pytest

from cdcd.core.errors import ConfigError
from cdcd.core.snapshot.reader_choice import ReaderChoice


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ("shop.orders", 0),
        ("shop.items", 1),
        ("crm.people", 1),
        ("a.b.c", 2),
        ("public.t", None),
        ("Shop.orders", None),
        ("shop.orders2", 1),
    ],
)
def test_the_first_pattern_that_matches_wins(table: str, place: int | None):
    choice = ReaderChoice([["shop.orders"], ["crm.*", "shop.*"], ['"a.b".c', "shop.orders"]])
    assert choice.of(table) == place


def test_without_readers_the_role_of_the_dsn_reads_every_table():
    assert ReaderChoice([]).of("public.t") is None


def test_a_malformed_pattern_is_refused_by_the_name_of_its_entry():
    with pytest.raises(ConfigError, match=r"postgres\.readers\[1\]\.tables: 'orders'"):
        ReaderChoice([["a.b"], ["orders"]])
