"""Parsed expressions of the configuration, which are a small part of CEL, the Common Expression Language.

The rule: an expression is plain data. `config/expressions.py` parses it, `compiling.py` checks it against the
columns of a table and compiles it, and a recording can store it. There are no loops, regular expressions or clocks
in it. So its cost is bounded by its own size and the size of the row, and the same row always gives the same
answer.
"""

from dataclasses import dataclass
from typing import Final

LENGTH_MAX: Final = 10_000
"""Maximum number of characters in an expression."""

DEPTH_MAX: Final = 30
"""Maximum depth of nested operators, which is also the depth of calls that evaluate them; `a && b && c` is one
operator."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
"""Range of CEL's integers, which have 64 bits."""


@dataclass(frozen=True, slots=True)
class CelLiteral:
    """A constant in the text of the expression."""

    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class CelColumn:
    """A column, written as `row.name` or `row["name"]`."""

    name: str


@dataclass(frozen=True, slots=True)
class CelList:
    """A list `[…]`, which may only be the right operand of `in`."""

    items: "tuple[CelExpression, ...]"


@dataclass(frozen=True, slots=True)
class CelCall:
    """An operator or function with its arguments; the receiver of a method is its first argument.

    Attributes:
        name: `!`, `-` (one argument or two), `+`, `*`, `/`, `%`, `==`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `?:`, `&&`
            or `||` (two arguments or more), or a name of `functions.FUNCTIONS`.
    """

    name: str
    arguments: "tuple[CelExpression, ...]"


CelExpression = CelLiteral | CelColumn | CelList | CelCall


def columns_of(expression: CelExpression) -> tuple[str, ...]:
    """Return the columns that the expression uses, each once."""
    found: dict[str, None] = {}
    waiting: list[CelExpression] = [expression]
    while waiting:
        each = waiting.pop()
        if isinstance(each, CelColumn):
            found[each.name] = None
        elif isinstance(each, CelList):
            waiting.extend(each.items)
        elif isinstance(each, CelCall):
            waiting.extend(each.arguments)
    return tuple(sorted(found))
