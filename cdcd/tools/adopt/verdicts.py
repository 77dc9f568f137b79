"""What becomes of one option of a Debezium connector, as rules from which the tables of options are made.

Each option is one row: its name, what Debezium takes if it is not given, and a rule. A rule gets the value and says a
`Verdict`. The value that Debezium takes by itself is judged too, because an option that nobody wrote down shapes the
records as much as one that is.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

KeyValues = Mapping[str, object]


class Kind(StrEnum):
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

    kind: Kind
    why: str
    keys: KeyValues = field(default_factory=dict)
    draft: KeyValues = field(default_factory=dict)


Rule = Callable[[str], Verdict]
"""From the value of an option to what becomes of it. ValueError: the value is not one that Debezium takes."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table of options.

    Attributes:
        name: as Debezium or Kafka Connect has it; `<name>` in it stands for any text without a point, and a last `*`
            for any text.
        default: what is taken if it is not given; None: nothing is, and its absence means nothing.
        is_secret: the value is shown nowhere, and is in the written file by reference only.
        below: the mapping of cdcd's configuration that gets the value, under what a last `*` stands for; "": none.
    """

    name: str
    default: str | None
    rule: Rule
    is_secret: bool = False
    below: str = ""

    def matches(self, name: str) -> bool:
        parts = re.split(r"(<[a-z]+>|\*$)", self.name)
        regex = "".join(_WILD.get(part[:1], re.escape(part)) for part in parts if part)
        return re.fullmatch(regex, name) is not None

    def judge(self, name: str, value: str) -> Verdict:
        """What becomes of the option that is called `name`, one of those that `matches`. ValueError: as `Rule`."""
        found = self.rule(value)
        if not self.below:
            return found
        key = f"{self.below}.{name.removeprefix(self.name.removesuffix('*'))}"
        return Verdict(found.kind, found.why, {key: value})

    @property
    def is_family(self) -> bool:
        """Whether it stands for several names."""
        return "<" in self.name or self.name.endswith("*")


_WILD: Final = {"<": "[^.]+", "*": ".+"}


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


Read = Callable[[str], object]


def to(key: str, read: Read = text) -> Rule:
    """The option is a key of cdcd's with the same meaning."""
    shown = f"libpq's {key.removeprefix('dsn.')} in postgres.dsn" if key.startswith("dsn.") else key
    return lambda value: Verdict(Kind.SAME, f"{shown}.", {key: read(value)})


def near(key: str, why: str, read: Read = text) -> Rule:
    """The option is a key of cdcd's that differs."""
    return lambda value: Verdict(Kind.DIFFERENT, why, {key: read(value)})


def same(why: str, **keys: object) -> Verdict:
    return Verdict(Kind.SAME, why, _dotted(keys))


def differs(why: str, **keys: object) -> Verdict:
    return Verdict(Kind.DIFFERENT, why, _dotted(keys))


def lacks(why: str, **keys: object) -> Verdict:
    """`why` says what to do instead."""
    return Verdict(Kind.IMPOSSIBLE, why, _dotted(keys))


def not_needed(why: str) -> Verdict:
    return Verdict(Kind.IRRELEVANT, why)


def _dotted(keys: Mapping[str, object]) -> KeyValues:
    """`topics__truncate` is the key topics.truncate."""
    return {name.replace("__", "."): value for name, value in keys.items()}


def always(verdict: Verdict) -> Rule:
    """The same, whatever the value."""
    return lambda _value: verdict


@dataclass(frozen=True, slots=True)
class ByValue:
    """A verdict for each value, in lower case.

    Attributes:
        otherwise: for every other value; None: there is no other one.
    """

    verdicts: Mapping[str, Verdict]
    otherwise: Verdict | None = None

    def __call__(self, value: str) -> Verdict:
        found = self.verdicts.get(value.strip().lower(), self.otherwise)
        if found is None:
            raise ValueError(f"must be one of {', '.join(self.verdicts)}")
        return found


def by_value(verdicts: Mapping[str, Verdict], otherwise: Verdict | None = None) -> Rule:
    return ByValue(verdicts, otherwise)


def only(value: str, why: str, otherwise: Verdict) -> Rule:
    """The value with which Debezium does as cdcd does, and what becomes of every other one."""
    return by_value({value: same(why)}, otherwise)


def if_given(otherwise: Verdict) -> Rule:
    """An option that is empty or 'none' changes nothing."""
    return by_value({"": same("Nothing is asked for."), "none": same("Nothing is asked for.")}, otherwise)


def irrelevant(why: str) -> Rule:
    return always(not_needed(why))


def impossible(why: str) -> Rule:
    return if_given(lacks(why))


def different(why: str) -> Rule:
    return always(differs(why))
