"""Requests in the form of Debezium's signals, which programs write into a Kafka topic (`snapshot.signal_topic`).

    key: shop    value: {"type": "execute-snapshot", "data": {"data-collections": ["public.orders"]}}

https://debezium.io/documentation/reference/3.7/configuration/signalling.html

The rule: a signal that is malformed is refused with a reason, and never stops the pipeline. What a signal may ask for
is decided where every request is decided: by `snapshot.signals`, and by the checks of `cdcd snapshot`.
"""

from collections.abc import Mapping
from typing import Any, Final

from cdcd.core.bounded_json import BYTES_MAX, parse
from cdcd.core.snapshot.signals import NAME_MAX, TABLES_MAX, WHERE_MAX, Signal

_KINDS: Final = ("incremental", "blocking")
"""Kinds of a snapshot. cdcd reads tables beside the stream in both cases."""

_ACTIONS: Final[Mapping[str, str]] = {
    "execute-snapshot": "start",
    "stop-snapshot": "cancel",
    "pause-snapshot": "pause",
    "resume-snapshot": "resume",
}


def read_signals(content: bytes, pipeline: str) -> tuple[Signal, ...]:
    """Return the requests of a signal, at least one. A condition of a table makes a request of its own.

    Args:
        pipeline: name of this pipeline.

    Raises:
        ValueError: the signal is malformed, or asks for something that cdcd does not do. The text says what.
    """
    if len(content) > BYTES_MAX:
        raise ValueError(f"it has {len(content)} bytes, and {BYTES_MAX} are allowed")
    try:
        fields = parse(content)
    except ValueError:
        raise ValueError("it is not JSON in UTF-8") from None
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  what was sent is wrong, not our call
    kind = fields.get("type")
    action = _ACTIONS.get(kind) if isinstance(kind, str) else None
    if action is None:
        raise ValueError(f"type must be one of {', '.join(_ACTIONS)}")
    data = fields.get("data", {})
    if not isinstance(data, dict):
        raise ValueError("data must be an object")  # noqa: TRY004  as above
    request = _text(fields.get("id", ""), "id", NAME_MAX)
    if action in ("pause", "resume"):
        return (Signal(action, pipeline=pipeline),)
    if _text(data.get("type", "incremental"), "data.type", NAME_MAX).lower() not in _KINDS:
        raise ValueError(f"data.type must be one of {', '.join(_KINDS)}")
    tables = data.get("data-collections", [])
    if not isinstance(tables, list) or len(tables) > TABLES_MAX:
        raise ValueError(f"data.data-collections must be a list of at most {TABLES_MAX} names")
    names = [_text(each, "data.data-collections", NAME_MAX) for each in tables]
    if action == "cancel":
        return (Signal(action, tuple(names), pipeline=pipeline),)
    if not names:
        raise ValueError("execute-snapshot needs data.data-collections")
    conditions = _conditions(data)
    plain = tuple([name for name in names if name not in conditions])
    found = [Signal("start", plain, request=request, pipeline=pipeline)] if plain else []
    found += [
        Signal("start", (name,), where=conditions[name], request=request, pipeline=pipeline)
        for name in names
        if name in conditions
    ]
    return tuple(found)


def _conditions(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the condition of each table that has one."""
    if data.get("additional-condition") or data.get("surrogate-key"):
        raise ValueError(
            "additional-condition and surrogate-key are not supported; use additional-conditions"
        )
    given = data.get("additional-conditions", [])
    if not isinstance(given, list):
        raise ValueError("data.additional-conditions must be a list")  # noqa: TRY004  as above
    found = {}
    for each in given:
        if not isinstance(each, dict):
            raise ValueError("data.additional-conditions must be a list of objects")  # noqa: TRY004  as above
        name = _text(each.get("data-collection", ""), "data-collection", NAME_MAX)
        found[name] = _text(each.get("filter", ""), "filter", WHERE_MAX)
    return found


def _text(value: object, name: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise ValueError(f"{name} must be a text of at most {most} characters, without NUL")
    return value
