"""The fold: one statement that brings a part of the log into a base table.

The part is the rows of the table with `position < lsn <= bound`, reduced to the last state of each key by
(LSN, event number). The statement's commit carries the bounds and the version that was pinned (`position.py`). Rows are
parsed from the bytes of the log, because Spark writes numbers of a nested object anew.

Two folds of one table may run at the same time, a driver may freeze in the middle, and an owner may roll the table
back. Each of these leaves a table whose position is right or says that it is not clean. A table that is not clean is
folded again at once, from a lower bound at which it was clean.
"""

from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SinkError
from cdcd.core.pasted import begin_again
from cdcd.mirror.base.columns import alterations, created, digest, present
from cdcd.mirror.base.formats import (
    BaseFormat,
    OtherMakerError,
    Version,
    check_made,
    form_property,
    properties,
    set_properties,
)
from cdcd.mirror.base.part import Forms, LogReader, OvertakenError, Part, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import plan_of, steps_of
from cdcd.mirror.base.position import NO_VERSION, Carried, Position, is_of
from cdcd.mirror.base.takeover import take_over
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.defaults import default_of
from cdcd.mirror.targets.evolution import (
    IncompatibleSchemaError,
    check,
    value_of,
)
from cdcd.mirror.targets.merge import merge
from cdcd.mirror.targets.moves import resolved
from cdcd.mirror.targets.reduction import EVENT, LSN, OP, is_after
from cdcd.mirror.targets.table_format import as_view, having

ATTEMPTS: Final = 6
"""How often a fold is tried while others commit to the table at the same time."""

_MERGE: Final = {
    # Without it, Iceberg runs the whole source once more to find the files that a copy-on-write MERGE changes.
    "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled": "false",
    # Numbers in a condition are kept beside the code that Spark makes of it, which it would compile for each fold.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
}


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold did.

    Attributes:
        lsn: the bound up to which the table equals the source.
        changes: number of changes in the part.
        keys: number of keys that they change.
        attempts: number of statements; more than one if others committed at the same time.
        version: version of the table that equals the source at the bound of the fold. NO_VERSION: there is no table, or
            it is folded beyond the bound.
        taken_over: LSN after which the fold began, if a mirror without a log had made the table. None: a fold made it.
    """

    lsn: int
    changes: int = 0
    keys: int = 0
    attempts: int = 1
    version: str = NO_VERSION
    taken_over: int | None = None


def fold(spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int) -> Folded:
    """Bring the table to the LSN `bound`.

    Raises:
        OvertakenError: others committed at the same time, several times.
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    folding = _Folding(spark, format_, place, forms, bound)
    taken_over: int | None = None
    try:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                done = folding.attempt()
            except OtherMakerError:
                taken_over = take_over(spark, format_, place)
                if taken_over is None:
                    raise
                done = None
            if done is not None:
                return replace(done, attempts=attempt, taken_over=taken_over)
    except IncompatibleSchemaError as error:
        # The hint of the error is about tables without a log.
        raise IncompatibleSchemaError(place.table, error.what, begin_again(place.table)) from error
    raise OvertakenError(
        f"{place.table}: other writers committed to {place.name} during each of {ATTEMPTS} attempts.",
        hint="Stop the other writers. The next fold tries again.",
    )


