"""The section `filters`: what is refused, and what the engine is given."""

import pytest

from cdcd.core.records.shaping.expressions import CelCall, CelColumn, CelLiteral
from cdcd.core.records.shaping.settings import TableFilter
from tests.unit.config.test_loading import MINIMAL, parse, problem


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("orders: {keep: row.a}", "must be <schema>.<table>"),
        ("public.orders: {}", "keep"),
        ("public.orders: {keep: 'row.a ='}", "cannot stand here"),
        ("public.orders: {keep: 'true'}", "asks for no column"),
        ("public.orders: {keep: row.a, on_error: stop}", "on_error"),
        ("public.orders: {keep: row.a, old_row: none}", "old_row"),
    ],
)
def test_what_is_wrong_is_named(tables: str, says: str):
    assert says in problem(f"{MINIMAL}filters: {{tables: {{{tables}}}}}\n")


def test_rows_of_an_outbox_table_cannot_be_filtered():
    outbox = "outbox: {topics: [outbox.event.a], tables: {public.outbox: {}}}\n"
    given = f"{MINIMAL}{outbox}filters: {{tables: {{public.*: {{keep: row.a}}}}}}\n"
    assert "matches public.outbox, whose rows are events" in problem(given)


def test_nor_can_columns_choose_their_partitions():
    outbox = "outbox: {topics: [outbox.event.a], tables: {public.outbox: {}}}\n"
    given = f"{MINIMAL}{outbox}partitioner: {{columns: {{public.*: [id]}}}}\n"
    assert "partitioner.columns: public.* matches public.outbox, whose rows are events" in problem(given)


def test_nothing_is_filtered_by_default():
    assert parse().filters.settings == ()


def test_a_filter_is_parsed():
    config = parse("filters: {tables: {'public.o*': {keep: row.a == 1, old_row: assumed}}}\n")
    keep = CelCall("==", (CelColumn("a"), CelLiteral(1)))
    assert config.filters.settings == (TableFilter("public.o*", "row.a == 1", keep, "keep", "assumed"),)
