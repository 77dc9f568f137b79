"""The fold: one statement that brings a part of the log into a base table.

The part is the rows of the table with `position < lsn <= bound`, reduced to the last state of each key by
(LSN, event number). The statement's commit carries the bounds and the version that was pinned (`position.py`). Rows are
parsed from the bytes of the log, because Spark writes numbers of a nested object anew.

Two folds of one table may run at the same time, a driver may freeze in the middle, and an owner may roll the table
back. Each of these leaves a table whose position is right or says that it is not clean. A table that is not clean is
folded again at once, from a lower bound at which it was clean.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SinkError, SourceError, TransientError
from cdcd.core.pasted import shell
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import (
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEADER_UNCHANGED,
    HEADER_UNWRITABLE,
)
from cdcd.mirror.base.columns import alterations, created, digest, present
from cdcd.mirror.base.formats import (
    TOPIC_ID,
    BaseFormat,
    Version,
    check_made,
    form_property,
    properties,
    read_form,
    set_properties,
)
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.position import NO_FORM, NO_VERSION, Carried, Position, is_of
from cdcd.mirror.log.positions import at_version
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.defaults import default_of, fits
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.evolution import (
    IncompatibleSchemaError,
    check,
    unfilled,
    value_of,
)
from cdcd.mirror.targets.merge import merge
from cdcd.mirror.targets.moves import resolved
from cdcd.mirror.targets.reduction import EVENT, LSN, OP, UNFIT, Summary, is_after, prepared, reduced, summary
from cdcd.mirror.targets.same_columns import is_other
from cdcd.mirror.targets.table_format import as_view, having

Forms = Callable[[Collection[str]], Mapping[str, Form]]
"""Gives the forms with these ids, as far as they are described."""

ATTEMPTS: Final = 6
"""How often a fold is tried while others commit to the table at the same time."""

_MERGE: Final = {
    # Without it, Iceberg runs the whole source once more to find the files that a copy-on-write MERGE changes.
    "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled": "false",
    # Numbers in a condition are kept beside the code that Spark makes of it, which it would compile for each fold.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
}

_HEADERS: Final = {
    HEADER_UNCHANGED: "unchanged",
    HEADER_OLD_KEY: "oldkey",
    HEADER_NEW_KEY: "newkey",
    HEADER_UNWRITABLE: "unwritable",
}
"""The column of the log by the name of the header that it has."""


_ABSENT: Final = ("DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")
"""Conditions of Spark's errors for a table that is not there."""


class OvertakenError(TransientError):
    """Others committed to the table during each attempt."""


@dataclass(frozen=True, slots=True)
class PartOfForm:
    """What the log has of one form of a table in a part.

    Attributes:
        schema_id: "" if the records name no form.
        first, last: (LSN, event number) of the first and the last record.
        truncate, cut: the same of the first and the last truncate. None: there is none.
    """

    schema_id: str
    count: int
    first: tuple[int, int]
    last: tuple[int, int]
    truncate: tuple[int, int] | None
    cut: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the log that a fold reads.

    Attributes:
        lower: the part has changes that committed after it.
        cut: (LSN, event number) of the truncate with which the part begins. Rows of the table from before it end. None:
            the part has no truncate.
        forms: what the part has of each form.
        topic_ids: Kafka's ids of the topic that the part was read from.
    """

    lower: int
    cut: tuple[int, int] | None = None
    forms: tuple[PartOfForm, ...] = ()
    topic_ids: frozenset[str] = frozenset()


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
    """

    lsn: int
    changes: int = 0
    keys: int = 0
    attempts: int = 1
    version: str = NO_VERSION


@dataclass(frozen=True, slots=True)
class Place:
    """What is folded where.

    Attributes:
        table: `schema.table` at the source.
        topic: the table's topic.
        name: of the base table, in SQL.
        log: name of the log, in SQL.
        log_version: version of the log that is read; "": the current version.
        log_begins: LSN up to which the log has removed rows of the topic; 0: it has all of them.
        former_name: name that the relation had before, so that its rows begin with a truncate. None: it had no other.
    """

    table: str
    topic: str
    name: str
    log: str
    log_version: str = ""
    log_begins: int = 0
    former_name: str | None = None


