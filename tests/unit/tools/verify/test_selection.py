"""Which tables are compared."""

import pytest

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.tools.verify.selection import is_meant


@pytest.mark.parametrize(
    ("name", "patterns", "meant"),
    [
        ("public.orders", (), True),
        ("public.orders", ("public.*",), True),
        ("public.orders", ("sales.*",), False),
        ("public.outbox", (), False),
        ("public.outbox", ("public.*",), False),
        ("public.outbox", ("public.outbox",), False),
        ("sales.some", (), False),
        ("sales.some", ("sales.some",), False),
        ("sales.all", ("sales.*",), True),
    ],
)
def test_tables_that_are_chosen_are_compared_but_no_outbox_table_and_none_with_a_filter(
    name: str, patterns: tuple[str, ...], meant: bool
):
    parsed = [parse_pattern(each, "--table") for each in patterns]
    filtered = [parse_pattern("sales.s*", "filters.tables")]
    assert is_meant(name, parsed, {"public.outbox": None}, filtered) == meant
