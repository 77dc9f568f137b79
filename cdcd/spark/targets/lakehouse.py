"""What Iceberg and Delta have in common: all but how a commit carries the position and how versions are named.

The rule: one `apply` is one commit, and that commit carries the position. What is before it (the reduction of the
batch) changes nothing; what is after it needs nothing. So a process may be killed anywhere, and the batch comes again.

`prepare` takes several commits, for neither format changes columns and fills values in one. Each step is recorded
when it is done, and found done when it is taken again.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from cdcd.errors import PositionError
from cdcd.protocol.lsn import Lsn
from cdcd.spark.defaults import default_of, fits
from cdcd.spark.schema import TableSchema
from cdcd.spark.session import check_classic
from cdcd.spark.sql import quoted, text
from cdcd.spark.targets import changelog
from cdcd.spark.targets.buckets import BUCKET, bucket_of
from cdcd.spark.targets.evolution import (
    Add,
    Drop,
    IncompatibleSchemaError,
    Relabel,
    Rename,
    Step,
    UnknownLabelError,
    Widen,
    after,
    check,
    is_other,
    is_unknown,
    labelled,
    numbered,
    plan,
    rekeyed,
    same_labels,
    unfilled,
    value_of,
    way_on,
)
from cdcd.spark.targets.fencing import NEWEST, Fence
from cdcd.spark.targets.layout import PLAIN, Layout, laid_out
from cdcd.spark.targets.loading import in_form, loaded, logged_rows, mirrored_rows, overwrite
from cdcd.spark.targets.making import (
    KIND,
    SCHEMA,
    SCHEMA_AT,
    SWAPPED,
    columns,
    described,
    made,
    partitioned_by,
    placed,
    replacing,
)
from cdcd.spark.targets.merge import UNKNOWN, first_rows, merge
from cdcd.spark.targets.moves import resolved
from cdcd.spark.targets.name_lists import names_it, with_other_name
from cdcd.spark.targets.own_tables import OwnTables
from cdcd.spark.targets.pinned import CONTROL, Tag, listed_point
from cdcd.spark.targets.reduction import (
    EVENT,
    HELD,
    LATER,
    LSN,
    OP,
    Summary,
    fresh,
    is_after,
    places,
    prepared,
    reduced,
    summary,
)
from cdcd.spark.targets.state import At, Origin, Place, Reach, State
from cdcd.spark.targets.table_format import Commit, as_view, having
from cdcd.spark.targets.target import Applied, Inspected, Kind, LaidOut, New, UnfitError

_STABLE_CODE: Final = {
    # Numbers in the condition of a MERGE are kept beside the code that Spark makes of it, which is compiled anew
    # otherwise for each batch.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
}


@dataclass(slots=True)
class _Table:
    """What is known of a table without looking: this process is the only one that writes to it.

    Attributes:
        partial: columns that some change lacked, so that the next batch is reduced right at the first attempt.
        empty: nothing was ever written.
        is_there: False until it is created, which waits for the first batch to be looked at.
        layout: as in `New`.
        version: the newest version that carries a state; None: it has to be looked up.
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

    @property
    def new(self) -> New:
        return New(self.schema, self.kind, self.layout)


@dataclass(frozen=True, slots=True)
class _Step:
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


