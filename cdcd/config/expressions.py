"""The text of an expression -> `records/shaping/expressions.py`: the only importer of lark, which parses it.

The grammar is CEL's (https://github.com/google/cel-spec, doc/langdef.md, "Syntax") without what cdcd does not have:
messages, maps, bytes, unsigned integers, and selecting from anything but `row`. What is left out is parsed where that
is easy, so that the error can name it.
"""

import re
from functools import cache
from typing import Any, Final, cast

from lark import Lark, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from cdcd.core.records.shaping.expressions import (
    DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    LENGTH_MAX,
    CelCall,
    CelColumn,
    CelExpression,
    CelList,
    CelLiteral,
)

ROW: Final = "row"
"""The name by which an expression calls the row."""

_GRAMMAR: Final = r"""
?start: choice
?choice: any | any "?" any ":" choice -> choice
?any: all | all ("||" all)+ -> any
?all: relation | relation ("&&" relation)+ -> all
?relation: sum | relation OPERATOR sum -> binary | relation "in" sum -> membership
?sum: product | sum SIGN product -> binary
?product: unary | product FACTOR unary -> binary
?unary: member | "!" unary -> negation | SIGN unary -> signed
?member: primary
    | member "." IDENT -> field
    | member "." IDENT "(" [arguments] ")" -> method
    | member "[" choice "]" -> index
?primary: NUMBER -> number | STRING -> string | IDENT -> name
    | IDENT "(" [arguments] ")" -> function
    | "(" choice ")"
    | "[" [arguments] "]" -> list
arguments: choice ("," choice)*
OPERATOR: "==" | "!=" | "<=" | ">=" | "<" | ">"
SIGN: "+" | "-"
FACTOR: "*" | "/" | "%"
NUMBER: /0[xX][0-9a-fA-F]+[uU]?|([0-9]+\.[0-9]+|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?[uU]?/
STRING: /[rRbB]{0,2}(\"\"\"(\\.|[^\\])*?\"\"\"|'''(\\.|[^\\])*?'''|"(\\.|[^\\"\n\r])*"|'(\\.|[^\\'\n\r])*')/s
IDENT: /[_a-zA-Z][_a-zA-Z0-9]*/
COMMENT: /\/\/[^\n]*/
%ignore /[\t\n\f\r ]+/
%ignore COMMENT
"""

_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}

_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.|$))",
    re.DOTALL,
)
_MEANING: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MACROS: Final = ("has", "all", "exists", "exists_one", "map", "filter")
_NAMES_SHOWN_MAX: Final = 100


