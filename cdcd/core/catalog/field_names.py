"""Fields of records that the configuration names (`fields.tables`): columns under other names, and constants.

The rule: everything else in the configuration, and everything that asks PostgreSQL, goes by the names of columns. Only
what is written has the names of fields: rows, keys, schemas, headers that name columns, and descriptions of tables.

Two fields of a row never have one name. A start refuses that, and a table that is altered into it ends the session:
whichever of the two the records had, consumers would take it for the other one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.catalog.protection import EXCLUDE, Protections
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.table_rules import TableRules
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation

KEY: Final = "fields.tables"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What the records of the tables that a pattern matches have.

    Attributes:
        rename: pairs of a column's name and its field's.
        constants: pairs of a further field's name and its text.
    """

    pattern: str
    rename: Pairs = ()
    constants: Pairs = ()

    def __str__(self) -> str:
        return f"{KEY} ({self.pattern})"


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a table's rows.

    Attributes:
        names: the field of each column of the relation.
        constants: as in `FieldRule`; they stand before the columns.
    """

    names: tuple[str, ...]
    constants: Pairs = ()

    def renamed(self, relation: Relation) -> Relation:
        """The relation with the fields' names for its columns'."""
        if all(column.name == name for column, name in zip(relation.columns, self.names, strict=True)):
            return relation
        columns = [
            replace(column, name=name) for column, name in zip(relation.columns, self.names, strict=True)
        ]
        return replace(relation, columns=tuple(columns))

    def of_columns(self, relation: Relation, columns: Iterable[str]) -> tuple[str, ...]:
        """The fields of some columns, in their order."""
        by_column = {column.name: name for column, name in zip(relation.columns, self.names, strict=True)}
        return tuple([by_column.get(column, column) for column in columns])


class ChosenFields:
    """The rules of a configuration. ConfigError: a pattern is malformed.

    Args:
        protected: which columns are left out of the records.
    """

    def __init__(
        self,
        rules: Sequence[FieldRule] = (),
        protected: Protections = Protections(),  # noqa: B008 - without rules nothing of it changes
    ) -> None:
        self._rules = TableRules(KEY, [(rule.pattern, rule) for rule in rules])
        self._protected = protected

    def __bool__(self) -> bool:
        return bool(self._rules)

    def unmatched(self, relations: Sequence[Relation]) -> list[str]:
        """What rules match nothing: no relation, or no column to rename. A sentence for each, without its point."""
        found: list[str] = []
        for rule, matched in self._rules.matched(relations):
            if not matched:
                found.append(f"{rule} matches no published table")
                continue
            there = {column.name for each in matched for column in each.columns}
            found += [
                f"{rule} renames column {column}, which no matched table has"
                for column, _ in rule.rename
                if column not in there
            ]
        return found

    def of_table(self, relation: Relation, table: TableDescription = TableDescription()) -> Fields:  # noqa: B008
        """The fields of a table's rows.

        Raises:
            ConfigError: two rules match the table, or two of its fields would have one name.
        """
        columns = tuple([column.name for column in relation.columns])
        rule = self._rules.only(relation, "names the table's fields")
        if rule is None:
            return Fields(columns)
        name = f"{relation.schema}.{relation.name}"
        renamed = dict(rule.rename)
        names = tuple([renamed.get(column, column) for column in columns])
        seen = {field: f"the constant {field}" for field, _ in rule.constants}
        protected = self._protected.in_force(relation, table)
        for column, field, protection in zip(columns, names, protected, strict=True):
            if protection is not None and protection.action == EXCLUDE:
                continue
            if field in seen:
                raise ConfigError(
                    f"Rows of {name} would have two fields {field}: {seen[field]} and column {column}.",
                    hint=f"Give one of them another name in {KEY}.{rule.pattern}, such as rename: "
                    f"{{{column}: {column}_2}}, and start cdcd again. Nothing is lost meanwhile.",
                )
            seen[field] = f"column {column}"
        return Fields(names, rule.constants)
