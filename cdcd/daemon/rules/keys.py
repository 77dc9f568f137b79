"""The check of keys: whether cdcd can make the keys that `key.columns` chooses, and those of partitioned tables.

`cdcd check` and every start of a session look.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.chosen_keys import ChosenKeys, KeyRule
from cdcd.core.catalog.partition_identity import check_partitions
from cdcd.core.errors import ConfigError
from cdcd.telemetry.findings import Finding, named, of_error


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """How the rules meet the tables.

    Attributes:
        refused: why a key cannot be made, at most one for each table.
        unmatched: the rules that match no published table.
        chosen: the tables whose key is chosen, as `schema.table`.
        repeating: those of them in which several rows may have the same key.
        unsent: why partitions do not send what the key of a partitioned table needs, at most one for each table.
    """

    refused: tuple[ConfigError, ...] = ()
    unmatched: tuple[KeyRule, ...] = ()
    chosen: frozenset[str] = frozenset()
    repeating: frozenset[str] = frozenset()
    unsent: tuple[ConfigError, ...] = ()


async def look_at_keys(connection: Connection, oids: Collection[int], keys: ChosenKeys) -> KeyFacts:
    """Hold the rules against the published tables with these oids. Raises TransientError and SourceError."""
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
    """What `cdcd check` says of the rules."""
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
