"""Patterns of tables mean exactly the tables whose topics an expression matches."""

import itertools
import random
import re

import pytest

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.renaming import UnreadableError
from cdcd.tools.adopt.reach import ALL, KnownTable, Reach, UndecidedError, reached

NAMES = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product("ab", repeat=length)]
PARTS = ("a", "b", r"\.", ".", ".*", ".+", "(a|b)", "(?:.*|b)")


@pytest.mark.parametrize("seed", range(4))
def test_patterns_match_where_the_expression_does_and_nowhere_else(seed: int) -> None:
    source = random.Random(seed)
    translated = 0
    for _ in range(150):
        prefix = source.choice(["a", "ab", "b.a"])
        expression = "".join(source.choices(PARTS, k=source.randint(1, 6)))
        if source.random() < 0.5:
            expression = re.escape(prefix) + source.choice([r"\.", "."]) + expression
        try:
            patterns = [parse_pattern(each) for each in reached(expression, prefix, None).patterns]
        except UndecidedError:
            continue
        translated += 1
        for schema, table in itertools.product(NAMES, NAMES):
            expected = re.fullmatch(expression, f"{prefix}.{schema}.{table}") is not None
            assert any(each.matches(schema, table) for each in patterns) == expected, (
                prefix,
                expression,
                schema,
                table,
            )
    assert translated > 100


@pytest.mark.parametrize(
    ("expression", "patterns"),
    [
        (".*", (ALL,)),
        (r"shop\..*", (ALL,)),
        ("shop.public.orders", ("public.orders",)),
        (r"shop\.public\.(orders|items)", ("public.orders", "public.items")),
        (r".*\.public\.orders", ("public.orders",)),
        (r".*\.orders", ("*.orders",)),
        (r"shop\.public.*", ("public*.*",)),
        (r"other\..*", ()),
        (r"shop\.public\.Orders", ("public.Orders",)),
    ],
)
def test_common_expressions(expression: str, patterns: tuple[str, ...]) -> None:
    assert reached(expression, "shop", None) == Reach(patterns)


def test_what_has_no_pattern_is_decided_by_the_tables_of_today() -> None:
    known = (KnownTable("public", "order_1", ()), KnownTable("public", "order_x", ()))
    for expression, negated in ((r"shop\.public\.order_\d", False), (r"shop\.public\.order_x", True)):
        with pytest.raises(UndecidedError, match="was not asked"):
            reached(expression, "shop", None, negated=negated)
        assert reached(expression, "shop", known, negated=negated) == Reach(
            ("public.order_1",), is_exact=False
        )


def test_a_table_that_two_patterns_match_is_named_because_it_has_one_rule() -> None:
    known = (KnownTable("east", "orders_a", ()), KnownTable("b", "c", ()))
    assert len(reached(r"shop\..*a.*", "shop", None).patterns) == 2
    assert reached(r"shop\..*a.*", "shop", known) == Reach(("east.orders_a",), is_exact=False)


def test_a_topic_in_which_characters_are_replaced_is_compared_as_it_is() -> None:
    known = (KnownTable("public", "order items", ()),)
    found = reached(r"shop\.public\.order_items", "shop", known)
    assert found == Reach(('public."order items"',), is_exact=False)
    assert found.tables(known) == known


def test_what_only_java_reads_is_refused() -> None:
    with pytest.raises(UnreadableError):
        reached(r"shop\.\p{Alpha}+", "shop", None)


@pytest.mark.parametrize(
    ("patterns", "single"),
    [(("public.a",), "public.a"), (("public.*",), None), (("public.a", "public.b"), None), ((), None)],
)
def test_a_reach_knows_its_only_table(patterns: tuple[str, ...], single: str | None) -> None:
    assert Reach(patterns).single == single
