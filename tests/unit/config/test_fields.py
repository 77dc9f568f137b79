"""The section `fields` of the configuration: which values it refuses, and which settings the encoder gets of it."""

import pytest

from cdcd.core.catalog.field_names import FieldRule
from tests.unit.config.test_loading import MINIMAL, parse, problem


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("orders: {rename: {a: b}}", "must be <schema>.<table>"),
        ("public.orders: {}", "has neither rename nor constants"),
        ("public.orders: {rename: {a: c, b: c}}", "two fields would have the name c"),
        ("public.orders: {rename: {a: c}, constants: {c: x}}", "two fields would have the name c"),
        ("public.orders: {constants: {c: 7}}", "fields.tables.public.orders.constants.c"),
        ("public.orders: {rename: {a: ''}}", "must not be empty"),
    ],
)
def test_what_is_wrong_is_named(tables: str, says: str):
    assert says in problem(f"{MINIMAL}fields: {{tables: {{{tables}}}}}\n")


def test_rows_of_an_outbox_table_have_no_fields():
    outbox = "outbox: {topics: [outbox.event.a], tables: {public.outbox: {}}}\n"
    given = f"{MINIMAL}{outbox}fields: {{tables: {{public.*: {{constants: {{a: b}}}}}}}}\n"
    assert "fields.tables: public.* matches public.outbox, whose rows are events" in problem(given)


def test_the_rules_are_those_that_are_given():
    assert parse().fields.rules == ()
    fields = parse("fields: {tables: {a.b: {rename: {x: y}, constants: {region: eu}}}}\n").fields
    assert fields.rules == (FieldRule("a.b", (("x", "y"),), (("region", "eu"),)),)
    assert fields.renames
    assert not parse("fields: {tables: {a.b: {constants: {region: eu}}}}\n").fields.renames
