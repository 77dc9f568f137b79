"""The condition of `cdcd tail --where`: an expression of the filters (CEL), evaluated here on the values of a record.

A filter knows the types of its table's columns. A record in JSON does not contain these types, so each value has
the kind of its JSON: a bool, an int, a double, or a string. A string that is compared with a number (a `numeric`
column) counts as that number, and a string that is compared with a timestamp counts as that time, if the string can
be read so.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from cdcd.config.expressions import ExpressionSyntaxError, parse_expression
from cdcd.core.errors import ConfigError
from cdcd.core.records.shaping.column_values import NOT_A_NUMBER
from cdcd.core.records.shaping.compiling import ExpressionError, compile_expression
from cdcd.core.records.shaping.evaluation import (
    BOOL,
    DECIMAL,
    DOUBLE,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    Condition,
    Missing,
)
from cdcd.core.records.shaping.expressions import (
    CelCall,
    CelColumn,
    CelExpression,
    CelList,
    CelLiteral,
    columns_of,
)
from cdcd.core.records.shaping.functions import ARITHMETIC, FUNCTIONS, ORDER
from cdcd.core.visible import visible

OBJECT: Final = "object"
"""The kind of a value that is a JSON object or a list. Such a value can be compared with null only."""

GRAMMAR_HINT: Final = (
    "A condition is CEL, as in filters.tables: row.status == 'open' && (row.total > 100 || row.note == null). "
    "docs/filters.md lists what a condition can have."
)

_NUMBERS: Final = frozenset({INT, DOUBLE, DECIMAL})
_SPECIAL: Final[Mapping[str, Decimal]] = {
    "infinity": Decimal("Infinity"),
    "positive_infinity": Decimal("Infinity"),
    "-infinity": Decimal("-Infinity"),
    "negative_infinity": Decimal("-Infinity"),
}
"""The texts of infinite numbers in records."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_BEFORE: Final = 50
"""Number of characters of a condition that an error shows before a mistake, and after it."""


class RowCondition:
    """A parsed condition.

    Attributes:
        reason: reason why the last record had no answer; "" if it had one.
    """

    def __init__(self, expression: CelExpression) -> None:
        self.reason = ""
        self._expression = expression
        self._columns = columns_of(expression)
        self._expected = dict(_expected_kinds(expression))
        self._compiled: dict[tuple[str, ...], Condition | ExpressionError] = {}

    def answer(self, values: Mapping[str, Any], unsent: Mapping[str, str]) -> bool | None:
        """Evaluate the condition on a record.

        Args:
            values: the record's row, as parsed JSON with decimals.
            unsent: columns whose value the record does not have, each with the reason as the end of a sentence.

        Returns:
            None if the record has no answer, as `reason` says.

        Raises:
            ConfigError: the condition compares a column with a value of another kind.
        """
        cells = [self._cell(name, values, unsent) for name in self._columns]
        kinds = tuple([kind for kind, _ in cells])
        if kinds not in self._compiled:
            self._compiled[kinds] = self._compile(kinds)
        compiled, row = self._compiled[kinds], [value for _, value in cells]
        self.reason = ""
        if isinstance(compiled, Condition):
            found = compiled.answer(row)
            self.reason = compiled.reason if found is None else ""
            return found
        # A column without a value has no kind, so that a comparison of this column may not compile.
        unknown = [value for value in row if isinstance(value, Missing)]
        if unknown or None in row:
            self.reason = unknown[0].reason if unknown else str(compiled)
            return None
        has = [f"row.{name} is of kind {kind}" for name, kind in zip(self._columns, kinds, strict=True)]
        raise ConfigError(f"--where: {compiled}.", hint=f"In the records, {', '.join(has)}. {GRAMMAR_HINT}")

    def _compile(self, kinds: tuple[str, ...]) -> Condition | ExpressionError:
        columns = {name: (place, kinds[place]) for place, name in enumerate(self._columns)}
        try:
            return Condition(compile_expression(self._expression, columns, BOOL))
        except ExpressionError as error:
            return error

    def _cell(self, name: str, values: Mapping[str, Any], unsent: Mapping[str, str]) -> tuple[str, object]:
        expected = self._expected.get(name, NULL)
        if name in unsent:
            return expected, Missing(f"row.{name} {unsent[name]}")
        if name not in values:
            return expected, Missing(f"there is no column {name}")
        value = values[name]
        if value is None:
            return expected, None
        if isinstance(value, bool):
            return BOOL, value
        if isinstance(value, int):
            return INT, value
        if isinstance(value, Decimal | float):
            return DOUBLE, float(value)
        if not isinstance(value, str):
            return OBJECT, value
        return _of_text(value, expected)


