"""The table of options (`options.yaml`): what becomes of each option of a connector.

The value that Debezium takes by itself is judged too, because an option that nobody wrote down shapes the records as
much as one that is.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from cdcd.tools.adopt import verdicts
from cdcd.tools.adopt.rules import RULES
from cdcd.tools.adopt.verdicts import Read, Verdict, VerdictKind, same, to

Rule = Callable[[str], Verdict]
"""From the value of an option to what becomes of it. ValueError: the value is not one that Debezium takes."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: as Debezium or Kafka Connect has it; `<name>` in it stands for any text without a point, and a last `*`
            for any text.
        default: what is taken if it is not given; None: nothing is, and its absence means nothing.
        is_secret: the value is shown nowhere, and is in the written file by reference only.
        below: the mapping of cdcd's configuration that gets the value, under what a last `*` stands for; "": none.
        converter: the kind of converter that has the option: registry (any with a registry), avro, protobuf,
            json_registry, or events (CloudEvents); "": it is no option of one of these.
        takes_empty: an empty value is a value of its own. Of other options it has no effect.
    """

    name: str
    default: str | None
    rule: Rule
    is_secret: bool = False
    below: str = ""
    converter: str = ""
    takes_empty: bool = False

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
_READ: Final[Mapping[str, Read]] = {
    each.__name__: each
    for each in (verdicts.text, verdicts.boolean, verdicts.number, verdicts.seconds, verdicts.is_true)
}
_NOTHING: Final = same("Nothing is asked for.")


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


Row = dict[str, Any]
"""One row as the file has it."""


def _rule(row: Row) -> Rule:
    """The rule of a row, whose keys it takes out of the row."""
    if "rule" in row:
        function, key = RULES[row.pop("rule")], row.pop("key", "")
        return lambda value: function(value, key)
    if "key" in row:
        return _key_rule(row)
    if "always" in row:
        verdict = _verdict(row.pop("always"))
        return lambda _value: verdict
    if "given" in row:
        return ByValue({"": _NOTHING, "none": _NOTHING}, _verdict(row.pop("given")))
    others = row.pop("others", None)
    values = {value: _verdict(found) for value, found in row.pop("values").items()}
    return ByValue(values, None if others is None else _verdict(others))


def _key_rule(row: Row) -> Rule:
    key, read = row.pop("key"), _READ[row.pop("read", "text")]
    if "one_of" in row:
        return ByValue({value: to(key, value) for value in row.pop("one_of")})
    if "different" in row:
        why = row.pop("different")
        return lambda value: Verdict(VerdictKind.DIFFERENT, why, {key: read(value)})
    return lambda value: to(key, read(value))


def _verdict(found: str | Row) -> Verdict:
    """A verdict as the file has it: a text, or a text with keys."""
    said, keys = (found, {}) if isinstance(found, str) else (found["verdict"], found["set"])
    kind, _, why = said.partition(". ")
    return Verdict(VerdictKind(kind), why, keys)


def _option(row: Row) -> Option:
    left = dict(row)
    name, default, rule = left.pop("option"), left.pop("default", None), _rule(left)
    option = Option(
        name,
        default,
        rule,
        left.pop("secret", False),
        left.pop("below", ""),
        left.pop("converter", ""),
        left.pop("takes_empty", False),
    )
    assert not left, f"options.yaml: {name} has keys that nothing reads: {', '.join(left)}"
    return option


def _options(rows: list[Row], groups: Mapping[str, list[Row]]) -> Iterator[Option]:
    for row in rows:
        if "group" not in row:
            yield _option(row)
            continue
        for member in groups[row["group"]]:
            yield _option(
                {
                    "converter": row.get("converter", row["group"]),
                    **{key: _filled(value, row) for key, value in member.items()},
                    "option": row["at"] + _filled(member["option"], row),
                }
            )


def _filled(value: Any, row: Row) -> Any:
    if not isinstance(value, str) or "part" not in row:
        return value
    return value.replace("{part}", row["part"]).replace("{other}", row["other"])


@dataclass(frozen=True, slots=True)
class TransformClass:
    """A class of transforms.

    Attributes:
        said: what becomes of it in general.
        keeps_names: fields of rows have the same names behind it, so that others are judged the same without it.
    """

    said: Verdict
    keeps_names: bool


_FILE: Final = Path(__file__).with_name("options.yaml")
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLE: Final = yaml.load(_FILE.read_text(encoding="utf-8"), _LOADER)  # noqa: S506  a safe loader, in C where PyYAML has it

SECTIONS: Final[Mapping[str, tuple[Option, ...]]] = {
    title: tuple(_options(rows, _TABLE["groups"])) for title, rows in _TABLE["sections"].items()
}
"""All options, by the titles of docs/debezium-options.md."""

PRODUCER: Final = SECTIONS["Producer, behind `producer.override.`"]
"""The Java producer's properties, as they stand behind `producer.override.`, or behind `producer.` for a worker."""

OPTIONS: Final = tuple(
    [option for options in SECTIONS.values() if options is not PRODUCER for option in options]
)
"""All options of a connector but those of its producer."""

TRANSFORMS: Final[Mapping[str, TransformClass]] = {
    row["class"]: TransformClass(_verdict(row["always"]), row.get("keeps_names", False))
    for row in _TABLE["transforms"]
}
"""The classes of transforms, in lower case. Those with a counterpart come first."""
