"""Expressions of the configuration, parsed: a small part of CEL, the Common Expression Language.

The rule: an expression is data. `config/expressions.py` makes it from text, `compiling.py` checks it against the
columns of a table and compiles it, and a recording can hold it. It has no loops, no regular expressions and no clock.
So its work is bounded by its own size and that of the row, and the same row always has the same answer.
"""

from dataclasses import dataclass
from typing import Final

LENGTH_MAX: Final = 10_000
"""Characters of an expression."""

DEPTH_MAX: Final = 30
"""How deep operators stand in each other; so many calls evaluate them. `a && b && c` is one operator."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
"""CEL's integers have 64 bits."""


@dataclass(frozen=True, slots=True)
class CelLiteral:
    """A value in the text of the expression."""

    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class CelColumn:
    """`row.name` or `row["name"]`."""

    name: str


@dataclass(frozen=True, slots=True)
class CelList:
    """`[…]`, which may only stand to the right of `in`."""

    items: "tuple[CelExpression, ...]"


@dataclass(frozen=True, slots=True)
class CelCall:
    """An operator or a function with its arguments; a method's receiver is the first of them.

    Attributes:
        name: `!`, `-` (one argument or two), `+`, `*`, `/`, `%`, `==`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `?:`, `&&` or
            `||` (two arguments or more), or a name of `functions.FUNCTIONS`.
    """

    name: str
    arguments: "tuple[CelExpression, ...]"


CelExpression = CelLiteral | CelColumn | CelList | CelCall


def columns_of(expression: CelExpression) -> tuple[str, ...]:
    """The columns that the expression asks for, each once."""
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
