"""The text of a table: one for each table, and the table of each text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.routing import parse_table
from cdcd.core.table_names import split_table, table_text

NAMES = st.text('a."', min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (("public", "orders"), "public.orders"),
        (("public", "Odd Name"), "public.Odd Name"),
        (("public", 'q"x'), 'public.q"x'),
        (("crm", "x.t"), 'crm."x.t"'),
        (("crm.x", "t"), '"crm.x".t'),
        (("crm.x", 'q"t'), '"crm.x"."q""t"'),
    ],
)
def test_only_names_with_dots_have_quotes(table: tuple[str, str], text: str):
    assert table_text(*table) == text
    assert split_table(text) == table


@given(schema=NAMES, table=NAMES)
def test_a_text_gives_its_table_back_whatever_dots_and_quotes_the_names_have(schema: str, table: str):
    text = table_text(schema, table)
    assert split_table(text) == (schema, table)
    if "." in schema + table:
        assert parse_table(text) == (schema, table)


def test_text_with_dots_that_a_person_wrote_is_split_at_the_first_dot():
    assert split_table("a.b.c") == ("a", "b.c")
    assert split_table("orders") == ("orders", "")
