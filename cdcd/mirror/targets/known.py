"""What is known of the tables without looking, and the commits that carry their positions.

The rule: this process is the only writer of a table. So what the newest commit said when the table was first looked at,
and what this process has committed since, is what the table has. `check_newest` finds out when that is not so: another
process has committed (FencedError), or the owner of the table has rolled it back (RolledBackError).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby

from pyspark.sql import SparkSession

from cdcd.core.errors import PositionError
from cdcd.core.facts import Fact, Observer
from cdcd.core.pasted import on_table
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.session import check_classic
from cdcd.mirror.targets.evolution import check
from cdcd.mirror.targets.fencing import NEWEST, NOBODY, Fence, Stamp
from cdcd.mirror.targets.layout import PLAIN, Layout
from cdcd.mirror.targets.making import (
    SCHEMA,
    SCHEMA_AT,
    columns,
    described,
    made,
    partitioned_by,
)
from cdcd.mirror.targets.partitions import check_fields
from cdcd.mirror.targets.state import RolledBackError, State
from cdcd.mirror.targets.table_format import Commit, TableFormat
from cdcd.mirror.targets.target import Kind, New
from cdcd.mirror.watching.progress import TableRestored


@dataclass(slots=True)
class Table:
    """What is known of a table without looking: this process is the only one that writes to it.

    Attributes:
        partial: columns that some change lacked, so that the next batch is reduced right at the first attempt.
        empty: nothing was ever written.
        is_there: False until it is created, which waits for the first batch to be looked at.
        layout: as in `New`.
        version: the newest version that carries a state; None: it has to be looked up.
        is_complete: True if the table is known to have all columns of its form (`Following.complete`).
        back_to: the version to go back to before the next commit, because later commits are misplaced. None: no commit
            is misplaced.
    """

    schema: TableSchema
    schema_at: tuple[int, int]
    kind: Kind
    state: State
    empty: bool
    is_there: bool = True
    partial: set[str] = field(default_factory=set)
    layout: Layout = PLAIN
    version: int | None = None
    back_to: int | None = None
    is_complete: bool = True

    @property
    def new(self) -> New:
        return New(self.schema, self.kind, self.layout)


class KnownTables:
    """The tables by their names in SQL."""

    def __init__(self, format_: TableFormat) -> None:
        self._format = format_
        self.tables: dict[str, Table] = {}
        self._fence = Fence()
        # By table, the stamp of its newest commit as this process knows it; absent: to be looked up.
        self._newest: dict[str, Stamp] = {}
        self.observe: Observer = _tell_nobody

    def forget(self, name: str) -> None:
        self.tables.pop(name, None)
        self._newest.pop(name, None)

    def state(self, spark: SparkSession, name: str) -> State:
        table = self.look(spark, name)
        return State() if table is None else table.state

    @contextmanager
    def commit(self, spark: SparkSession, name: str, state: State) -> Iterator[State]:
        """Make one commit, which carries the state. Gives the state with this process's stamp.

        Raises:
            FencedError: another process writes to the table.
            RolledBackError: see there. Nothing was committed.
        """
        self.take_back(spark, name)
        stamped = self._stamped(state, self.check_newest(spark, name))
        self.version_changes(name)
        self._newest.pop(name, None)
        try:
            with self._format.committing(spark), self._format.carrying(spark, stamped):
                yield stamped
        except Exception:
            # If another process has committed meanwhile, FencedError says more than the conflict of the table format.
            self.check_writer(spark, name)
            raise
        # Delta makes no commit of a MERGE that changes nothing.
        self._newest[name] = _stamp_of(self.check_writer(spark, name))

    def _stamped(self, state: State, newest: Commit | None) -> State:
        """Returns `state` with the stamp of this process's next commit, and with the stamp of `newest` as `made_on`."""
        return replace(state, stamp=self._fence.next(), made_on=_stamp_of(newest))

    def check_writer(self, spark: SparkSession, name: str) -> Commit | None:
        """The newest commit that carries a state; None: there is none. FencedError: another process writes to it."""
        newest: list[Commit] = []
        for commit in self._format.commits(spark, name):
            if all(commit.state.stamp != each.state.stamp for each in newest):
                newest.append(commit)
            if len(newest) == NEWEST:
                break
        self._fence.check(name, [commit.state.stamp for commit in newest])
        return newest[0] if newest else None

    def check_newest(self, spark: SparkSession, name: str) -> Commit | None:
        """As `check_writer`, and check that the newest commit is the one whose position this process knows.

        Raises:
            FencedError: another process writes to the table.
            RolledBackError: the table was rolled back or restored since.
        """
        newest = self.check_writer(spark, name)
        stamp = _stamp_of(newest)
        if self._newest.setdefault(name, stamp) != stamp:
            raise RolledBackError(
                f"{name} was rolled back or restored: its newest commit is not the last one of this mirror.",
                hint="If nobody did so on purpose, find out who changes the mirror's tables.",
            )
        return newest

    def take_back(self, spark: SparkSession, name: str) -> None:
        """Bring the table back to the version `back_to`. Does nothing if no commit of the table is misplaced.

        Raises:
            FencedError: another process writes to the table.
        """
        table = self.tables.get(name)
        if table is None or table.back_to is None:
            return
        restored = self._stamped(table.state, self.check_writer(spark, name))
        with self._format.committing(spark), self._format.carrying(spark, restored):
            self._format.take_back(spark, name, table.back_to)
        newest = self.check_writer(spark, name)
        assert newest is not None, "the commit that was made the newest one again"
        self._newest[name] = _stamp_of(newest)
        self.observe(TableRestored(name, table.back_to))
        table.state, table.back_to = newest.state, None

    def _placed(self, spark: SparkSession, name: str) -> Commit | None:
        """Find the newest commit of a changelog that directly follows the commit which it names in `made_on`.

        Each later commit is misplaced. Another process committed at the same moment, so that both commits may have
        appended the same rows. Mirrors are not checked, because a MERGE does not add a row twice.

        Returns:
            None if the table has no commit.
        """
        commits = self._format.commits(spark, name)
        of_each = (next(same) for _, same in groupby(commits, key=lambda commit: commit.state.stamp))
        placed = next(of_each, None)
        while placed is not None and (below := next(of_each, None)) is not None:
            self._fence.learn(name, [below.state.stamp])
            if placed.state.made_on in (None, below.state.stamp):
                break
            placed = below
        return placed

    def version_changes(self, name: str) -> None:
        """A commit follows: the newest version is not known any more."""
        if (table := self.tables.get(name)) is not None:
            table.version = None

    def make(self, spark: SparkSession, name: str, table: Table, at: tuple[int, int]) -> None:
        """Create a table that was `_planned`. IncompatibleSchemaError: it cannot be."""
        check(table.schema, self._format.reserved)
        check_fields(table.schema, table.layout.fields, computed=table.layout.computed)
        self._format.create(
            spark, name, columns(table.new), described(table.new, at), by=partitioned_by(table.new)
        )
        self._fence.check(name, ())
        table.schema_at, table.is_there = at, True
        self.tables[name] = table

    def look(self, spark: SparkSession, name: str) -> Table | None:
        check_classic(spark, f"Looking at the position of {name}")
        if name not in self.tables and self._format.exists(spark, name):
            properties = self._format.properties(spark, name)
            try:
                new = made(properties)
                lsn, event = json.loads(properties[SCHEMA_AT])
            except (KeyError, ValueError) as error:
                raise PositionError(
                    f"The table {name} is there, but was not made by this program: it lacks the property {SCHEMA}.",
                    hint="Name another catalog, namespace or path for the mirror, or drop the table.",
                ) from error
            newest = last = self.check_writer(spark, name)
            self._newest[name] = _stamp_of(newest)
            if newest is None:
                self.check_whole(spark, name, new.schema.table)
            elif new.kind is Kind.CHANGELOG:
                newest = self._placed(spark, name)
            self.tables[name] = Table(
                new.schema,
                (lsn, event),
                new.kind,
                State() if newest is None else newest.state,
                empty=newest is None,
                layout=new.layout,
                version=None if newest is None else newest.version,
                is_complete=False,
                back_to=None if newest is None or newest == last else newest.version,
            )
        return self.tables.get(name)

    def check_whole(self, spark: SparkSession, name: str, table: str) -> None:
        """That a table, the mirror of `table`, has every version since it was empty. PositionError: it has not."""
        if not self._format.is_whole(spark, name):
            raise PositionError(
                f"No version of {name} that says how far it has come is left.",
                hint=f"Another program let go of the mirror's versions. Drop {name}, then read the table again: "
                f"cdcd mirror --config FILE {on_table('--snapshot', table)} --source FILE (the daemon's configuration)."
                " From then on, let that program keep versions for longer than the mirror may be down.",
            )

    def record(self, spark: SparkSession, name: str, properties: Mapping[str, str]) -> None:
        table = self.tables[name]
        with self.commit(spark, name, table.state) as table.state:
            self._format.record(spark, name, properties, table.state)


def _stamp_of(commit: Commit | None) -> Stamp:
    return NOBODY if commit is None else commit.state.stamp


def _tell_nobody(_fact: Fact) -> None:
    """Nothing watches the tables."""


def planned(new: New, format_: TableFormat) -> Table:
    """A table that is still to be made. Only a mirror has a layout."""
    layout = in_format(new.layout, format_) if new.kind is Kind.MIRROR else PLAIN
    return Table(new.schema, (0, 0), new.kind, State(), empty=True, is_there=False, layout=layout)


def in_format(layout: Layout, format_: TableFormat) -> Layout:
    """The layout as a table of the format has it."""
    return replace(layout, computed=bool(layout.fields) and not format_.has_transforms)
