"""Which tables are compared: a table that is set aside is stopped, and never equal."""

import pytest

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.transactions.position import Position
from cdcd.tools.verify.delivery import is_meant, stopped


def test_a_table_that_is_set_aside_is_named_with_its_place_its_fault_and_the_command():
    checkpoint = Checkpoint("1", 1, "", Position(), 0, tables=(AsideTable(7, 0x1F0, "size"),))
    said = stopped(checkpoint, 7, "public.t")
    assert "stopped" in said
    assert "since 0/1F0 (fault: size)" in said
    assert "`cdcd tables resume public.t`" in said
    assert stopped(checkpoint, 8, "public.other") == ""


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
