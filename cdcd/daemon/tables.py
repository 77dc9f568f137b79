"""What a start says of the tables that the configuration leaves out, and of the keys of tables."""

from collections.abc import Mapping
from typing import Final

from cdcd.checks.keys import look_at_keys
from cdcd.checks.settings import encoder_settings
from cdcd.config.loading import Config
from cdcd.daemon.snapshot_driver import SnapshotDriver
from cdcd.facts import KeyRepeats, KeyRuleUnmatched, Observer, TablePatternUnmatched, TablesLeftOut
from cdcd.postgres.connection import Connection

TABLES_NAMED: Final = 10
"""How many of the tables that are left out a fact names."""


async def tell_tables(
    config: Config,
    sql: Connection,
    snapshots: SnapshotDriver,
    published: Mapping[int, str],
    observe: Observer,
) -> None:
    """Tell which published tables the pipeline leaves out, and which rules of `key.columns` have no or a doubtful use.

    Raises:
        ConfigError: a key that is chosen cannot be made, or a partition does not send what a key needs.
        TransientError, SourceError: PostgreSQL does not answer, or refuses.
    """
    left_out = await snapshots.left_out(published.keys())
    if left_out:
        observe(TablesLeftOut(tables=left_out[:TABLES_NAMED], count=len(left_out)))
    for pattern in config.tables.selection.unmatched([*published.values(), *left_out]):
        observe(TablePatternUnmatched(pattern=pattern))
    keys = encoder_settings(config, "").chosen_keys
    found = await look_at_keys(sql, published.keys(), keys)
    for error in (*found.refused, *found.unsent):
        raise error
    for rule in found.unmatched:
        observe(KeyRuleUnmatched(rule=str(rule)))
    for table in sorted(found.repeating):
        observe(KeyRepeats(table=table))