def parse_condition(text: str) -> RowCondition:
    """Read a condition. ConfigError says what is wrong with the text, and where."""
    try:
        expression = parse_expression(text)
        if not columns_of(expression):
            raise ValueError("the condition names no column; a column is row.name")
    except ValueError as error:
        at = error.at if isinstance(error, ExpressionSyntaxError) else -1
        mark = "" if at < 0 else f"\n{_marked(text, at)}"
        meant = cel_of(text)
        hint = f"--where takes CEL. Write --where {shlex.quote(meant)}" if meant else GRAMMAR_HINT
        raise ConfigError(f"--where cannot be read: {visible(str(error))}.{mark}", hint=hint) from None
    return RowCondition(expression)


def _marked(text: str, at: int) -> str:
    """The part of a condition that is around a mistake, and a line that marks the mistake."""
    begin = max(0, at - _SHOWN_BEFORE)
    shown = visible(text[begin : begin + _SHOWN_BEFORE * 2])
    return f"  {shown}\n  {' ' * len(visible(text[begin:at]))}^"


def _of_text(value: str, expected: str) -> tuple[str, object]:
    """The kind and the value of a JSON string that is compared with a value of the kind `expected`."""
    if expected in _NUMBERS:
        if value.lower() == "nan":
            return DECIMAL, Missing(NOT_A_NUMBER)
        try:
            return DECIMAL, _SPECIAL.get(value.lower()) or Decimal(value)
        except InvalidOperation:
            return STRING, value
    if expected == TIMESTAMP:
        try:
            parsed = datetime.fromisoformat(value)
            at = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
            return TIMESTAMP, (at - _EPOCH) // timedelta(microseconds=1)
        except ValueError:
            return STRING, value
    return STRING, value


def _expected_kinds(expression: CelExpression) -> Iterator[tuple[str, str]]:
    """Each column that stands beside an operand of a known kind, and this kind."""
    if not isinstance(expression, CelCall):
        return
    name, operands = expression.name, list(expression.arguments)
    for each in operands:
        yield from _expected_kinds(each)
    if name in FUNCTIONS:
        kinds = [allowed[-1] for allowed in FUNCTIONS[name][1]]
        yield from _columns_among(operands, kinds)
    elif name in {"&&", "||", "!", "?:"}:
        yield from _columns_among(operands[:1] if name == "?:" else operands, [BOOL] * len(operands))
    elif name in {"==", "!=", *ORDER, *ARITHMETIC}:
        yield from _columns_among(operands, [_kind_of(each) for each in reversed(operands)])
    elif name == "in" and isinstance(operands[1], CelList):
        for item in operands[1].items:
            yield from _columns_among([operands[0], item], [_kind_of(item), _kind_of(operands[0])])


def _columns_among(operands: list[CelExpression], kinds: list[str]) -> Iterator[tuple[str, str]]:
    for operand, kind in zip(operands, kinds, strict=False):
        if isinstance(operand, CelColumn) and kind != NULL:
            yield operand.name, kind


def _kind_of(expression: CelExpression) -> str:
    """The kind of an operand whose text shows the kind; NULL: unknown."""
    if isinstance(expression, CelLiteral):
        value = expression.value
        by_type = {bool: BOOL, int: INT, float: DOUBLE, str: STRING}
        return by_type.get(type(value), NULL)
    if not isinstance(expression, CelCall):
        return NULL
    if expression.name == "timestamp":
        return TIMESTAMP
    if expression.name in FUNCTIONS:
        return FUNCTIONS[expression.name][2]
    if expression.name in ARITHMETIC:
        return next((kind for each in expression.arguments if (kind := _kind_of(each)) != NULL), NULL)
    return NULL


