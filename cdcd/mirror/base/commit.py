"""What all folds have in common: attempts, columns, and statements whose commit carries the position.

Two folds of one table may run at the same time, a driver may freeze in the middle, and an owner may roll the table
back. Each of these leaves a table whose position is right or says that it is not clean. A table that is not clean is
folded again at once, from a lower bound at which it was clean.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.base.columns import digest
from cdcd.mirror.base.formats import BaseFormat, Version, form_property
from cdcd.mirror.base.part import Forms, LogReader, OvertakenError, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import steps_of
from cdcd.mirror.base.position import NO_VERSION, Carried, Position, is_of
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.platform.tables import as_view, having, properties, set_properties
from cdcd.mirror.records.defaults import default_of
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import BUCKET, bucket_of
from cdcd.mirror.targets.changelog import UNCHANGED
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, is_unknown, value_of, way_on
from cdcd.mirror.targets.layout import PLAIN, Layout
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.name_lists import Renamed
from cdcd.mirror.targets.same_columns import pairs

ATTEMPTS: Final = 6
"""How often a fold is tried while others commit to the table at the same time."""

IN_MERGES: Final = {
    # Without it, Iceberg runs the whole source once more to find the files that a copy-on-write MERGE changes.
    "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled": "false",
    # Numbers in a condition are kept beside the code that Spark makes of it, which it would compile for each fold.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
}
"""Settings of Spark for a MERGE."""


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


def attempted(place: Place, attempt: Callable[[], Folded | None]) -> Folded:
    """Repeat `attempt` until it returns a result. OvertakenError: `ATTEMPTS` attempts returned None."""
    for number in range(1, ATTEMPTS + 1):
        done = attempt()
        if done is not None:
            return replace(done, attempts=number)
    raise OvertakenError(
        f"{place.table}: other writers committed to {place.name} during each of {ATTEMPTS} attempts.",
        hint="Stop the other writers. The next fold tries again.",
    )


def _moved(schema: TableSchema, layout: Layout, sets: Mapping[str, str]) -> dict[str, str]:
    """What the columns become by which a table is laid out if these columns of the source change, in SQL."""

    def value(name: str) -> str:
        return f"({sets[quoted(name)]})" if quoted(name) in sets else f"t.{quoted(name)}"

    found = {
        name: field.value(schema, value(field.column))
        for name, field in layout.own
        if quoted(field.column) in sets
    }
    if layout.buckets > 1 and any(quoted(name) in sets for name in schema.key):
        found[BUCKET] = bucket_of(schema, layout.buckets, value)
    return found


def _and(*conditions: str) -> str:
    return " AND ".join([each for each in conditions if each])


class Committing:
    """Changes one table.

    Args:
        bound: of the fold.
    """

    def __init__(self, spark: SparkSession, format_: BaseFormat, place: Place, bound: int) -> None:
        self._spark = spark
        self._format = format_
        self._place = place
        self._bound = bound

    def guarded(self, view: str, pin: str) -> str:
        """A subquery with the rows of the view. It ends the statement if the table has another version than `pin`."""
        return f"(SELECT * FROM {view} WHERE {self._format.guard(self._place.name, pin)})"

    def follow(
        self,
        there: Version,
        position: Position,
        path: Path,
        topic: dict[str, str],
        changes: Callable[[], Iterable[str]],
        rows: str = "",
        layout: Layout = PLAIN,
    ) -> bool:
        """Give the table the columns of the last form. Return False if this took a commit: read the table again then.

        Args:
            topic: the property that names the topic.
            changes: gives what stands behind `ALTER TABLE`, for columns that are added, dropped, or renamed.
            rows: condition of the rows `t` that get the values of the last form. "": all of them do.
            layout: of the table.

        Raises:
            IncompatibleSchemaError: the rows cannot get the last form.
        """
        spark, name, schema = self._spark, self._place.name, path.schema
        form = digest(schema)
        if path.has is not None and form == position.form:
            return True
        steps = steps_of(spark, path)
        for change in changes():
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
            kind = schema.column(column_name).spark
            value = value_of(relabel, kind, f"t.{quoted(column_name)}")
            self._check_labels(column_name, value, is_unknown(relabel, kind, value))
            sets[quoted(column_name)] = value
        if steps.labels:
            sets |= _moved(schema, layout, sets)
        where = rows
        if renamed := self._names_in_rows(path):
            where = where if sets else _and(rows, renamed.condition)
            sets[renamed.column] = renamed.value
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
            position.state,
        )
        assigned = ", ".join(f"t.{column} = {value}" for column, value in sets.items())
        matched = f"WHEN MATCHED AND {where}" if where else "WHEN MATCHED"
        with as_view(values) as view:
            source = self.guarded(view, there.pin)
            self.commit(
                there.pin,
                carried,
                lambda to: f"MERGE INTO {to} t USING {source} s ON true {matched} THEN UPDATE SET {assigned}",
            )
        return False

    def _check_labels(self, column: str, value: str, condition: str) -> None:
        """IncompatibleSchemaError: a row has a word that is no label of its enum, before and after the renames."""
        rows = self._spark.table(self._place.name).alias("t").filter(condition)
        found = rows.selectExpr(f"CAST({value} AS string) AS value").head()
        if found is not None:
            raise IncompatibleSchemaError(
                self._place.table,
                f"column {column} has a value {found['value']!r} that is no label of its enum, which must have been"
                " renamed before it was described.",
                way_on(self._place.table),
            )

    def _names_in_rows(self, path: Path) -> Renamed | None:
        """How rows follow that name columns of the source, in a list. None: no row names a column with another name."""
        table = self._spark.table(self._place.name)
        column = next((each for each in (UNKNOWN, UNCHANGED) if each in table.columns), None)
        if column is None or path.has is None:
            return None
        to = {before.name: after.name for before, after in pairs(path.has, path.schema)}
        for before in path.has.columns:
            if before.name not in to and column == UNCHANGED:
                # A changelog keeps the column under another name.
                names = [each for each in table.columns if each.startswith(f"{before.name}__dropped")]
                to[before.name] = max(names, key=lambda each: (len(each), each), default=before.name)
        found = Renamed(
            column, [each.name for each in path.has.columns if to.get(each.name) != each.name], to
        )
        if not found.names or table.alias("t").filter(found.condition).isEmpty():
            return None
        return found

    def carried(self, pin: str, position: Position, form: str) -> Carried:
        """Return the facts that the commit of the fold carries."""
        bound = self._bound
        place = self._place
        return Carried(
            uuid4().hex, bound, position.lsn, pin, form, bound, ends=dict(place.ends), state=place.state
        )

    def commit(self, pin: str, carried: Carried, statement: Callable[[str], str]) -> bool:
        """Run a statement whose commit carries this. False: another commit came first, and nothing was done.

        `statement`: gives it by the name of the table in SQL.
        """
        spark, name = self._spark, self._place.name
        try:
            with having(spark, IN_MERGES), self._format.carrying(spark, name, carried) as to:
                spark.sql(statement(to))
        except Exception:
            # The class of the error does not tell whether the statement has committed. The commits of the table do.
            now = self._format.version(spark, name)
            if is_of(carried.fold, now.nodes):
                # The statement has committed. What failed came afterwards, such as Delta's hooks after a commit.
                return True
            if now.pin == pin:
                raise
            return False
        return True

    def settled(
        self, pin: str, position: Position, carried: Carried, *, changes: int, keys: int
    ) -> Folded | None:
        """Return the result of the statement, by the commits that the table has now. None: another commit overtook it.

        Args:
            position: of the table before the statement.
        """
        after = self._format.version(self._spark, self._place.name)
        if after.pin == pin:
            # The statement changed no row, and Delta makes no commit of it. The next fold would read the part again.
            reached_now = Position(
                self._bound,
                self._bound,
                carried.form,
                ends=dict(self._place.ends),
                state=self._place.state,
            )
            self._format.keep(self._spark, self._place.name, pin, reached_now)
            return Folded(self._bound, changes, keys, version=pin)
        is_lost = not is_of(carried.fold, after.nodes) and after.position == position
        # Otherwise, the statement changed no row, and the commit of another writer came in between.
        if is_lost and self._format.always_commits:
            raise SinkError(
                f"{self._place.table}: the commit of the fold does not carry its position.",
                hint="With Spark 4.1 or later, change_log: fold needs Iceberg 1.12 or later. Former versions of "
                "Iceberg lose the position in silence.",
            )
        reached = after.position
        if reached is None or not reached.clean or reached.lsn < self._bound:
            return None
        version = after.pin if reached.lsn == self._bound else NO_VERSION
        return Folded(self._bound, changes, keys, version=version)


class Folding:
    """One fold of one table: the log, the table, and the bound that each attempt has."""

    def __init__(
        self, spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int
    ) -> None:
        self._spark = spark
        self._format = format_
        self._place = place
        self._forms = forms
        self._bound = bound
        self._log = LogReader(spark, place, forms, bound)
        self._table = Committing(spark, format_, place, bound)
