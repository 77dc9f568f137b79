"""Reports of a start about tables that are left out, or that have configured keys, partitions or fields."""

from collections.abc import Mapping
from typing import Final

from cdcd.adapters.postgres.connection import Connection
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.facts import (
    FieldRuleUnmatched,
    KeyRepeats,
    KeyRuleUnmatched,
    Observer,
    PartitionRuleUnmatched,
    RowsMove,
    TablePatternUnmatched,
    TablesLeftOut,
)
from cdcd.daemon.rules.columns import FieldFacts, look_at_fields
from cdcd.daemon.rules.keys import KeyFacts, PartitionFacts, look_at_keys, look_at_partitions
from cdcd.daemon.settings import encoder_settings
from cdcd.daemon.snapshot_driver import SnapshotDriver

TABLES_NAMED: Final = 10
"""Maximum number of left-out tables that a fact names."""


async def tell_tables(
    config: Config,
    sql: Connection,
    snapshots: SnapshotDriver,
    published: Mapping[int, str],
    observe: Observer,
    *,
    bindings: Bindings,
) -> None:
    """Report tables that the pipeline leaves out, and rules of `key.columns` without effect or with a doubtful one.

    Raises:
        ConfigError: a configured key cannot be made, or a partition does not send the values of a key.
        TransientError, SourceError: PostgreSQL does not answer, or refuses.
    """
    # Otherwise a table with such a fault is set aside with its first change or row.
    stops = config.tables.on_error == "stop"
    left_out = await snapshots.left_out(published.keys())
    if left_out:
        observe(TablesLeftOut(tables=left_out[:TABLES_NAMED], count=len(left_out)))
    for pattern in config.tables.selection.unmatched([*published.values(), *left_out]):
        observe(TablePatternUnmatched(pattern=pattern))
    settings = encoder_settings(config, "", bindings=bindings)
    keys, partitions = settings.chosen_keys, settings.chosen_partitions
    fields = settings.chosen_fields
    _tell_keys(await look_at_keys(sql, published.keys(), keys), observe, stops=stops)
    if partitions:
        _tell_partitions(
            await look_at_partitions(sql, published.keys(), partitions, keys), observe, stops=stops
        )
    if fields:
        _tell_fields(await look_at_fields(sql, published.keys(), fields), observe, stops=stops)


def _tell_keys(found: KeyFacts, observe: Observer, *, stops: bool) -> None:
    for error in (*found.refused, *found.unsent) if stops else ():
        raise error
    for rule in found.unmatched:
        observe(KeyRuleUnmatched(rule=str(rule)))
    for table in sorted(found.repeating):
        observe(KeyRepeats(table=table))


def _tell_partitions(found: PartitionFacts, observe: Observer, *, stops: bool) -> None:
    if found.refused and stops:
        raise found.refused[0]
    for rule in found.unmatched:
        observe(PartitionRuleUnmatched(rule=str(rule)))
    for table in sorted(found.moving):
        observe(RowsMove(table=table))


def _tell_fields(found: FieldFacts, observe: Observer, *, stops: bool) -> None:
    if found.refused and stops:
        raise found.refused[0]
    for said in found.unmatched:
        observe(FieldRuleUnmatched(reason=said))
