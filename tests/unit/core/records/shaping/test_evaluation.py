"""The value of an expression for a row, held against Google's own CEL."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.config.expressions import parse_expression
from cdcd.core.records.shaping.compiling import ExpressionError, compile_expression
from cdcd.core.records.shaping.evaluation import (
    BOOL,
    DECIMAL,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    EvaluationError,
    Missing,
)

KINDS = {
    "i": INT,
    "j": INT,
    "d": DOUBLE,
    "e": DOUBLE,
    "s": STRING,
    "u": STRING,
    "b": BOOL,
    "n": DECIMAL,
    "t": TIMESTAMP,
}
COLUMNS = {name: (place, kind) for place, (name, kind) in enumerate(KINDS.items())}
FAILS = "fails"


def evaluate(text: str, **row: object) -> Any:
    """The value; FAILS if the row has no answer."""
    node = compile_expression(parse_expression(text), COLUMNS, BOOL)
    try:
        return node.value([row.get(name) for name in COLUMNS])
    except EvaluationError:
        return FAILS


@pytest.mark.parametrize(
    ("text", "row", "value"),
    [
        ("row.s == 'x'", {"s": "x"}, True),
        ("row.s != 'x'", {"s": None}, True),
        ("row.s == null", {"s": None}, True),
        ("row.s in ['a', null]", {"s": None}, True),
        ("row.s in ['a', row.u]", {"s": "b", "u": "b"}, True),
        ("row.i > 5", {"i": None}, FAILS),
        ("row.i != null && row.i > 5", {"i": None}, False),
        ("row.i > 5 && row.i != null", {"i": None}, False),
        ("row.i > 5 || row.b", {"i": None, "b": True}, True),
        ("row.i > 5 || row.b", {"i": None, "b": False}, FAILS),
        ("row.b", {"b": None}, None),
        ("row.b && true", {"b": None}, FAILS),
        ("!row.b", {"b": None}, FAILS),
        ("row.b ? true : false", {"b": None}, FAILS),
        ("1 / row.i > 0", {"i": 0}, FAILS),
        ("7 / row.i == -3 && 7 % row.i == 1 && -7 % 2 == -1", {"i": -2}, True),
        ("row.i + 1 > 0", {"i": 2**63 - 1}, FAILS),
        ("row.i * 2 > 0", {"i": 2**62}, FAILS),
        ("-row.i > 0", {"i": -(2**63)}, FAILS),
        ("row.i - 1 < 0", {"i": -(2**63)}, FAILS),
        ("row.d / 0.0 > 1.0 && -row.d / 0.0 < 0.0", {"d": 1.0}, True),
        ("0.0 / row.d == 0.0", {"d": 0.0}, False),
        ("row.i == row.d", {"i": 2**53 + 1, "d": float(2**53)}, False),
        ("row.n == 0.1", {"n": Decimal("0.1")}, False),
        ("row.n < 0.1", {"n": Decimal("0.1")}, True),
        ("row.n == 100 && row.n in [100]", {"n": Decimal("100.00")}, True),
        ("double(row.n) == 0.1 && int(row.n) == 0", {"n": Decimal("0.1")}, True),
        ("int(row.n) == 0", {"n": Decimal("1e40")}, FAILS),
        ("double(row.n) > 1.0", {"n": Decimal("1e400")}, True),
        ("int(row.d) == -1", {"d": -1.9}, True),
        ("int(row.d) == 0", {"d": float("nan")}, FAILS),
        ("string(row.i) + row.s == '5a' && string(row.b) == 'true'", {"i": 5, "s": "a", "b": True}, True),
        ("size(row.s) == 2 && row.s.startsWith('ä') && row.s.endsWith('€')", {"s": "ä€"}, True),
        ("row.s.contains('b')", {"s": "abc"}, True),
        ("row.s < 'b' && 'a' <= row.s && row.s >= 'a' && !(row.s > 'a')", {"s": "a"}, True),
        ("row.t < timestamp('1970-01-01T00:00:01+00:00')", {"t": 999_999}, True),
        ("(row.b ? row.i : null) == null", {"b": False, "i": 1}, True),
        ("row.s == 'x' || row.i == 1", {"s": Missing("not sent"), "i": 1}, True),
        ("row.s == 'x' || row.i == 1", {"s": Missing("not sent"), "i": 2}, FAILS),
    ],
)
def test_values_are_those_of_cel(text: str, row: dict[str, object], value: object):
    assert evaluate(text, **row) is value


def test_why_a_row_has_no_answer_is_said_without_its_values():
    node = compile_expression(parse_expression("row.i > 5"), COLUMNS, BOOL)
    with pytest.raises(EvaluationError, match="> of null"):
        node.value([None] * len(COLUMNS))
    with pytest.raises(EvaluationError, match="not sent"):
        node.value([Missing("not sent")] * len(COLUMNS))


# Beside Google's CEL: random expressions over random rows.

INTS = st.sampled_from(["row.i", "row.j", "0", "1", "-3", "7"])
DOUBLES = st.sampled_from(["row.d", "row.e", "0.0", "1.5", "-2.0"])
STRINGS = st.sampled_from(["row.s", "row.u", "'a'", "''", "'ä'"])


def _arithmetic(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    )


def _compared(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    return st.tuples(inner, signs, inner).map(" ".join)


BOOLEANS = st.recursive(
    st.one_of(
        st.just("row.b"),
        _compared(st.recursive(INTS, _arithmetic, max_leaves=3)),
        _compared(st.recursive(DOUBLES, _arithmetic, max_leaves=3)),
        _compared(STRINGS),
        st.tuples(INTS, INTS).map(lambda two: f"{two[0]} % {two[1]} == 1"),
        st.tuples(STRINGS, STRINGS).map(lambda two: f"{two[0]}.startsWith({two[1]})"),
        st.tuples(STRINGS, STRINGS).map(lambda two: f"size({two[0]} + {two[1]}) == 1"),
        st.tuples(STRINGS, STRINGS, STRINGS).map(
            lambda three: f"{three[0]} in [{three[1]}, {three[2]}, null]"
        ),
        st.sampled_from(["row.i", "row.s", "row.b", "row.d"]).map(lambda column: f"{column} == null"),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"({two[0]} && {two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} || {two[1]})"),
        inner.map(lambda one: f"!({one})"),
        st.tuples(inner, inner, inner).map(lambda three: f"(({three[0]}) ? {three[1]} : {three[2]})"),
    ),
    max_leaves=6,
)
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.sampled_from([0, 1, -3, 2**63 - 1, -(2**63)]),
        "j": st.none() | st.integers(-(2**63), 2**63 - 1),
        "d": st.none() | st.sampled_from([0.0, -0.0, 1.5, 1e308]),
        "e": st.none() | st.floats(),
        "s": st.none() | st.sampled_from(["", "a", "ä", "ab"]),
        "u": st.none()
        | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=2),
        "b": st.none() | st.booleans(),
    }
)


@given(BOOLEANS, ROWS)
def test_the_answer_is_that_of_googles_cel(text: str, row: dict[str, object]):
    cel = pytest.importorskip("cel_expr_python.cel", reason="has no build for this processor")
    environment = cel.NewEnv(variables={"row": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})
    result = environment.compile(text).eval(data={"row": row})
    expected = result.value() if result.type() in [cel.Type.BOOL, cel.Type.NULL] else FAILS
    try:
        found = evaluate(text, **row)
    except ExpressionError:
        # Of a part without a column, Google's CEL sees only with a row that the types do not go together.
        found = FAILS
    assert found == expected, f"{result}"
