"""Changes that a job hands over, brought into a table by a fold: `apply_changes` and `load_snapshot` of the library.

The job says which changes come, and not a log. So the commit carries which changes of each partition the table has
(`targets.state.State`), besides what the commit of every fold carries. A batch that comes again, in whole or in part,
changes nothing. Of two processes that bring in the same changes, the later one finds nothing new.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import CdcdError, PositionError
from cdcd.core.protocol.lsn import Lsn
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
from cdcd.mirror.base.load import FIRST, Loading, load_rows
from cdcd.mirror.base.part import LogReader, Part, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import Plan, form_of_rows
from cdcd.mirror.base.position import NO_FORM, Position
from cdcd.mirror.base.takeover import folded, take_over
from cdcd.mirror.platform.tables import exists, properties
from cdcd.mirror.records.changes import PROBLEM
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.snapshot.failures import raised_by_task
from cdcd.mirror.snapshot.reading import PARTITION_BYTES, Loaded, Snapshot, read_rows
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, check, way_on
from cdcd.mirror.targets.layout import DELETED, PLAIN, Deletes, Layout
from cdcd.mirror.targets.making import SCHEMA
from cdcd.mirror.targets.reduction import fresh, places, prepared
from cdcd.mirror.targets.same_columns import is_other
from cdcd.mirror.targets.state import At, State
from cdcd.mirror.targets.state import Place as ChangePlace
from cdcd.mirror.targets.target import QUARANTINE, Kind, Target, kind_of
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


def _one_at_a_time(spark: SparkSession) -> Lock:
    """A lock for commits of the session: the settings of a session have the state that the next commit carries."""
    with _GUARD:
        return _COMMITS.setdefault(spark, Lock())


class Applying:
    """Brings changes into the tables of a target, and knows what it has brought in.

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
        place = Place(schema.table, "", name, "", made_by=made_by)
        if exists(self._spark, name) and DELETED in self._spark.table(name).columns:
            place = replace(place, layout=replace(PLAIN, deletes=Deletes.MARK))
        done: list[State] = []

        def attempt() -> Folded | None:
            done.clear()
            return self._attempt(place, given, kind, done.append)

        with _one_at_a_time(self._spark):
            result = folded(self._spark, self._format, place, attempt, made_by)
        if done:
            self._target.brought[name] = done[0]
        return Applied(result.changes, result.keys)

    def _attempt(
        self, place: Place, given: Given, kind: Kind, tell: Callable[[State], None]
    ) -> Folded | None:
        there, position = self._look(place)
        state = State.from_json(position.state) if position.state else State()
        self._check_state(place.name, state)
        new = fresh(prepared(given.changes), state)
        about = new.agg(
            sf.count("*").alias("count"),
            sf.min("commit_lsn").alias("first"),
            sf.max(sf.struct("commit_lsn", "event_no")).alias("last"),
            sf.max(sf.when(sf.col("op") == "t", sf.struct("commit_lsn", "event_no"))).alias("cut"),
        ).collect()[0]
        if not about["count"] and given.state is None:
            return Folded(position.lsn)
        cut = None if about["cut"] is None else (int(about["cut"][0]), int(about["cut"][1]))
        after = replace(state.advanced(places(new), cut), batch_id=given.batch_id)
        if given.state is not None:
            after = after.advanced(given.state.partitions, given.state.truncated)
        last = 0 if about["last"] is None else int(about["last"][0])
        has = form_of_rows(self._spark, place, position)
        schema = given.schema
        if has is not None and has.schema_id != schema.schema_id and last < position.reached:
            # Changes of a partition that lags behind, from before the table got the form that it has.
            new, schema = upgrade(new, schema, has), has
        form = Form(schema, {})
        path, removed = self._path(place, kind, has, form, cut)
        bound = max(last, position.reached, after.commit_lsn)
        place = replace(
            place,
            state=after.to_json(),
            ends={number: at.offset + 1 for number, at in after.partitions.items()},
        )
        plan = Plan(
            there,
            position,
            Part(int(about["first"] or 1) - 1, cut),
            path,
            removed=removed,
            has={} if there is None else check_made(self._spark, place.name, place.table, place.made_by),
        )
        folding = _Rows if kind is Kind.MIRROR else _Changelog
        done = folding(self._spark, self._format, place, new, bound).carry_out(plan)
        tell(after)
        return done if done is None else replace(done, changes=about["count"])

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
    return State.from_json(there.position.state) if there.position.state else State()


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


