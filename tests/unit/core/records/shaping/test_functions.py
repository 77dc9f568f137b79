"""What functions do at the edges of their types."""

from decimal import Decimal
from math import inf, isnan

import pytest

from cdcd.core.records.shaping.evaluation import EvaluationError
from cdcd.core.records.shaping.expressions import INT_MAX, INT_MIN
from cdcd.core.records.shaping.functions import ARITHMETIC, FUNCTIONS, negate


def test_integers_have_64_bits():
    add, divide = ARITHMETIC["+"][0], ARITHMETIC["/"][0]
    assert add(INT_MAX, 0) == INT_MAX
    for function, left, right in (
        (add, INT_MAX, 1),
        (ARITHMETIC["-"][0], INT_MIN, 1),
        (ARITHMETIC["*"][0], INT_MIN, -1),
    ):
        with pytest.raises(EvaluationError, match="64 bits"):
            function(left, right)
    with pytest.raises(EvaluationError, match="64 bits"):
        divide(INT_MIN, -1)
    with pytest.raises(EvaluationError, match="64 bits"):
        negate(INT_MIN)


def test_division_and_remainder_truncate_toward_zero():
    divide, rest = ARITHMETIC["/"][0], ARITHMETIC["%"][0]
    assert [divide(a, b) for a in (7, -7) for b in (2, -2)] == [3, -3, -3, 3]
    assert [rest(a, b) for a in (7, -7) for b in (2, -2)] == [1, 1, -1, -1]
    for function in (divide, rest):
        with pytest.raises(EvaluationError, match="division by zero"):
            function(1, 0)


def test_doubles_follow_ieee_754():
    divide = ARITHMETIC["/"][0]
    assert (divide(1.0, 0.0), divide(1.0, -0.0), divide(-1.0, 0.0)) == (inf, -inf, -inf)
    assert isnan(divide(0.0, 0.0))


def test_conversions_do_not_leave_their_types():
    to_int, to_double = FUNCTIONS["int"][0], FUNCTIONS["double"][0]
    assert to_int(Decimal("-1.9")) == -1
    assert to_double(Decimal("1e999")) == inf
    for value in (inf, Decimal("Infinity"), Decimal("1e99"), 1e99):
        with pytest.raises(EvaluationError):
            to_int(value)
