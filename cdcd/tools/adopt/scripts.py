"""Conditions in Groovy and JavaScript, as far as they are comparisons of columns and of the operation.

Debezium's `Filter` and `ContentBasedRouter` run scripts. What is read here is a small part that both languages have:

    choice      := or [ '?' choice ':' choice ]
    or          := and { '||' and }
    and         := not { '&&' not }
    not         := '!' not | comparison
    comparison  := primary [ ('==' | '!=' | '===' | '!==') primary ]
    primary     := '(' choice ')' | text | number | true | false | null | path
    path        := value { ('.' | '?.') name }

`<` and its kin are left out, because Groovy orders NULL before every value, and CEL has no answer for it. Everything
else that a script may do (methods, regular expressions, `header`, `topic`) is left out too.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    r"\s*(?:('(?:[^'\\$]|\\['\"\\])*'|\"(?:[^\"\\$]|\\['\"\\])*\")"
    r"|(-?[0-9]+(?![\w.]))|([A-Za-z_]\w*)|(===|!==|==|!=|&&|\|\||\?\.|[!()?:.]))",
    re.ASCII,
)
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_EQUAL: Final = {"==": "==", "!=": "!=", "===": "==", "!==": "!="}
_DEPTH_MAX: Final = 50

JAVASCRIPT: Final = ("graal.js", "javascript", "js", "ecmascript", "nashorn")
GROOVY: Final = ("groovy",)


class UntranslatableError(ValueError):
    """The script has something that is not read here. The text names it."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, a number, a boolean or null."""

    value: str | int | bool | None


@dataclass(frozen=True, slots=True)
class FieldPath:
    """`value.after.status`, without `value`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with its operands; `?:` has three."""

    operator: str
    operands: tuple["Script", ...]


Script = Literal | FieldPath | Operation


def parse(text: str, language: str) -> Script:
    """The script. UntranslatableError: it has something else.

    Args:
        language: as the transform's option `language` names it, such as jsr223.groovy.
    """
    name = language.strip().lower().removeprefix("jsr223.")
    if name not in (*JAVASCRIPT, *GROOVY):
        raise UntranslatableError(f"its language {language} is not read here")
    reader = _ScriptReader(list(_tokens(text)), allows_strict=name in JAVASCRIPT)
    return reader.whole()


def _tokens(text: str) -> Iterator[str]:
    place = 0
    stripped = text.strip().rstrip(";").rstrip()
    while place < len(stripped):
        match = _TOKEN.match(stripped, place)
        if match is None:
            raise UntranslatableError(f"there is no counterpart for: {stripped[place : place + 30].strip()}")
        yield match[0].strip()
        place = match.end()


