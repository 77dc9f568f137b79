"""The condition of `cdcd tail --where`: read from text, evaluated here on one row of a record.

It is no SQL, and goes to no server.

```
condition  = all { OR all }
all        = term { AND term }
term       = NOT term | ( condition ) | column comparison
comparison = ( = | <> | != | < | <= | > | >= ) value | IS [NOT] NULL | [NOT] IN ( value {, value} )
value      = 'text' | number | TRUE | FALSE
```

As in SQL, names without double quotes are in lower case, AND binds more than OR, and a comparison with NULL is unknown.
Values are compared as records have them: a date, for example, is a number of days since 1970. A text that is a number,
as of a `numeric` column, is compared with a number by its value.
"""

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from cdcd.core.errors import ConfigError
from cdcd.core.visible import visible

LENGTH_MAX: Final = 10_000
DEPTH_MAX: Final = 50

Value = str | Decimal | bool

GRAMMAR_HINT: Final = (
    "A condition is, for example: status = 'open' AND (total > 100 OR note IS NULL). There are =, <>, <, <=, >, >=, IS "
    "[NOT] NULL, [NOT] IN (…), AND, OR, NOT and parentheses. Text goes in single quotes, a name with capitals or "
    "spaces in double quotes."
)

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|<>|!=|[=<>(),])
    )""",
    re.VERBOSE,
)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<>": ne,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_WORDS: Final = frozenset({"and", "or", "not", "is", "in", "null", "true", "false"})
_SPECIAL: Final[Mapping[str, tuple[int, Decimal]]] = {
    "nan": (1, Decimal(0)),
    "infinity": (0, Decimal("Infinity")),
    "positive_infinity": (0, Decimal("Infinity")),
    "-infinity": (0, Decimal("-Infinity")),
    "negative_infinity": (0, Decimal("-Infinity")),
}
"""Texts in which records have such numbers. As in PostgreSQL, NaN is more than every other number."""


@dataclass(slots=True)
class Row:
    """The values of one record.

    Attributes:
        unsent: columns whose value the record does not have, although the row has one.
        lacking: gets the columns that the condition asked for in vain.
    """

    values: Mapping[str, Any]
    unsent: AbstractSet[str] = frozenset()
    lacking: set[str] = field(default_factory=set)

    def get(self, column: str) -> Any:
        """The value; None if it is NULL, or if it is not there (`lacking`)."""
        if column not in self.values or column in self.unsent:
            self.lacking.add(column)
            return None
        return self.values[column]


Condition = Callable[[Row], bool | None]
"""True, False, or None for unknown. Raises ConfigError if a column cannot be compared with the value."""


def parse_condition(text: str) -> Condition:
    """Read a condition. ConfigError says what is wrong with it, and where."""
    if len(text) > LENGTH_MAX:
        raise ConfigError(f"--where has {len(text)} characters, more than {LENGTH_MAX}.")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        found = self._any()
        if self._at < len(self._tokens):
            raise self._wrong("AND, OR or the end")
        return found

    def _any(self) -> Condition:
        terms = [self._all()]
        while self._take_word("or"):
            terms.append(self._all())
        return terms[0] if len(terms) == 1 else _either(terms)

    def _all(self) -> Condition:
        terms = [self._term()]
        while self._take_word("and"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else _both(terms)

    def _term(self) -> Condition:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ConfigError(f"--where: more than {DEPTH_MAX} parentheses or NOTs stand in each other.")
        try:
            if self._take_word("not"):
                return _negated(self._term())
            if self._take("sign", "("):
                found = self._any()
                self._expect(")")
                return found
            return self._comparison(self._column())
        finally:
            self._depth -= 1

    def _comparison(self, column: str) -> Condition:
        kind, text, _ = self._peek()
        if kind == "sign" and text in _COMPARISONS:
            self._at += 1
            return _compared(column, _COMPARISONS[text], self._value())
        if self._take_word("is"):
            wanted = not self._take_word("not")
            if not self._take_word("null"):
                raise self._wrong("NULL")
            return _is_null(column, wanted)
        negated = self._take_word("not")
        if self._take_word("in"):
            self._expect("(")
            values = [self._value()]
            while self._take("sign", ","):
                values.append(self._value())
            self._expect(")")
            among = _either([_compared(column, eq, value) for value in values])
            return _negated(among) if negated else among
        raise self._wrong("a comparison")

    def _column(self) -> str:
        kind, text, _ = self._peek()
        if kind == "quoted":
            self._at += 1
            return text[1:-1].replace('""', '"')
        if kind == "word" and text.lower() not in _WORDS:
            self._at += 1
            return text.lower()
        raise self._wrong("the name of a column")

    def _value(self) -> Value:
        kind, text, _ = self._peek()
        value: Value
        if kind == "text":
            value = text[1:-1].replace("''", "'")
        elif kind == "number":
            value = Decimal(text)
        elif kind == "word" and text.lower() in {"true", "false"}:
            value = text.lower() == "true"
        elif kind == "word" and text.lower() == "null":
            raise ConfigError(
                "--where: a comparison with NULL is never true.", hint="Write IS NULL or IS NOT NULL."
            )
        else:
            raise self._wrong("a value: 'text', a number, TRUE or FALSE")
        self._at += 1
        return value

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "", len(self._text))

    def _take(self, kind: str, text: str) -> bool:
        found, said, _ = self._peek()
        if found != kind or said.lower() != text:
            return False
        self._at += 1
        return True

    def _take_word(self, word: str) -> bool:
        return self._take("word", word)

    def _expect(self, sign: str) -> None:
        if not self._take("sign", sign):
            raise self._wrong(sign)

    def _wrong(self, wanted: str) -> ConfigError:
        kind, text, at = self._peek()
        found = "it ends" if kind == "end" else f"there is {text}"
        return _unreadable(self._text, at, f"{found} at character {at + 1}, where {wanted} should be.")


def _unreadable(text: str, at: int, why: str) -> ConfigError:
    """The error, with a mark below the character of the condition that is wrong."""
    begin = max(0, at - _SHOWN_BEFORE)
    shown = visible(text[begin : begin + _SHOWN_BEFORE * 2])
    mark = " " * len(visible(text[begin:at])) + "^"
    return ConfigError(f"--where cannot be read: {why}\n  {shown}\n  {mark}", hint=GRAMMAR_HINT)


_SHOWN_BEFORE: Final = 50
"""Number of characters of a condition that are shown before a mistake, and after it."""


def _tokens(text: str) -> list[tuple[str, str, int]]:
    found = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].lstrip()
            place = len(text) - len(rest)
            why = "a quote is not closed" if rest[0] in "'\"" else f"{rest[0]} is not part of a condition"
            raise _unreadable(text, place, f"{why}, at character {place + 1}.")
        kind = match.lastgroup
        assert kind is not None
        found.append((kind, match[kind], match.start(kind)))
        at = match.end()
    return found


def _either(terms: list[Condition]) -> Condition:
    def holds(row: Row) -> bool | None:
        outcomes = [term(row) for term in terms]
        return True if True in outcomes else None if None in outcomes else False

    return holds


def _both(terms: list[Condition]) -> Condition:
    def holds(row: Row) -> bool | None:
        outcomes = [term(row) for term in terms]
        return False if False in outcomes else None if None in outcomes else True

    return holds


def _negated(term: Condition) -> Condition:
    def holds(row: Row) -> bool | None:
        outcome = term(row)
        return None if outcome is None else not outcome

    return holds


def _is_null(column: str, wanted: bool) -> Condition:
    def holds(row: Row) -> bool | None:
        value = row.get(column)
        return None if column in row.lacking else (value is None) == wanted

    return holds


def _compared(column: str, compare: Callable[[Any, Any], bool], wanted: Value) -> Condition:
    def holds(row: Row) -> bool | None:
        value = row.get(column)
        if value is None:
            return None
        return compare(*_comparable(column, value, wanted))

    return holds


def _comparable(column: str, value: Any, wanted: Value) -> tuple[Any, Any]:
    """Both in a form in which they can be compared. ConfigError: they cannot."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        if isinstance(value, bool) and isinstance(wanted, bool):
            return value, wanted
        raise _incomparable(column, value, wanted)
    if isinstance(wanted, Decimal):
        number = _number(value)
        if number is None:
            raise _incomparable(column, value, wanted)
        return number, (0, wanted)
    if isinstance(value, str):
        return value, wanted
    raise _incomparable(column, value, wanted)


def _number(value: Any) -> tuple[int, Decimal] | None:
    if isinstance(value, int | float | Decimal):
        return 0, Decimal(value)
    if not isinstance(value, str):
        return None
    if value.lower() in _SPECIAL:
        return _SPECIAL[value.lower()]
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return (0, number) if number.is_finite() else None


def _incomparable(column: str, value: Any, wanted: Value) -> ConfigError:
    kinds = {bool: "true or false", str: "a text", Decimal: "a number", int: "a number", float: "a number"}
    has = kinds.get(type(value), "an object or a list")
    hint = {
        str: "Write the value in single quotes.",
        int: "Write the number without quotes.",
        Decimal: "Write the number without quotes.",
        bool: "Write TRUE or FALSE.",
    }.get(type(value), "Such a column can only be asked for IS NULL and IS NOT NULL.")
    return ConfigError(
        f"--where: column {column} has {has}, which cannot be compared with {kinds[type(wanted)]}.", hint=hint
    )
