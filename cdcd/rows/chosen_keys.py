"""Keys of records that the configuration chooses (`key.columns`), in place of the primary key or the replica identity.

The rule: the former key of a row must be known wherever a row changes or goes, or its delete could not be written. So
the columns must be among those of which PostgreSQL sends the former values: all of them under REPLICA IDENTITY FULL,
else those of the replica identity.

A chosen key tells rows apart if it has all columns of a key of the table, and none that may be NULL. Then it is a key
like any other. If it does not, several rows may share it (`repeats`): a change then says nothing of the one row that a
snapshot beside the stream has read, and a mirror could not tell whose row it is. Both leave such a table out, by name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.errors import ConfigError
from cdcd.protocol.messages import Relation
from cdcd.rows.former_values import check_former_values
from cdcd.rows.relations import TableDescription
from cdcd.snapshots.patterns import parse_pattern

_CONSEQUENCE: Final = "A row whose key changes could not be deleted under its former key."


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The columns that make the key of the tables that a pattern matches."""

    pattern: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"key.columns ({self.pattern})"


class ChosenKeys:
    """The rules of a configuration. ConfigError: a pattern is malformed.

    Args:
        has_schemas: the records' schemas say that values of a key are never null.
    """

    def __init__(self, rules: Sequence[KeyRule] = (), *, has_schemas: bool = False) -> None:
        self._rules = [(rule, parse_pattern(rule.pattern, "key.columns")) for rule in rules]
        self._has_schemas = has_schemas

    def __bool__(self) -> bool:
        return bool(self._rules)

    def unmatched(self, relations: Iterable[Relation]) -> list[KeyRule]:
        """The rules that match none of these relations."""
        names = [(relation.schema, relation.name) for relation in relations]
        return [
            rule
            for rule, pattern in self._rules
            if not any(pattern.matches(schema, name) for schema, name in names)
        ]

    def applied(self, relation: Relation, table: TableDescription) -> TableDescription:
        """The description with the key that is chosen, if one is.

        Raises:
            ConfigError: two rules match the table, or the chosen columns cannot be its key.
        """
        found = [rule for rule, pattern in self._rules if pattern.matches(relation.schema, relation.name)]
        if not found:
            return table
        name = f"{relation.schema}.{relation.name}"
        if len(found) > 1:
            raise ConfigError(
                f"{found[0]} and {found[1]} both match table {name}.",
                hint="Narrow one of the patterns, so that one rule decides what the table's key is.",
            )
        (rule,) = found
        check_former_values(str(rule), rule.columns, relation, table, _CONSEQUENCE)
        never_null = _never_null(relation, table)
        others = [column for column in rule.columns if column not in never_null]
        if others and self._has_schemas:
            raise ConfigError(
                f"{rule} has column {others[0]} of {name}, which is in no key of the table, so it may be NULL. The "
                "schemas of keys have no null.",
                hint="Choose among the columns of its primary key, or set format.key and format.value to json.",
            )
        return replace(
            table, chosen_key=rule.columns, repeats=bool(others) or not _is_unique(rule, relation, table)
        )


def _keys(relation: Relation, table: TableDescription) -> list[tuple[str, ...]]:
    """The keys of the table, as far as they are known."""
    identity = tuple([column.name for column in relation.columns if column.is_key])
    keys = [table.primary_key, table.unique_key]
    if relation.replica_identity in ("d", "i"):
        keys.append(identity)
    return [key for key in keys if key]


def _never_null(relation: Relation, table: TableDescription) -> set[str]:
    return {column for key in _keys(relation, table) for column in key}


def _is_unique(rule: KeyRule, relation: Relation, table: TableDescription) -> bool:
    return any(set(rule.columns).issuperset(key) for key in _keys(relation, table))
