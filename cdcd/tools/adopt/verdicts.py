"""What becomes of one option of a Debezium connector: a kind, a reason, and keys of cdcd's configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

KeyValues = Mapping[str, object]


class VerdictKind(StrEnum):
    """What becomes of an option. The values are what `--format json` shows."""

    SAME = "same"
    DIFFERENT = "different"
    IMPOSSIBLE = "impossible"
    IRRELEVANT = "irrelevant"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an option with its value.

    Attributes:
        why: SAME: what has the same effect; DIFFERENT: what differs; IMPOSSIBLE: what to do instead; IRRELEVANT and
            UNKNOWN: why.
        keys: dotted keys of cdcd's configuration with their values. Names that begin with `dsn.` are libpq's
            parameters.
        draft: keys that a person completes. They are comments in cdcd.yaml.
    """

    kind: VerdictKind
    why: str
    keys: KeyValues = field(default_factory=dict)
    draft: KeyValues = field(default_factory=dict)


Read = Callable[[str], object]
"""Converts the text of an option into the value of a key of cdcd. ValueError: Debezium does not take the text."""


def text(value: str) -> object:
    return value


def boolean(value: str) -> object:
    try:
        return {"true": True, "false": False}[value.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def number(value: str) -> object:
    try:
        return int(value.strip())
    except ValueError:
        raise ValueError("must be a whole number") from None


def seconds(value: str) -> object:
    """From milliseconds."""
    ms = number(value)
    assert isinstance(ms, int)
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def is_true(value: str) -> object:
    return value.strip().lower() == "true"


def to(key: str, value: object) -> Verdict:
    """The option is a key of cdcd's with the same meaning."""
    shown = f"libpq's {key.removeprefix('dsn.')} in postgres.dsn" if key.startswith("dsn.") else key
    return Verdict(VerdictKind.SAME, f"{shown}.", {key: value})


def same(why: str, **keys: object) -> Verdict:
    return Verdict(VerdictKind.SAME, why, _dotted(keys))


def differs(why: str, **keys: object) -> Verdict:
    return Verdict(VerdictKind.DIFFERENT, why, _dotted(keys))


def lacks(why: str, **keys: object) -> Verdict:
    """`why` says what to do instead."""
    return Verdict(VerdictKind.IMPOSSIBLE, why, _dotted(keys))


def not_needed(why: str) -> Verdict:
    return Verdict(VerdictKind.IRRELEVANT, why)


def _dotted(keys: Mapping[str, object]) -> KeyValues:
    """`topics__truncate` is the key topics.truncate."""
    return {name.replace("__", "."): value for name, value in keys.items()}
