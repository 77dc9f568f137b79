"""Rules of the configuration for tables (keys, partitions, fields, filters, routes), and which tables each matches."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation

R = TypeVar("R")


class TableRules(Generic[R]):
    """The rules of one key of the configuration. ConfigError: a pattern is malformed.

    Args:
        key: of the configuration, for the error.
        rules: each with its pattern.
    """

    def __init__(self, key: str, rules: Iterable[tuple[str, R]]) -> None:
        self._rules = [(rule, parse_pattern(text, key)) for text, rule in rules]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def of_table(self, relation: Relation) -> list[R]:
        """The rules that match a table."""
        return [rule for rule, pattern in self._rules if pattern.matches(relation.schema, relation.name)]

    def only(self, relation: Relation, decides: str) -> R | None:
        """The rule that matches a table; None: none does.

        Args:
            decides: what one rule does, for the hint, such as "names the table's fields".

        Raises:
            ConfigError: two rules match the table.
        """
        found = self.of_table(relation)
        if len(found) > 1:
            raise ConfigError(
                f"{found[0]} and {found[1]} both match table {relation.schema}.{relation.name}.",
                hint=f"Narrow one of the patterns, so that one rule {decides}.",
            )
        return found[0] if found else None

    def matched(self, relations: Sequence[Relation]) -> list[tuple[R, list[Relation]]]:
        """Each rule, with the tables that it matches."""
        return [
            (rule, [each for each in relations if pattern.matches(each.schema, each.name)])
            for rule, pattern in self._rules
        ]

    def unmatched(self, relations: Sequence[Relation]) -> list[R]:
        """The rules that match none of these tables."""
        return [rule for rule, tables in self.matched(relations) if not tables]


def both_match(key: str, patterns: Sequence[str]) -> str:
    """Why a table cannot have the rules of all these patterns; "": it can. It can have those of one pattern."""
    if len(patterns) < 2:
        return ""
    return f"{key}.{patterns[0]} and {key}.{patterns[1]} both match it"
