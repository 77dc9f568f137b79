"""From the text of an expression to what is evaluated."""

import re

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.records.shaping.expressions import (
    DEPTH_MAX,
    LENGTH_MAX,
    CelCall,
    CelColumn,
    CelExpression,
    CelList,
    CelLiteral,
    columns_of,
)

A, B, C = CelColumn("a"), CelColumn("b"), CelColumn("c")
ONE = CelLiteral(1)


def call(name: str, *arguments: CelExpression) -> CelCall:
    return CelCall(name, arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row.a == 1", call("==", A, ONE)),
        ('row["a"] == 1', call("==", A, ONE)),
        ("row['with blank'] != null", call("!=", CelColumn("with blank"), CelLiteral(None))),
        ("row.in == true", call("==", CelColumn("in"), CelLiteral(True))),
        ("row.a || row.b || row.c", call("||", A, B, C)),
        ("row.a && row.b || !row.c", call("||", call("&&", A, B), call("!", C))),
        ("row.a && (row.b || row.c)", call("&&", A, call("||", B, C))),
        ("row.a ? row.b : row.c ? 1 : 1", call("?:", A, B, call("?:", C, ONE, ONE))),
        ("1 + 1 * row.a", call("+", ONE, call("*", ONE, A))),
        ("row.a-1 - -1", call("-", call("-", A, ONE), CelLiteral(-1))),
        ("-row.a", call("-", A)),
        ("row.a in [1, 'x']", call("in", A, CelList((ONE, CelLiteral("x"))))),
        ("row.a in []", call("in", A, CelList(()))),
        ("row.a.startsWith('x')", call("startsWith", A, CelLiteral("x"))),
        ("size(row.a) == 1 // as long", call("==", call("size", A), ONE)),
        ("row.a\n<\n1", call("<", A, ONE)),
    ],
)
def test_operators_bind_as_in_cel(text: str, expected: CelExpression):
    assert parse_expression(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1F", 31),
        ("-0x1f", -31),
        ("1.5", 1.5),
        (".5e3", 500.0),
        ("1e3", 1000.0),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("'it\\'s'", "it's"),
        ('"a\\n\\x41\\u00e4\\U0001F600\\101"', "a\nAä😀A"),
        ("r'\\d'", "\\d"),
        ("'''two\nlines'''", "two\nlines"),
        ('"""a "quoted" word"""', 'a "quoted" word'),
        ("''", ""),
        ("false", False),
    ],
)
def test_literals_have_the_values_that_they_have_in_cel(text: str, value: object):
    assert parse_expression(text) == CelLiteral(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("row.a = 1", "line 1, column 7: = cannot stand here; equal is =="),
        ("row.a == 1 & row.b", "and is &&"),
        ("row.a == 'x", "a quote is not closed"),
        ("row.a ==", "the expression ends too early"),
        ("", "the expression ends too early"),
        ("{'a': 1}", "there are no maps and messages"),
        ("row", "row alone has no value"),
        ("op == 'd'", "there is no op"),
        ("status == 'x'", "a column is row.status"),
        ("old.a == 1", "only row has columns"),
        ("row.a.b == 1", "only row has columns"),
        ("row[1] == 1", "the name of a column in quotes"),
        ("has(row.a)", "write row.name != null"),
        ("[1].exists(x, x == 1)", "there is no exists"),
        ("row.a.matches('(a+)+$')", "the time of a regular expression is not bounded"),
        ("1u == 1u", "no unsigned integers"),
        ("b'a' == row.a", "there are no bytes"),
        ("+1 == row.a", "no + before a number"),
        ("9223372036854775808 == row.a", "an integer has 64 bits"),
        ("row.a == '\\d'", "\\d is no escape of CEL"),
        ("row.a == '\\ud800'", "is no character"),
        ("!" * DEPTH_MAX + "row.a", "operators stand in each other"),
        (" " * (LENGTH_MAX + 1), "at most"),
    ],
)
def test_what_is_no_expression_is_refused_with_a_reason(text: str, says: str):
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_expression(text)


def test_parentheses_alone_cost_no_depth_and_a_long_chain_is_one_operator():
    nested = "(" * 1000 + "row.a" + ")" * 1000
    assert parse_expression(nested) == A
    assert parse_expression(" && ".join(["row.a"] * 1000)) == CelCall("&&", (A,) * 1000)


def test_the_columns_of_an_expression_are_named_once():
    assert columns_of(parse_expression("row.b in [row.a, 1] || row.b == row.c")) == ("a", "b", "c")
