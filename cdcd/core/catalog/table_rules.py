"""Rules of the configuration for tables (keys, partitions, fields, filters, routes): finds which tables each rule
matches.

`key.columns` chooses the keys of records, in place of the primary key or the replica identity. The rule: whenever a
row is updated or deleted, its old key must be known, because the delete for the old key could not be written
otherwise. So only columns may be chosen whose old values PostgreSQL sends: all columns under REPLICA IDENTITY FULL,
otherwise those of the replica identity.

A chosen key identifies rows if it has all columns of a key of the table, and none of its columns may be NULL. Then
it is treated like any other key. If it does not, several rows may share it (`repeats`): a change then cannot be
matched with the row that a snapshot beside the stream has read, and a mirror could not tell which row is meant. So
snapshots beside the stream and mirrors leave such a table out, and report its name.

`partitioner.columns` chooses the partitions of records, in place of the key. The rule: the partition of a record
follows from the values of the row that the record is about. A change that gives a row other values in the chosen
columns moves the row: the old partition gets a delete, and the new one an insert. So the old values must be known
whenever a row is updated or deleted (`replica_identity.py`).

If all chosen columns belong to the key, a row moves only when its key changes, so all records of a key are in one
partition. If not, records of one key may lie in several partitions (`moves`). Readers that need the order of a key
within one partition, which are the mirror and `cdcd verify`, leave such a table out, and report its name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.catalog.replica_identity import check_former_values
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.core.table_names import table_text

R = TypeVar("R")

Pairs = tuple[tuple[str, str], ...]


class TableRules(Generic[R]):
    """The rules of one configuration key. ConfigError: a pattern is malformed.

    Args:
        key: configuration key, for errors.
        rules: pairs (pattern, rule).
    """

    def __init__(self, key: str, rules: Iterable[tuple[str, R]]) -> None:
        self._rules = [(rule, parse_pattern(text, key)) for text, rule in rules]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def of_table(self, relation: Relation) -> list[R]:
        """Return the rules that match a table."""
        return [rule for rule, pattern in self._rules if pattern.matches(relation.schema, relation.name)]

    def only(self, relation: Relation, decides: str) -> R | None:
        """Return the rule that matches a table; None if none does.

        Args:
            decides: effect of a rule, for the hint, such as "names the table's fields".

        Raises:
            ConfigError: two rules match the table.
        """
        found = self.of_table(relation)
        if len(found) > 1:
            raise ConfigError(
                f"{found[0]} and {found[1]} both match table {relation.schema}.{relation.name}.",
                hint=f"Narrow one of the patterns, so that only one rule {decides}.",
            )
        return found[0] if found else None

    def matched(self, relations: Sequence[Relation]) -> list[tuple[R, list[Relation]]]:
        """Return each rule with the tables that it matches."""
        return [
            (rule, [each for each in relations if pattern.matches(each.schema, each.name)])
            for rule, pattern in self._rules
        ]

    def unmatched(self, relations: Sequence[Relation]) -> list[R]:
        """Return the rules that match none of these tables."""
        return [rule for rule, tables in self.matched(relations) if not tables]


def both_match(key: str, patterns: Sequence[str]) -> str:
    """Return why a table cannot have the rules of all these patterns; "" if it can.

    A table can have the rules of one pattern.
    """
    if len(patterns) < 2:
        return ""
    return f"{key}.{patterns[0]} and {key}.{patterns[1]} both match it"


_KEY_CONSEQUENCE: Final = "A row whose key changes could not be deleted under its former key."


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Key columns of the tables that a pattern matches."""

    pattern: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"key.columns ({self.pattern})"


KEY_FORMS: Final = "key.forms"


@dataclass(frozen=True, slots=True)
class KeyFormRule:
    """Form of the keys of the tables that a pattern matches.

    Attributes:
        bare: the key is the bare value of its one column, as Kafka Connect's `ExtractField$Key` makes it.
        constants: pairs (name of an additional field of the key, its text).
    """

    pattern: str
    bare: bool = False
    constants: Pairs = ()

    def __str__(self) -> str:
        return f"{KEY_FORMS} ({self.pattern})"


