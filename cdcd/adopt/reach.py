"""Which tables a regular expression over topics means, as patterns of cdcd's.

Predicates and several transforms choose records by the names of their topics, and cdcd's keys go by tables. A topic is
`<prefix>.<schema>.<table>`, in which characters that Kafka does not take are `_`. An expression of literal text, `.`,
`.*`, `.+` and alternatives has patterns that mean the same tables (`tables.py`). If the database's tables are known,
they decide: patterns that choose other tables than the expression are not taken, and the tables are named one by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cdcd.adopt.java_regex import compiled
from cdcd.adopt.tables import Item, alternatives_of, pattern_of, quoted
from cdcd.rows.routing import unchecked_topic
from cdcd.snapshots.patterns import parse_pattern

ALL: Final = "*.*"
"""The pattern of all tables."""


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table that the connector captures, as the database has it now.

    Attributes:
        columns: in their order.
        key: columns that make the keys of its records.
        texts: columns whose values are texts in records.
    """

    schema: str
    name: str
    columns: tuple[str, ...]
    key: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def pattern(self) -> str:
        """The pattern that matches this table alone."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


Known = tuple[KnownTable, ...] | None
"""The captured tables; None: the database was not asked."""

TopicOf = Callable[[str, str], str]
"""From schema and table to the topic."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The tables that are meant.

    Attributes:
        patterns: (): no table is meant.
        is_exact: False: the patterns name the tables of today, and a table that is made later has no pattern.
    """

    patterns: tuple[str, ...]
    is_exact: bool = True

    @property
    def is_all(self) -> bool:
        return self.patterns == (ALL,)

    @property
    def single(self) -> str | None:
        """The pattern, if there is one and it stands for one table."""
        if len(self.patterns) != 1:
            return None
        return self.patterns[0] if parse_pattern(self.patterns[0]).is_literal else None

    def tables(self, known: Known) -> tuple[KnownTable, ...]:
        """Those of the known tables that are meant; () if they are not known."""
        parsed = [parse_pattern(each) for each in self.patterns]
        return tuple(
            [each for each in known or () if any(one.matches(each.schema, each.name) for one in parsed)]
        )


EVERYWHERE: Final = Reach((ALL,))


class UndecidedError(ValueError):
    """The tables cannot be told without the database's."""


def own_topic(prefix: str) -> TopicOf:
    """Topics as Debezium names them by default."""
    return lambda schema, table: unchecked_topic(prefix, schema, table)


def reached(
    expression: str, prefix: str, known: Known, *, negated: bool = False, topic_of: TopicOf | None = None
) -> Reach:
    """The tables whose topics match the expression; with `negated`, those whose topics do not.

    Args:
        topic_of: topics that earlier transforms have changed; None: they are Debezium's.

    Raises:
        UnreadableError: only Java reads the expression.
        UndecidedError: no pattern means the same, and the database was not asked.
    """
    regex = compiled(expression)
    translated = None if negated or topic_of is not None else _translated(expression, prefix)
    if known is None:
        if translated is None:
            raise UndecidedError(
                f"No pattern of tables says the same as the expression {'not ' if negated else ''}{expression}, and "
                "the database was not asked."
            )
        return Reach(translated)
    topics = topic_of or own_topic(prefix)
    meant = [each for each in known if (regex.fullmatch(topics(each.schema, each.name)) is None) == negated]
    if translated is not None and list(Reach(translated).tables(known)) == meant:
        return Reach(translated)
    return Reach(tuple([each.pattern for each in meant]), is_exact=False)


def _translated(expression: str, prefix: str) -> tuple[str, ...] | None:
    """The patterns of an expression for topics; (): it can match no topic of a table; None: there are none."""
    alternatives = alternatives_of(expression)
    if alternatives is None:
        return None
    found: dict[str, None] = {}
    for each in alternatives:
        for rest in _behind(each, f"{prefix}."):
            patterns = _whole(rest)
            if patterns is None:
                return None
            found |= dict.fromkeys(patterns)
    return (ALL,) if ALL in found else tuple(found)


_MANY: Final = ("*", True)
_ONE: Final = ("?", True)
_POINT: Final = (".", False)
_AS_POINT: Final = {_ONE: (_POINT,), _MANY: (_MANY, _POINT, _MANY)}

_Sequence = tuple[Item, ...]


def _behind(sequence: _Sequence, begin: str) -> list[_Sequence]:
    """What can be left of the alternative when it has matched `begin`, each possibility once."""
    left = {sequence: None}
    for character in begin:
        left = {after: None for each in left for after in _after(each, character)}
    return list(left)


def _after(sequence: _Sequence, character: str) -> Iterator[_Sequence]:
    """What can be left when it has matched one character."""
    if not sequence:
        return
    if sequence[0] == _MANY:
        yield sequence
        yield from _after(sequence[1:], character)
    elif sequence[0] in ((character, False), _ONE):
        yield sequence[1:]


def _whole(rest: _Sequence) -> list[str] | None:
    """The patterns of schema and table, between which there is one point; None: there are none.

    If the alternative spells out no point, each `.` may be the point, and each `.*` may hold it. One that spells out
    two points matches no table.
    """
    points = rest.count(_POINT)
    if points > 1:
        return []
    if points:
        found = [pattern_of(rest)] if _has_names(rest, rest.index(_POINT)) else []
    else:
        found = [
            pattern_of((*rest[:place], *_AS_POINT[item], *rest[place + 1 :]))
            for place, item in enumerate(rest)
            if item in _AS_POINT and _has_names(rest, place)
        ]
    patterns = [each for each in found if each is not None]
    return patterns if len(patterns) == len(found) else None


def _has_names(rest: _Sequence, place: int) -> bool:
    """Whether something is left for both names, if the point is here."""
    return rest[place] == _MANY or 0 < place < len(rest) - 1
