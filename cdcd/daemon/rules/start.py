"""The rules for rows that every start of a session applies to the published tables: which errors end the start, and
which rules have no effect.

With `tables.on_error: set_aside`, a rule that does not fit a table ends no start. The table is set aside with its first
change or row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cdcd.adapters.credentials.columns import protections
from cdcd.adapters.postgres.connection import Connection
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.table_rules import ChosenKeys
from cdcd.core.errors import CdcdError
from cdcd.core.facts import Fact, Observer
from cdcd.core.facts.rules import (
    ColumnRuleUnmatched,
    FilterUnmatched,
    OutboxUnpublished,
    RoutesUnmatched,
)
from cdcd.daemon.rules.rows import (
    look_at_filters,
    look_at_outbox,
    look_at_queries,
    look_at_routes,
    refuse_context,
)
from cdcd.daemon.rules.tables import look_at_columns


@dataclass(frozen=True, slots=True)
class RulesFound:
    """Result of applying the rules to the published tables.

    Attributes:
        refused: errors that end the start.
        without_effect: events about rules that match no published table.
    """

    refused: tuple[CdcdError, ...]
    without_effect: tuple[Fact, ...]

    def refuse(self) -> None:
        """Raise the first error that ends the start."""
        if self.refused:
            raise self.refused[0]

    def apply(self, observe: Observer) -> None:
        """Raise the first error that ends the start, or report the rules without effect."""
        self.refuse()
        for fact in self.without_effect:
            observe(fact)


async def look_at_rules(
    config: Config,
    connection: Connection,
    published: Mapping[int, str],
    bindings: Bindings,
    *,
    hears_messages: bool,
) -> RulesFound:
    """Apply context, filters, routes, queries and outbox to the published tables, which are `schema.table` by oid.

    Args:
        bindings: columns to which the rules of `columns` are bound.
        hears_messages: True if the server sends logical messages.

    Raises:
        TransientError, SourceError.
    """
    silent = refuse_context(config.context, hears_messages=hears_messages)
    refused: list[CdcdError] = [] if silent is None else [silent]
    of_tables: list[CdcdError] = []
    told: list[Fact] = []
    protects = protections(config.columns, bindings)
    if filters := config.filters.settings:
        met = await look_at_filters(connection, published.keys(), filters, protects)
        of_tables += met.refused
        told += [FilterUnmatched(table=table) for table in met.unmatched]
    if routes := config.routes.settings:
        met = await look_at_routes(connection, published.keys(), routes, protects)
        of_tables += met.refused
        told += [RoutesUnmatched(table=table) for table in met.unmatched]
    if config.snapshot.queries:
        of_tables += (await look_at_queries(config, connection, published)).refused
    if (outbox := config.outbox.settings).is_on:
        found = await look_at_outbox(connection, published, outbox, protects, hears_messages=hears_messages)
        refused += found.refused
        told += [OutboxUnpublished(table=table) for table in found.unpublished]
    if config.tables.on_error == "stop":
        refused = of_tables + refused
    return RulesFound(tuple(refused), tuple(told))


async def look_at_column_rules(
    config: Config, connection: Connection, published: Mapping[int, str], bindings: Bindings
) -> RulesFound:
    """Apply the rules of `columns` to the published tables. Raises TransientError and SourceError."""
    keys = ChosenKeys(config.key.rules)
    rules = protections(config.columns, bindings)
    found = await look_at_columns(connection, published.keys(), rules, keys)
    return RulesFound(
        found.refused if config.tables.on_error == "stop" else (),
        tuple([ColumnRuleUnmatched(rule=str(rule)) for rule in found.unmatched]),
    )
