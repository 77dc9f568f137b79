"""Partitions of records that the values of columns choose (`partitioner.columns`), in place of the key.

The rule: the partition of a record follows from the row that the record is about. A change that gives a row other
values in the chosen columns moves it: the former partition gets a delete, and the other one an insert. So the former
values must be known wherever a row changes or goes (`former_values.py`).

If all chosen columns are of the key, a row moves when its key changes, and at no other time: all records of a key lie
in one partition. If not, records of one key may lie in several partitions (`moves`). Readers that need the order of a
key within one partition, which are the mirror and `cdcd verify`, leave such a table out, by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.former_values import check_former_values
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.catalog.table_rules import TableRules
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation

KEY: Final = "partitioner.columns"

_CONSEQUENCE: Final = "The partition of a row that is updated or deleted would not be known."


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """The columns whose values choose the partition, in their order, for the tables that a pattern matches."""

    pattern: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{KEY} ({self.pattern})"


class ChosenPartitions:
    """The rules of a configuration. ConfigError: a pattern is malformed.

    Args:
        protected: which columns' values are replaced. None of them may choose a partition, because the partition would
            tell of the value.
    """

    def __init__(
        self,
        rules: Sequence[PartitionRule] = (),
        protected: Protections = Protections(),  # noqa: B008 - without rules nothing of it changes
    ) -> None:
        self._rules = TableRules(KEY, [(rule.pattern, rule) for rule in rules])
        self._protected = protected

    def __bool__(self) -> bool:
        return bool(self._rules)

    def unmatched(self, relations: Sequence[Relation]) -> list[PartitionRule]:
        """The rules that match none of these relations."""
        return self._rules.unmatched(relations)

    def columns(self, relation: Relation, table: TableDescription) -> tuple[str, ...]:
        """The columns that choose the partitions of the table's records; () where the key does.

        Raises:
            ConfigError: two rules match the table, or the columns cannot choose its partitions.
        """
        rule = self._rules.only(relation, "chooses the table's partitions")
        if rule is None:
            return ()
        name = f"{relation.schema}.{relation.name}"
        check_former_values(str(rule), rule.columns, relation, table, _CONSEQUENCE)
        protected = self._protected.in_force(relation, table)
        for column, each in zip(relation.columns, protected, strict=True):
            if each is not None and column.name in rule.columns:
                raise ConfigError(
                    f"{rule} has column {column.name} of {name}, which {each} protects, and the partition would tell "
                    "of the value.",
                    hint=f"Choose the partitions of {name} by other columns, or narrow one of the patterns.",
                )
        return rule.columns


def moves(columns: Sequence[str], relation: Relation, table: TableDescription) -> bool:
    """Whether records of one key may lie in several partitions, if these columns choose them.

    Args:
        table: with the key that is chosen, if one is (`ChosenKeys.applied`).
    """
    return not set(columns).issubset(key_columns(relation, table))
