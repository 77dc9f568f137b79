"""Which tables a regular expression over topics means, as patterns of cdcd's.

Predicates and several transforms choose records by the names of their topics, and cdcd's keys go by tables. A topic is
`<prefix>.<schema>.<table>`, in which characters that Kafka does not take are `_`. An expression of literal text, `.`,
`.*`, `.+` and alternatives has patterns that mean the same tables (`tables.py`). If the database's tables are known,
they decide: patterns that choose other tables than the expression are not taken, and the tables are named one by one.

`core/catalog/renaming.py` reads Java's expressions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.renaming import compiled
from cdcd.core.catalog.routing import unchecked_topic
from cdcd.tools.adopt.tables import MANY, ONE, Item, alternatives_of, pattern_of_table, patterns_of_names

ALL: Final = "*.*"
"""The pattern of all tables."""


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table that the connector captures, as the database has it now.

    Attributes:
        columns: in their order.
        key: columns that make the keys of its records.
        texts: columns whose values are texts in records.
        values: for columns that choose the topics of events, the values that rows have now.
    """

    schema: str
    name: str
    columns: tuple[str, ...]
    key: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    values: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def pattern(self) -> str:
        """The pattern that matches this table alone."""
        return pattern_of_table(self.schema, self.name)


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
        """The known tables that the patterns match; () if the database was not asked."""
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
            because = (
                f"No pattern matches the same tables as the expression {'not ' if negated else ''}{expression}"
                if topic_of is None
                else f"A transform before it renames topics, and the tables decide which of them {expression} means"
            )
            raise UndecidedError(f"{because}, and the database was not asked.")
        return Reach(translated)
    topics = topic_of or own_topic(prefix)
    meant = [each for each in known if (regex.fullmatch(topics(each.schema, each.name)) is None) == negated]
    if translated is not None and _matched(translated, known) == meant:
        return Reach(translated)
    return Reach(tuple([each.pattern for each in meant]), is_exact=False)


def _matched(patterns: Iterable[str], known: Sequence[KnownTable]) -> list[KnownTable]:
    """The tables that the patterns match, each as often as it is matched: a table has one rule of most keys."""
    parsed = [parse_pattern(each) for each in patterns]
    return [table for table in known for each in parsed if each.matches(table.schema, table.name)]


def _translated(expression: str, prefix: str) -> tuple[str, ...] | None:
    """The patterns of an expression for topics; (): it can match no topic of a table; None: there are none."""
    alternatives = alternatives_of(expression)
    if alternatives is None:
        return None
    found: dict[str, None] = {}
    for each in alternatives:
        for rest in _behind(each, f"{prefix}."):
            patterns = patterns_of_names(rest, 2)
            if patterns is None:
                return None
            found |= dict.fromkeys(patterns)
    return (ALL,) if ALL in found else tuple(found)


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
    if sequence[0] == MANY:
        yield sequence
        yield from _after(sequence[1:], character)
    elif sequence[0] in ((character, False), ONE):
        yield sequence[1:]
