"""The text forms that hold other values: arrays and hstore, to JSON.

Strict where a wrong guess would change a value: what array_out and hstore_out never write is a ValueError.
Everything here is wire text.
"""

import re
from collections.abc import Callable
from typing import Final

from cdcd.core.catalog import binary
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES
from cdcd.core.records.debezium_json.strings import QUOTE, quote

_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)

_PAIR: Final = re.compile(
    r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, (?=")|\Z)',
    re.DOTALL,
)


def array_token(delimiter: str) -> re.Pattern[str]:
    """The pattern that cuts an array literal: a quoted value, a plain one, or a brace or the delimiter."""
    escaped = re.escape(delimiter)
    return re.compile(rf'"((?:[^"\\]|\\.)*)"|([^{{}}"\\{escaped}]+)|([{{}}{escaped}])', re.DOTALL)


def array_json(text: str, token: re.Pattern[str], json: Callable[[str], str]) -> str:
    """The JSON array of an array literal; each dimension is a nesting, lower bounds (`[0:1]={…}`) are dropped.

    Args:
        token: what `array_token` gave for the element's delimiter.
        json: converts an element that is not NULL.
    """
    at = text.index("=") + 1 if text.startswith("[") else 0
    parts: list[str] = []
    depth = 0
    value_due = True  # at the start, after an opening brace and after a delimiter
    while at < len(text):
        match = token.match(text, at)
        if match is None or (at and not depth and parts):
            raise ValueError("malformed array literal")
        at = match.end()
        mark = match[3]
        if mark is None:
            if not value_due or not depth:
                raise ValueError("malformed array literal")
            plain = match[2]
            if plain is None:
                quoted: str = match[1]
                parts.append(json(unescape(quoted)))
            else:
                parts.append("null" if plain == "NULL" else json(plain))
            value_due = False
        elif mark == "{":
            if not value_due:
                raise ValueError("malformed array literal")
            parts.append("[")
            depth += 1
        elif mark == "}":
            if not depth or (value_due and parts[-1] != "["):
                raise ValueError("malformed array literal")
            parts.append("]")
            depth -= 1
            value_due = False
        else:
            if value_due:
                raise ValueError("malformed array literal")
            parts.append(",")
            value_due = True
    if depth or not parts:
        raise ValueError("malformed array literal")
    return "".join(parts)


def binary_array_json(data: bytes, json: Callable[[bytes], str]) -> str:
    """The JSON array of an array in binary form."""
    lengths, _, elements = binary.read_array(data)
    values = ["null" if element is None else json(element) for element in elements]
    for length in reversed(lengths):
        values = [f"[{','.join(values[at : at + length])}]" for at in range(0, len(values), length)]
    return values[0] if values else "[]"


def flat_array_json(text: str) -> str:
    """The same for elements whose text is their JSON and is never quoted: integers."""
    start = text.index("=") + 1 if text.startswith("[") else 0
    body = text[start:]
    if not (body.startswith("{") and body.endswith("}")) or '"' in body:
        raise ValueError("malformed array literal")
    return body.replace("{", "[").replace("}", "]").replace("NULL", "null")


def hstore_json(text: str) -> str:
    """The JSON object of an hstore literal, in the order of the text; a NULL value is null."""
    pairs: list[str] = []
    at = 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError("malformed hstore literal")
        value: str | None = match[2]
        pairs.append(f"{quote(unescape(match[1]))}:{'null' if value is None else quote(unescape(value))}")
        at = match.end()
    return f"{{{','.join(pairs)}}}"


def unescape(text: str) -> str:
    """Backslashes removed from before the characters that they protect."""
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


LARGE: Final = "\0"
"""Stands for a large element where the rest of an array is read. No text of PostgreSQL has this character."""

_LARGE: Final = b"\0"

_ESCAPED_BYTE: Final = re.compile(rb"\\(.)", re.DOTALL)

_ELEMENTS_MAX: Final = 10_000
"""Number of elements above which an array is read as a whole, because its elements need most of the memory."""


def element_pattern(delimiter: str) -> re.Pattern[bytes]:
    """The pattern that finds elements of an array literal in bytes, with their quotes."""
    escaped = re.escape(delimiter.encode("latin-1"))
    return re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^{}"\\' + escaped + rb"]+", re.DOTALL)


def without_large(value: bytes, delimiter: bytes, element: re.Pattern[bytes]) -> tuple[bytes, list[bytes]]:
    """An array literal with `LARGE` in place of each large element, and these elements.

    The text of an array is copied several times while it is read. A large element is copied once.
    """
    rest: list[bytes] = []
    large: list[bytes] = []
    if _LARGE in value or value.count(delimiter) > _ELEMENTS_MAX:
        return value, large
    at = 0
    for found in element.finditer(value):
        begin, end = found.span()
        if end - begin <= PIECE_BYTES:
            continue
        rest += (value[at:begin], _LARGE)
        at = end
        if value[begin] == QUOTE:
            begin += 1
            end -= 1
        content = value[begin:end]
        large.append(_ESCAPED_BYTE.sub(rb"\1", content) if b"\\" in content else content)
    rest.append(value[at:])
    return b"".join(rest), large


def with_large(json: bytes, large: list[list[bytes]]) -> bytes:
    """The JSON of the rest of an array with the JSON of its large elements, each in parts."""
    pieces = json.split(_LARGE)
    if len(pieces) != len(large) + 1:
        raise ValueError("malformed array literal")
    parts = [pieces[0]]
    for element, piece in zip(large, pieces[1:], strict=True):
        parts += (*element, piece)
    return b"".join(parts)
