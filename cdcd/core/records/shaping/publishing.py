"""Makes records of events that an application publishes by logical messages.

    SELECT pg_logical_emit_message(true, 'cdcd.publish',
        '{"topic": "orders.events", "key": "4711", "headers": {"type": "OrderPlaced"}, "payload": {"total": 12.50}}');

The rule: everybody who may connect to the database can send such a message, so its content is checked completely
before it is used, and its topic must be on the operator's list. Wrong content raises ValueError, whose text repeats
at most a name from the content, shortened.

A payload that is text becomes the bytes of the text. Any other payload keeps the bytes that it has in the content,
so that no number and no order of fields changes.
"""

import json
import re
from collections.abc import Collection
from typing import Final, NoReturn

from cdcd.core.facts import cut_short
from cdcd.core.records.encoder import HEADER_PARTITION, Record

PREFIX: Final = b"cdcd.publish"
"""Prefix of logical messages that are events."""

HEADERS_MAX: Final = 100
NAME_MAX: Final = 200
"""Maximum number of characters of a name in the text of an error."""

_FIELDS: Final = ("topic", "key", "headers", "payload")


def read_event(content: bytes, topics: Collection[str]) -> Record:
    """Return the record for the content of a message.

    Args:
        topics: topics that events may go to.

    Raises:
        ValueError: there is no record; the text explains why to a person.
    """
    try:
        fields = _members(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    for name in fields:
        if name not in _FIELDS:
            raise ValueError(f"it has the unknown field {_shown(name)}")
    topic = _text(fields, "topic")
    if topic not in topics:
        raise ValueError(f"outbox.topics does not have the topic {_shown(topic)}")
    key = _text(fields, "key")
    if not key:
        raise ValueError("key must not be empty")
    if "payload" not in fields:
        raise ValueError("payload is missing")
    value, source = fields["payload"]
    payload: bytes | None = None
    if isinstance(value, str):
        payload = value.encode()
    elif value is not None:
        payload = source.encode()
    return (topic, key.encode(), payload, _headers(fields.get("headers", (None, ""))[0]))


def _text(fields: dict[str, tuple[object, str]], name: str) -> str:
    if name not in fields:
        raise ValueError(f"{name} is missing")
    value, _ = fields[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")  # noqa: TRY004  what was sent is wrong, not our call
    return value


def _headers(given: object) -> list[tuple[str, bytes]] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > HEADERS_MAX:
        raise ValueError(f"headers must be an object with at most {HEADERS_MAX} texts")
    found: list[tuple[str, bytes]] = []
    for name, value in given.items():
        if not isinstance(value, str):
            raise ValueError(f"the header {_shown(name)} must be a text")  # noqa: TRY004
        if name == HEADER_PARTITION:
            raise ValueError(f"the header {name} is cdcd's own")
        name.encode()
        found.append((name, value.encode()))
    return found or None


def _shown(name: str) -> str:
    """Return a name for the text of an error; JSON can contain half characters, which a log cannot take."""
    return cut_short(name.encode("utf-8", "backslashreplace").decode("utf-8"), NAME_MAX)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Only the text of a number is used, and Python refuses to make an int of very many digits.
_DECODER: Final = json.JSONDecoder(parse_int=float, parse_constant=_refuse_constant)
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def _members(text: str) -> dict[str, tuple[object, str]]:
    """Return the members of an object by name, each with its value and the text of the value."""
    found: dict[str, tuple[object, str]] = {}
    at = _next(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("it is not a JSON object")
    at = _next(text, at + 1)
    if text[at : at + 1] == "}":
        return _ended(text, at + 1, found)
    while True:
        if text[at : at + 1] != '"':
            raise ValueError(f"it is not JSON: a name is missing at character {at}")
        name, at = _DECODER.raw_decode(text, at)
        at = _next(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"it is not JSON: a colon is missing at character {at}")
        begin = _next(text, at + 1)
        value, end = _DECODER.raw_decode(text, begin)
        if name in found:
            raise ValueError(f"it has the field {_shown(name)} twice")
        found[name] = (value, text[begin:end])
        at = _next(text, end)
        if text[at : at + 1] == "}":
            return _ended(text, at + 1, found)
        if text[at : at + 1] != ",":
            raise ValueError(f"it is not JSON: a comma is missing at character {at}")
        at = _next(text, at + 1)


def _ended(text: str, at: int, found: dict[str, tuple[object, str]]) -> dict[str, tuple[object, str]]:
    if _next(text, at) != len(text):
        raise ValueError(f"it is not JSON: something follows the object at character {at}")
    return found


def _next(text: str, at: int) -> int:
    """Return the index of the next character that is not white space, or the end."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