class _ScriptReader:
    def __init__(self, tokens: list[str], *, allows_strict: bool) -> None:
        self._tokens = tokens
        self._place = 0
        self._allows_strict = allows_strict
        self._depth = 0

    def whole(self) -> Script:
        found = self._choice()
        if self._place < len(self._tokens):
            raise UntranslatableError(
                f"there is no counterpart for: {' '.join(self._tokens[self._place :])[:30]}"
            )
        return found

    def _choice(self) -> Script:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise UntranslatableError("its parts stand too deep in each other")
        condition = self._chain("||", ("&&",))
        if self._take("?"):
            chosen = self._choice()
            self._expect(":")
            condition = Operation("?:", (condition, chosen, self._choice()))
        self._depth -= 1
        return condition

    def _chain(self, operator: str, tighter: tuple[str, ...]) -> Script:
        operands = [self._chain(tighter[0], ()) if tighter else self._not()]
        while self._take(operator):
            operands.append(self._chain(tighter[0], ()) if tighter else self._not())
        return operands[0] if len(operands) == 1 else Operation(operator, tuple(operands))

    def _not(self) -> Script:
        negations = 0
        while self._take("!"):
            negations += 1
        found = self._comparison() if not negations else self._primary()
        return Operation("!", (found,)) if negations % 2 else found

    def _comparison(self) -> Script:
        left = self._primary()
        operator = self._peek()
        if operator not in _EQUAL or (len(operator) == len("===") and not self._allows_strict):
            return left
        self._place += 1
        return Operation(_EQUAL[operator], (left, self._primary()))

    def _primary(self) -> Script:
        if self._take("("):
            found = self._choice()
            self._expect(")")
            return found
        word = self._peek()
        self._place += 1
        if word[:1] in ("'", '"'):
            return Literal(re.sub(r"\\(.)", r"\1", word[1:-1]))
        if re.fullmatch(r"-?[0-9]+", word):
            return Literal(int(word))
        if word in ("true", "false", "null"):
            return Literal({"true": True, "false": False}.get(word))
        if word == "value":
            return self._path()
        raise UntranslatableError(f"there is no counterpart for: {word or 'its end'}")

    def _path(self) -> FieldPath:
        names: list[str] = []
        while self._take(".") or self._take("?."):
            name = self._peek()
            self._place += 1
            if _WORD.fullmatch(name) is None or self._peek() == "(":
                raise UntranslatableError(f"there is no counterpart for: {name or 'its end'}")
            names.append(name)
        return FieldPath(tuple(names))

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._place += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise UntranslatableError(f"a {token} is missing")


def paths(script: Script) -> set[tuple[str, ...]]:
    """All paths in it."""
    if isinstance(script, FieldPath):
        return {script.names}
    if isinstance(script, Operation):
        return {path for each in script.operands for path in paths(each)}
    return set()


def is_condition(script: Script) -> bool:
    """Whether it is made of comparisons of a path with a literal alone, so that it is true or false for any row."""
    if not isinstance(script, Operation):
        return False
    if script.operator in _EQUAL.values():
        kinds = {type(each) for each in script.operands}
        return kinds == {FieldPath, Literal}
    return script.operator in ("!", "&&", "||") and all(map(is_condition, script.operands))


def truth(script: Script, path: tuple[str, ...], value: str) -> bool:
    """A condition that asks for this path alone, where it has this value."""
    assert isinstance(script, Operation), "is_condition"
    operands = script.operands
    if script.operator in _EQUAL.values():
        left, right = [
            value if isinstance(each, FieldPath) else each.value
            for each in operands
            if isinstance(each, FieldPath | Literal)
        ]
        return (left == right) == (script.operator == "==")
    if script.operator == "!":
        return not truth(operands[0], path, value)
    found = [truth(each, path, value) for each in operands]
    return all(found) if script.operator == "&&" else any(found)


def as_cel(script: Script, columns: dict[tuple[str, ...], str]) -> str:
    """A condition as cdcd's filters and routes have it.

    Args:
        columns: the column that each path means.
    """
    if isinstance(script, Literal):
        return _literal(script.value)
    if isinstance(script, FieldPath):
        name = columns[script.names]
        return f"row.{name}" if _WORD.fullmatch(name) and name not in _RESERVED else f"row[{_literal(name)}]"
    parts = [as_cel(each, columns) for each in script.operands]
    if script.operator == "!":
        return f"!({parts[0]})"
    if script.operator in _EQUAL.values():
        return f"{parts[0]} {script.operator} {parts[1]}"
    return f" {script.operator} ".join(
        f"({part})" if isinstance(each, Operation) and each.operator in ("&&", "||") else part
        for each, part in zip(script.operands, parts, strict=True)
    )


_RESERVED: Final = frozenset(
    {
        "in",
        "true",
        "false",
        "null",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
    }
    | {"let", "loop", "package", "namespace", "return", "var", "void", "while"}
)


def _literal(value: str | int | bool | None) -> str:
    if isinstance(value, str):
        inner = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'")
        return f"'{inner}'"
    return "null" if value is None else json.dumps(value)
