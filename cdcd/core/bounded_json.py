"""JSON that others may have written: read within limits, or refused with the reason.

The rule: whatever the bytes are, reading them ends soon, takes memory in proportion to them, and raises nothing but
ValueError. So one record that a stranger wrote into a topic cannot end the daemon. Python's own reader recurses once
for each bracket, takes `NaN` and repeated keys, and guesses the encoding.
"""

import json
import re
from typing import Any, Final

BYTES_MAX: Final = 1 << 20
"""Bytes of a text: Kafka's own default limit of a record is about as large."""

DEPTH_MAX: Final = 32
"""Brackets within brackets. cdcd's own records have eight."""

COUNT_MAX: Final = 2**53 - 1
"""Largest count. Other readers of JSON keep numbers exact up to here."""

SHOWN: Final = 60
"""Characters of a wrong value that an error repeats."""

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string in quotes; or an opening quote without its end, with the rest of the text. Because the pattern matches at
every quote, a search stays linear."""

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def parse(data: bytes, bytes_max: int = BYTES_MAX) -> Any:
    """Return the value of a JSON text in UTF-8. ValueError: it is no such text, too long, or too deep."""
    if len(data) > bytes_max:
        raise ValueError(f"it has {len(data)} bytes, and {bytes_max} are allowed")
    if is_deep(data):
        raise ValueError(f"its brackets do not match, or more than {DEPTH_MAX} are within one another")
    text = data.decode()
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:  # pragma: no cover  the depth is judged before
        raise ValueError("it is too deep") from None
    if "\\u" in text:
        # JSON can name halves of characters, which no log, topic or statement can be given.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def is_deep(data: bytes) -> bool:
    """Whether a text has more than `DEPTH_MAX` brackets within brackets, or brackets that do not match."""
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    for _ in range(DEPTH_MAX):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def count(value: object) -> int:
    """The value, if it is a whole number from 0 to `COUNT_MAX`. ValueError: it is something else."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= COUNT_MAX:
        raise ValueError(f"{shown(value)} is not a count")
    return value


def whole(value: object) -> int:
    """The value, if it is a whole number of 64 bits with a sign. ValueError: it is something else."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError(f"{shown(value)} is not a whole number of 64 bits")
    return value


def text(value: object) -> str:
    """The value, if it is a string. ValueError: it is something else."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a text")  # noqa: TRY004  what was written is wrong, not our call
    return value


def name(value: object) -> str:
    """The value, if it is a string that PostgreSQL can be sent. ValueError: it is something else."""
    found = text(value)
    if "\0" in found:
        raise ValueError(f"{shown(value)} has a NUL")
    return found


def fields(value: object, known: frozenset[str] | None = None) -> dict[str, Any]:
    """The value, if it is an object that has no other keys than `known`. ValueError: it is something else."""
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not an object")  # noqa: TRY004  as above
    if known is not None and (unknown := value.keys() - known):
        raise ValueError(f"it has keys that this cdcd does not know: {', '.join(sorted(unknown))[:SHOWN]}")
    return value


def items(value: object) -> list[Any]:
    """The value, if it is a list. ValueError: it is something else."""
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is not a list")  # noqa: TRY004  as above
    return value


def shown(value: object) -> str:
    """The beginning of a value, for an error."""
    return repr(value if isinstance(value, int | float | str | bool | None) else type(value))[:SHOWN]
