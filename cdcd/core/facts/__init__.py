"""Facts: events that happen rarely and matter to an operator. Whoever reports a fact does not know who listens.

A fact is reported where it happens, by calling the `Observer` that was handed in. `cdcd.telemetry.logs` writes
facts to the log; tests collect them in a list. What happens often (rows, batches, positions) is counted in
`cdcd.telemetry.state.Telemetry` instead.

The name of an event is constant, and its details are fields, so that a search for the name finds every occurrence.
Fields hold values (an `Lsn`, seconds, bytes), never sentences made of them. docs/events.md is generated from the
modules of this package.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

Level = Literal["info", "warning", "error", "critical"]
Side = Literal["postgres", "kafka", "registry"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened."""

    event: ClassVar[str]
    level: ClassVar[Level] = "info"

    @classmethod
    def fields_logged(cls) -> tuple[str, ...]:
        """The names of what `logged` gives."""
        return tuple([each.name for each in fields(cls)])

    def logged(self) -> dict[str, object]:
        """The fields of the event's line in the log. A kind of fact that has more than a line should show says less."""
        return {name: getattr(self, name) for name in self.fields_logged()}


Observer = Callable[[Fact], None]


def unheard(_fact: Fact) -> None:
    """An observer that passes over everything."""


def cut_short(text: str, most: int) -> str:
    """The text, or its first `most` characters and an ellipsis: facts and errors repeat what strangers wrote."""
    return text if len(text) <= most else f"{text[:most]}…"


def facts_of(names: Mapping[str, object]) -> list[type[Fact]]:
    """Every kind of fact among the names of a module, in their order."""
    # Not Fact.__subclasses__(): with slots, @dataclass makes a second class of each.
    kinds = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, Fact)]
    return [kind for kind in kinds if kind is not Fact]


def rows(kinds: Iterable[type[Fact]]) -> str:
    """The rows of a table of events: event, level, meaning and fields."""
    lines = []
    for fact in kinds:
        meaning = " ".join((fact.__doc__ or "").split())
        names = ", ".join(f"`{name}`" for name in fact.fields_logged())
        lines.append(f"| `{fact.event}` | {fact.level} | {meaning} | {names} |\n")
    return "".join(lines)
