"""Debezium's lists of tables, and patterns that choose the same tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.tools.adopt.tables import choose, named_tables, read_lists

TABLES = [
    ("public", "orders"),
    ("public", "orders_2026"),
    ("public", "customers"),
    ("sales", "orders"),
    ("sales", "a.b"),
    ("Sales", "orders"),
]


def listed(**lists: str):
    return read_lists({name.replace("_", ".", 2): value for name, value in lists.items()})


@pytest.mark.parametrize(
    ("expression", "patterns"),
    [
        ("public.orders", ("public.orders",)),
        (r"public\.orders", ("public.orders",)),
        ("public.orders.*", ("public.orders*",)),
        (r"public\..*", ("public.*",)),
        (r"public\.(orders|customers)", ("public.orders", "public.customers")),
        (r"(?:public|sales)\.orders", ("public.orders", "sales.orders")),
        (r"public\.orders, sales\.a\.b", None),
        (r"^public\.orders$", ("public.orders",)),
        (r".*\.orders", ("*.orders",)),
        (r"public\.orders_.+", ("public.orders_?*",)),
        (r"public\.a\*b", ('public."a*b"',)),
        ("public.[a-z]+", None),
        (r"public\.orders_\d+", None),
        ("(public|sales)+.orders", None),
        # Without a point, the names may part anywhere.
        ("public.*", ("public*.*",)),
        (".*", ("*.*",)),
    ],
)
def test_an_expression_without_the_database(expression: str, patterns: tuple[str, ...] | None) -> None:
    found = choose(listed(table_include_list=expression), None)
    assert (found.patterns, found.is_exact, found.is_checked) == (patterns, patterns is not None, False)


@pytest.mark.parametrize(
    ("lists", "patterns", "is_exact"),
    [
        ({"table_include_list": r"public\.orders.*"}, ("public.orders*",), True),
        # Case does not count for Debezium.
        ({"table_include_list": r"sales\.orders"}, ("sales.orders", "Sales.orders"), False),
        # A point that an expression does not escape may be that of a name.
        ({"table_include_list": "sales.a.b"}, ("sales.a?b",), True),
        ({"table_include_list": r"public\.orders_\d+"}, ("public.orders_2026",), False),
        ({"schema_include_list": "public"}, ("public.*",), True),
        ({"schema_include_list": "public", "table_include_list": "public.*"}, ("public.*",), True),
        ({"table_exclude_list": r"public\..*"}, ("sales.orders", 'sales."a.b"', "Sales.orders"), False),
        (
            {"schema_exclude_list": "sales"},
            ("public.orders", "public.orders_2026", "public.customers"),
            False,
        ),
        ({"schema_include_list": "public", "table_include_list": r".*\.orders"}, ("public.orders",), True),
        # An include list is taken before an exclude list.
        ({"table_include_list": r"public\.orders", "table_exclude_list": ".*"}, ("public.orders",), True),
    ],
)
def test_an_expression_is_compared_with_the_tables_of_the_database(
    lists: dict[str, str], patterns: tuple[str, ...], is_exact: bool
) -> None:
    found = choose(listed(**lists), TABLES)
    assert (found.patterns, found.is_exact, found.is_checked) == (patterns, is_exact, True)


@pytest.mark.parametrize(
    "expression", [r"public\.\p{Lower}+", r"public\.\Qa\E", "public.(", "(?<name>public).a"]
)
def test_what_only_java_reads_is_told(expression: str) -> None:
    lists = listed(table_include_list=expression)
    assert lists.unreadable == (expression,)
    assert choose(lists, TABLES).patterns is None


def test_a_comma_behind_a_backslash_does_not_part_expressions() -> None:
    assert listed(table_include_list=r"a\.b{1\,2}, c\.d").expressions == {
        "table.include.list": ("a\\.b{1,2}", "c\\.d")
    }


NAMES = st.text('ab.*?_X"', min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES), unique=True, max_size=12), st.text(r"ab.*+()|\X?[]", max_size=10))
def test_what_is_chosen_is_what_debezium_captures(tables: list[tuple[str, str]], expression: str) -> None:
    lists = listed(table_include_list=expression)
    found = choose(lists, tables)
    if not lists.given or found.patterns is None:
        return
    patterns = [parse_pattern(pattern) for pattern in found.patterns]
    chosen = {table for table in tables if any(pattern.matches(*table) for pattern in patterns)}
    assert chosen == {table for table in tables if lists.captures(*table)}


@pytest.mark.parametrize(
    ("lists", "tables"),
    [
        ({"table_include_list": r"public.a, public\.b_2"}, (("public", "a"), ("public", "b_2"))),
        (
            {"schema_include_list": "public", "table_include_list": "public.a,sales.b"},
            (("public", "a"),),
        ),
        ({"table_include_list": "public.a,public.b.*"}, None),
        ({"schema_include_list": "public"}, None),
        ({"table_exclude_list": "public.a"}, None),
    ],
)
def test_a_list_that_consists_of_names_names_the_captured_tables(
    lists: dict[str, str], tables: tuple[tuple[str, str], ...] | None
) -> None:
    assert named_tables(listed(**lists)) == tables
