"""Keys of records that the configuration chooses (`key.columns`), in place of the primary key or the replica identity.

The rule: the former key of a row must be known wherever a row changes or goes, or its delete could not be written. So
the columns must be among those of which PostgreSQL sends the former values: all of them under REPLICA IDENTITY FULL,
else those of the replica identity.

A chosen key tells rows apart if it has all columns of a key of the table, and none that may be NULL. Then it is a key
like any other. If it does not, several rows may share it (`repeats`): a change then says nothing of the one row that a
snapshot beside the stream has read, and a mirror could not tell whose row it is. Both leave such a table out, by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.catalog.former_values import check_former_values
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.table_rules import TableRules
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation

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
        self._rules = TableRules("key.columns", [(rule.pattern, rule) for rule in rules])
        self._has_schemas = has_schemas

    def __bool__(self) -> bool:
        return bool(self._rules)

    def unmatched(self, relations: Sequence[Relation]) -> list[KeyRule]:
        """The rules that match none of these relations."""
        return self._rules.unmatched(relations)

    def applied(self, relation: Relation, table: TableDescription) -> TableDescription:
        """The description with the key that is chosen, if one is.

        Raises:
            ConfigError: two rules match the table, or the chosen columns cannot be its key.
        """
        rule = self._rules.only(relation, "decides what the table's key is")
        if rule is None:
            return table
        check_former_values(str(rule), rule.columns, relation, table, _CONSEQUENCE)
        never_null = _never_null(relation, table)
        others = [column for column in rule.columns if column not in never_null]
        if others and self._has_schemas:
            raise ConfigError(
                f"{rule} has column {others[0]} of {relation.schema}.{relation.name}, which is in no key of the table, "
                "so it may be NULL. The schemas of keys have no null.",
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
