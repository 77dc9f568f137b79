"""Patterns of tables, and what a publication is made for."""

import pytest

from cdcd.adapters.postgres.publication import Candidate, PublishedTable, choose_target
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.errors import SourceError


def candidate(oid: int, schema: str, name: str, *ancestors: int) -> Candidate:
    return Candidate(PublishedTable(oid, schema, name, "d", True, True), ancestors)


TABLES = [
    candidate(1, "public", "orders"),
    candidate(2, "public", "order_lines"),
    candidate(3, "sales", "a.b"),
    candidate(4, "sales", 'quo"te'),
    candidate(5, "Sales", "Kunde*"),
    candidate(6, "part", "root", 6),
    candidate(7, "part", "leaf", 7, 6),
]


@pytest.mark.parametrize(
    ("patterns", "whole_schemas", "target"),
    [
        (["public.orders"], [], 'TABLE "public"."orders"'),
        (["public.*"], [], 'TABLE "public"."orders", "public"."order_lines"'),
        (["public.*"], ["public", "sales"], 'TABLES IN SCHEMA "public"'),
        (["public.*", 'sales."a.b"'], ["public", "sales"], 'TABLES IN SCHEMA "public", TABLE "sales"."a.b"'),
        (["public.*", "public.orders"], ["public"], 'TABLES IN SCHEMA "public", TABLE "public"."orders"'),
        (["part.*"], [], 'TABLE "part"."root"'),
        (["part.leaf"], [], 'TABLE "part"."leaf"'),
        (["later.*", "public.orders"], [], 'TABLE "public"."orders"'),
        (["later.*"], ["later"], 'TABLES IN SCHEMA "later"'),
        (['sales."quo""te"'], [], 'TABLE "sales"."quo""te"'),
    ],
)
def test_patterns_become_a_list_of_tables_or_whole_schemas(
    patterns: list[str], whole_schemas: list[str], target: str
) -> None:
    assert choose_target([parse_pattern(pattern) for pattern in patterns], TABLES, whole_schemas) == target


@pytest.mark.parametrize("patterns", [["public.missing", "public.orders"], ["later.*"], ["public.z*"]])
def test_a_pattern_that_can_only_be_a_mistake_is_refused(patterns: list[str]) -> None:
    with pytest.raises(SourceError) as caught:
        choose_target([parse_pattern(pattern) for pattern in patterns], TABLES, [])
    assert caught.value.hint


def test_patterns_that_match_nothing_are_answered_with_schemas_that_have_tables() -> None:
    tables = [Candidate(PublishedTable(0, f"s {number}", "t", "d", True, True), (0,)) for number in range(7)]
    with pytest.raises(SourceError) as caught:
        choose_target([parse_pattern("public.*")], tables, [])
    assert caught.value.hint is not None
    assert '"s 0".*, "s 1".*' in caught.value.hint
    assert caught.value.hint.endswith("and 2 more.")