class ExpressionSyntaxError(ValueError):
    """A text that is not an expression. `at` is the number of characters before the mistake."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def parse_expression(text: str) -> CelExpression:
    """Read an expression. ValueError: it is none; the text says what is wrong, and where (`ExpressionSyntaxError`)."""
    if len(text) > LENGTH_MAX:
        raise ValueError(f"an expression has at most {LENGTH_MAX} characters")
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        is_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        # lark declares the place as None, and sets it.
        at = len(text) if is_end else cast("int", error.pos_in_stream)
        raise ExpressionSyntaxError(_explain(error), at) from None
    return _TreeReading().read(tree, 1)


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)


def _explain(error: UnexpectedInput) -> str:
    """What a parser has found, in words."""
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return "the expression ends too early"
    if isinstance(error, UnexpectedCharacters | UnexpectedToken):
        found = str(error.char if isinstance(error, UnexpectedCharacters) else error.token)
        hint = {
            "=": "; equal is ==",
            "&": "; and is &&",
            "|": "; or is ||",
            "{": "; there are no maps and messages",
            "'": "; a quote is not closed",
            '"': "; a quote is not closed",
        }.get(found[:1], "")
        return f"line {error.line}, column {error.column}: {found[:20]} cannot stand here{hint}"
    return "it is not an expression"


class _TreeReading:
    """From lark's tree to an expression. ValueError: cdcd does not have a part of it."""

    def read(self, node: Any, depth: int) -> CelExpression:
        if depth > DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} operators stand in each other")
        assert isinstance(node, Tree)
        kind, parts = str(node.data), list(node.children)
        below = depth + 1
        if kind == "number":
            return CelLiteral(_number(str(parts[0])))
        if kind == "string":
            return CelLiteral(_string(str(parts[0])))
        if kind == "name":
            return _word(str(parts[0]))
        if kind in {"field", "index"}:
            return self._column(kind, parts)
        if kind == "list":
            return CelList(self._arguments(parts, below))
        if kind == "function":
            return CelCall(_function(str(parts[0])), self._arguments(parts[1:], below))
        if kind == "method":
            name = _function(str(parts[1]))
            return CelCall(name, (self.read(parts[0], below), *self._arguments(parts[2:], below)))
        if kind == "signed":
            return self._signed(str(parts[0]), parts[1], below)
        if kind == "binary":
            left, operator, right = parts
            return CelCall(str(operator), (self.read(left, below), self.read(right, below)))
        name = {"choice": "?:", "any": "||", "all": "&&", "membership": "in", "negation": "!"}[kind]
        return CelCall(name, tuple([self.read(part, below) for part in parts]))

    def _arguments(self, parts: list[Any], depth: int) -> tuple[CelExpression, ...]:
        given = parts[0].children if parts else []
        return tuple([self.read(each, depth) for each in given])

    def _signed(self, sign: str, operand: Any, depth: int) -> CelExpression:
        if sign == "+":
            raise ValueError("there is no + before a number")
        if isinstance(operand, Tree) and operand.data == "number":
            # The least integer has no positive counterpart.
            return CelLiteral(_number("-" + str(operand.children[0])))
        return CelCall("-", (self.read(operand, depth),))

    def _column(self, kind: str, parts: list[Any]) -> CelExpression:
        of, name = parts
        if not isinstance(of, Tree) or of.data != "name" or str(of.children[0]) != ROW:
            raise ValueError(
                f"only {ROW} has columns: {ROW}.name, or {ROW}['name'] for a name that is no word"
            )
        if kind == "field":
            return CelColumn(str(name))
        if not isinstance(name, Tree) or name.data != "string":
            raise ValueError(f"{ROW}[…] takes the name of a column in quotes")
        return CelColumn(_string(str(name.children[0])))


def _word(word: str) -> CelExpression:
    if word in _WORDS:
        return CelLiteral(_WORDS[word])
    if word == ROW:
        raise ValueError(f"{ROW} alone has no value; write {ROW}.name")
    if word == "op":
        raise ValueError("there is no op: a filter says which rows a topic has (topics.skipped_operations)")
    raise ValueError(f"there is no {word[:_NAMES_SHOWN_MAX]}; a column is {ROW}.{word[:_NAMES_SHOWN_MAX]}")


def _function(name: str) -> str:
    if name in _MACROS:
        meant = f"; write {ROW}.name != null" if name == "has" else ""
        raise ValueError(f"there is no {name}(…){meant}")
    if name == "matches":
        raise ValueError("there is no matches(…), because the time of a regular expression is not bounded")
    return name


def _number(text: str) -> int | float:
    if text[-1] in "uU":
        raise ValueError(f"{text}: there are no unsigned integers")
    if "x" in text or "X" in text:
        number: int | float = int(text, 16)
    elif set(text) & set(".eE"):
        return float(text)
    else:
        number = int(text)
    if not INT_MIN <= number <= INT_MAX:
        raise ValueError(f"{text[:_NAMES_SHOWN_MAX]}: an integer has 64 bits")
    return number


def _string(token: str) -> str:
    start = len(token) - len(token.lstrip("rRbB"))
    prefix, quoted = token[:start].lower(), token[start:]
    if "b" in prefix:
        raise ValueError("there are no bytes")
    size = 3 if quoted[:3] in {"'''", '"""'} and len(quoted) >= 2 * 3 else 1
    inner = quoted[size:-size]
    return inner if prefix else _ESCAPE.sub(_meaning, inner)


def _meaning(match: re.Match[str]) -> str:
    letter, byte, short, long, octal, other = match.groups()
    if letter is not None:
        return _MEANING.get(letter, letter)
    if other is not None:
        raise ValueError(f"\\{other} is no escape of CEL; a backslash is \\\\")
    code = int(octal, 8) if octal is not None else int(byte or short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError(f"{match[0]} is no character")
    return chr(code)
