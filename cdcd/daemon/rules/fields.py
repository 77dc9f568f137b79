"""Whether the fields that `fields.tables` names can be those of the published tables. `cdcd check` and a start look."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.field_names import KEY, ChosenFields
from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.described import described_tables
from cdcd.telemetry.findings import Finding, named, of_error


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """How the rules meet the tables.

    Attributes:
        refused: why a table cannot have its fields, at most one error for each table.
        unmatched: what of the rules matches nothing, as sentences without their point.
        tables: those whose fields are not just their columns, as `schema.table`.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[str, ...]
    tables: frozenset[str]


async def look_at_fields(connection: Connection, oids: Collection[int], fields: ChosenFields) -> FieldFacts:
    """Hold the rules against the published tables with these oids. Raises TransientError and SourceError."""
    tables_now = await described_tables(connection, oids)
    relations = tables_now.relations
    refused: list[ConfigError] = []
    tables: set[str] = set()
    for relation in relations:
        try:
            found = fields.of_table(relation, tables_now.descriptions[relation.oid])
        except ConfigError as error:
            refused.append(error)
            continue
        if found.constants or found.renamed(relation) is not relation:
            tables.add(f"{relation.schema}.{relation.name}")
    return FieldFacts(tuple(refused), tuple(fields.unmatched(relations)), frozenset(tables))


def check_fields(facts: FieldFacts) -> Iterator[Finding]:
    """What `cdcd check` says of the rules."""
    for error in facts.refused:
        yield of_error("fields.rule", KEY, error)
    for said in facts.unmatched:
        yield Finding(
            "warning",
            "fields.unmatched",
            KEY,
            said,
            "Correct the name, or take it out. Names are as PostgreSQL spells them, case included.",
        )
    if facts.tables and not facts.refused:
        yield Finding("ok", "fields.rule", KEY, f"names fields of {named(sorted(facts.tables))}")
