"""Brings a batch of changes into a table, in one commit that carries the position."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.targets import changelog
from cdcd.mirror.targets.known import KnownTables, Table
from cdcd.mirror.targets.loading import overwrite
from cdcd.mirror.targets.making import placed
from cdcd.mirror.targets.merge import first_rows, merge
from cdcd.mirror.targets.moves import resolved
from cdcd.mirror.targets.reduction import (
    EVENT,
    HELD,
    LATER,
    LSN,
    OP,
    Summary,
    is_after,
    places,
    reduced,
    summary,
)
from cdcd.mirror.targets.state import At, Origin, Place, Reach, State
from cdcd.mirror.targets.table_format import TableFormat, as_view, having
from cdcd.mirror.targets.target import Applied, UnfitError

SMALL_BYTES: Final = 16 * 1024 * 1024
"""Size of all files of a table up to which the table is small. One task reads them in less than a second."""

_STABLE_CODE: Final = {
    # Numbers in the condition of a MERGE are kept beside the code that Spark makes of it, which is compiled again
    # otherwise for each batch.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What an `apply` is asked to record beside what it finds."""

    batch_id: int
    consistent_lsn: int | None
    origin: Origin | None = None
    reach: Reach | None = None

    def after(
        self,
        state: State,
        places: Mapping[int, Place],
        truncated: tuple[int, int] | None,
        found: Summary | changelog.Found,
    ) -> State:
        cut, floor = self.consistent_lsn, state.truncated
        if cut is not None and floor is not None and cut < floor[0]:
            # A snapshot was loaded, and the table is ahead of a cut that lies before it.
            cut = None
        waited = 0 if self.reach is None else self.reach.waiting
        return state.advanced(
            places,
            truncated=truncated,
            consistent_lsn=cut,
            batch_id=self.batch_id,
            origin=self.origin,
            commit_time=found.commit_time,
            held=found.waiting + waited,
        )


class Applying:
    """Applies changes to tables that are known."""

    def __init__(self, format_: TableFormat, known: KnownTables) -> None:
        self._format = format_
        self._known = known

    def apply_mirror(self, name: str, table: Table, changes: DataFrame, step: Asked) -> Applied:
        rows, found = _reduce(changes, table)
        if found.moves:
            if not table.is_there:
                rows.unpersist()
                raise UnfitError
            # They are looked at again and again from here on. Those of most batches are read once.
            with _kept(changes) as kept:
                return self._apply_reduced(name, table, kept, step, (rows, found))
        return self._apply_reduced(name, table, changes, step, (rows, found))

    def _apply_reduced(
        self, name: str, table: Table, changes: DataFrame, step: Asked, batch: tuple[DataFrame, Summary]
    ) -> Applied:
        rows, found = batch
        try:
            if not found.changes:
                return Applied(0, 0, table.state, found.held, found.waiting)
            spark = changes.sparkSession
            reached = places(changes) if step.reach is None else step.reach.places(found.last, found.held)
            state = step.after(table.state, reached, found.truncated, found)
            source = rows.filter(sf.col(HELD).isNull() & (sf.col(OP) != "t"))
            if found.moves:
                now = spark.table(name)
                here = changes.filter(~sf.col(LATER)) if LATER in changes.columns else changes
                partial, buckets = sorted(table.partial), table.layout.buckets
                source = resolved(source, here, table.schema, partial, now, buckets=buckets).persist()
            if state.truncated is not None and not table.layout.marks:
                source = source.filter(is_after(sf.col(LSN), sf.col(EVENT), state.truncated))
            if not table.is_there:
                self._known.make(spark, name, table, found.last)
            applied = self._commit(spark, name, table, source, found, state)
            if found.moves:
                source.unpersist()
        finally:
            rows.unpersist()
        return applied

    def _commit(
        self, spark: SparkSession, name: str, table: Table, source: DataFrame, found: Summary, state: State
    ) -> Applied:
        """Have Spark bring a reduced batch into a table."""
        with self._known.commit(spark, name, state) as stamped:
            if table.empty:
                # If another process fills the table at the same moment, this commit replaces the rows of that process.
                # After an append, the table would have each row twice.
                first = first_rows(source, table.schema, table.layout, found.truncated)
                overwrite(placed(first, table.new), name)
            else:
                self.merge(spark, name, table, source, found)
        return _applied(table, found, stamped)

    def is_small(self, spark: SparkSession, name: str, table: Table) -> bool:
        return table.empty or self._format.files(spark, name).size <= SMALL_BYTES

    def merge(
        self,
        spark: SparkSession,
        name: str,
        table: Table,
        source: DataFrame,
        found: Summary,
        *,
        again: bool = False,
    ) -> None:
        merging = self._format.merging(spark, name, found.keys)
        # In a small table, the rows that hashes leave out cost less than to plan with the hashes.
        is_small = table.layout.buckets == 1 and self.is_small(spark, name, table)
        with as_view(source) as view, merging, having(spark, _STABLE_CODE):
            spark.sql(
                merge(
                    name,
                    view,
                    table.schema,
                    keeps=found.partial,
                    truncated=None if again else found.truncated,
                    key_range=found.key_range,
                    hashes=() if is_small else found.hashes,
                    layout=table.layout,
                    again=again,
                )
            )

    def apply_changelog(self, name: str, table: Table, changes: DataFrame, step: Asked) -> Applied:
        spark = changes.sparkSession
        rows = changelog.rows(changes, table.schema).persist()
        try:
            found = changelog.found(rows)
            if found.unfit:
                raise UnfitError
            if not found.rows:
                return Applied(0, 0, table.state, found.held, found.waiting)
            last = _latest(found.places)
            reached = found.places if step.reach is None else step.reach.places(last, found.held)
            state = step.after(table.state, reached, None, found)
            if not table.is_there:
                self._known.make(spark, name, table, last)
            with self._known.commit(spark, name, state) as state:
                new = changelog.once(rows.filter(~sf.col(LATER)))
                if found.first_lsn is not None and found.first_lsn <= table.state.commit_lsn:
                    # A partition lags behind, or has what the daemon sent again.
                    had = (sf.col(LSN) >= found.first_lsn) & (sf.col(changelog.CHANGE) != "r")
                    new = changelog.without(new, spark.table(name).filter(had))
                self._format.append(placed(new.select(changelog.columns(table.schema)), table.new), name)
        finally:
            rows.unpersist()
        table.state, table.empty = state, False
        return Applied(found.rows, found.rows, state, found.held, found.waiting, found.commit_time)


def _applied(table: Table, found: Summary, stamped: State) -> Applied:
    """What became of a table whose commit carries the state."""
    table.state, table.empty = stamped, False
    return Applied(found.changes, found.keys, stamped, found.held, found.waiting, found.commit_time)


def _reduce(changes: DataFrame, table: Table) -> tuple[DataFrame, Summary]:
    """The reduced batch, kept in memory for the caller to let go of."""
    while True:
        rows = reduced(changes, table.schema, table.partial, marks=table.layout.marks).persist()
        found = summary(rows, table.schema)
        if found.unfit:
            rows.unpersist()
            raise UnfitError
        if found.partial <= table.partial:
            return rows, found
        # A column is lacking for the first time: once more, with an eye on it.
        rows.unpersist()
        table.partial |= found.partial


@contextmanager
def _kept(changes: DataFrame) -> Iterator[DataFrame]:
    kept = changes.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _latest(places: Mapping[int, Place]) -> At:
    """(commit LSN, number of the event) of the last change of all partitions."""
    return max((place.commit_lsn, place.event_no) for place in places.values())
