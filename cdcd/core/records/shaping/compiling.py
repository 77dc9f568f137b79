"""Checks expressions against the types of columns, and compiles them (`evaluation.py`).

The rule: everything that can be known without a row is checked here: missing columns, types that do not match,
unknown functions. CEL's overloads decide, except that numbers of two different types can be compared.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from cdcd.core.records.shaping.evaluation import (
    BOOL,
    DECIMAL,
    DOUBLE,
    INT,
    LIST,
    NULL,
    STRING,
    TIMESTAMP,
    Application,
    Cell,
    Conditional,
    Constant,
    EqualTo,
    Items,
    Logical,
    Membership,
    Negation,
    Node,
)
from cdcd.core.records.shaping.expressions import CelCall, CelColumn, CelExpression, CelList, CelLiteral
from cdcd.core.records.shaping.functions import ARITHMETIC, FUNCTIONS, ORDER, negate, timestamp_text

_NUMBERS: Final = (INT, DOUBLE, DECIMAL)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ExpressionError(ValueError):
    """The expression does not match the columns, or its own parts do not match each other.

    The text of the error explains this to a person.
    """


def compile_expression(
    expression: CelExpression, columns: Mapping[str, tuple[int, str]], wanted: str
) -> Node:
    """Return the compiled expression for rows with these columns.

    Args:
        columns: the index in `Values` and the type of each column, by its name.
        wanted: the type that the value of the expression must have.

    Raises:
        ExpressionError: the expression uses an unknown column, or an operation that its types do not allow.
    """
    node = typed_expression(expression, columns)
    if node.kind != wanted:
        raise ExpressionError(f"the expression has the type {node.kind}, and must have {wanted}")
    return node


def typed_expression(expression: CelExpression, columns: Mapping[str, tuple[int, str]]) -> Node:
    """Return the compiled expression. Its `kind` is the type of its value.

    Args:
        columns: the index in `Values` and the type of each column, by its name.

    Raises:
        ExpressionError: the expression uses an unknown column, or an operation that its types do not allow.
    """
    if isinstance(expression, CelLiteral):
        return Constant(_kind_of(expression.value), expression.value)
    if isinstance(expression, CelColumn):
        if expression.name not in columns:
            raise ExpressionError(f"there is no column {expression.name}")
        place, kind = columns[expression.name]
        return Cell(kind, place)
    if isinstance(expression, CelList):
        return Items([typed_expression(item, columns) for item in expression.items])
    if expression.name == "timestamp":
        return _timestamp(expression)
    arguments = [typed_expression(argument, columns) for argument in expression.arguments]
    return _call(expression.name, arguments)


def _kind_of(value: bool | float | str | None) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return INT
    return DOUBLE if isinstance(value, float) else STRING


def _timestamp(call: CelCall) -> Node:
    (argument,) = call.arguments if len(call.arguments) == 1 else (None,)
    if not isinstance(argument, CelLiteral) or not isinstance(argument.value, str):
        raise ExpressionError("timestamp takes one text, such as timestamp('2026-01-31T00:00:00Z')")
    try:
        parsed = datetime.fromisoformat(argument.value)
    except ValueError:
        parsed = datetime.min  # noqa: DTZ901  without a time zone, which is refused below
    if parsed.tzinfo is None or "T" not in argument.value:
        raise ExpressionError(
            f"timestamp('{argument.value}') is no time with a zone, such as '2026-01-31T00:00:00Z'"
        )
    return Constant(TIMESTAMP, (parsed - _EPOCH) // timedelta(microseconds=1))


def _call(name: str, arguments: list[Node]) -> Node:
    kinds = [argument.kind for argument in arguments]
    if name in ("&&", "||"):
        _require(name, kinds, [BOOL] * len(kinds))
        return Logical(arguments, decisive=name == "||")
    if name == "!":
        _require(name, kinds, [BOOL])
        return Negation(arguments[0])
    if name == "?:":
        return _choice(arguments)
    if name == "in":
        return _membership(arguments[0], arguments[1])
    if name in ("==", "!="):
        _require_comparable(name, kinds[0], kinds[1])
        return EqualTo(arguments[0], arguments[1], wanted=name == "==")
    if name in ORDER:
        if NULL in kinds:
            raise ExpressionError(f"{name} does not compare null; write == null or != null")
        _require_comparable(name, kinds[0], kinds[1])
        return Application(BOOL, name, ORDER[name], arguments)
    if name == "-" and len(arguments) == 1:
        if kinds[0] not in (INT, DOUBLE):
            raise ExpressionError(f"- does not take {kinds[0]}{_calculate(kinds)}")
        return Application(kinds[0], name, negate, arguments)
    if name in ARITHMETIC:
        function, allowed = ARITHMETIC[name]
        if kinds[0] != kinds[1] or kinds[0] not in allowed:
            raise ExpressionError(f"{name} does not take {kinds[0]} and {kinds[1]}{_calculate(kinds)}")
        return Application(kinds[0], name, function, arguments)
    return _function(name, arguments, kinds)


def _calculate(kinds: list[str]) -> str:
    numbers = any(kind in _NUMBERS for kind in kinds)
    return "; double(…) and int(…) make numbers of one type" if numbers else ""


def _function(name: str, arguments: list[Node], kinds: list[str]) -> Node:
    found = FUNCTIONS.get(name)
    if found is None:
        known = ", ".join([*sorted(FUNCTIONS), "timestamp"])
        raise ExpressionError(f"there is no function {name}; there are {known}")
    if (name, *kinds) == ("string", TIMESTAMP):
        return Application(STRING, name, timestamp_text, arguments)
    function, allowed, result = found
    fits = len(kinds) == len(allowed) and all(kind in each for kind, each in zip(kinds, allowed, strict=True))
    if not fits:
        takes = ", ".join([" or ".join(each) for each in allowed])
        raise ExpressionError(f"{name} takes {takes}, and not {', '.join(kinds) or 'nothing'}")
    return Application(result, name, function, arguments)


def _choice(arguments: list[Node]) -> Node:
    condition, yes, no = arguments
    _require("?", [condition.kind], [BOOL])
    if NULL not in (yes.kind, no.kind) and yes.kind != no.kind:
        raise ExpressionError(f"the two sides of ?: have the types {yes.kind} and {no.kind}")
    return Conditional(no.kind if yes.kind == NULL else yes.kind, condition, yes, no)


def _membership(operand: Node, items: Node) -> Node:
    if not isinstance(items, Items):
        raise ExpressionError("to the right of `in` must stand a list, such as ['a', 'b']")
    for item in items.items:
        _require_comparable("in", operand.kind, item.kind)
    return Membership(operand, items.items)


def _require(name: str, kinds: list[str], wanted: list[str]) -> None:
    if kinds != wanted:
        raise ExpressionError(f"{name} takes {wanted[0]}, and not {' and '.join(dict.fromkeys(kinds))}")


def _require_comparable(name: str, left: str, right: str) -> None:
    if LIST in (left, right):
        raise ExpressionError(f"{name} does not take a list")
    if left != right and NULL not in (left, right) and not (left in _NUMBERS and right in _NUMBERS):
        raise ExpressionError(f"{name} does not compare {left} with {right}")