class ChosenKeys:
    """The rules of a configuration. ConfigError: a pattern is malformed.

    Args:
        rules: the columns of keys.
        forms: the forms of keys.
        has_schemas: True if the records' schemas declare values of a key as never null.
    """

    def __init__(
        self,
        rules: Sequence[KeyRule] = (),
        *,
        forms: Sequence[KeyFormRule] = (),
        has_schemas: bool = False,
    ) -> None:
        self._rules = TableRules("key.columns", [(rule.pattern, rule) for rule in rules])
        self._forms = TableRules(KEY_FORMS, [(rule.pattern, rule) for rule in forms])
        self._has_schemas = has_schemas

    def __bool__(self) -> bool:
        return bool(self._rules) or bool(self._forms)

    def unmatched(self, relations: Sequence[Relation]) -> list[KeyRule | KeyFormRule]:
        """Return the rules that match none of these relations."""
        return [*self._rules.unmatched(relations), *self._forms.unmatched(relations)]

    def applied(self, relation: Relation, table: TableDescription) -> TableDescription:
        """Return the description with the configured key and its form, if there are rules for them.

        Raises:
            ConfigError: two rules match the table, or the configured columns cannot be its key, or the key cannot have
                the form.
        """
        return self._formed(relation, self._chosen(relation, table))

    def _formed(self, relation: Relation, table: TableDescription) -> TableDescription:
        rule = self._forms.only(relation, "decides the form of the table's key")
        columns = () if rule is None else key_columns(relation, table)
        if rule is None or not columns:
            return table
        if rule.bare and len(columns) > 1:
            raise ConfigError(
                f"{rule} asks for bare keys, and the key of {relation.schema}.{relation.name} has "
                f"{len(columns)} columns: {', '.join(columns)}.",
                hint="Choose one column that identifies rows in key.columns, or narrow the pattern to tables whose key "
                "has one column.",
            )
        if rule.bare and columns[0] not in _never_null(relation, table):
            raise ConfigError(
                f"{rule} asks for bare keys, and column {columns[0]} of {relation.schema}.{relation.name}, which "
                "key.columns chooses, may be NULL.",
                hint="Choose a column of a key of the table in key.columns, or narrow the pattern of key.forms.",
            )
        return replace(table, bare_key=rule.bare, key_constants=rule.constants)

    def _chosen(self, relation: Relation, table: TableDescription) -> TableDescription:
        rule = self._rules.only(relation, "decides what the table's key is")
        if rule is None:
            return table
        check_former_values(str(rule), rule.columns, relation, table, _KEY_CONSEQUENCE)
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
    """Return the keys of the table, as far as they are known."""
    identity = tuple([column.name for column in relation.columns if column.is_key])
    keys = [table.primary_key, table.unique_key]
    if relation.replica_identity in ("d", "i"):
        keys.append(identity)
    return [key for key in keys if key]


def _never_null(relation: Relation, table: TableDescription) -> set[str]:
    return {column for key in _keys(relation, table) for column in key}


def _is_unique(rule: KeyRule, relation: Relation, table: TableDescription) -> bool:
    return any(set(rule.columns).issuperset(key) for key in _keys(relation, table))


KEY: Final = "partitioner.columns"

_PARTITION_CONSEQUENCE: Final = "cdcd would not know the partition of a row that is updated or deleted."


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """Columns whose values choose the partition, in their order, for the tables that a pattern matches."""

    pattern: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{KEY} ({self.pattern})"


class ChosenPartitions:
    """The rules of a configuration. ConfigError: a pattern is malformed.

    Args:
        protected: rules for columns with replaced values. Such a column may not choose a partition, because the
            partition would reveal the value.
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
        """Return the rules that match none of these relations."""
        return self._rules.unmatched(relations)

    def columns(self, relation: Relation, table: TableDescription) -> tuple[str, ...]:
        """Return the columns that choose the partitions of the table's records; () if the key does.

        Raises:
            ConfigError: two rules match the table, or the columns cannot choose its partitions.
        """
        rule = self._rules.only(relation, "chooses the table's partitions")
        if rule is None:
            return ()
        name = table_text(relation.schema, relation.name)
        check_former_values(str(rule), rule.columns, relation, table, _PARTITION_CONSEQUENCE)
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
    """Return True if records of one key may lie in several partitions when these columns choose them.

    Args:
        table: description with the configured key, if there is one (`ChosenKeys.applied`).
    """
    return not set(columns).issubset(key_columns(relation, table))
