"""Reports of a start about tables that are left out, or that have configured keys, partitions or fields.

Topics of tables that were published after the session began are created together, by few requests. A topic is created
when a table has its first record. If many tables are created in one transaction, their first records follow each other
while all other tables wait, and a broker takes ten times as long for topics that are created one by one. So the first
missing topic makes cdcd list the published tables.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from cdcd.adapters.postgres.connection import Connection
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.errors import TransientError
from cdcd.core.facts import Observer
from cdcd.core.facts.rules import (
    FieldRuleUnmatched,
    KeyRepeats,
    KeyRuleUnmatched,
    PartitionRuleUnmatched,
    RowsMove,
)
from cdcd.core.facts.tables import TablePatternUnmatched, TablesLeftOut
from cdcd.core.records.shaping.computing import ComputedFields
from cdcd.daemon.rules.tables import (
    FieldFacts,
    KeyFacts,
    PartitionFacts,
    look_at_fields,
    look_at_keys,
    look_at_partitions,
)
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
    computed = ComputedFields(settings.computed_rules, settings.protections, observe)
    _tell_keys(await look_at_keys(sql, published.keys(), keys), observe, stops=stops)
    if partitions:
        _tell_partitions(
            await look_at_partitions(sql, published.keys(), partitions, keys), observe, stops=stops
        )
    if fields:
        _tell_fields(await look_at_fields(sql, published.keys(), fields, computed), observe, stops=stops)


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


class NewTables:
    """The published tables that were not there when the session began.

    Args:
        published: lists the published tables as `schema.table`, by oid.
        topic_of: returns the topic of a table by this name.
        before: oids of the tables at the beginning of the session. Their topics are created at their first records.
    """

    def __init__(
        self,
        published: Callable[[], Awaitable[Mapping[int, str]]],
        topic_of: Callable[[str], str],
        before: Collection[int],
    ) -> None:
        self._published = published
        self._topic_of = topic_of
        self._before = frozenset(before)

    async def topics(self) -> Sequence[str]:
        """Return the topics of all new tables.

        Empty if PostgreSQL does not answer; then each topic is created at its first record.
        """
        try:
            listed = await self._published()
        except TransientError:
            return ()
        return [self._topic_of(name) for oid, name in listed.items() if oid not in self._before]