_SQL: Final = re.compile(
    r"""\s*(?:
      (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<number>[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?:row\.)?(?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|<>|!=|==?|[<>(),])
    )\s*""",
    re.VERBOSE,
)
_SIGNS: Final = {"=": "==", "<>": "!="} | {each: each for each in ("==", "!=", "<", "<=", ">", ">=")}
"""CEL's comparisons by those of SQL."""


def cel_of(text: str) -> str:
    """The CEL of a condition that is written as in SQL; "" if the text is not such a condition.

    Only for the error's hint: `status = 'paid' AND total > 5` gives `row.status == "paid" && row.total > 5`.
    """
    try:
        found = _Sql(text).whole()
        names_column = bool(columns_of(parse_expression(found)))
    except (ValueError, IndexError, RecursionError):
        return ""
    return found if names_column else ""


class _Sql:
    """Reads a condition of SQL and writes CEL. ValueError or IndexError: the text is not such a condition."""

    def __init__(self, text: str) -> None:
        self._left: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _SQL.match(text, at)
            if match is None:
                raise ValueError(text)
            kind = str(match.lastgroup)
            self._left.append((kind, match[kind]))
            at = match.end()

    def whole(self) -> str:
        found = self._any()
        if self._left:
            raise ValueError("the condition has ended")
        return found

    def _any(self) -> str:
        return self._joined("or", " || ", self._all)

    def _all(self) -> str:
        return self._joined("and", " && ", self._term)

    def _joined(self, word: str, sign: str, read: Callable[[], str]) -> str:
        parts = [read()]
        while self._takes(word):
            parts.append(read())
        return sign.join(parts)

    def _term(self) -> str:
        if self._takes("not"):
            inner = self._term()
            return f"!{inner}" if inner.startswith("(") else f"!({inner})"
        if self._takes("("):
            inner = self._any()
            self._expect(")")
            return f"({inner})"
        return self._comparison(self._operand())

    def _comparison(self, column: str) -> str:
        if self._takes("is"):
            sign = "!=" if self._takes("not") else "=="
            self._expect("null")
            return f"{column} {sign} null"
        is_negated = self._takes("not")
        if self._takes("in"):
            self._expect("(")
            items = [self._operand()]
            while self._takes(","):
                items.append(self._operand())
            self._expect(")")
            found = f"{column} in [{', '.join(items)}]"
        elif not is_negated and self._left and self._left[0][1] in _SIGNS:
            _, sign = self._left.pop(0)
            found = f"{column} {_SIGNS[sign]} {self._operand()}"
        elif not is_negated and column.startswith("row"):
            return column
        else:
            raise ValueError(column)
        return f"!({found})" if is_negated else found

    def _operand(self) -> str:
        kind, text = self._left.pop(0)
        if kind == "text":
            return json.dumps(text[1:-1].replace("''", "'"), ensure_ascii=False)
        if kind == "number":
            return text.removeprefix("+")
        if kind == "quoted":
            return _column(text[1:-1].replace('""', '"'))
        if kind == "word" and text.lower() in {"true", "false", "null"}:
            return text.lower()
        if kind == "word" and text.lower() not in {"and", "or", "not", "is", "in"}:
            return _column(text.lower())
        raise ValueError(text)

    def _takes(self, wanted: str) -> bool:
        kind, text = self._left[0] if self._left else ("", "")
        if kind not in {"word", "sign"} or text.lower() != wanted:
            return False
        self._left.pop(0)
        return True

    def _expect(self, wanted: str) -> None:
        if not self._takes(wanted):
            raise ValueError(wanted)


def _column(name: str) -> str:
    is_word = name.isascii() and name.isidentifier()
    return f"row.{name}" if is_word else f"row[{json.dumps(name, ensure_ascii=False)}]"