class _Folding:
    """One fold of one table."""

    def __init__(
        self, spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int
    ) -> None:
        self._spark = spark
        self._format = format_
        self._place = place
        self._forms = forms
        self._bound = bound
        self._log = LogReader(spark, place, forms, bound)

    def attempt(self) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""
        spark, place = self._spark, self._place
        found = plan_of(spark, self._format, place, self._forms, self._log)
        there, position, path = found.there, found.position, found.path
        if path is None:
            pin = NO_VERSION if there is None else there.pin
            is_at_bound = position.clean and position.lsn <= self._bound
            return Folded(max(position.lsn, self._bound), version=pin if is_at_bound else NO_VERSION)
        if there is None:
            check(path.schema)
            given = form_property(digest(path.schema), path.schema.to_json()) | found.topic
            self._format.create(spark, place.name, created(path.schema), given)
            check_made(spark, place.name, place.table)
            there = self._format.version(spark, place.name)
            if there.position != Position():
                # Another process made the table, and has folded meanwhile.
                return None
        elif not self._follow(there, position, path, found.topic):
            return None
        return self._statement(there.pin, position, path, found.part, whole=found.whole)

    def _follow(self, there: Version, position: Position, path: Path, topic: dict[str, str]) -> bool:
        """Give the table the columns of the last form. False: this took a commit, so the table must be read again.

        Args:
            topic: the property that names the topic.
        """
        spark, name, schema = self._spark, self._place.name, path.schema
        form = digest(schema)
        if path.has is not None and form == position.form:
            return True
        steps = steps_of(spark, path)
        # Rows keep their values in columns that get a wider type. If no row stays, a column may have any other type.
        for change in alterations(present(spark.table(name).schema), schema, anew=path.has is None):
            self._format.alter(spark, name, change)
        for column_name, type_ in steps.types.items():
            change = f"ALTER COLUMN {quoted(column_name)} TYPE {type_.simpleString()}"
            self._format.alter(spark, name, change)
        described = form_property(form, schema.to_json()) | topic
        if not described.items() <= properties(spark, name).items():
            set_properties(spark, name, described)
        if self._format.version(spark, name).pin != there.pin:
            # In Delta, each of these changes is a version. A fold must name the version that it is made on.
            return False
        names = list(steps.defaults)
        sets = {quoted(column): f"s.d{number}" for number, column in enumerate(names)}
        for column_name, relabel in steps.labels.items():
            own = f"t.{quoted(column_name)}"
            sets[quoted(column_name)] = value_of(relabel, schema.column(column_name).spark, own)
        if not sets:
            return True
        values = spark.range(1).select(
            "id",
            *[
                default_of(steps.defaults[column]).cast(schema.column(column).spark).alias(f"d{number}")
                for number, column in enumerate(names)
            ],
        )
        carried = Carried(
            uuid4().hex,
            position.lsn,
            position.lsn,
            there.pin,
            form,
            position.reached,
            position.clean,
            position.ends,
        )
        assigned = ", ".join(f"t.{column} = {value}" for column, value in sets.items())
        with as_view(values) as view:
            source = self._guarded(view, there.pin)
            self._commit(
                there.pin,
                carried,
                f"MERGE INTO {name} t USING {source} s ON true WHEN MATCHED THEN UPDATE SET {assigned}",
            )
        return False

    def _guarded(self, view: str, pin: str) -> str:
        return f"(SELECT * FROM {view} WHERE {self._format.guard(self._place.name, pin)})"

    def _statement(
        self, pin: str, position: Position, path: Path, part: Part, *, whole: bool
    ) -> Folded | None:
        spark, schema = self._spark, path.schema
        changes = self._log.changes(part, path)
        rows, found = self._log.reduced(changes, schema)
        kept: DataFrame | None = None
        source = rows.filter(sf.col(OP) != "t")
        try:
            if found.moves:
                kept = changes.persist()
                now = spark.table(self._place.name)
                source = resolved(source, kept, schema, sorted(found.partial), now).persist()
            if found.truncated is not None:
                source = source.filter(is_after(sf.col(LSN), sf.col(EVENT), found.truncated))
            ends = (self._bound + 1, 0) if whole else part.cut
            fold_id, bound = uuid4().hex, self._bound
            carried = Carried(
                fold_id, bound, position.lsn, pin, digest(schema), bound, ends=dict(self._place.ends)
            )
            with as_view(source) as view:
                statement = merge(
                    self._place.name,
                    self._guarded(view, pin),
                    schema,
                    keeps=found.partial,
                    truncated=ends,
                    key_range=found.key_range,
                    again=not position.clean,
                )
                if not self._commit(pin, carried, statement):
                    return None
        finally:
            for frame in (source, kept, rows):
                if frame is not None:
                    frame.unpersist()
        after = self._format.version(spark, self._place.name)
        if after.pin == pin:
            # The statement changed no row, and Delta makes no commit of it. The next fold would read the part again.
            reached_now = Position(self._bound, self._bound, carried.form, ends=dict(self._place.ends))
            self._format.keep(spark, self._place.name, pin, reached_now)
            return Folded(self._bound, found.changes, found.keys, version=pin)
        if not is_of(carried.fold, after.nodes) and after.position == position:
            raise SinkError(
                f"{self._place.table}: the commit of the fold does not carry its position.",
                hint="change_log: fold needs Iceberg 1.12 or later, or Delta Lake. Former versions of Iceberg lose the "
                "position in silence.",
            )
        reached = after.position
        if reached is None or not reached.clean or reached.lsn < self._bound:
            return None
        version = after.pin if reached.lsn == self._bound else NO_VERSION
        return Folded(self._bound, found.changes, found.keys, version=version)

    def _commit(self, pin: str, carried: Carried, statement: str) -> bool:
        """Run a statement whose commit carries this. False: another commit came first, and nothing was done."""
        try:
            with having(self._spark, _MERGE), self._format.carrying(self._spark, carried):
                self._spark.sql(statement)
        except Exception:
            # What a format raises has a class of Java as often as one of PySpark. The version tells what it means.
            if self._format.version(self._spark, self._place.name).pin == pin:
                raise
            return False
        return True
