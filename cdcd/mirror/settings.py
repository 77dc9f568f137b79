"""What a mirror is to do, as plain values; `cdcd.config.mirror` makes them from a file."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from cdcd.core.catalog.patterns import TablePattern, parse_pattern
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.targets.buckets import buckets_for
from cdcd.mirror.targets.layout import Deletes, Layout
from cdcd.mirror.targets.partitions import Field
from cdcd.mirror.targets.target import Maintenance

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """One mirror: the topics of one pipeline to the tables of one catalog.

    Attributes:
        name: of the mirror, in its log and in Spark's.
        prefix: of the pipeline's topics.
        schemas, checkpoint: the pipeline's topics with these contents.
        not_tables: other topics of the pipeline that hold no changes of rows.
        include, exclude: patterns of `schema.table` (`cdcd/core/catalog/patterns.py`). An empty `include` selects
            all tables.
        history: patterns of tables that get a changelog too.
        scd2: patterns of tables that get a table of their states too, folded from the log.
        checkpoint_location: where Spark keeps the stream's own position; a folder or a bucket.
        interval_s: the least time from the beginning of a batch to that of the next.
        fold_interval_s: a table that is folded from the log is folded when its changes have waited for so many seconds.
        fold_changes: number of waiting changes at which such a table is folded in the next round.
        fold_tables_min: number of such tables that a round folds at least, if so many have changes.
        batch_records_max: maximum number of records that one batch appends to the log, while the mirror runs on.
        threads: tables that are worked on at the same time.
        consistent: all tables go from one common LSN to the next.
        tag_interval_s: least time from one common LSN whose versions get tags to the next; None: none does.
        variant: json columns are VARIANT.
        buckets: how many buckets a new mirror has (`Layout.buckets`); None: by its size, where that is known.
        buckets_for: the same for some tables: pattern and number; the first that fits holds.
        partition_by: fields by which new mirrors are partitioned (`Layout.fields`): pattern and fields; the first that
            fits holds.
        deletes: what becomes of a mirror's rows that the source deletes.
        deletes_for: the same for some tables: pattern and what; the first that fits holds.
        reload: a table that its target cannot follow is read again.
        reload_for: the same for some tables: pattern and whether; the first that fits holds.
        maintenance_interval_s: how often tables are maintained; None: never by this process.
    """

    name: str
    kafka: KafkaSource
    prefix: str
    schemas: str
    checkpoint: str
    checkpoint_location: str
    not_tables: frozenset[str] = frozenset()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    scd2: tuple[str, ...] = ()
    interval_s: float = 60.0
    fold_interval_s: float = 300.0
    fold_changes: int = 10_000
    fold_tables_min: int = 10
    batch_records_max: int = 500_000
    threads: int = 2
    consistent: bool = False
    tag_interval_s: float | None = None
    variant: bool = False
    buckets: int | None = None
    buckets_for: tuple[tuple[str, int | None], ...] = ()
    partition_by: tuple[tuple[str, tuple[Field, ...]], ...] = ()
    deletes: Deletes = Deletes.REMOVE
    deletes_for: tuple[tuple[str, Deletes], ...] = ()
    reload: bool = False
    reload_for: tuple[tuple[str, bool], ...] = ()
    maintenance_interval_s: float | None = 600.0
    maintenance: Maintenance = field(default_factory=Maintenance)

    def wants(self, table: str) -> bool:
        """Whether `schema.table` is mirrored."""
        if _matches(table, self.exclude):
            return False
        return not self.include or _matches(table, self.include)

    def keeps_history(self, table: str) -> bool:
        """Whether it gets a changelog too."""
        return _matches(table, self.history)

    def keeps_states(self, table: str) -> bool:
        """Whether it gets a table of its states too."""
        return _matches(table, self.scd2)

    def reloads(self, table: str) -> bool:
        """Whether it is read again where its target cannot follow."""
        return _first(table, self.reload_for, self.reload)

    def buckets_of(self, table: str, size: int | None = None) -> int:
        """How many buckets a new mirror of `schema.table` has, if it has `size` bytes; None: it is not known."""
        fixed = _first(table, self.buckets_for, self.buckets)
        if fixed is not None:
            return fixed
        # Each bucket lies in each partition, so that a number by the size would be too many.
        return (
            1
            if size is None or self.fields_of(table)
            else buckets_for(size, self.maintenance.target_file_bytes)
        )

    def layout_of(self, table: str, size: int | None = None) -> Layout:
        """How a new mirror of `schema.table` keeps its rows, if it has `size` bytes; None: it is not known."""
        deletes = _first(table, self.deletes_for, self.deletes)
        return Layout(self.buckets_of(table, size), deletes, self.fields_of(table))

    def fields_of(self, table: str) -> tuple[Field, ...]:
        """By which fields a new mirror of `schema.table` is partitioned."""
        return _first(table, self.partition_by, ())


def _first(table: str, rules: Iterable[tuple[str, Value]], otherwise: Value) -> Value:
    """The value of the first rule whose pattern fits the table."""
    return next((value for pattern, value in rules if _matches(table, (pattern,))), otherwise)


def _matches(table: str, patterns: tuple[str, ...]) -> bool:
    return any(_parsed(pattern).matches_name(table) for pattern in patterns)


@lru_cache
def _parsed(pattern: str) -> TablePattern:
    return parse_pattern(pattern, "tables")
