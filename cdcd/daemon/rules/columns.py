"""Whether the rules of `columns` can be followed for the published tables, and whether each protects something.

`cdcd check` and every start of a session look. A rule that matches nothing is most often a name that was spelled wrong,
and then values go out in clear.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.chosen_keys import ChosenKeys
from cdcd.core.catalog.protection import ColumnRule, Protections
from cdcd.core.catalog.relations import key_columns
from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.described import column_types, numbered
from cdcd.telemetry.findings import Finding, of_error


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """How the rules meet the tables.

    Attributes:
        refused: why a rule cannot be followed, at most one for each table.
        unmatched: the rules that match no column of a published table.
        columns: how many columns are protected.
    """

    refused: tuple[ConfigError, ...]
    unmatched: tuple[ColumnRule, ...]
    columns: int


async def look_at_columns(
    connection: Connection, oids: Collection[int], rules: Protections, keys: ChosenKeys
) -> RuleFacts:
    """Hold the rules against the published tables with these oids. Raises TransientError and SourceError."""
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
    """What `cdcd check` says of the rules."""
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
