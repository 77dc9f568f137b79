"""The check of `key.columns` and `partitioner.columns`: whether published tables have such keys and partitions.

It is made by `cdcd check` and at every start of a session.

A pattern of `partitioner.columns` that matches no table usually has a misspelled name, and then the key chooses the
partition.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.replica_identity import check_partitions
from cdcd.core.catalog.table_rules import ChosenKeys, ChosenPartitions, KeyRule, PartitionRule, moves
from cdcd.core.errors import ConfigError
from cdcd.core.records.shaping.partitioning import PartitionedTable
from cdcd.daemon.rules.columns import column_types, numbered
from cdcd.telemetry.findings import Finding, named, of_error


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Result of applying the rules to the tables.

    Attributes:
        refused: errors of keys that cannot be made, at most one for each table.
        unmatched: rules that match no published table.
        chosen: tables with a configured key, as `schema.table`.
        repeating: tables of `chosen` in which several rows may have the same key.
        unsent: errors of partitions that do not send the key of a partitioned table, at most one for each table.
    """

    refused: tuple[ConfigError, ...] = ()
    unmatched: tuple[KeyRule, ...] = ()
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
        name = f"{relation.schema}.{relation.name}"
        try:
            table = keys.applied(relation, tables[relation.oid])
        except ConfigError as error:
            refused.append(error)
            continue
        try:
            check_partitions(relation, table)
        except ConfigError as error:
            unsent.append(error)
        if table.chosen_key:
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
        yield of_error("key.columns", "key.columns", error)
    for error in facts.unsent:
        yield of_error("key.partitions", "keys", error)
    for rule in facts.unmatched:
        yield Finding(
            "warning",
            "key.unmatched",
            "key.columns",
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
        yield Finding(
            "ok", "key.columns", "key.columns", f"chooses the keys of {named(sorted(facts.chosen))}"
        )


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
        name = f"{relation.schema}.{relation.name}"
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