def load_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    table: str,
    target: Target,
    *,
    history: bool = False,
    variant: bool = False,
    partition_bytes: int = PARTITION_BYTES,
    layout: Callable[[int], Layout] | None = None,
) -> Loaded:
    """Make the mirror of `schema.table` what the table is at the snapshot, in one commit that records its LSN.

    What the mirror had before is replaced, and so is its form. Rows that fit no type of the mirror go into quarantine.

    Args:
        history: the table has a changelog too, which gets each row once more.
        layout: gives the layout of a new mirror for a table of so many bytes. A mirror that is there keeps its own.

    Raises:
        SourceError: it may not be read.
        TransientError: it was altered, truncated or dropped since, or PostgreSQL ended the snapshot: take a new one.
        PositionError: the mirror has changes from after the snapshot.
        IncompatibleSchemaError: no mirror can have the table's form, because of the names of its columns.
        SinkError: something else has made the table of the target.
    """
    form = snapshot.form(table, variant=variant, mirrored=True)
    kinds = [kind_of(form.schema)]
    if history and Kind.CHANGELOG not in kinds:
        kinds.append(Kind.CHANGELOG)
    changes = read_rows(
        spark, snapshot, table, variant=variant, partition_bytes=partition_bytes, mirrored=True
    ).persist()
    try:
        counts = changes.agg(sf.count("*").alias("rows"), sf.count(PROBLEM).alias("problems")).collect()[0]
        problems, sound = counts["problems"], changes.filter(sf.col(PROBLEM).isNull())
        rows = counts["rows"] - problems
        for kind in kinds:
            if kind is Kind.MIRROR:
                _load(spark, snapshot, target, form, sound, rows, layout)
            else:
                _log(spark, snapshot, target, form, sound)
        quarantined = _quarantine(target, table, changes) if problems else 0
    except CdcdError:
        raise
    except Exception as error:
        # A table format raises exceptions of Java as well as PySpark's own.
        raise raised_by_task(table, error) from error
    finally:
        changes.unpersist()
    return Loaded(rows, quarantined, snapshot.lsn)


def _load(
    spark: SparkSession,
    snapshot: Snapshot,
    target: Target,
    form: Form,
    rows: DataFrame,
    count: int,
    layout: Callable[[int], Layout] | None,
) -> None:
    table, format_ = form.schema.table, base_of(target.format, target.given)
    name = target.name_of(form.schema, Kind.MIRROR)
    place = Place(table, snapshot.topic(table), name, "", made_by=GIVEN)
    if layout is not None:
        place = replace(place, layout=layout(snapshot.size(table)))
    elif exists(spark, name) and DELETED in spark.table(name).columns:
        place = replace(place, layout=replace(PLAIN, deletes=Deletes.MARK))
    check(form.schema, target.reserved)
    if exists(spark, name):
        take_over(spark, format_, place, GIVEN)
    after = _loaded(snapshot, table, reached(spark, target, name), name)
    with _one_at_a_time(spark):
        load_rows(Loading(spark, format_, replace(place, state=after.to_json())), snapshot, form, rows, count)
    target.brought[name] = after


def _log(spark: SparkSession, snapshot: Snapshot, target: Target, form: Form, rows: DataFrame) -> None:
    """Add the rows of a snapshot to a changelog."""
    table, schema = form.schema.table, form.schema
    name = target.name_of(schema, Kind.CHANGELOG)
    after = _loaded(snapshot, table, reached(spark, target, name), name)
    at = {"commit_lsn": snapshot.commit_lsn, "event_no": FIRST}
    changes = rows.withColumns({key: sf.lit(value).cast("bigint") for key, value in at.items()})
    Applying(spark, target).apply(Given(changes.drop(PROBLEM), schema, after), Kind.CHANGELOG)


def _loaded(snapshot: Snapshot, table: str, state: State, name: str) -> State:
    """The state of a table when a snapshot is loaded into it. PositionError: it has later changes.

    A snapshot is a truncate followed by its rows, both at one place among the changes.
    """
    lsn, topic_id = snapshot.commit_lsn, snapshot.topic_id(table)
    if state.commit_lsn > lsn:
        raise PositionError(
            f"{name} has changes up to {Lsn(state.commit_lsn)}, after the snapshot's {Lsn(lsn)}.",
            hint="Another process mirrors into the table: stop that process first, and take a new snapshot.",
        )
    if topic_id is not None and topic_id != state.topic_id:
        # Places in the former topic say nothing.
        state = replace(state, partitions={}, topic_id=topic_id)
    at = {
        number: ChangePlace(lsn, FIRST, 1, offset - 1)
        for number, offset in snapshot.offsets(table).items()
        if offset > 0
    }
    return replace(state.advanced(at, (lsn, 0)), commit_lsn=lsn)


def _quarantine(target: Target, table: str, changes: DataFrame) -> int:
    place = ("topic", "partition", "offset")
    rows = changes.filter(sf.col(PROBLEM).isNotNull()).select(
        sf.lit(table).alias("table"),
        *place,
        sf.col("timestamp").alias("record_time"),
        sf.col("key_bytes").alias("key"),
        sf.col("value_bytes").alias("value"),
        sf.col(PROBLEM).alias("reason"),
        sf.col("schema_id"),
    )
    return target.append(target.own_name(QUARANTINE), rows, place)


def _unknown(table: str, name: str) -> PositionError:
    return PositionError(
        f"{table}: no commit of {name} says which changes it has.",
        hint=f"Another program let go of the table's versions. Drop {name}, and read all changes again.",
    )
