"""Facts: events that happen rarely and matter to an operator. Whoever reports a fact does not know who listens.

A fact is reported where it happens, by calling the `Observer` that was handed in. `cdcd.telemetry.logs` writes
facts to the log; tests collect them in a list. What happens often (rows, batches, positions) is counted in
`cdcd.telemetry.state.Telemetry` instead.

The name of an event is constant, and its details are fields, so that a search for the name finds every occurrence.
Fields hold values (an `Lsn`, seconds, bytes), never sentences made of them. docs/events.md is generated from the
modules of this package.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import ClassVar, Literal, NoReturn, TypeVar, dataclass_transform

Level = Literal["info", "warning", "error", "critical"]
Side = Literal["postgres", "kafka", "registry"]


K = TypeVar("K")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fact(kind: type[K]) -> type[K]:
    """Return the class as a dataclass that is frozen, has slots, and takes its functions from `Fact`.

    There are more than a hundred kinds of facts, and each start loads them. If each kind had functions of its own, it
    would take a tenth of the CPU of a start to compile them.
    """
    return dataclass(init=False, repr=False, eq=False, slots=True)(kind)


@fact
class Fact:
    """Something that happened."""

    event: ClassVar[str]
    level: ClassVar[Level] = "info"

    def __init__(self, *values: object, **named: object) -> None:
        names = self.fields_of()
        given = {**dict(zip(names, values, strict=False)), **named}
        if len(given) < len(values) + len(named) or not given.keys() <= set(names):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(names)}.")
        for each in fields(self):
            object.__setattr__(self, each.name, given[each.name] if each.name in given else _default(each))

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        named = [f"{name}={getattr(self, name)!r}" for name in self.fields_of()]
        return f"{type(self).__qualname__}({', '.join(named)})"

    def _values(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in self.fields_of()])

    @classmethod
    def fields_of(cls) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple([each.name for each in fields(cls)])

    @classmethod
    def fields_logged(cls) -> tuple[str, ...]:
        """The names of what `logged` gives."""
        return cls.fields_of()

    def logged(self) -> dict[str, object]:
        """The fields of the event's line in the log. A kind of fact that has more than a line should show says less."""
        return {name: getattr(self, name) for name in self.fields_logged()}


def _default(of: Field[object]) -> object:
    if of.default is not MISSING:
        return of.default
    if of.default_factory is not MISSING:
        return of.default_factory()
    raise TypeError(f"The field {of.name} has no default.")


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