def fold(spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int) -> Folded:
    """Bring the table to the LSN `bound`.

    Raises:
        OvertakenError: others committed at the same time, several times.
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    folding = _Folding(spark, format_, place, forms, bound)
    try:
        for attempt in range(1, ATTEMPTS + 1):
            done = folding.attempt()
            if done is not None:
                return replace(done, attempts=attempt)
    except IncompatibleSchemaError as error:
        # The hint of the error is about tables without a log.
        raise IncompatibleSchemaError(place.table, error.what, read_again(place.table)) from error
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

    def attempt(self) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""
        spark, place = self._spark, self._place
        there = None
        topic_id = None
        if exists(spark, place.name):
            topic_id = check_made(spark, place.name, place.table).get(TOPIC_ID)
            there = self._format.version(spark, place.name)
        whole = there is not None and there.position is None
        position = Position(clean=not whole) if there is None or there.position is None else there.position
        pin = NO_VERSION if there is None else there.pin
        if position.clean and position.lsn >= self._bound:
            return Folded(position.lsn, version=pin if position.lsn == self._bound else NO_VERSION)
        part = self._part(position, whole=whole)
        parts, topic_ids = part.forms, set(part.topic_ids)
        if not parts and position.clean:
            return Folded(self._bound, version=pin)
        if topic_id is not None and part.cut is None:
            topic_ids.add(topic_id)
        self._check_topic(topic_ids)
        found = self._described(parts)
        has = self._has(position)
        last = max(parts, key=lambda each: each.last, default=None)
        newest = None
        if last is not None:
            newest = found[last.schema_id]
        elif has is not None:
            newest = self._forms([has.schema_id]).get(has.schema_id)
        if newest is None:
            # The log has nothing that could be folded.
            return Folded(self._bound)
        mine = [each for each in parts if not is_other(found[each.schema_id].schema, newest.schema)]
        self._check_relation(parts, mine, has, newest)
        mine.sort(key=lambda each: each.last)
        # No row from before the truncate stays. So the forms of these rows, and of the truncate, do not matter.
        forms = [found[each.schema_id] for each in mine if (each.first, each.last) != (part.cut, part.cut)]
        path = Path(None if part.cut else has, forms or [newest])
        topic = {TOPIC_ID: min(topic_ids)} if topic_ids else {}
        if there is None:
            check(path.schema)
            given = form_property(digest(path.schema), path.schema.to_json()) | topic
            self._format.create(spark, place.name, created(path.schema), given)
            check_made(spark, place.name, place.table)
            there = self._format.version(spark, place.name)
            if there.position != Position():
                # Another process made the table, and has folded meanwhile.
                return None
        elif not self._follow(there, position, path, topic):
            return None
        return self._statement(there.pin, position, path, part, whole=whole)

    def _part(self, position: Position, *, whole: bool) -> "Part":
        """Return the part of the log that the fold must read. SinkError: the log lacks some of its changes."""
        place = self._place
        if position.reached > self._bound:
            raise OvertakenError(
                f"{place.table}: another writer folded {place.name} beyond the LSN that is known here to be complete.",
                hint="The next fold has a later bound.",
            )
        found = self._parts(max(position.lsn, place.log_begins))
        if found.cut is not None:
            # Nothing from before the last truncate is in the table afterwards.
            return replace(self._parts(found.cut[0] - 1, found.cut), cut=found.cut)
        if position.lsn < place.log_begins:
            lacks = (
                "its position is not known, and"
                if whole
                else f"it is folded up to LSN {Lsn(position.lsn)}, and"
            )
            raise SinkError(
                f"{place.table}: {lacks} the log {place.log} lacks the table's changes up to LSN "
                f"{Lsn(place.log_begins)}.",
                hint=read_again(place.table),
            )
        return found

    def _rows(self, part: "Part") -> DataFrame:
        """The rows of the log that are in the part: changes and truncates of the topic up to the bound."""
        log = at_version(self._spark, self._place.log, self._place.log_version)
        rows = log.filter(
            (sf.col("topic") == self._place.topic)
            & sf.col("kind").isin("change", "truncate")
            & (sf.col("lsn") > part.lower)
            & (sf.col("lsn") <= self._bound)
        )
        if part.cut is not None:
            lsn, event = part.cut
            rows = rows.filter((sf.col("lsn") > lsn) | (_event() >= event))
        return rows

    def _check_topic(self, topic_ids: Collection[str]) -> None:
        if len(topic_ids) > 1:
            raise SinkError(
                f"{self._place.table}: the topic {self._place.topic} was deleted and made again, so changes may be "
                "missing between its former records and those of now.",
                hint=read_again(self._place.table),
            )

    def _parts(self, lower: int, cut: tuple[int, int] | None = None) -> "Part":
        """The part after `lower`, or from the truncate `cut` on. `Part.cut` is that of its last truncate."""
        at = sf.struct("lsn", _event().alias("ord"))
        rows = (
            self._rows(Part(lower, cut))
            .groupBy(sf.coalesce("schema_id", sf.lit("")).alias("id"))
            .agg(
                sf.count(sf.lit(1)).alias("count"),
                sf.min(at).alias("first"),
                sf.max(at).alias("last"),
                sf.min(sf.when(sf.col("kind") == "truncate", at)).alias("truncate"),
                sf.max(sf.when(sf.col("kind") == "truncate", at)).alias("cut"),
                sf.collect_set("topic_id").alias("topic_ids"),
            )
            .collect()
        )
        forms = tuple(
            [
                PartOfForm(
                    row["id"],
                    row["count"],
                    tuple(row["first"]),
                    tuple(row["last"]),
                    None if row["truncate"] is None else tuple(row["truncate"]),
                    None if row["cut"] is None else tuple(row["cut"]),
                )
                for row in rows
            ]
        )
        topic_ids = frozenset([topic_id for row in rows for topic_id in row["topic_ids"]])
        return Part(lower, last_truncate(forms), forms, topic_ids)

    def _described(self, parts: Sequence[PartOfForm]) -> Mapping[str, Form]:
        ids = [part.schema_id for part in parts]
        found = self._forms([id_ for id_ in ids if id_])
        unknown = sorted(set(ids) - found.keys())
        if unknown:
            raise SourceError(
                f"{self._place.table}: no description of source.schema_id {', '.join(unknown) or 'NULL'} is known.",
                hint="Start the daemon again, which describes its tables. If other programs wrote records to the "
                f"topic, mark these records: UPDATE {self._place.log} SET kind = 'unreadable' WHERE topic = "
                f"'{self._place.topic}' AND "
                f"coalesce(schema_id, '') IN ({', '.join(repr(each) for each in unknown)})",
            )
        return found

    def _has(self, position: Position) -> TableSchema | None:
        """The form that the rows have. None: there are no rows, or all of them are folded again."""
        if position.form == NO_FORM:
            return None
        text = read_form(self._spark, self._place.name, position.form)
        if text is None:
            raise SinkError(
                f"{self._place.table}: {self._place.name} lacks the property with the form of its rows.",
                hint=f"DROP TABLE {self._place.name}: the next fold makes the table again from the log.",
            )
        return TableSchema.from_json(text)

    def _check_relation(
        self, parts: Sequence[PartOfForm], mine: Sequence[PartOfForm], has: TableSchema | None, newest: Form
    ) -> None:
        """That a truncate record begins the rows of a relation which took over the name. Else the table stops."""
        schema, former = newest.schema, self._place.former_name
        is_taken = len(mine) < len(parts) or (has is not None and is_other(has, schema))
        if not is_taken and (has is not None or former is None):
            return
        if min(part.first for part in mine) in [part.truncate for part in mine]:
            return
        raise IncompatibleSchemaError(
            schema.table,
            f"another table has this name now (oid {schema.oid}), or it was called {former} before, and no truncate "
            "record precedes its rows in this topic.",
            "",
        )

    def _follow(self, there: Version, position: Position, path: Path, topic: dict[str, str]) -> bool:
        """Give the table the columns of the last form. False: this took a commit, so the table must be read again.

        Args:
            topic: the property that names the topic.
        """
        spark, name, schema = self._spark, self._place.name, path.schema
        form = digest(schema)
        if path.has is not None and form == position.form:
            return True
        check(schema)
        steps = path.steps()
        for column in steps.defaults.values():
            if not fits(spark, column):
                raise unfilled(schema.table, column)
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
            uuid4().hex, position.lsn, position.lsn, there.pin, form, position.reached, position.clean
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
        changes = self._changes(part, path)
        rows, found = self._reduced(changes, schema)
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
            carried = Carried(uuid4().hex, self._bound, position.lsn, pin, digest(schema), self._bound)
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
            self._format.keep(spark, self._place.name, pin, Position(self._bound, self._bound, carried.form))
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

    def _changes(self, part: Part, path: Path) -> DataFrame:
        """The changes of the part, as changes of the last form."""
        headers = [
            sf.when(
                sf.col(column).isNotNull(),
                sf.struct(sf.lit(name).alias("key"), sf.col(column).cast("binary").alias("value")),
            )
            for name, column in _HEADERS.items()
        ]
        records = self._rows(part).select(
            "key",
            "value",
            sf.filter(sf.array(*headers), lambda each: each.isNotNull()).alias("headers"),
            "topic",
            sf.col("part").alias("partition"),
            sf.col("off").alias("offset"),
            sf.col("ts").alias("timestamp"),
            sf.col("schema_id").alias("form"),
        )
        found = []
        for number, form in enumerate(path.forms):
            mine = records.filter(sf.col("form") == form.schema.schema_id)
            parsed = parse(mine, form.schema, form.rules)
            parsed = parsed.withColumn(UNFIT, sf.col(PROBLEM).isNotNull()).drop(PROBLEM)
            found.append(path.upgraded(parsed, number))
        return prepared(reduce(DataFrame.unionByName, found))

    def _reduced(self, changes: DataFrame, schema: TableSchema) -> tuple[DataFrame, Summary]:
        partial: frozenset[str] = frozenset()
        while True:
            rows = reduced(changes, schema, partial).persist()
            found = summary(rows, schema)
            if found.unfit:
                rows.unpersist()
                raise self._unfit(changes)
            if found.partial <= partial:
                return rows, found
            rows.unpersist()
            partial |= found.partial

    def _unfit(self, changes: DataFrame) -> SinkError:
        """The error for changes that are not in the form that they name."""
        first = (
            changes.filter(sf.col(UNFIT)).orderBy("partition", "offset").select("partition", "offset").head()
        )
        assert first is not None, "one was counted"
        place = f"topic = '{self._place.topic}' AND part = {first['partition']} AND off = {first['offset']}"
        return SinkError(
            f"{self._place.table}: the record at {self._place.topic}[{first['partition']}]@{first['offset']} is not in "
            "the form that its schema_id names.",
            hint="Find the program that wrote the record. To continue without the record, mark it in the log: "
            f"UPDATE {self._place.log} SET kind = 'unreadable' WHERE {place}",
        )

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


def _event() -> Column:
    return sf.coalesce(sf.col("ord"), sf.lit(0))


def last_truncate(forms: Sequence[PartOfForm]) -> tuple[int, int] | None:
    """(LSN, event number) of the last truncate of a part. None: there is none."""
    return max([form.cut for form in forms if form.cut is not None], default=None)


def read_again(table: str) -> str:
    """Return the hint for a table that cannot be folded on. Its topic then gets a truncate record and all rows."""
    named = shell(table)
    return (
        f"Let the daemon read the table again: cdcd tables stop {named} --config FILE, and then cdcd tables resume "
        f"{named} --config FILE. The table begins with the truncate record that resume writes (topics.truncate: true)."
    )


def exists(spark: SparkSession, name: str) -> bool:
    """Whether there is a table with this name in SQL."""
    try:
        return bool(spark.catalog.tableExists(name))
    except AnalysisException as error:
        # Delta's answer for a folder without a table.
        if error.getCondition() in _ABSENT:
            return False
        raise
