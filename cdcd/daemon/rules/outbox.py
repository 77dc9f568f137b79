"""Checks of the outbox: its tables have the columns of events, and the server sends logical messages.

`cdcd check` and every start of a session run them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.protection import Protections
from cdcd.core.errors import ConfigError
from cdcd.core.records.shaping.outbox import check_columns
from cdcd.core.records.shaping.settings import Outbox
from cdcd.daemon.rules.columns import described_tables
from cdcd.telemetry.findings import Finding, of_error
from cdcd.telemetry.terminal_text import number


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """Result of checking the outbox against the database.

    Attributes:
        refused: errors of unsuitable outbox tables, at most one for each, and of a server that sends no messages.
        unpublished: outbox tables that are not in the publication, as `schema.table`.
    """

    refused: tuple[ConfigError, ...]
    unpublished: tuple[str, ...]


async def look_at_outbox(
    connection: Connection,
    published: Mapping[int, str],
    outbox: Outbox,
    protections: Protections,
    *,
    hears_messages: bool,
) -> OutboxFacts:
    """Check the outbox against the published tables, which are `schema.table` by oid.

    Args:
        hears_messages: True if the server sends logical messages.

    Raises:
        TransientError, SourceError.
    """
    refused: list[ConfigError] = []
    if outbox.messages and not hears_messages:
        refused.append(
            ConfigError(
                "outbox.messages is on, and this server sends no logical messages, which PostgreSQL 14 and up do.",
                hint="Set outbox.messages: false and use an outbox table (outbox.tables), or upgrade the server.",
            )
        )
    wanted = {f"{schema}.{name}": table for (schema, name), table in outbox.tables.items()}
    oids = [oid for oid, name in published.items() if name in wanted]
    tables_now = await described_tables(connection, oids) if oids else None
    for relation in () if tables_now is None else tables_now.relations:
        assert tables_now is not None
        try:
            rules = protections.in_force(relation, tables_now.descriptions[relation.oid])
            check_columns(relation, wanted[f"{relation.schema}.{relation.name}"], rules)
        except ConfigError as error:
            refused.append(error)
    return OutboxFacts(tuple(refused), tuple(sorted(wanted.keys() - published.values())))


def check_outbox(facts: OutboxFacts, outbox: Outbox) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about the outbox."""
    for error in facts.refused:
        yield of_error("outbox.source", "outbox", error)
    for table in facts.unpublished:
        yield Finding(
            "warning",
            "outbox.unpublished",
            "outbox",
            f"outbox.tables has {table}, which is not published: none of its rows is an event",
            f"Add {table} to the publication, or correct the name: <schema>.<table> as PostgreSQL spells it. Of a "
            "partitioned table, this is the name under which its changes are published.",
        )
    if not facts.refused and not facts.unpublished:
        ways = [number(len(outbox.tables), "table")] * bool(outbox.tables) + ["messages"] * outbox.messages
        yield Finding("ok", "outbox.source", "outbox", f"events come from {' and '.join(ways)}")