class Lakehouse(OwnTables):
    """A `Target`, but for what a format does in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[str, _Table] = {}
        self._fence = Fence()

    def forget(self, name: str) -> None:
        self._tables.pop(name, None)

    def schema(self, spark: SparkSession, name: str) -> TableSchema | None:
        table = self._look(spark, name)
        return None if table is None else table.schema

    def reached(self, spark: SparkSession, name: str) -> State:
        table = self._look(spark, name)
        return State() if table is None else table.state

    def _position(self, spark: SparkSession, name: str) -> State | None:
        """What its commits must carry on; None for a table of our own. FencedError: another process writes to it."""
        if name in self._appended:
            return None
        state = self.reached(spark, name)
        self._check_writer(spark, name)
        self._version_changes(name)
        return state

    def _version_changes(self, name: str) -> None:
        """A commit follows: the newest version is not known any more."""
        if (table := self._tables.get(name)) is not None:
            table.version = None

    @contextmanager
    def _commit(self, spark: SparkSession, name: str, state: State) -> Iterator[State]:
        """Make one commit, which carries the state. Gives the state with this process's stamp.

        Raises:
            FencedError: another process writes to the table.
        """
        self._check_writer(spark, name)
        self._version_changes(name)
        stamped = replace(state, stamp=self._fence.next())
        with self._committing(spark), self._carrying(spark, stamped):
            yield stamped
        self._check_writer(spark, name)

    def _check_writer(self, spark: SparkSession, name: str) -> Commit | None:
        """The newest commit that carries a state; None: there is none. FencedError: another process writes to it."""
        newest: list[Commit] = []
        for commit in self._commits(spark, name):
            if all(commit.state.stamp != each.state.stamp for each in newest):
                newest.append(commit)
            if len(newest) == NEWEST:
                break
        self._fence.check(name, [commit.state.stamp for commit in newest])
        return newest[0] if newest else None

    def pin(self, spark: SparkSession, name: str, tag: Tag | None = None) -> int | None:
        table = self._look(spark, name)
        if table is None:
            return None
        if table.version is None:
            newest = self._check_writer(spark, name)
            table.version = None if newest is None else newest.version
        if tag is not None and table.version is not None:
            self._tag(spark, name, table.version, tag)
        return table.version

    def prepare(  # noqa: PLR0917 - as `New`, and where
        self,
        spark: SparkSession,
        name: str,
        schema: TableSchema,
        kind: Kind,
        at: tuple[int, int],
        layout: Layout = PLAIN,
    ) -> TableSchema:
        table = self._look(spark, name)
        if table is None:
            table = _planned(New(schema, kind, layout))
            self._make(spark, name, table, at)
        elif table.schema.schema_id != schema.schema_id and at > table.schema_at:
            if kind is Kind.MIRROR and is_other(table.schema, schema):
                raise IncompatibleSchemaError(
                    schema.table,
                    f"its target has rows of another table that had the name (oid {table.schema.oid}, now"
                    f" {schema.oid}).",
                    way_on(schema.table),
                )
            if table.kind is not kind:
                raise rekeyed(table.schema, schema)
            self._follow(spark, name, table, schema, at)
        elif not same_labels(table.schema, schema):
            self._follow(spark, name, table, labelled(table.schema, schema), table.schema_at)
        return self._tables[name].schema

    def _follow(
        self, spark: SparkSession, name: str, table: _Table, schema: TableSchema, at: tuple[int, int]
    ) -> None:
        try:
            self._evolve(spark, name, table, schema, at)
        except BaseException:
            self.forget(name)
            raise

    def replace(  # noqa: PLR0917 - as `prepare`, and where
        self,
        spark: SparkSession,
        name: str,
        schema: TableSchema,
        kind: Kind,
        at: tuple[int, int],
        end: tuple[int, int],
        layout: Layout = PLAIN,
    ) -> TableSchema:
        table = self._look(spark, name)
        if table is None:
            table = _planned(New(schema, kind, layout))
            self._make(spark, name, table, at)
        if table.kind is not kind:
            raise IncompatibleSchemaError(
                schema.table,
                f"another table has this name now, and its changes make a {kind} where the former one's made a"
                f" {table.kind}.",
                way_on(schema.table),
            )
        try:
            if table.state.truncated is None or end > table.state.truncated:
                # First of all: whoever is killed after it finds no row of the former table in the form of the new one.
                with self._commit(spark, name, table.state.advanced({}, truncated=end)) as state:
                    overwrite(spark.createDataFrame([], spark.table(name).schema), name)
                table.state = state
            if table.schema.schema_id != schema.schema_id and at > table.schema_at:
                self._evolve(spark, name, table, schema, at)
        except BaseException:
            self.forget(name)
            raise
        return table.schema

    def _make(self, spark: SparkSession, name: str, table: _Table, at: tuple[int, int]) -> None:
        """Create a table that was `_planned`. IncompatibleSchemaError: it cannot be."""
        check(table.schema, self.reserved)
        self._create(spark, name, columns(table.new), described(table.new, at), by=partitioned_by(table.new))
        self._fence.check(name, ())
        table.schema_at, table.is_there = at, True
        self._tables[name] = table

    def apply(
        self,
        name: str,
        changes: DataFrame,
        *,
        batch_id: int = 0,
        consistent_lsn: int | None = None,
        new: New | None = None,
        origin: Origin | None = None,
        reach: Reach | None = None,
    ) -> Applied:
        spark = changes.sparkSession
        table = self._look(spark, name)
        if table is None:
            assert new is not None, "prepare comes first"
            table = _planned(new)
        bound = None if reach is None else reach.bound
        changes = fresh(prepared(changes, bound), table.state)
        try:
            step = _Step(batch_id, consistent_lsn, origin, reach)
            if table.kind is Kind.CHANGELOG:
                return self._apply_changelog(name, table, changes, step)
            return self._apply_mirror(name, table, changes, step)
        except UnfitError:
            raise
        except BaseException:
            # Whether the commit went through is not known; the table itself says so when it is looked at again.
            self.forget(name)
            raise

    def load(
        self,
        name: str,
        rows: DataFrame,
        commit_lsn: int,
        offsets: Mapping[int, int],
        origin: Origin | None = None,
    ) -> State:
        spark = rows.sparkSession
        table = self._look(spark, name)
        assert table is not None, "prepare comes first"
        after_it = loaded(name, table.state, commit_lsn, offsets, origin)
        try:
            with self._commit(spark, name, after_it) as state:
                if table.kind is Kind.CHANGELOG:
                    self._append(placed(logged_rows(rows, table.schema, commit_lsn), table.new), name)
                else:
                    former = None if table.empty else spark.table(name)
                    rows = mirrored_rows(rows, table.schema, commit_lsn, table.layout, former)
                    overwrite(placed(rows, table.new), name)
        except BaseException:
            self.forget(name)
            raise
        table.state, table.empty = state, False
        return state

    def replay(self, name: str, changes: DataFrame) -> None:
        spark = changes.sparkSession
        table = self._look(spark, name)
        assert table is not None, "there is a table to bring them into"
        changes = prepared(changes)
        if table.state.truncated is not None:
            changes = changes.filter(
                is_after(sf.col("commit_lsn"), sf.col("event_no"), table.state.truncated)
            )
        try:
            if table.kind is Kind.CHANGELOG:
                self._replay_changelog(spark, name, table, changes)
            else:
                self._replay_mirror(spark, name, table, changes)
        except BaseException:
            self.forget(name)
            raise
        table.empty = False

    def _replay_mirror(self, spark: SparkSession, name: str, table: _Table, changes: DataFrame) -> None:
        with _kept(changes) as kept:
            rows, found = _reduce(kept, table)
            try:
                if found.moves:
                    now = spark.table(name)
                    rows = resolved(rows, kept, table.schema, sorted(table.partial), now).persist()
                with self._commit(spark, name, table.state) as table.state:
                    self._merge(spark, name, table, rows.filter(sf.col(OP) != "t"), found, again=True)
            finally:
                rows.unpersist()

    def _replay_changelog(self, spark: SparkSession, name: str, table: _Table, changes: DataFrame) -> None:
        new = changelog.without(changelog.rows(changes, table.schema), spark.table(name))
        with self._commit(spark, name, table.state) as table.state:
            self._append(placed(new.select(changelog.columns(table.schema)), table.new), name)

    def swap(  # noqa: PLR0917 - as `load`, and the form
        self,
        name: str,
        new: New,
        rows: DataFrame,
        commit_lsn: int,
        offsets: Mapping[int, int],
        origin: Origin | None = None,
    ) -> State:
        spark, planned = rows.sparkSession, _planned(new)
        schema = planned.schema
        check(schema, self.reserved)
        table = self._look(spark, name)
        assert table is not None, "there is something to replace"
        planned.layout = replacing(table.layout, planned.layout)
        after_it = loaded(name, table.state, commit_lsn, offsets, origin)
        if planned.kind is Kind.CHANGELOG:
            new_rows = logged_rows(rows, schema, commit_lsn)
        else:
            former = None
            if table.kind is Kind.MIRROR and table.layout.marks:
                former = in_form(spark.table(name), table.schema, schema)
            new_rows = mirrored_rows(rows, schema, commit_lsn, planned.layout, former)
        return self._put(spark, name, planned, placed(new_rows, planned.new), (commit_lsn, 0), after_it)

    def _put(  # noqa: PLR0917
        self, spark: SparkSession, name: str, planned: _Table, rows: DataFrame, at: At, after_it: State
    ) -> State:
        """Replace the table that is there by `planned` with `rows`, in one commit. Returns the state of that commit."""
        self.forget(name)
        new = planned.new
        with as_view(rows) as view, self._commit(spark, name, after_it) as state:
            properties = described(new, at) | {SWAPPED: "true"}
            self._create(spark, name, columns(new), properties, view=view, by=partitioned_by(new))
        self._tables[name] = replace(
            planned, schema_at=at, state=state, empty=False, is_there=True, partial=set()
        )
        return state

    def _buckets(self, name: str) -> int:
        """How many buckets a table has that was looked at."""
        table = self._tables.get(name)
        return 1 if table is None else table.layout.buckets

    def layout(self, spark: SparkSession, name: str) -> Layout | None:
        table = self._look(spark, name)
        return None if table is None else table.layout

    def relayout(self, spark: SparkSession, name: str, layout: Callable[[int], Layout]) -> LaidOut:
        table = self._look(spark, name)
        assert table is not None, "there is something to lay out"
        before = table.layout
        if table.kind is Kind.MIRROR:
            after = replacing(before, layout(self._files(spark, name).size))
            if after != before:
                planned = replace(table, layout=after)
                rows = placed(laid_out(spark.table(name).drop(BUCKET), before, after), planned.new)
                self._put(spark, name, planned, rows, table.schema_at, table.state)
        return LaidOut(before, self._tables[name].layout)

    def read(self, spark: SparkSession, name: str, consistent_lsn: int | None = None) -> DataFrame:
        if consistent_lsn is None:
            return spark.table(name)
        version = self._listed_version(spark, name, consistent_lsn)
        if version is not None:
            return self._version(spark, name, version)
        for commit in self._commits(spark, name):
            reached = commit.state.consistent_lsn
            if reached is not None and reached <= consistent_lsn:
                return self._version(spark, name, commit.version)
        if self._is_whole(spark, name) and SWAPPED not in self._properties(spark, name):
            return spark.table(name).filter(sf.lit(False))
        raise PositionError(
            f"{name} has no version from LSN {consistent_lsn} or before any more.",
            hint="Former versions are kept as long as maintenance.keep says; choose a later LSN.",
        )

    def _listed_version(self, spark: SparkSession, name: str, commit_lsn: int) -> int | None:
        """The version that a point lists. None: the point was made by a former version, or before the table was there.

        Raises:
            PositionError: the table is not as of that point.
        """
        check_classic(spark, f"Reading {name} as of an LSN")
        control = self.own_name(CONTROL)
        point = listed_point(spark, control, commit_lsn) if self._exists(spark, control) else None
        if point is None:
            return None
        version: int | None = point["versions"].get(self.bare_name(name))
        if version is not None:
            return version
        schema = self.schema(spark, name)
        if schema is not None and schema.table in point["without"]:
            raise PositionError(
                f"{name} is not as of LSN {Lsn(commit_lsn)}: the table was stopped then, or was read again later.",
                hint="Choose an LSN whose row in cdcd.consistent does not have the table in `without`.",
            )
        return None

    def _look(self, spark: SparkSession, name: str) -> _Table | None:
        check_classic(spark, f"Looking at the position of {name}")
        if name not in self._tables and self._exists(spark, name):
            properties = self._properties(spark, name)
            try:
                new = made(properties)
                lsn, event = json.loads(properties[SCHEMA_AT])
            except (KeyError, ValueError) as error:
                raise PositionError(
                    f"The table {name} is there, but was not made by this program: it lacks the property {SCHEMA}.",
                    hint="Name another catalog, namespace or path for the mirror, or drop the table.",
                ) from error
            newest = self._check_writer(spark, name)
            if newest is None:
                self._check_whole(spark, name)
            self._tables[name] = _Table(
                new.schema,
                (lsn, event),
                new.kind,
                State() if newest is None else newest.state,
                empty=newest is None,
                layout=new.layout,
                version=None if newest is None else newest.version,
            )
        return self._tables.get(name)

    def _check_whole(self, spark: SparkSession, name: str) -> None:
        """That a table has every version since it was empty. PositionError: it has not."""
        if not self._is_whole(spark, name):
            raise PositionError(
                f"No version of {name} that says how far it has come is left.",
                hint="Another program let go of the mirror's versions. Drop the table, and start the mirror for it "
                "again from the beginning of its topic; keep versions for longer than the mirror may be down.",
            )

    def inspect(self, spark: SparkSession, name: str) -> Inspected | None:
        properties = self._properties(spark, name)
        if SCHEMA not in properties or KIND not in properties:
            return None
        state, at = None, None
        for commit in self._commits(spark, name):
            if state is not None and commit.state.partitions != state.partitions:
                break
            # Commits that change no row carry the state on: the oldest one with these places brought the changes.
            state, at = state or commit.state, commit.at
        if state is None:
            self._check_whole(spark, name)
        new = made(properties)
        return Inspected(name, new.schema, new.kind, state, at, self._files(spark, name), new.layout)

    def _apply_mirror(self, name: str, table: _Table, changes: DataFrame, step: _Step) -> Applied:
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
        self, name: str, table: _Table, changes: DataFrame, step: _Step, batch: tuple[DataFrame, Summary]
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
                source = resolved(source, here, table.schema, sorted(table.partial), now).persist()
            if state.truncated is not None and not table.layout.marks:
                source = source.filter(is_after(sf.col(LSN), sf.col(EVENT), state.truncated))
            if not table.is_there:
                self._make(spark, name, table, found.last)
            with self._commit(spark, name, state) as state:
                if table.empty:
                    first = first_rows(source, table.schema, table.layout, found.truncated)
                    self._append(placed(first, table.new), name)
                else:
                    self._merge(spark, name, table, source, found)
            if found.moves:
                source.unpersist()
        finally:
            rows.unpersist()
        table.state, table.empty = state, False
        return Applied(found.changes, found.keys, state, found.held, found.waiting, found.commit_time)

    def _merge(
        self,
        spark: SparkSession,
        name: str,
        table: _Table,
        source: DataFrame,
        found: Summary,
        *,
        again: bool = False,
    ) -> None:
        with as_view(source) as view, self._merging(spark), having(spark, _STABLE_CODE):
            spark.sql(
                merge(
                    name,
                    view,
                    table.schema,
                    keeps=found.partial,
                    truncated=None if again else found.truncated,
                    key_range=found.key_range,
                    hashes=found.hashes,
                    layout=table.layout,
                    again=again,
                )
            )

    def _apply_changelog(self, name: str, table: _Table, changes: DataFrame, step: _Step) -> Applied:
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
                self._make(spark, name, table, last)
            with self._commit(spark, name, state) as state:
                new = changelog.once(rows.filter(~sf.col(LATER)))
                if found.first_lsn is not None and found.first_lsn <= table.state.commit_lsn:
                    # A partition lags behind, or has what the daemon sent again.
                    had = (sf.col(LSN) >= found.first_lsn) & (sf.col(changelog.CHANGE) != "r")
                    new = changelog.without(new, spark.table(name).filter(had))
                self._append(placed(new.select(changelog.columns(table.schema)), table.new), name)
        finally:
            rows.unpersist()
        table.state, table.empty = state, False
        return Applied(found.rows, found.rows, state, found.held, found.waiting, found.commit_time)

    def _evolve(
        self, spark: SparkSession, name: str, table: _Table, schema: TableSchema, at: tuple[int, int]
    ) -> None:
        schema = numbered(table.schema, schema)
        check(schema, self.reserved)
        steps = plan(table.schema, schema, table.kind)
        for step in steps:
            if isinstance(step, Add) and not fits(spark, step.column):
                raise unfilled(schema.table, step.column)
        for step in steps:
            self._take(spark, name, table, step)
            table.schema = after(table.schema, step)
            self._record(spark, name, {SCHEMA: table.schema.to_json()})
        self._record(spark, name, {SCHEMA: schema.to_json(), SCHEMA_AT: json.dumps(list(at))})
        table.schema, table.schema_at = schema, at

    def _take(self, spark: SparkSession, name: str, table: _Table, step: Step) -> None:
        """One step, which may have been taken already by a process that was killed before it could say so."""
        there: dict[str, DataType] = {part.name: part.dataType for part in spark.table(name).schema}
        alter = f"ALTER TABLE {name}"
        match step:
            case Drop(column) if column in there:
                if table.kind is Kind.CHANGELOG:
                    kept = changelog.dropped(column, there)
                    self._name_in_lists(spark, name, table, column, kept)
                    spark.sql(f"{alter} RENAME COLUMN {quoted(column)} TO {quoted(kept)}")
                else:
                    self._name_in_lists(spark, name, table, column, None)
                    spark.sql(f"{alter} DROP COLUMN {quoted(column)}")
            case Rename(column, to) if column in there:
                self._name_in_lists(spark, name, table, column, to)
                spark.sql(f"{alter} RENAME COLUMN {quoted(column)} TO {quoted(to)}")
            case Widen(column, to):
                self._widen(spark, name, column, to.simpleString())
            case Add(column):
                if column.name not in there:
                    self._add(spark, name, column.name, column.spark.simpleString())
                if column.has_default and table.kind is Kind.MIRROR and not table.empty:
                    self._fill(spark, name, table, step)
            case Relabel() if table.kind is Kind.MIRROR and not table.empty:
                self._relabel(spark, name, table, step)
            case _:
                pass

    def _name_in_lists(
        self, spark: SparkSession, name: str, table: _Table, column: str, to: str | None
    ) -> None:
        """Give a column its other name in the rows' lists of columns; None: it is dropped."""
        names = changelog.UNCHANGED if table.kind is Kind.CHANGELOG else UNKNOWN
        rows = names_it(names, column)
        # Few rows have such a list, and most tables have none: then there is nothing to commit.
        if table.empty or spark.table(name).filter(rows).isEmpty():
            return
        with self._commit(spark, name, table.state) as table.state:
            spark.sql(f"UPDATE {name} SET {names} = {with_other_name(names, column, to)} WHERE {rows}")

    def _relabel(self, spark: SparkSession, name: str, table: _Table, step: Relabel) -> None:
        """Rows that are there get the words of now. Taken again it finds none of before."""
        column = quoted(step.name)
        kind = table.schema.column(step.name).spark
        if step.words:
            value = value_of(step, kind, column)
            sets = f"{column} = {value}"
            buckets = table.layout.buckets
            if buckets > 1 and step.name in table.schema.key:
                moved = bucket_of(
                    table.schema, buckets, lambda part: value if part == step.name else quoted(part)
                )
                sets += f", {BUCKET} = {moved}"
            with self._commit(spark, name, table.state) as table.state:
                spark.sql(f"UPDATE {name} SET {sets} WHERE NOT ({column} <=> {value})")
        found = spark.sql(
            f"SELECT {column} FROM {name} WHERE {is_unknown(step, kind, column)} LIMIT 1"
        ).head()
        if found is not None:
            raise UnknownLabelError(
                table.schema.table,
                f"column {step.name} has a value {found[0]!r} that is no label of its enum, which must have been"
                " renamed before it was described.",
                way_on(table.schema.table),
            )

    def _fill(self, spark: SparkSession, name: str, table: _Table, step: Add) -> None:
        """Rows that are there get what PostgreSQL gave them; the commit carries the position on."""
        value = spark.range(1).select(default_of(step.column).alias("value"))
        with (
            as_view(value) as view,
            self._commit(spark, name, table.state) as table.state,
            self._merging(spark),
        ):
            # Not an UPDATE: neither format can set a column of any type to a value that is not written in SQL.
            statement = f"MERGE INTO {name} t USING {view} s ON true WHEN MATCHED THEN UPDATE SET"
            spark.sql(f"{statement} t.{quoted(step.column.name)} = s.value")

    def _record(self, spark: SparkSession, name: str, properties: Mapping[str, str]) -> None:
        listed = ", ".join(f"'{text(key)}' = '{text(value)}'" for key, value in properties.items())
        table = self._tables[name]
        with self._commit(spark, name, table.state) as table.state:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({listed})")


def _reduce(changes: DataFrame, table: _Table) -> tuple[DataFrame, Summary]:
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


def _planned(new: New) -> _Table:
    """A table that is still to be made. Only a mirror has a layout."""
    layout = new.layout if new.kind is Kind.MIRROR else PLAIN
    return _Table(new.schema, (0, 0), new.kind, State(), empty=True, is_there=False, layout=layout)


def _latest(places: Mapping[int, Place]) -> At:
    """(commit LSN, number of the event) of the last change of all partitions."""
    return max((place.commit_lsn, place.event_no) for place in places.values())
