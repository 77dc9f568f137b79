"""Compiled expressions: objects that evaluate parts of an expression for a row.

The rule: `compiling.py` has checked everything that can be known without a row. What only a row shows (a division
by zero, an ordering of null, a value that the server did not send) raises `EvaluationError`: the expression has no
answer for this row.

The answers are CEL's (https://github.com/google/cel-spec, langdef.md), and tests compare them with Google's own
CEL:

- null is a value. `==` and `!=` compare it with everything, and every other operation on null is an error.
- `false && error` is false and `true || error` is true, whichever side the error is on.
- An integer has 64 bits, and an overflow is an error. `/` and `%` truncate toward zero.
- int, double and numeric columns are compared with each other by their exact values. CEL has no decimal numbers, so
  a numeric column can only be compared; to calculate with it, write `double(row.x)`.
"""

from collections.abc import Callable
from typing import Any, Final

BOOL: Final = "bool"
INT: Final = "int"
DOUBLE: Final = "double"
DECIMAL: Final = "numeric"
STRING: Final = "string"
TIMESTAMP: Final = "timestamp"
"""Name of the type whose values are microseconds since 1970-01-01 00:00 UTC."""
NULL: Final = "null"
LIST: Final = "list"


class EvaluationError(ValueError):
    """The expression has no answer for a row. The text of the error says why, without any value of the row."""


class Missing:
    """Represents a value that is not known; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


Values = list[object]
"""A row: for each column that the expression uses, its value or `Missing`."""


class Node:
    """A part of an expression; `kind` is the type of its values, which may also be null."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def value(self, row: Values) -> Any:
        """Return the value for a row; EvaluationError if there is none."""
        raise NotImplementedError


class Constant(Node):
    """A constant in the text of the expression."""

    def __init__(self, kind: str, constant: object) -> None:
        super().__init__(kind)
        self._constant = constant

    def value(self, row: Values) -> Any:
        return self._constant


class Cell(Node):
    """The value of a column, given by its index in `Values`."""

    def __init__(self, kind: str, place: int) -> None:
        super().__init__(kind)
        self._place = place

    def value(self, row: Values) -> Any:
        found = row[self._place]
        if isinstance(found, Missing):
            raise EvaluationError(found.reason)
        return found


class Items(Node):
    """A list, which has no value by itself."""

    def __init__(self, items: list[Node]) -> None:
        super().__init__(LIST)
        self.items = items


class Logical(Node):
    """`&&` or `||`; `decisive` is the operand value that decides the result: False for `&&`, True for `||`."""

    def __init__(self, operands: list[Node], decisive: bool) -> None:
        super().__init__(BOOL)
        self._operands = operands
        self._decisive = decisive

    def value(self, row: Values) -> Any:
        reason = ""
        for operand in self._operands:
            try:
                if _truth(operand, row) == self._decisive:
                    return self._decisive
            except EvaluationError as error:
                reason = reason or str(error)
        if reason:
            raise EvaluationError(reason)
        return not self._decisive


class Negation(Node):
    """The operator `!`."""

    def __init__(self, operand: Node) -> None:
        super().__init__(BOOL)
        self._operand = operand

    def value(self, row: Values) -> Any:
        return not _truth(self._operand, row)


class Conditional(Node):
    """The operator `condition ? yes : no`."""

    def __init__(self, kind: str, condition: Node, yes: Node, no: Node) -> None:
        super().__init__(kind)
        self._condition = condition
        self._yes = yes
        self._no = no

    def value(self, row: Values) -> Any:
        return self._yes.value(row) if _truth(self._condition, row) else self._no.value(row)


class EqualTo(Node):
    """The operator `==`, or `!=` if `wanted` is False."""

    def __init__(self, left: Node, right: Node, wanted: bool) -> None:
        super().__init__(BOOL)
        self._left = left
        self._right = right
        self._wanted = wanted

    def value(self, row: Values) -> Any:
        return _equal(self._left.value(row), self._right.value(row)) == self._wanted


class Membership(Node):
    """The operator `operand in [items]`."""

    def __init__(self, operand: Node, items: list[Node]) -> None:
        super().__init__(BOOL)
        self._operand = operand
        self._items = items
        self._known: list[Any] | None = None
        """The items, if all of them are constants."""
        if all(isinstance(item, Constant) for item in items):
            self._known = [item.value([]) for item in items]

    def value(self, row: Values) -> Any:
        wanted = self._operand.value(row)
        # Every item is evaluated, because CEL makes the list first.
        found = [item.value(row) for item in self._items] if self._known is None else self._known
        return any(_equal(wanted, each) for each in found)


class Application(Node):
    """An operator or function whose arguments must all have a value that is not null."""

    def __init__(self, kind: str, name: str, function: Callable[..., Any], arguments: list[Node]) -> None:
        super().__init__(kind)
        self._name = name
        self._function = function
        self._arguments = arguments

    def value(self, row: Values) -> Any:
        found = [argument.value(row) for argument in self._arguments]
        for each in found:
            if each is None:
                raise EvaluationError(f"{self._name} of null")
        try:
            return self._function(*found)
        except (ArithmeticError, ValueError) as error:
            if isinstance(error, EvaluationError):
                raise
            raise EvaluationError(f"{self._name} has no result for the values") from None


class Condition:
    """An expression that is true or false for a row, or has no answer.

    Attributes:
        reason: why the last row had no answer.
    """

    def __init__(self, node: Node) -> None:
        self.reason = ""
        self._node = node

    def answer(self, row: Values) -> bool | None:
        """Return whether the expression is true for a row; None if it has no answer."""
        try:
            found = self._node.value(row)
        except EvaluationError as error:
            self.reason = str(error)
            return None
        if not isinstance(found, bool):
            self.reason = "the expression is null"
            return None
        return found


def _truth(node: Node, row: Values) -> bool:
    found = node.value(row)
    if found is None:
        raise EvaluationError("null stands where true or false must be")
    assert isinstance(found, bool), "the types were checked"
    return found


def _equal(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return bool(left == right)
