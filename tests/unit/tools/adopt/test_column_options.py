"""Debezium's lists of columns become rules of `columns`, unless a column is one that these rules are not for."""

import re
from itertools import product

import pytest

from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.tools.adopt.adoption import keys_of
from cdcd.tools.adopt.judging import judge
from cdcd.tools.adopt.reach import Known, KnownTable
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.tables import alternatives_of, patterns_of_names
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind
from tests.unit.tools.adopt.transforms_examples import CONNECT, CONNECTOR, KNOWN, UNWRAP, config, connector


def of(name: str, value: str, known: Known = None) -> Verdict:
    findings = judge({**CONNECTOR, name: value}, References(), known)
    return next(finding.verdict for finding in findings if finding.name == name)


def test_columns_that_are_left_out_are_left_out() -> None:
    options = {**CONNECTOR, "column.exclude.list": r"public\.orders\.(email|total), public.customers.email"}
    wanted = ("public.orders.email", "public.orders.total", "public.customers.email")
    for known in (None, KNOWN):
        assert config(options, known).columns.exclude == wanted
    assert of("column.exclude.list", r"public\.orders\.email", KNOWN).kind is VerdictKind.SAME
    assert of("column.exclude.list", r"public\.orders\.email").kind is VerdictKind.DIFFERENT


def test_columns_that_are_included_are_the_only_ones() -> None:
    value = r"public\.orders\.(id|email), public.customers.id"
    wanted = ("public.orders.id", "public.orders.email", "public.customers.id")
    assert config({**CONNECTOR, "column.include.list": value}, KNOWN).columns.include == wanted
    verdict = of("column.include.list", value, KNOWN)
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "leaves the column out until columns.include is changed" in verdict.why
    # Case, and expressions without a pattern: the columns of today.
    verdict = of("column.include.list", r"PUBLIC\.orders\.[ie].*, .*\.id", KNOWN)
    assert dict(verdict.keys) == {
        "columns.include": ["public.orders.id", "public.orders.email", "public.customers.id"]
    }


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (r"public\.orders\.(id|email)", "no column of public.customers"),
        (r"public\.orders\.email, public\.customers\..*", "Column id is in the key of public.orders"),
        (r"public\.orders\.\p{L}+", "Only Java reads"),
    ],
)
def test_a_list_that_would_show_more_or_lacks_a_key_stands_in_the_way(value: str, why: str) -> None:
    verdict = of("column.include.list", value, KNOWN)
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert why in verdict.why


def test_without_the_database_nobody_knows_which_tables_a_list_of_included_columns_leaves_out() -> None:
    verdict = of("column.include.list", r"public\.orders\.(id|email)")
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.UNKNOWN, {})


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("column.mask.with.3.chars", {"columns.mask": {"public.*.email": "***"}}),
        ("column.mask.with.0.chars", {"columns.truncate": {"public.*.email": 0}}),
        ("column.truncate.to.20.chars", {"columns.truncate": {"public.*.email": 20}}),
    ],
)
def test_columns_of_text_are_masked_and_cut_short_with_what_differs(
    name: str, keys: dict[str, object]
) -> None:
    for known in (None, KNOWN):
        verdict = of(name, r"public\..*\.email", known)
        assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.DIFFERENT, keys)
    options = {**CONNECTOR, name: r"public\..*\.email"}
    assert config(options, KNOWN).columns.patterns == [
        (next(iter(keys)).removeprefix("columns."), "public.*.email")
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("column.exclude.list", "public.orders.id"),
        ("column.mask.with.3.chars", "public.orders.id"),
        ("column.mask.with.3.chars", "public.orders.(email|total)"),
        ("column.truncate.to.3.chars", "public.orders.total"),
        ("column.exclude.list", r"public\.orders\.\p{L}+"),
    ],
)
def test_keys_and_numbers_and_what_only_java_reads_stand_in_the_way(name: str, value: str) -> None:
    verdict = of(name, value, KNOWN)
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "Do not take over before that" in verdict.why


def test_the_database_decides_where_the_case_of_letters_or_no_pattern_does() -> None:
    for value in (r"PUBLIC\.orders\.email", r"public\.orders\.[e]mail"):
        verdict = of("column.exclude.list", value, KNOWN)
        assert (verdict.kind, dict(verdict.keys)) == (
            VerdictKind.DIFFERENT,
            {"columns.exclude": ["public.orders.email"]},
        )
    assert of("column.exclude.list", r"public\.orders\.[e]mail").kind is VerdictKind.UNKNOWN


def test_a_list_that_means_no_column_of_today_has_no_key() -> None:
    verdict = of("column.exclude.list", r"public\.[x]\.email", KNOWN)
    assert dict(verdict.keys) == {}


def test_a_hash_is_another_one() -> None:
    findings = judge({**CONNECTOR, "column.mask.hash.v2.SHA-256.with.salt.x": "public.a.b"}, References())
    (found,) = [each for each in findings if each.name.startswith("column.mask.hash")]
    assert found.verdict.kind is VerdictKind.IMPOSSIBLE
    assert "columns.hash" in found.verdict.why


def test_lists_and_transforms_leave_out_columns_together() -> None:
    options = connector(
        {"type": UNWRAP},
        {"type": f"{CONNECT}ReplaceField$Value", "exclude": "total"},
        column__exclude__list=r"public\.orders\.email",
    )
    keys = keys_of(judge(options, References(), KNOWN))
    assert keys["columns.exclude"] == ["public.orders.email", "*.*.total"]


@pytest.mark.parametrize(
    "expression",
    [
        r"a\.b\.a",
        "a.b.a",
        r".*\.a",
        r"a\..*",
        ".*",
        r"(a|b)\..*\.b",
        "a.*b",
        r"\.a\.b",
        "a..*",
        r".*\..*\..*\..*",
    ],
)
def test_patterns_of_columns_match_where_the_expression_does(expression: str) -> None:
    sequences = alternatives_of(expression)
    assert sequences is not None
    found = [patterns_of_names(each, 3) for each in sequences]
    patterns = [parse_column_pattern(text, "columns") for texts in found for text in texts or ()]
    names = ["".join(letters) for length in (1, 2) for letters in product("ab", repeat=length)]
    for schema, table, column in product(names, repeat=3):
        expected = re.fullmatch(expression, f"{schema}.{table}.{column}") is not None
        assert any(each.matches(schema, table, column) for each in patterns) == expected


def test_a_table_that_nobody_captures_counts_for_nothing() -> None:
    known = (KnownTable("public", "other", ("id",)),)
    verdict = of("column.mask.with.3.chars", r"public\.orders\.email", known)
    assert dict(verdict.keys) == {"columns.mask": {"public.orders.email": "***"}}
