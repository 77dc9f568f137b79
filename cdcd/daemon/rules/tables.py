"""The checks of `columns`, `fields.tables`, `key.columns` and `partitioner.columns`: whether each rule can be applied
to the published tables.

It is made by `cdcd check` and at every start of a session. A rule that matches nothing usually has a misspelled
name, and then values are sent unprotected.

The tables are described as the stream would describe them now.

It is made by `cdcd check` and at every start of a session.

A pattern of `partitioner.columns` that matches no table usually has a misspelled name, and then the key chooses the
partition.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.field_names import KEY, ChosenFields
from cdcd.core.catalog.protection import ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription, key_columns
from cdcd.core.catalog.replica_identity import check_partitions
from cdcd.core.catalog.table_rules import (
    ChosenKeys,
    ChosenPartitions,
    KeyFormRule,
    KeyRule,
    PartitionRule,
    moves,
)
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.shaping.computing import ComputedFields
from cdcd.core.records.shaping.partitioning import PartitionedTable
from cdcd.core.table_names import table_text
from cdcd.telemetry.findings import Finding, named, of_error


@dataclass(frozen=True, slots=True)
class DescribedTables:
    """Tables, the catalog's description of each by its oid, and the types of their columns."""

    relations: list[Relation]
    descriptions: Mapping[int, TableDescription]
    types: Mapping[int, TypeDescription]


async def column_types(connection: Connection, relations: Iterable[Relation]) -> dict[int, TypeDescription]:
    """Return the types of all columns, and the built-in types. Raises TransientError and SourceError."""
    wanted = {column.type_oid for relation in relations for column in relation.columns}
    return {**BUILTIN_TYPES, **await catalog.types(connection, wanted - BUILTIN_TYPES.keys())}


async def described_tables(connection: Connection, oids: Collection[int]) -> DescribedTables:
    """Return the tables with these oids. Raises TransientError and SourceError."""
    relations = await catalog.relations(connection, oids)
    types = await column_types(connection, relations)
    found = await catalog.describe(connection, oids, with_kin=True)
    descriptions = {relation.oid: numbered(relation, found[relation.oid]) for relation in relations}
    return DescribedTables(relations, descriptions, types)


