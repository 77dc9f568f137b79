"""Configured fields of records (`fields.tables`): columns with other names, and constants.

The rule: all other settings and all queries use the names of columns. Only the output uses the names of fields:
rows, keys, schemas, headers that name columns, and descriptions of tables.

Two fields of a row never have the same name. A start refuses this, and if ALTER TABLE causes it, the session ends,
because consumers would confuse the two fields.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.catalog.protection import EXCLUDE, Protections
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.table_rules import TableRules
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.core.table_names import table_text

KEY: Final = "fields.tables"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """Fields of the records of the tables that a pattern matches.

    Attributes:
        rename: pairs (name of a column, name of its field).
        constants: pairs (name of an additional field, its text).
    """

    pattern: str
    rename: Pairs = ()
    constants: Pairs = ()

    def __str__(self) -> str:
        return f"{KEY} ({self.pattern})"


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of a table's rows.

    Attributes:
        names: name of each column's field.
        constants: as in `FieldRule`; they precede the columns.
    """

    names: tuple[str, ...]
    constants: Pairs = ()

    def renamed(self, relation: Relation) -> Relation:
        """Return the relation with its columns renamed to field names."""
        if all(column.name == name for column, name in zip(relation.columns, self.names, strict=True)):
            return relation
        columns = [
            replace(column, name=name) for column, name in zip(relation.columns, self.names, strict=True)
        ]
        return replace(relation, columns=tuple(columns))

    def of_columns(self, relation: Relation, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the field names of some columns, in their order."""
        by_column = {column.name: name for column, name in zip(relation.columns, self.names, strict=True)}
        return tuple([by_column.get(column, column) for column in columns])


class ChosenFields:
    """The rules of a configuration. ConfigError: a pattern is malformed.

    Args:
        protected: rules for columns that are left out of the records.
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
        """Return a sentence, without its period, for each rule without matching relation or column."""
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

    def of_table(
        self,
        relation: Relation,
        table: TableDescription = TableDescription(),  # noqa: B008
        computed: Sequence[str] = (),
    ) -> Fields:
        """Return the fields of a table's rows.

        Args:
            computed: names of computed fields that stand behind the columns.

        Raises:
            ConfigError: two rules match the table, or two of its fields would have the same name.
        """
        columns = tuple([column.name for column in relation.columns])
        rule = self._rules.only(relation, "names the table's fields")
        if rule is None:
            return Fields((*columns, *computed))
        name = table_text(relation.schema, relation.name)
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
        for field in computed:
            if field in seen:
                raise ConfigError(
                    f"Rows of {name} would have two fields {field}: {seen[field]} and the computed field {field}.",
                    hint=f"Give one of them another name in {KEY}.{rule.pattern}, and start cdcd again. Nothing is "
                    "lost meanwhile.",
                )
        return Fields((*names, *computed), rule.constants)
