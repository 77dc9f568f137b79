"""Operators and functions of expressions, for values that are not null; EvaluationError if there is no result."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import copysign, inf, isfinite, isnan, nan
from typing import Any, Final

from cdcd.core.records.shaping.evaluation import BOOL, DECIMAL, DOUBLE, INT, STRING, EvaluationError
from cdcd.core.records.shaping.expressions import INT_MAX, INT_MIN

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _less(left: Any, right: Any) -> bool:
    return bool(left < right)


def _less_or_equal(left: Any, right: Any) -> bool:
    return bool(left <= right)


def _more(left: Any, right: Any) -> bool:
    return bool(left > right)


def _more_or_equal(left: Any, right: Any) -> bool:
    return bool(left >= right)


def _bounded(number: int) -> int:
    if not INT_MIN <= number <= INT_MAX:
        raise EvaluationError("an integer of more than 64 bits")
    return number


def _add(left: Any, right: Any) -> Any:
    total = left + right
    return _bounded(total) if isinstance(total, int) else total


def _subtract(left: Any, right: Any) -> Any:
    total = left - right
    return _bounded(total) if isinstance(total, int) else total


def _multiply(left: Any, right: Any) -> Any:
    total = left * right
    return _bounded(total) if isinstance(total, int) else total


def negate(operand: Any) -> Any:
    return _bounded(-operand) if isinstance(operand, int) else -operand


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, int):
        if right == 0:
            raise EvaluationError("a division by zero")
        quotient = abs(left) // abs(right)
        return _bounded(quotient if (left < 0) == (right < 0) else -quotient)
    if right == 0:
        # IEEE 754 defines a result here, where Python raises.
        if left == 0 or isnan(left):
            return nan
        return copysign(inf, left) * copysign(1.0, right)
    return left / right


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("a division by zero")
    rest = abs(left) % abs(right)
    return rest if left >= 0 else -rest


def _starts_with(text: str, part: str) -> bool:
    return text.startswith(part)


def _ends_with(text: str, part: str) -> bool:
    return text.endswith(part)


def _contains(text: str, part: str) -> bool:
    return part in text


def _to_double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return copysign(inf, value)


def _to_int(value: Any) -> int:
    if isinstance(value, float) and not isfinite(value):
        raise EvaluationError("int of a number that is not finite")
    if isinstance(value, Decimal) and abs(value) > INT_MAX:
        raise EvaluationError("an integer of more than 64 bits")
    return _bounded(int(value))


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def timestamp_text(micros: int) -> str:
    """Return a time as RFC 3339 has it, from microseconds since 1970."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": _less,
    "<=": _less_or_equal,
    ">": _more,
    ">=": _more_or_equal,
}
ARITHMETIC: Final[Mapping[str, tuple[Callable[[Any, Any], Any], tuple[str, ...]]]] = {
    "+": (_add, (INT, DOUBLE, STRING)),
    "-": (_subtract, (INT, DOUBLE)),
    "*": (_multiply, (INT, DOUBLE)),
    "/": (_divide, (INT, DOUBLE)),
    "%": (_remainder, (INT,)),
}

FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], tuple[tuple[str, ...], ...], str]]] = {
    "size": (len, ((STRING,),), INT),
    "startsWith": (_starts_with, ((STRING,), (STRING,)), BOOL),
    "endsWith": (_ends_with, ((STRING,), (STRING,)), BOOL),
    "contains": (_contains, ((STRING,), (STRING,)), BOOL),
    "double": (_to_double, ((INT, DOUBLE, DECIMAL),), DOUBLE),
    "int": (_to_int, ((INT, DOUBLE, DECIMAL),), INT),
    "string": (_to_string, ((INT, STRING, BOOL, DOUBLE, DECIMAL),), STRING),
}
"""For each function: what it does, the types that each argument may have, and the type of its value. There is also
`timestamp`, whose argument must be a text in the expression."""
