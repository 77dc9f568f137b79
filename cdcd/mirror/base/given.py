"""Changes that a job hands over, brought into a table by a fold: `apply_changes` of the library.

The job says which changes come, and not a log. So the commit carries which changes of each partition the table has
(`targets.state.State`), besides what the commit of every fold carries. A batch that comes again, in whole or in part,
changes nothing. Of two processes that bring in the same changes, the later one finds nothing new.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import PositionError
from cdcd.mirror.base.changes import ChangelogFolding, path_between
from cdcd.mirror.base.commit import Folded
from cdcd.mirror.base.fold import TableFolding
from cdcd.mirror.base.formats import (
    GIVEN,
    GIVEN_CHANGES,
    MADE_BY,
    BaseFormat,
    Version,
    base_of,
    check_made,
    former_version,
    read_form,
)
from cdcd.mirror.base.part import LogReader, Part, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import Plan, form_of_rows
from cdcd.mirror.base.position import NO_FORM, Position
from cdcd.mirror.base.takeover import folded
from cdcd.mirror.platform.tables import exists, properties
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, check, way_on
from cdcd.mirror.targets.layout import DELETED, PLAIN, Deletes
from cdcd.mirror.targets.making import SCHEMA
from cdcd.mirror.targets.reduction import fresh, prepared
from cdcd.mirror.targets.same_columns import is_other
from cdcd.mirror.targets.state import At, State
from cdcd.mirror.targets.state import Place as ChangePlace
from cdcd.mirror.targets.target import Kind, Target
from cdcd.mirror.targets.upgrading import upgrade


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply_changes` did.

    Attributes:
        changes: number of changes that were new to the table. 0: the batch was in already, and nothing was committed.
        rows: number of keys that they change, or of rows that were added to a changelog.
    """

    changes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Given:
    """Changes for one table.

    Attributes:
        changes: as `read_changes` gives them, in the form `schema`.
        state: what the table has besides after them: the LSN and the offsets of a snapshot. None: nothing.
        batch_id: number of the batch, for people.
    """

    changes: DataFrame
    schema: TableSchema
    state: State | None = None
    batch_id: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that are new to a table.

    Attributes:
        rows: the changes (`reduction.prepared`), in the form `schema`.
        count: number of them.
        first, last: least and greatest commit LSN of them; 1 and 0 if there are none.
        cut: (commit LSN, number of the event) of the last truncate. None: there is none.
        places: by partition, the last change.
    """

    rows: DataFrame
    schema: TableSchema
    count: int
    first: int
    last: int
    cut: At | None
    places: Mapping[int, ChangePlace]


def batch_of(rows: DataFrame, schema: TableSchema) -> Batch:
    """Look at changes (`reduction.prepared`) in the form `schema`. Reads them once."""
    half = sf.when(sf.col("op") == "d", 0).otherwise(1)
    at = sf.struct("commit_lsn", "event_no")
    found = (
        rows.groupBy("partition")
        .agg(
            sf.count("*").alias("count"),
            sf.min("commit_lsn").alias("first"),
            sf.max(sf.struct("commit_lsn", "event_no", half.alias("half"))).alias("last"),
            sf.max("offset").alias("offset"),
            sf.max(sf.when(sf.col("op") == "t", at)).alias("cut"),
        )
        .collect()
    )
    cuts = [(row["cut"][0], row["cut"][1]) for row in found if row["cut"] is not None]
    places = {
        row["partition"]: ChangePlace(row["last"][0], row["last"][1], row["last"][2], row["offset"])
        for row in found
    }
    return Batch(
        rows,
        schema,
        sum(row["count"] for row in found),
        min([row["first"] for row in found], default=1),
        max([row["last"][0] for row in found], default=0),
        max(cuts, default=None),
        places,
    )


class _Reader(LogReader):
    """Gives the changes of a batch in the place of those that a log has."""

    def __init__(self, spark: SparkSession, place: Place, changes: DataFrame, bound: int) -> None:
        super().__init__(spark, place, lambda _: {}, bound)
        self._given = changes

    def changes(self, part: Part, path: Path) -> DataFrame:
        return self._given


class _Rows(TableFolding):
    """Brings one batch into a mirror."""

    def __init__(
        self, spark: SparkSession, format_: BaseFormat, place: Place, changes: DataFrame, bound: int
    ) -> None:
        super().__init__(spark, format_, place, lambda _: {}, bound)
        self._log = _Reader(spark, place, changes, bound)


class _Changelog(ChangelogFolding):
    """Brings one batch into a changelog."""

    kind = GIVEN_CHANGES

    def __init__(
        self, spark: SparkSession, format_: BaseFormat, place: Place, changes: DataFrame, bound: int
    ) -> None:
        super().__init__(spark, format_, place, lambda _: {}, bound)
        self._log = _Reader(spark, place, changes, bound)

    def carry_out(self, plan: Plan) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""
        assert plan.path is not None, "there is something to fold"
        there, path = plan.there, plan.path
        self._check_names(path.schema)
        if there is None:
            there = self._create(path.schema, {})
            if there.position != Position():
                return None
        elif not self._table.follow(there, plan.position, path, {}, lambda: self._alterations(path)):
            return None
        return self.add(there.pin, plan.position, plan.part, path)


_COMMITS: Final[WeakKeyDictionary[SparkSession, Lock]] = WeakKeyDictionary()
_GUARD: Final = Lock()


def one_at_a_time(spark: SparkSession) -> Lock:
    """A lock for commits of the session: the settings of a session have the state that the next commit carries."""
    with _GUARD:
        return _COMMITS.setdefault(spark, Lock())


def as_it_is(spark: SparkSession, place: Place) -> Place:
    """The place with the treatment of deletes that its table has. A table that is not there removes deleted rows."""
    if exists(spark, place.name) and DELETED in spark.table(place.name).columns:
        return replace(place, layout=replace(PLAIN, deletes=Deletes.MARK))
    return place


class Applying:
    """Brings changes into the tables of a target. The target remembers which changes this process has brought in.

    Args:
        target: names the tables.
    """

    def __init__(self, spark: SparkSession, target: Target) -> None:
        self._spark = spark
        self._target = target
        self._format = base_of(target.format, target.given)

    def apply(self, given: Given, kind: Kind) -> Applied:
        """Bring changes into the table of this kind, in one commit.

        Raises:
            PositionError: the table was rolled back since this process brought changes in, or it is not known which
                changes it has.
            OvertakenError: others committed at the same time, several times.
            IncompatibleSchemaError: the table cannot take the form.
            SinkError: something else has made the table.
        """
        schema = given.schema
        check(schema, self._target.reserved)
        name = self._target.name_of(schema, kind)
        made_by = GIVEN if kind is Kind.MIRROR else GIVEN_CHANGES
        place = as_it_is(self._spark, Place(schema.table, "", name, "", made_by=made_by))
        done: list[State] = []

        def attempt() -> Folded | None:
            done.clear()
            return self._attempt(place, given, kind, done.append)

        with one_at_a_time(self._spark):
            result = folded(self._spark, self._format, place, attempt, made_by)
        if done:
            self._target.brought[name] = done[0]
        return Applied(result.changes, result.keys)

    def _attempt(
        self, place: Place, given: Given, kind: Kind, tell: Callable[[State], None]
    ) -> Folded | None:
        there, position = self._look(place)
        state = _state_of(position)
        self._check_state(place.name, state)
        # A fold reads them several times, and the topic may be far away.
        new = fresh(prepared(given.changes), state).persist()
        try:
            batch = batch_of(new, given.schema)
            if not batch.count and given.state is None:
                return Folded(position.lsn)
            after = replace(state.advanced(batch.places, batch.cut), batch_id=given.batch_id)
            if given.state is not None:
                after = after.advanced(given.state.partitions, given.state.truncated)
            done = self._bring(place, kind, batch, (there, position), after)
        finally:
            new.unpersist()
        tell(after)
        return done if done is None else replace(done, changes=batch.count)

    def _bring(
        self, place: Place, kind: Kind, batch: Batch, was: tuple[Version | None, Position], after: State
    ) -> Folded | None:
        """Fold the batch once. None: another commit came in between, or the table needs one more statement.

        Args:
            was: the version and the position of the table.
            after: what the table has afterwards.
        """
        there, position = was
        has = form_of_rows(self._spark, place, position)
        rows, schema = batch.rows, batch.schema
        if has is not None and has.schema_id != schema.schema_id and batch.last < position.reached:
            # Changes of a partition that lags behind, from before the table got the form that it has.
            rows, schema = upgrade(rows, schema, has), has
        path, removed = self._path(place, kind, has, Form(schema, {}), batch.cut)
        ends = {number: at.offset + 1 for number, at in after.partitions.items()}
        place = replace(place, state=after.to_json(), ends=ends)
        plan = Plan(
            there,
            position,
            Part(batch.first - 1, batch.cut),
            path,
            removed=removed,
            has={} if there is None else check_made(self._spark, place.name, place.table, place.made_by),
        )
        folding = _Rows if kind is Kind.MIRROR else _Changelog
        bound = max(batch.last, position.reached, after.commit_lsn)
        return folding(self._spark, self._format, place, rows, bound).carry_out(plan)

    def _path(
        self, place: Place, kind: Kind, has: TableSchema | None, form: Form, cut: At | None
    ) -> tuple[Path, At | None]:
        """The path from the form of the rows, and the truncate before which rows are removed; None: none are.

        Args:
            cut: the last truncate among the changes.
        """
        if kind is Kind.CHANGELOG:
            return path_between(self._spark, has, [form]), None
        is_another = has is not None and is_other(has, form.schema)
        if has is not None and is_another and cut is None:
            raise IncompatibleSchemaError(
                place.table,
                f"its target has rows of another table that had the name (oid {has.oid}, now {form.schema.oid}).",
                way_on(place.table),
            )
        begins_anew = cut is not None and (is_another or not place.layout.marks)
        return Path(None if begins_anew else has, [form]), cut if begins_anew else None

    def _look(self, place: Place) -> tuple[Version | None, Position]:
        """The version and the position of a table. None: there is no table. PositionError: it is not known."""
        if not exists(self._spark, place.name):
            return None, Position()
        check_made(self._spark, place.name, place.table, place.made_by)
        there = self._format.version(self._spark, place.name)
        if there.position is None:
            raise _unknown(place.table, place.name)
        return there, there.position

    def _check_state(self, name: str, state: State) -> None:
        """PositionError: the table lacks changes that this process has brought in."""
        had = self._target.brought.get(name)
        if had is None or state.has(had):
            return
        del self._target.brought[name]
        raise PositionError(
            f"{name} was rolled back or restored: it lacks changes that this process has brought in.",
            hint="Read the changes again from where the table is now: cdcd.spark.api.reached says which it has.",
        )


def reached(spark: SparkSession, target: Target, name: str) -> State:
    """Which changes a table has, from its newest commit. A table that is not there has none.

    Args:
        name: of the table, in SQL.

    Raises:
        PositionError: no commit that is left says it.
        SinkError: neither `apply_changes` nor `load_snapshot` has made the table.
    """
    if not exists(spark, name):
        return State()
    has, format_ = properties(spark, name), base_of(target.format)
    there = format_.version(spark, name)
    if MADE_BY not in has and SCHEMA in has and (former := former_version(there)) is not None:
        return State.from_json(format_.former_state(spark, name, former))
    check_made(spark, name, name, GIVEN_CHANGES if has.get(MADE_BY) == GIVEN_CHANGES else GIVEN)
    if there.position is None:
        raise _unknown(name, name)
    return _state_of(there.position)


def form_of(spark: SparkSession, target: Target, name: str) -> TableSchema | None:
    """The form of the rows that a table has, whoever of cdcd made it. None: it has no rows, or is not there.

    Args:
        name: of the table, in SQL.
    """
    if not exists(spark, name):
        return None
    position = base_of(target.format).version(spark, name).position
    if position is not None and position.form != NO_FORM:
        found = read_form(spark, name, position.form)
    else:
        found = properties(spark, name).get(SCHEMA)
    return None if found is None else TableSchema.from_json(found)


def _state_of(position: Position) -> State:
    """Which changes a table with this position has."""
    return State.from_json(position.state) if position.state else State()


def _unknown(table: str, name: str) -> PositionError:
    return PositionError(
        f"{table}: no commit of {name} says which changes it has.",
        hint=f"Another program let go of the table's versions. Drop {name}, and read all changes again.",
    )
