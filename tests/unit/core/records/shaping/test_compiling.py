"""What can be known of an expression without a row."""

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.records.shaping.compiling import ExpressionError, compile_expression
from cdcd.core.records.shaping.evaluation import BOOL, DECIMAL, DOUBLE, INT, STRING, TIMESTAMP

COLUMNS = {
    "i": (0, INT),
    "d": (1, DOUBLE),
    "n": (2, DECIMAL),
    "s": (3, STRING),
    "b": (4, BOOL),
    "t": (5, TIMESTAMP),
}


@pytest.mark.parametrize(
    "text",
    [
        "row.b",
        "row.i == 1.0 && row.d < 1 && row.n >= row.i && row.n != row.d",
        "row.s in ['a', null]",
        "row.i in [1, 2.5, row.n]",
        "row.t > timestamp('2026-01-31T00:00:00+02:00')",
        "row.t == null || null != row.b",
        "(row.b ? row.s : null) == 'x'",
        "double(row.n) * 2.0 > row.d / 3.0",
        "int(row.d) % 2 == -row.i",
        "string(row.i) + row.s == 'x'",
        "size(row.s) > 1 && row.s.size() > 1",
        "row.b == (row.s.contains('a') || row.s.endsWith('b'))",
        "row.s < 'x' && row.b < true",
    ],
)
def test_what_cel_has_overloads_for_is_compiled(text: str):
    assert compile_expression(parse_expression(text), COLUMNS, BOOL).kind == BOOL


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("row.x == 1", "there is no column x"),
        ("row.i", "has the type int, and must have bool"),
        ("row.s == 1", "== does not compare string with int"),
        ("row.t == '2026-01-31'", "does not compare timestamp with string"),
        ("row.i < null", "< does not compare null"),
        ("row.i in ['a']", "in does not compare int with string"),
        ("row.i in row.s", "must stand a list"),
        ("row.i == [1]", "does not take a list"),
        ("row.i && row.b", "&& takes bool, and not int and bool"),
        ("!row.i", "! takes bool, and not int"),
        ("row.i ? row.b : row.b", "? takes bool, and not int"),
        ("(row.b ? row.i : row.s) == 1", "the types int and string"),
        ("row.i + row.d > 1", "double(…) and int(…) make numbers of one type"),
        ("row.n * 2 > 1", "* does not take numeric and int"),
        ("row.d % 2.0 == 1.0", "% does not take double and double"),
        ("-row.s == 's'", "- does not take string"),
        ("row.s - row.s == 's'", "- does not take string and string"),
        ("upper(row.s) == 'X'", "there is no function upper; there are contains"),
        ("size(row.i) == 1", "size takes string, and not int"),
        ("row.s.startsWith() ", "startsWith takes string, string, and not string"),
        ("int() == 1", "and not nothing"),
        ("row.t > timestamp(row.s)", "timestamp takes one text"),
        ("row.t > timestamp('2026-01-31')", "no time with a zone"),
        ("row.t > timestamp('2026-01-31T00:00:00')", "no time with a zone"),
        ("row.t > timestamp('yesterday')", "no time with a zone"),
    ],
)
def test_what_cannot_have_a_value_for_any_row_is_refused(text: str, says: str):
    with pytest.raises(ExpressionError) as caught:
        compile_expression(parse_expression(text), COLUMNS, BOOL)
    assert says in str(caught.value)