def numbered(relation: Relation, table: TableDescription) -> TableDescription:
    """Return the description with the attribute numbers of the relation's columns, both from the present catalog."""
    ids = {column.name: column.id for column in table.columns}
    names = [column.name for column in relation.columns]
    numbers = tuple([ids[name] for name in names]) if ids.keys() >= set(names) else ()
    return replace(table, numbers=numbers)


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """Result of applying the rules to the tables.

    Attributes:
        refused: errors of rules that cannot be applied, at most one for each table.
        unmatched: rules that match no column of a published table.
        columns: number of protected columns.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[ColumnRule, ...]
    columns: int


async def look_at_columns(
    connection: Connection, oids: Collection[int], rules: Protections, keys: ChosenKeys
) -> RuleFacts:
    """Apply the rules to the published tables with these oids. Raises TransientError and SourceError."""
    relations = await catalog.relations(connection, oids)
    tables = await catalog.describe(connection, oids, with_kin=True)
    types = await column_types(connection, relations)
    refused: list[ConfigError] = []
    columns = 0
    for relation in relations:
        try:
            table = keys.applied(relation, numbered(relation, tables[relation.oid]))
            found = rules.of_columns(relation, key_columns(relation, table), types, table)
            columns += sum(rule is not None for rule in found)
        except ConfigError as error:
            refused.append(error)
    return RuleFacts(tuple(refused), tuple(rules.unmatched(relations)), columns)


def check_columns(facts: RuleFacts) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the rules."""
    for error in facts.refused:
        yield of_error("columns.rule", "columns", error)
    for rule in facts.unmatched:
        yield Finding(
            "warning",
            "columns.unmatched",
            "columns",
            f"{rule} matches no column of a published table",
            "Correct the pattern, or take it out: <schema>.<table>.<column> as PostgreSQL spells them, case included.",
        )
    if not facts.refused and not facts.unmatched:
        yield Finding("ok", "columns.rule", "columns", f"{facts.columns} columns are protected")


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """Result of applying the rules to the tables.

    Attributes:
        refused: errors of tables that cannot have their fields, at most one for each table.
        unmatched: sentences, without their period, about rules that match nothing.
        tables: tables whose fields differ from their columns, as `schema.table`.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]
    tables: frozenset[str]


async def look_at_fields(
    connection: Connection, oids: Collection[int], fields: ChosenFields, computed: ComputedFields
) -> FieldFacts:
    """Apply the rules to the published tables with these oids. Raises TransientError and SourceError."""
    tables_now = await described_tables(connection, oids)
    relations = tables_now.relations
    refused: list[ConfigError] = []
    tables: set[str] = set()
    for relation in relations:
        try:
            table = tables_now.descriptions[relation.oid]
            made = computed.of_table(relation, table, tables_now.types)
            shown = relation if made is None else made.shown
            added = [column.name for column in shown.columns[len(relation.columns) :]]
            found = fields.of_table(relation, table, added)
        except ConfigError as error:
            refused.append(error)
            continue
        if made is not None or found.constants or found.renamed(shown) is not shown:
            tables.add(table_text(relation.schema, relation.name))
    return FieldFacts(tuple(refused), tuple(fields.unmatched(relations)), frozenset(tables))


def check_fields(facts: FieldFacts) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the rules."""
    for error in facts.refused:
        yield of_error("fields.rule", KEY, error)
    for said in facts.unmatched:
        yield Finding(
            "warning",
            "fields.unmatched",
            KEY,
            said,
            "Correct the name, or remove the rule. Names are as PostgreSQL spells them, case included.",
        )
    if facts.tables and not facts.refused:
        yield Finding("ok", "fields.rule", KEY, f"names fields of {named(sorted(facts.tables))}")


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Result of applying the rules to the tables.

    Attributes:
        refused: errors of keys that cannot be made, at most one for each table.
        unmatched: rules that match no published table.
        chosen: tables with a configured key or form of keys, as `schema.table`.
        repeating: tables of `chosen` in which several rows may have the same key.
        unsent: errors of partitions that do not send the key of a partitioned table, at most one for each table.
    """

    refused: tuple[ConfigError, ...] = ()
    unmatched: tuple[KeyRule | KeyFormRule, ...] = ()
    chosen: frozenset[str] = frozenset()
    repeating: frozenset[str] = frozenset()
    unsent: tuple[ConfigError, ...] = ()


async def look_at_keys(connection: Connection, oids: Collection[int], keys: ChosenKeys) -> KeyFacts:
    """Apply the rules to the published tables with these oids. Raises TransientError and SourceError."""
    if not keys:
        oids = await catalog.partitioned(connection, oids)
        if not oids:
            return KeyFacts()
    relations = await catalog.relations(connection, oids)
    tables = await catalog.describe(connection, oids)
    refused: list[ConfigError] = []
    chosen: set[str] = set()
    repeating: set[str] = set()
    unsent: list[ConfigError] = []
    for relation in relations:
        name = table_text(relation.schema, relation.name)
        try:
            table = keys.applied(relation, tables[relation.oid])
        except ConfigError as error:
            refused.append(error)
            continue
        try:
            check_partitions(relation, table)
        except ConfigError as error:
            unsent.append(error)
        if table.chosen_key or table.bare_key or table.key_constants:
            chosen.add(name)
        if table.repeats:
            repeating.add(name)
    return KeyFacts(
        tuple(refused),
        tuple(keys.unmatched(relations)),
        frozenset(chosen),
        frozenset(repeating),
        tuple(unsent),
    )


def check_keys(facts: KeyFacts) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the rules."""
    for error in facts.refused:
        yield of_error("key.columns", "key", error)
    for error in facts.unsent:
        yield of_error("key.partitions", "keys", error)
    for rule in facts.unmatched:
        yield Finding(
            "warning",
            "key.unmatched",
            "key",
            f"{rule} matches no published table",
            "Correct the pattern, or take it out: <schema>.<table> as PostgreSQL spells them, case included.",
        )
    if facts.repeating:
        yield Finding(
            "warning",
            "key.repeats",
            "key.columns",
            f"several rows may have the same key: {named(sorted(facts.repeating))}. No snapshot beside the stream "
            "reads these tables, cdcd mirror and cdcd verify leave them out, and a compacted topic keeps one row "
            "of each key",
            "Add the columns of the primary key to key.columns, or leave it so if consumers expect such keys.",
        )
    if facts.chosen and not facts.refused:
        yield Finding("ok", "key.columns", "key", f"chooses the keys of {named(sorted(facts.chosen))}")


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Result of applying the rules to the tables.

    Attributes:
        refused: errors of columns that cannot choose the partitions of a table, at most one for each table.
        unmatched: rules that match no published table.
        chosen: tables with partitions chosen by columns, as `schema.table`.
        moving: tables of `chosen` in which records of one key may lie in several partitions.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[PartitionRule, ...]
    chosen: frozenset[str]
    moving: frozenset[str]


async def look_at_partitions(
    connection: Connection, oids: Collection[int], partitions: ChosenPartitions, keys: ChosenKeys
) -> PartitionFacts:
    """Apply the rules to the published tables with these oids. Raises TransientError and SourceError."""
    relations = await catalog.relations(connection, oids)
    tables = await catalog.describe(connection, oids, with_kin=True)
    types = await column_types(connection, relations)
    refused: list[ConfigError] = []
    chosen: set[str] = set()
    moving: set[str] = set()
    for relation in relations:
        name = table_text(relation.schema, relation.name)
        try:
            table = keys.applied(relation, numbered(relation, tables[relation.oid]))
            columns = partitions.columns(relation, table)
            if columns:
                PartitionedTable(relation, columns, types, table)
        except ConfigError as error:
            refused.append(error)
            continue
        if columns:
            chosen.add(name)
            if moves(columns, relation, table):
                moving.add(name)
    unmatched = tuple(partitions.unmatched(relations))
    return PartitionFacts(tuple(refused), unmatched, frozenset(chosen), frozenset(moving))


def check_partition_columns(facts: PartitionFacts) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the rules."""
    for error in facts.refused:
        yield of_error("partitioner.columns", "partitioner.columns", error)
    for rule in facts.unmatched:
        yield Finding(
            "warning",
            "partitioner.unmatched",
            "partitioner.columns",
            f"{rule} matches no published table",
            "Correct the pattern, or take it out: <schema>.<table> as PostgreSQL spells them, case included.",
        )
    if facts.moving:
        yield Finding(
            "warning",
            "partitioner.moves",
            "partitioner.columns",
            f"records of one key may lie in several partitions: {named(sorted(facts.moving))}. cdcd mirror and "
            "cdcd verify leave these tables out, and consumers need docs/partitions.md",
            "Choose the partitions by columns of the key, or leave it so if consumers know what to do when rows move.",
        )
    if facts.chosen and not facts.refused:
        yield Finding(
            "ok",
            "partitioner.columns",
            "partitioner.columns",
            f"choose the partitions of {named(sorted(facts.chosen))}",
        )
